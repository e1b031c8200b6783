package security

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// marker is in all data that must not leak. It is also part of a DNS name.
const marker = "marker-7f3a9c"

// wantNotLeaked fails the test if one of these words is in the manager's log, metrics and events,
// in the objects that it publishes, or in status.
func wantNotLeaked(h *harness.Test, logFile, metrics string, words ...string) {
	h.T.Helper()
	log, err := os.ReadFile(logFile)
	if err != nil {
		h.T.Fatal(err)
	}
	outputs := map[string]string{"the log": string(log), "metrics": metrics}
	for _, list := range append(lists(), &eventsv1.EventList{}) {
		if err := h.Client.List(h.T.Context(), list); err != nil {
			h.T.Fatal(err)
		}
		_ = meta.EachListItem(list, func(o runtime.Object) error {
			if b, ok := o.(*v1alpha1.ExternalBackend); ok {
				b.Spec, b.ManagedFields = v1alpha1.ExternalBackendSpec{}, nil // the author's own text
			}
			text, err := json.Marshal(o)
			outputs[fmt.Sprintf("%T", o)] += string(text)
			return err
		})
	}
	for where, text := range outputs {
		for _, word := range words {
			if at := strings.Index(strings.ToLower(text), strings.ToLower(word)); at >= 0 {
				h.T.Errorf("%s contains %q: ...%s...", where, word, text[max(0, at-200):min(len(text), at+100)])
			}
		}
	}
}

// leakingServer puts the marker into its answers, where a careless client would repeat it.
type leakingServer struct {
	name, handler string
	serve         func(s *allowedServers, port int)
	change        func(*v1alpha1.HealthCheck)
	reason        string // why its endpoint is unhealthy; "": it is healthy
}

// leakingServers returns such servers. Their clients trust the certificate in a ConfigMap.
func leakingServers(t testing.TB, certificate tls.Certificate) []leakingServer {
	writes := func(text string) func(*allowedServers, int) {
		return func(s *allowedServers, port int) {
			endlessServer{write: func(w io.Writer) { _, _ = io.WriteString(w, text) }}.serve(t, s, port)
		}
	}
	repeats := func(s *allowedServers, port int) { endlessServer{write: repeat("", marker)}.serve(t, s, port) }
	secure := func(s *allowedServers, port int) {
		listener := s.open(t, port, false)
		config := &tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequestClientCert}
		answer(tls.NewListener(listener, config), s.serve)
	}
	trusts := func(kind v1alpha1.CACertificateKind, name, server string) func(*v1alpha1.HealthCheck) {
		return func(h *v1alpha1.HealthCheck) {
			h.TLS = &v1alpha1.TLS{
				ServerName:        server,
				CACertificateRefs: []v1alpha1.CACertificateReference{{Kind: kind, Name: name}},
			}
		}
	}
	return []leakingServer{
		{"status", "http",
			writes("HTTP/1.1 500 " + marker + "\r\nX-Error: " + marker + "\r\nContent-Length: 13\r\n\r\n" + marker), nil,
			v1alpha1.TargetReasonUnexpectedStatus},
		{
			"body",
			"http",
			writes("HTTP/1.1 200 " + marker + "\r\nSet-Cookie: " + marker + "\r\nContent-Length: 13\r\n\r\n" + marker),
			func(h *v1alpha1.HealthCheck) {
				h.HTTPGet.HTTPHeaders = []v1alpha1.HTTPHeader{{Name: "Authorization", Value: "Bearer " + marker}}
			},
			"",
		},
		{"garbage", "http", writes(marker), nil, v1alpha1.TargetReasonUnexpectedResponse},
		{"no-http2", "grpc", writes(marker), nil, v1alpha1.TargetReasonUnexpectedResponse},
		{"text", "tcp", repeats, func(h *v1alpha1.HealthCheck) { h.TCPSocket.Send = marker },
			v1alpha1.TargetReasonUnexpectedResponse},
		{"grpc-message", "grpc", func(s *allowedServers, port int) {
			answer(s.open(t, port, false), func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/grpc")
				w.Header().Set("Grpc-Message", marker)
				w.Header().Set("Grpc-Status", "13")
			})
		}, nil, v1alpha1.TargetReasonUnexpectedStatus},
		{"issuer", "https", secure, trusts(v1alpha1.CACertificateKindSecret, "of-allowed", marker+".example"),
			v1alpha1.TargetReasonTLSUnknownAuthority},
		{"subject", "https", secure, trusts(v1alpha1.CACertificateKindConfigMap, "authority", "other.example"),
			v1alpha1.TargetReasonTLSNameMismatch},
		{"client", "https", secure, func(h *v1alpha1.HealthCheck) {
			trusts(v1alpha1.CACertificateKindConfigMap, "authority", marker+".example")(h)
			h.TLS.ClientCertificateRef = &v1alpha1.SecretReference{Name: "client"}
		}, ""},
	}
}

// leakPort is the first port of the leaking servers.
const leakPort = 9500

