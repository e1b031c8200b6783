package dataplane

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
)

// A pool's answers contain its addresses in turn. Both addresses get requests while they alternate.
// An address that no longer comes drains after removalDelaySeconds and leaves, and no request is
// lost.
func TestAlternatingAddressesStayPublished(t *testing.T) {
	h, p := setUp(t)
	authority := h.Machine("dns")
	onlyA, onlyB := "db A "+p.a.V4.String(), "db A "+p.b.V4.String()
	dns := h.StartDNS(authority, map[string]string{"example.com": onlyA})
	const removalDelay, drain = 12 * time.Second, 4 * time.Second
	h.ApplyBackend("web", `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80, targetPort: 8080}]
targets: [{name: db, hostname: db.example.com}]
dns: {nameservers: ["%s"], minTTLSeconds: 1, removalDelaySeconds: %d}
drainSeconds: %d
healthCheck: %s
`, authority.V4, int(removalDelay.Seconds()), int(drain.Seconds()), harness.HTTPCheck)
	a, b := p.a.At4(8080), p.b.At4(8080)
	show := func(records string) {
		t.Helper()
		if err := dns.SetZone(t.Context(), "example.com", records); err != nil {
			t.Fatal(err)
		}
	}
	h.WaitStates("web", harness.All(harness.Healthy, a))
	h.WaitRoutes("web", a)
	load := startLoad(h, clusterAddrs(h, "web", 80)[0])
	show(onlyB)
	h.WaitStates("web", harness.All(harness.Healthy, a, b))
	h.WaitRoutes("web", a, b)

	writes := h.CountWrites()
	for _, records := range []string{onlyA, onlyB} {
		show(records)
		waitAsked(h, dns)
		load.waitAnswerFrom(p.a)
		load.waitAnswerFrom(p.b)
	}
	if written := writes.Of("endpointslices"); len(written) > 0 {
		t.Errorf("while the addresses alternated, the manager wrote %v", written)
	}

	gone := time.Now() // the last answer with b comes a little later
	show(onlyA)
	h.WaitStates("web", harness.States{a: harness.Healthy, b: harness.Draining})
	if after := time.Since(gone); after < removalDelay {
		t.Errorf("the address began to drain after %v", after)
	}
	h.WaitRoutes("web", a)
	load.wantNoneAt(p.sb)
	h.WaitStates("web", harness.All(harness.Healthy, a))
	if after := time.Since(gone); after < removalDelay+drain-time.Second { // slices keep whole seconds
		t.Errorf("the address was gone after %v", after)
	}
	load.stopWithoutLoss()
}

// waitAsked waits until a nameserver has answered two more queries for IPv4 addresses.
func waitAsked(h *harness.Test, s *devcluster.Nameserver) {
	h.T.Helper()
	queries := func() int {
		text, err := os.ReadFile(s.Log)
		if err != nil {
			h.T.Fatal(err)
		}
		return strings.Count(string(text), `"A IN `)
	}
	until := queries() + 2
	h.Eventually("DNS to be asked", func() error {
		if n := queries(); n < until {
			return fmt.Errorf("it was asked %d of %d times", n, until)
		}
		return nil
	})
}

