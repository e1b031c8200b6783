package integration

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/pki"
)

func newAuthority(t *testing.T) *pki.Authority {
	t.Helper()
	a, err := pki.NewAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func issue(t *testing.T, a *pki.Authority, notAfter time.Time, names ...string) pki.KeyPair {
	t.Helper()
	pair, err := a.Issue(notAfter, names...)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// manyAddresses do not fit into a datagram of 1,232 bytes.
const manyAddresses = 200

// exampleZone returns a zone in which every name has one address, and the name "many" has many.
func exampleZone() string {
	var text strings.Builder
	text.WriteString("* A 198.51.100.1\n")
	for i := range manyAddresses {
		fmt.Fprintf(&text, "many A 192.0.2.%d\n", i+1)
	}
	return text.String()
}

// tlsBlock returns a server block of a Corefile that serves exampleZone over TLS.
func tlsBlock(t *testing.T, port int, pair pki.KeyPair) string {
	t.Helper()
	zone := filepath.Join(t.TempDir(), "example.com.zone")
	text := "$ORIGIN example.com.\n$TTL 1\n@ SOA ns hostmaster 1 3600 600 86400 1\n@ NS ns\n" + exampleZone()
	if err := os.WriteFile(zone, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cert, key, err := pair.Write(t.TempDir(), "dns")
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("tls://example.com:%d {\n\ttls %s %s\n\tfile %s\n\tlog\n}\n", port, cert, key, zone)
}

// applyResolved applies an ExternalBackend whose target is its own name under example.com. dns has
// further fields of spec.dns.
func applyResolved(h *harness.Test, name, dns string) {
	h.T.Helper()
	h.ApplyBackend(name, `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80, targetPort: 8080}]
targets: [{name: db, hostname: %s.example.com}]
dns: {%s, minTTLSeconds: 1}
`, name, dns)
}

// waitResolved waits until the ExternalBackend of applyResolved is published and Ready.
func waitResolved(h *harness.Test, name string) {
	h.T.Helper()
	h.WaitStates(name, oneEndpoint)
	h.WaitCondition(name, "NamesResolved", metav1.ConditionTrue, "NamesResolved")
	h.WaitReady(name)
}

// waitUnresolved waits until its status says that the name was never resolved, and why.
func waitUnresolved(h *harness.Test, name, cause string) {
	h.T.Helper()
	h.WaitCondition(name, "NamesResolved", metav1.ConditionFalse, "ResolutionFailed")
	waitMessage(h, name, "NamesResolved", `"db"`, cause)
	waitTarget(h, name, "db", "Unresolved", "ResolutionFailed")
	h.WaitCondition(name, "Ready", metav1.ConditionFalse, "ResolutionFailed")
	if is := h.States(name); len(is) > 0 {
		h.T.Errorf("the endpoints %v are published", is)
	}
}

// transports reads from a nameserver's log over which protocols it was asked for a name.
func transports(h *harness.Test, s *devcluster.Nameserver, name string) map[string]bool {
	h.T.Helper()
	text, err := os.ReadFile(s.Log)
	if err != nil {
		h.T.Fatal(err)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(text)) {
		if _, rest, asked := strings.Cut(line, " IN "+name+".example.com. "); asked {
			protocol, _, _ := strings.Cut(rest, " ")
			seen[protocol] = true
		}
	}
	return seen
}

// Names are resolved over TLS only if the nameserver's certificate is verified. Otherwise status
// says why, and a corrected spec takes effect at once.
func TestDNSOverTLSVerifiesNameserver(t *testing.T) {
	h := parallel(t)
	h.AllowReferences()
	m := h.Machine("dns")
	ca, other := newAuthority(t), newAuthority(t)
	names := []string{"dns.example.com", m.V4.String()}
	valid := issue(t, ca, time.Now().Add(time.Hour), names...)
	expired := issue(t, ca, time.Now().Add(-time.Minute), names...)
	server := h.StartDNS(m, nil, tlsBlock(t, 853, valid), tlsBlock(t, 8531, expired))
	h.ApplyObject(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "dns-ca"},
		Data:       map[string]string{"ca.crt": string(ca.Cert), "other": string(other.Cert)},
	})
	h.ApplyObject(
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "dns-ca"}, Data: map[string][]byte{"ca.crt": ca.Cert}})

	const unverified = "TLS verification failed"
	overTLS := func(port, tls string) string {
		return fmt.Sprintf(`nameservers: ["%s%s"], transport: TLS, tls: {%s}`, m.V4, port, tls)
	}
	right := overTLS("", "serverName: dns.example.com, caCertificateRefs: [{kind: ConfigMap, name: dns-ca}]")
	for _, tc := range []struct{ name, dns, cause string }{
		{"named", right, ""},
		// The certificate has the address, too.
		{"by-address", overTLS("", "caCertificateRefs: [{kind: ConfigMap, name: dns-ca, key: ca.crt}]"), ""},
		{"by-secret", overTLS(":853", "caCertificateRefs: [{kind: Secret, name: dns-ca}]"), ""},
		{"other-name", overTLS("", "serverName: other.example.com, caCertificateRefs: [{kind: ConfigMap, name: dns-ca}]"),
			unverified},
		{"other-authority", overTLS("",
			"serverName: dns.example.com, caCertificateRefs: [{kind: ConfigMap, name: dns-ca, key: other}]"), unverified},
		{"system-roots", overTLS("", "serverName: dns.example.com"), unverified},
		{"expired", overTLS(":8531", "serverName: dns.example.com, caCertificateRefs: [{kind: ConfigMap, name: dns-ca}]"),
			unverified},
		{"nobody", overTLS(":8530", "serverName: dns.example.com, caCertificateRefs: [{kind: ConfigMap, name: dns-ca}]"),
			"connection refused"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			applyResolved(h, tc.name, tc.dns)
			if tc.cause != "" {
				waitUnresolved(h, tc.name, tc.cause)
				if asked := transports(h, server, tc.name); len(asked) > 0 {
					t.Errorf("an unverified server was asked over %v", asked)
				}
				applyResolved(h, tc.name, right)
			}
			waitResolved(h, tc.name)
		})
	}

	// A missing authority is reported, and the server is not asked without it.
	applyResolved(h, "missing",
		overTLS("", "serverName: dns.example.com, caCertificateRefs: [{kind: ConfigMap, name: nowhere}]"))
	h.WaitCondition("missing", "ResolvedRefs", metav1.ConditionFalse, "RefNotFound")
	waitMessage(h, "missing", "ResolvedRefs", "spec.dns.tls.caCertificateRefs[0]", `ConfigMap "nowhere" does not exist`)
	if asked := transports(h, server, "missing"); len(asked) > 0 {
		t.Errorf("without its authority the server was asked over %v", asked)
	}
	applyResolved(h, "missing", right)
	waitResolved(h, "missing")
	wantStalled(h, "missing", "")
}

