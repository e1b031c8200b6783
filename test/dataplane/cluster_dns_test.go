package dataplane

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
)

// The cluster's DNS answers with the ready endpoints of a headless Service: with addresses, ports
// and host names. It follows targets that fail and drain.
func TestClusterDNSFollowsHeadlessEndpoints(t *testing.T) {
	h, p := setUp(t)
	apply := func(stateOfB string) {
		t.Helper()
		h.ApplyBackend("web", `
service: {type: Headless, ipFamilyPolicy: RequireDualStack}
ports: [{name: http, port: 80, targetPort: 8080}]
targets:
- {name: a4, address: %s}
- {name: a6, address: "%s"}
- {name: b4, address: %s, adminState: %s}
- {name: b6, address: "%s", adminState: %[4]s}
healthCheck: %[6]s
`, p.a.V4, p.a.V6, p.b.V4, stateOfB, p.b.V6, harness.HTTPCheck)
	}
	apply("Active")
	waitNames(h, "web",
		map[string]netip.AddrPort{"a4": p.a.At4(8080), "a6": p.a.At6(8080), "b4": p.b.At4(8080), "b6": p.b.At6(8080)})
	wantAnswers(h, "http", "a6."+domain(h, "web")+":8080", p.a)
	wantAnswers(h, "http", "b4."+domain(h, "web")+":8080", p.b)

	p.sicken(true)
	onlyA := map[string]netip.AddrPort{"a4": p.a.At4(8080), "a6": p.a.At6(8080)}
	waitNames(h, "web", onlyA)
	wantAnswers(h, "http", domain(h, "web")+":8080", p.a)

	p.sa.SetSick(true)
	waitNames(h, "web", nil)

	p.sa.SetSick(false)
	p.sicken(false)
	waitNames(h, "web",
		map[string]netip.AddrPort{"a4": p.a.At4(8080), "a6": p.a.At6(8080), "b4": p.b.At4(8080), "b6": p.b.At6(8080)})

	apply("Draining") // DNS does not know draining endpoints
	waitNames(h, "web", onlyA)
}

// domain returns a Service's name in DNS, with the final dot.
func domain(h *harness.Test, service string) string {
	return fmt.Sprintf("%s.%s.svc.cluster.local.", service, h.Namespace)
}

// waitNames waits until the cluster's DNS has exactly these endpoints of a headless Service, by
// host name: in the A and AAAA records of the Service, in the SRV records of its port http, and
// under each host name. Without endpoints, the name does not exist.
func waitNames(h *harness.Test, service string, want map[string]netip.AddrPort) {
	h.T.Helper()
	var addrs []string
	var srv []string
	for name, at := range want {
		addrs = append(addrs, at.Addr().String())
		srv = append(srv, fmt.Sprintf("%s.%s:%d", name, domain(h, service), at.Port()))
	}
	slices.Sort(addrs)
	slices.Sort(srv)
	h.Eventually("the DNS records of "+service, func() error {
		got, err := lookupHost(h, domain(h, service))
		if err == nil && !slices.Equal(got, addrs) {
			err = fmt.Errorf("A and AAAA are %v, not %v", got, addrs)
		}
		return err
	})
	h.Eventually("the SRV records of "+service, func() error {
		_, records, err := h.Resolver().LookupSRV(h.T.Context(), "http", "tcp", domain(h, service))
		if err = notFoundIsNone(err); err != nil {
			return err
		}
		var got []string
		for _, r := range records {
			got = append(got, fmt.Sprintf("%s:%d", strings.TrimSuffix(r.Target, ".")+".", r.Port))
		}
		slices.Sort(got)
		if !slices.Equal(got, srv) {
			return fmt.Errorf("SRV is %v, not %v", got, srv)
		}
		return nil
	})
	for name, at := range want {
		got, err := lookupHost(h, name+"."+domain(h, service))
		if err != nil || !slices.Equal(got, []string{at.Addr().String()}) {
			h.T.Errorf("the name %s resolves to %v (%v), not %s", name, got, err, at.Addr())
		}
	}
}

// lookupHost returns the A and AAAA records of a name, sorted. A name that does not exist has none.
func lookupHost(h *harness.Test, name string) ([]string, error) {
	got, err := h.Resolver().LookupHost(h.T.Context(), name)
	slices.Sort(got)
	return got, notFoundIsNone(err)
}

func notFoundIsNone(err error) error {
	if dns := (*net.DNSError)(nil); errors.As(err, &dns) && dns.IsNotFound {
		return nil
	}
	return err
}

// The cluster's DNS answers with a name that is published as an alias, and with its addresses.
func TestClusterDNSAnswersWithAliases(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	a := h.Machine("a")
	h.Serve(a, "http", 8080)
	upstream, err := h.AddNamespace("upstream", devcluster.UpstreamDNS.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { upstream.Close() })
	dns, err := upstream.StartDNS(t.Context(), map[string]string{"example.com": "db A " + a.V4.String()}, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dns.Close() })
	for name, how := range map[string]string{
		"external-name": "service: {type: ExternalName}",
		"passthrough":   "service: {type: Headless}\ndns: {resolution: Passthrough}",
	} {
		h.ApplyBackend(name, `
ports: [{name: http, port: 8080}]
targets: [{name: db, hostname: db.example.com}]
%s
`, how)
		h.WaitReady(name)
		h.Eventually("an alias for db.example.com", func() error {
			is, err := h.Resolver().LookupCNAME(t.Context(), domain(h, name))
			if err == nil && is != "db.example.com." {
				err = fmt.Errorf("%s is an alias for %s", name, is)
			}
			return err
		})
		wantAnswers(h, "http", domain(h, name)+":8080", a)
	}
}
