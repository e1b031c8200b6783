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

// TestHeadless asks the cluster's DNS for a headless Service's addresses, ports and host names,
// while targets fail and drain.
func TestHeadless(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	p := newPair(h, "http", 8080)
	apply := func(stateOfB string) {
		t.Helper()
		h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: web}
spec:
  service: {type: Headless, ipFamilyPolicy: RequireDualStack}
  ports: [{name: http, port: 80, targetPort: 8080}]
  targets:
  - {name: a4, address: %s}
  - {name: a6, address: "%s"}
  - {name: b4, address: %s, adminState: %s}
  - {name: b6, address: "%s", adminState: %[4]s}
  healthCheck: %[6]s
`, p.a.V4, p.a.V6, p.b.V4, stateOfB, p.b.V6, httpCheck)
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

	apply("Draining") // which in a headless Service can't be seen
	waitNames(h, "web", onlyA)
}

// domain is a Service's name, with the final dot.
func domain(h *harness.Test, service string) string {
	return fmt.Sprintf("%s.%s.svc.cluster.local.", service, h.Namespace)
}

// waitNames waits until the cluster's DNS tells exactly these endpoints of a headless Service with
// port http, by their host names: in A and AAAA of the Service, in SRV of its port, and under each
// name. Without any the name does not exist.
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

// lookupHost is A and AAAA, sorted; none where the name does not exist.
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

// TestHeadlessAndBack turns a ClusterIP Service headless and back: the Service object and its
// slices stay.
func TestHeadlessAndBack(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	p := newPair(h, "http", 8080)
	apply := func(kind string) {
		t.Helper()
		h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: web}
spec:
  service: {type: %s, ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
  ports: [{name: http, port: 80, targetPort: 8080}]
  targets: %s
  healthCheck: %s
`, kind, targets("a", p.a.V4, "b", p.b.V4), httpCheck)
	}
	a, b := p.a.At4(8080), p.b.At4(8080)
	healthy := all(harness.Healthy, a, b)
	apply("ClusterIP")
	h.WaitStates("web", healthy)
	h.WaitRoutes("web", a, b)
	wantAnswers(h, "http", clusterAddrs(h, "web", 80)[0], p.a, p.b)
	service, slice := h.Service("web"), h.Slices("web")[0]

	apply("Headless")
	h.WaitReady("web")
	waitNames(h, "web", map[string]netip.AddrPort{"a": a, "b": b})
	h.WaitRoutes("web") // kube-proxy has nothing to do with it
	wantAnswers(h, "http", "b."+domain(h, "web")+":8080", p.b)
	h.WaitEvent("web", "HeadlessChanged")

	apply("ClusterIP")
	h.WaitReady("web")
	h.WaitStates("web", healthy)
	h.WaitRoutes("web", a, b)
	wantAnswers(h, "http", clusterAddrs(h, "web", 80)[0], p.a, p.b)

	if is := h.Service("web"); is.UID != service.UID {
		t.Error("the Service is another object now")
	}
	if is := h.Slices("web"); len(is) != 1 || is[0].UID != slice.UID {
		t.Errorf("the slice is not the one it was: there are %d", len(is))
	}
}

// TestServiceRecords follows SRV records, in which each backend has a port of its own.
func TestServiceRecords(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	a, b := h.Machine("a"), h.Machine("b")
	h.Serve(a, "http", 8081)
	h.Serve(b, "http", 8082)
	hosts := fmt.Sprintf("\na A %s\nb A %s\n", a.V4, b.V4)
	both := "_web._tcp SRV 10 1 8081 a\n_web._tcp SRV 10 1 8082 b" + hosts
	authority := h.Machine("dns")
	dns := h.StartDNS(authority, map[string]string{"example.com": both})
	h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: web}
spec:
  service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
  ports: [{name: web, port: 80}]
  targets: [{name: pool, srvName: _web._tcp.example.com}]
  dns: {nameservers: ["%s"], minTTLSeconds: 1}
  healthCheck: {httpGet: {path: /healthz, port: web}, %s}
`, authority.V4, pace)
	h.WaitStates("web", all(harness.Healthy, a.At4(8081), b.At4(8082)))
	h.WaitRoutes("web", a.At4(8081), b.At4(8082))
	addr := clusterAddrs(h, "web", 80)[0]
	wantAnswers(h, "http", addr, a, b)

	load := startLoad(h, addr)
	if err := dns.SetZone(t.Context(), "example.com", "_web._tcp SRV 10 1 8082 b"+hosts); err != nil {
		t.Fatal(err)
	}
	h.WaitStates("web", all(harness.Healthy, b.At4(8082)))
	h.WaitRoutes("web", b.At4(8082))
	load.more()
	load.stopUnharmed()
	wantAnswers(h, "http", addr, b)
}

// TestAliases publishes names as such: the cluster's DNS answers with them, and with the addresses
// they have elsewhere.
func TestAliases(t *testing.T) {
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
		"passthrough":   "service: {type: Headless}\n  dns: {resolution: Passthrough}",
	} {
		h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: %s}
spec:
  ports: [{name: http, port: 8080}]
  targets: [{name: db, hostname: db.example.com}]
  %s
`, name, how)
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