// A nameserver whose certificate becomes invalid removes no endpoint.
func TestInvalidDNSCertificateRemovesNothing(t *testing.T) {
	h := parallel(t)
	h.AllowReferences()
	m := h.Machine("dns")
	ca := newAuthority(t)
	start := func(until time.Time) *devcluster.Nameserver {
		t.Helper()
		return h.StartDNS(m, nil, tlsBlock(t, 853, issue(t, ca, until, "dns.example.com")))
	}
	replace := func(s *devcluster.Nameserver, until time.Time) *devcluster.Nameserver {
		t.Helper()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return start(until)
	}
	s := start(time.Now().Add(time.Hour))
	h.ApplyObject(
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "dns-ca"}, Data: map[string]string{"ca.crt": string(ca.Cert)}},
	)
	applyResolved(h, "web", fmt.Sprintf(
		`nameservers: ["%s"], transport: TLS, tls: {serverName: dns.example.com, caCertificateRefs: [{kind: ConfigMap, name: dns-ca}]}`,
		m.V4,
	),
	)
	waitResolved(h, "web")
	before := takeSnapshot(h, "web", true)

	s = replace(s, time.Now().Add(-time.Minute))
	h.WaitCondition("web", "NamesResolved", metav1.ConditionFalse, "ServingStale")
	waitMessage(h, "web", "NamesResolved", `"db"`, "TLS verification failed")
	waitTarget(h, "web", "db", "Unprobed", "ServingStale")
	waitSnapshot(h, "web", before, true)
	h.WaitReady("web")
	replace(s, time.Now().Add(time.Hour))
	waitResolved(h, "web")
	waitSnapshot(h, "web", before, true)
}

// DNS uses TCP if the spec says so, and if an answer does not fit into a datagram.
func TestDNSUsesTCPWhenNeeded(t *testing.T) {
	h := parallel(t)
	m := h.Machine("dns")
	s := h.StartDNS(m, map[string]string{"example.com": exampleZone()})
	several := harness.States{}
	for i := range manyAddresses {
		several[netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 8080)] = harness.Healthy
	}
	for _, tc := range []struct {
		name, transport string
		endpoints       harness.States
		asked           []string
	}{
		{"plain", "UDP", oneEndpoint, []string{"udp"}},
		{"stream", "TCP", oneEndpoint, []string{"tcp"}},
		{"many", "UDP", several, []string{"udp", "tcp"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			applyResolved(h, tc.name, fmt.Sprintf(`nameservers: ["%s"], transport: %s`, m.V4, tc.transport))
			h.WaitStates(tc.name, tc.endpoints)
			h.WaitCondition(tc.name, "NamesResolved", metav1.ConditionTrue, "NamesResolved")
			asked := transports(h, s, tc.name)
			for _, protocol := range tc.asked {
				if !asked[protocol] {
					t.Errorf("it was asked over %v", asked)
				}
			}
			if len(asked) != len(tc.asked) {
				t.Errorf("it was asked over %v, not %v", asked, tc.asked)
			}
		})
	}
}