// The priorities of SRV records are tiers. Requests follow them when the first tier is unhealthy
// and when the records change, and none is lost.
func TestSRVPrioritiesAreTiers(t *testing.T) {
	h, p := setUp(t)
	onOtherPort := h.Serve(p.b, "http", 8081)
	authority := h.Machine("dns")
	zone := func(a, b, otherPort int) string {
		return fmt.Sprintf(
			"_web._tcp SRV %d 1 8080 a\n_web._tcp SRV %d 1 8080 b\n_web._tcp SRV %d 1 8081 b\na A %s\nb A %s",
			a,
			b,
			otherPort,
			p.a.V4,
			p.b.V4,
		)
	}
	dns := h.StartDNS(authority, map[string]string{"example.com": zone(10, 20, 300)})
	h.ApplyBackend("web", `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80}]
targets: [{name: pool, srvName: _web._tcp.example.com}]
dns: {nameservers: ["%s"], minTTLSeconds: 1}
healthCheck: {httpGet: {path: /healthz, port: web}, %s}
failover: {failbackDelaySeconds: 1}
`, authority.V4, harness.FastPace)
	a, b, other := p.a.At4(8080), p.b.At4(8080), p.b.At4(8081)
	first := harness.States{a: harness.Healthy, b: harness.Standby, other: harness.Standby}
	h.WaitStates("web", first)
	h.WaitRoutes("web", a)
	load := startLoad(h, clusterAddrs(h, "web", 80)[0])
	load.waitAnswerFrom(p.a)

	p.sa.SetSick(true)
	h.WaitStates("web", harness.States{a: harness.Unhealthy, b: harness.Healthy, other: harness.Standby})
	h.WaitRoutes("web", b)
	load.wantNoneAt(p.sa)
	p.sa.SetSick(false)
	h.WaitStates("web", first)
	h.WaitRoutes("web", a)

	if err := dns.SetZone(t.Context(), "example.com", zone(300, 20, 10)); err != nil {
		t.Fatal(err)
	}
	h.WaitStates("web", harness.States{a: harness.Standby, b: harness.Standby, other: harness.Healthy})
	h.WaitRoutes("web", other)
	load.wantNoneAt(p.sa)
	if onOtherPort.Requests() == 0 {
		t.Error("no request reached the port of the first tier")
	}
	load.stopWithoutLoss()
}

// Requests follow SRV records, in which each backend has its own port.
func TestRequestsFollowSRVRecords(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	a, b := h.Machine("a"), h.Machine("b")
	h.Serve(a, "http", 8081)
	h.Serve(b, "http", 8082)
	hosts := fmt.Sprintf("\na A %s\nb A %s\n", a.V4, b.V4)
	both := "_web._tcp SRV 10 1 8081 a\n_web._tcp SRV 10 1 8082 b" + hosts
	authority := h.Machine("dns")
	dns := h.StartDNS(authority, map[string]string{"example.com": both})
	h.ApplyBackend("web", `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80}]
targets: [{name: pool, srvName: _web._tcp.example.com}]
dns: {nameservers: ["%s"], minTTLSeconds: 1}
healthCheck: {httpGet: {path: /healthz, port: web}, %s}
`, authority.V4, harness.FastPace)
	h.WaitStates("web", harness.All(harness.Healthy, a.At4(8081), b.At4(8082)))
	h.WaitRoutes("web", a.At4(8081), b.At4(8082))
	addr := clusterAddrs(h, "web", 80)[0]
	wantAnswers(h, "http", addr, a, b)

	load := startLoad(h, addr)
	if err := dns.SetZone(t.Context(), "example.com", "_web._tcp SRV 10 1 8082 b"+hosts); err != nil {
		t.Fatal(err)
	}
	h.WaitStates("web", harness.All(harness.Healthy, b.At4(8082)))
	h.WaitRoutes("web", b.At4(8082))
	load.waitMore()
	load.stopWithoutLoss()
	wantAnswers(h, "http", addr, b)
}

// Requests follow a hostname target to its new address, and none is lost.
func TestRequestsFollowChangedName(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	for _, tc := range []struct{ name, more string }{
		// Without a check, the new address is ready at once.
		{"unprobed", "drainSeconds: 0"},
		// With a check, the old address drains until the new one is ready.
		{"probed", "drainSeconds: 10\nhealthCheck: " + harness.HTTPCheck},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			p := newPair(h, "http", 8080)
			authority := h.Machine("dns")
			dns := h.StartDNS(authority, map[string]string{"example.com": "db A " + p.a.V4.String()})
			h.ApplyBackend(tc.name, `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80, targetPort: 8080}]
targets: [{name: db, hostname: db.example.com}]
dns: {nameservers: ["%s"], minTTLSeconds: 1}
%s
`, authority.V4, tc.more)
			a, b := p.a.At4(8080), p.b.At4(8080)
			h.WaitStates(tc.name, harness.All(harness.Healthy, a))
			h.WaitRoutes(tc.name, a)
			load := startLoad(h, clusterAddrs(h, tc.name, 80)[0])
			load.waitAnswerFrom(p.a)
			if err := dns.SetZone(t.Context(), "example.com", "db A "+p.b.V4.String()); err != nil {
				t.Fatal(err)
			}
			load.waitAnswerFrom(p.b)
			h.WaitRoutes(tc.name, b)
			load.wantNoneAt(p.sa)
			load.stopWithoutLoss()
		})
	}
}