// The manager repeats nothing from Secrets, ConfigMaps, certificates, headers, or the answers of
// servers and nameservers, even at the highest verbosity.
func TestNoSecretLeaks(t *testing.T) {
	h := harness.New(t)
	env := sharedEnvironment(h)
	h.AllowReferences()
	certificate := selfSigned(t, marker)
	around := func(pem []byte) []byte { return append([]byte(marker+"\n"), pem...) }
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: h.Namespace, Name: name} }
	h.ApplyObject(&corev1.ConfigMap{
		ObjectMeta: named("authority"),
		Data:       map[string]string{"ca.crt": string(around(certificatePEM(certificate))), "other": marker},
	})
	h.ApplyObject(&corev1.Secret{
		ObjectMeta: named("of-allowed"),
		Data:       map[string][]byte{"ca.crt": around(certificatePEM(env.allowed.certificate)), "other": []byte(marker)},
	})
	h.ApplyObject(&corev1.Secret{ObjectMeta: named("client"), Type: corev1.SecretTypeTLS, Data: map[string][]byte{
		corev1.TLSCertKey: around(certificatePEM(certificate)), corev1.TLSPrivateKeyKey: around(keyPEM(t, certificate))}})
	h.ApplyObject(&corev1.Secret{
		ObjectMeta: named("broken"),
		Data: map[string][]byte{
			"ca.crt":                []byte(marker),
			corev1.TLSCertKey:       []byte(marker),
			corev1.TLSPrivateKeyKey: []byte(marker),
		},
	})
	all := leakingServers(t, certificate)
	at := func(i int) netip.Addr { return allowedAddr(45000+i, netip.IPv4Unspecified()) }
	for i, l := range all {
		l.serve(env.allowed, leakPort+i)
		b := newBackend(l.name, handlerNamed[l.handler])
		b.Spec.Ports[0].Port = int32(leakPort + i)
		b.Spec.HealthCheck.TimeoutSeconds = 2
		if l.change != nil {
			l.change(b.Spec.HealthCheck)
		}
		b.Spec.Targets = []v1alpha1.Target{{Name: "t", Address: at(i).String()}}
		h.ApplyObject(b)
	}
	broken := newBackend("broken", handlerNamed["https"])
	broken.Spec.HealthCheck.TLS = &v1alpha1.TLS{ClientCertificateRef: &v1alpha1.SecretReference{Name: "broken"}}
	h.ApplyObject(broken)
	leakThroughDNS(h, env)

	m := h.StartManager("--zap-log-level=9", "--resolv-conf="+env.dns.resolvConf)
	for i, l := range all {
		state := harness.Unhealthy
		if l.reason == "" {
			state = harness.Healthy
		}
		h.Eventually(l.name+" to be judged", func() error {
			is := targetOf(h.Backend(l.name), "t")
			if endpointsAt(h, l.name)[at(i)] != state || is.Reason != l.reason {
				return fmt.Errorf("it is %q and %s for %q, not for %q", endpointsAt(h, l.name)[at(i)], is.State,
					is.Reason, l.reason)
			}
			return nil
		})
	}
	h.WaitCondition("broken", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonInvalidRef)
	h.WaitReady("leaking")
	h.WaitCondition("failed", v1alpha1.ConditionNamesResolved, metav1.ConditionFalse, v1alpha1.ReasonResolutionFailed)
	metrics, err := json.Marshal(m.Metrics())
	if err != nil {
		t.Fatal(err)
	}
	m.Stop()
	wantNotLeaked(h, m.Log, string(metrics), marker, "PRIVATE KEY", "BEGIN CERTIFICATE")
}

// leakThroughDNS adds the marker to the nameserver's answers: in TXT records, in an alias, and in
// the explanation of a failure (RFC 8914).
func leakThroughDNS(h *harness.Test, env environment) {
	h.T.Helper()
	text := func(name string) dnsmessage.Resource {
		header := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name + "."), Class: dnsmessage.ClassINET}
		return dnsmessage.Resource{Header: header, Body: &dnsmessage.TXTResource{TXT: []string{marker}}}
	}
	env.dns.setAnswer("leaking.good.example", func(r *dnsReply, _ int) {
		end := marker + ".good.example"
		r.alias(end)
		r.add(end, allowedAddr(46000, netip.IPv4Unspecified()))
		r.Answers = append(r.Answers, text(end))
		r.Additionals = append(r.Additionals, text(r.name))
	})
	env.dns.setAnswer("failed.good.example", func(r *dnsReply, n int) {
		failLookup(r, n)
		explanation := dnsmessage.OPTResource{Options: []dnsmessage.Option{{Code: 15, Data: append([]byte{0, 0}, marker...)}}}
		r.Additionals = append(r.Additionals,
			dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(".")}, Body: &explanation})
	})
	for _, name := range []string{"leaking", "failed"} {
		b := newBackend(name, handlerNamed["none"])
		b.Spec.Targets = []v1alpha1.Target{{Name: "t", Hostname: name + ".good.example"}}
		h.ApplyObject(b)
	}
}
