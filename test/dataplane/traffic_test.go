package dataplane

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// TestDraining: a draining target gets requests only where nobody else is left, a disabled one
// none.
func TestDraining(t *testing.T) {
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
  service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
  ports: [{name: web, port: 80, targetPort: 8080}]
  targets:
  - {name: a, address: %s}
  - {name: b, address: %s, adminState: %s}
  healthCheck: %s
`, p.a.V4, p.b.V4, stateOfB, httpCheck)
	}
	a, b := p.a.At4(8080), p.b.At4(8080)
	apply("Active")
	h.WaitStates("web", all(harness.Healthy, a, b))
	h.WaitRoutes("web", a, b)
	addr := clusterAddrs(h, "web", 80)[0]
	load := startLoad(h, addr)
	load.reaches(p.b)

	apply("Draining")
	h.WaitStates("web", harness.States{a: harness.Healthy, b: harness.Draining})
	h.WaitRoutes("web", a)
	load.more()
	load.stopUnharmed()
	wantAnswers(h, "http", addr, p.a)

	p.sa.SetSick(true)
	h.WaitStates("web", harness.States{a: harness.Unhealthy, b: harness.Draining})
	h.WaitRoutes("web", b)
	wantAnswers(h, "http", addr, p.b) // the last resort

	apply("Disabled")
	h.WaitStates("web", harness.States{a: harness.Unhealthy})
	h.WaitRoutes("web")
	before := p.sb.Requests()
	wantRefusal(h, "http", addr)
	if p.sb.Requests() != before {
		t.Error("a request reached a disabled target")
	}

	apply("Active")
	p.sa.SetSick(false)
	h.WaitStates("web", all(harness.Healthy, a, b))
	h.WaitRoutes("web", a, b)
	wantAnswers(h, "http", addr, p.a, p.b)
}

// TestTiers: a standby gets requests only while it is active, and going back to the first tier
// loses none.
func TestTiers(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	p := newPair(h, "http", 8080) // b is the first tier, a the standby
	h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: web}
spec:
  service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
  ports: [{name: web, port: 80, targetPort: 8080}]
  targets:
  - {name: first, address: %s}
  - {name: standby, address: %s, tier: 1}
  healthCheck: %s
  failover: {failbackDelaySeconds: 1}
`, p.b.V4, p.a.V4, httpCheck)
	standby, first := p.a.At4(8080), p.b.At4(8080)
	h.WaitStates("web", harness.States{first: harness.Healthy, standby: harness.Standby})
	h.WaitRoutes("web", first)
	load := startLoad(h, clusterAddrs(h, "web", 80)[0])
	load.reaches(p.b)
	if n := p.sa.Requests(); n > 0 {
		t.Errorf("the standby got %d requests", n)
	}

	p.sicken(true)
	h.WaitStates("web", harness.States{first: harness.Unhealthy, standby: harness.Healthy})
	h.WaitRoutes("web", standby)
	load.reaches(p.a)
	h.WaitEvent("web", "TierChanged")
	load.spares(p.sb)

	p.sicken(false)
	h.WaitStates("web", harness.States{first: harness.Healthy, standby: harness.Standby})
	h.WaitRoutes("web", first)
	load.reaches(p.b)
	load.more()
	load.stopUnharmed()
	wantAnswers(h, "http", clusterAddrs(h, "web", 80)[0], p.b)
}

// TestFailOpen: where nobody is healthy and the spec prefers anybody to nobody, everybody gets
// requests.
func TestFailOpen(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	p := newPair(h, "http", 8080)
	h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: web}
spec:
  service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
  ports: [{name: web, port: 80, targetPort: 8080}]
  targets: %s
  healthCheck: {httpGet: {path: /healthz}, %s}
  failover: {minHealthyPercent: 50, whenNoTierQualifies: AllEndpoints}
`, targets("a", p.a.V4, "b", p.b.V4), pace)
	a, b := p.a.At4(8080), p.b.At4(8080)
	h.WaitStates("web", all(harness.Healthy, a, b))
	p.sicken(true)
	h.WaitStates("web", harness.States{a: harness.Healthy, b: harness.Unhealthy})
	p.sa.SetSick(true)
	h.WaitStates("web", all(harness.FailOpen, a, b))
	h.WaitEvent("web", "FailOpen")
	h.WaitRoutes("web", a, b)
	wantAnswers(h, "http", clusterAddrs(h, "web", 80)[0], p.a, p.b)
	p.sa.SetSick(false)
	h.WaitStates("web", harness.States{a: harness.Healthy, b: harness.Unhealthy})
	h.WaitRoutes("web", a)
	wantAnswers(h, "http", clusterAddrs(h, "web", 80)[0], p.a)
}

// TestNodePort reaches the backends by a port of the node, from outside of the cluster.
func TestNodePort(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	p := newPair(h, "http", 8080)
	h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: web}
spec:
  service: {type: NodePort, ipFamilyPolicy: RequireDualStack}
  ports: [{name: web, port: 80, targetPort: 8080, nodePort: 30080}]
  targets: %s
  healthCheck: %s
`, targets("a4", p.a.V4, "a6", p.a.V6, "b4", p.b.V4, "b6", p.b.V6), httpCheck)
	h.WaitRoutes("web", p.a.At4(8080), p.a.At6(8080), p.b.At4(8080), p.b.At6(8080))
	client := h.Machine("client")
	for _, node := range []netip.Addr{devcluster.Node4, devcluster.Node6} {
		wantAnswersTo(client.Namespace, h, "http", netip.AddrPortFrom(node, 30080).String(), p.a, p.b)
	}
}

// TestNameMoves changes the record of a hostname target under load. Requests follow, and none is
// lost.
func TestNameMoves(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	for _, tc := range []struct{ name, more string }{
		// What has no check is ready at once.
		{"unprobed", "drainSeconds: 0"},
		// What has to be probed first is bridged by what drains.
		{"probed", "drainSeconds: 10\n  healthCheck: " + httpCheck},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			p := newPair(h, "http", 8080)
			authority := h.Machine("dns")
			dns := h.StartDNS(authority, map[string]string{"example.com": "db A " + p.a.V4.String()})
			h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: %s}
spec:
  service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
  ports: [{name: web, port: 80, targetPort: 8080}]
  targets: [{name: db, hostname: db.example.com}]
  dns: {nameservers: ["%s"], minTTLSeconds: 1}
  %s
`, tc.name, authority.V4, tc.more)
			a, b := p.a.At4(8080), p.b.At4(8080)
			h.WaitStates(tc.name, all(harness.Healthy, a))
			h.WaitRoutes(tc.name, a)
			load := startLoad(h, clusterAddrs(h, tc.name, 80)[0])
			load.reaches(p.a)
			if err := dns.SetZone(t.Context(), "example.com", "db A "+p.b.V4.String()); err != nil {
				t.Fatal(err)
			}
			load.reaches(p.b)
			h.WaitRoutes(tc.name, b)
			load.spares(p.sa)
			load.stopUnharmed()
		})
	}
}

// TestRestart ends the manager and starts another, while one backend is healthy and one is not.
// Nothing flips, nothing is written, no request is lost.
func TestRestart(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager()
	p := newPair(h, "http", 8080)
	h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: web}
spec:
  service: {ipFamilyPolicy: RequireDualStack}
  ports: [{name: web, port: 80, targetPort: 8080}]
  targets: %s
  healthCheck: %s
`, targets("a4", p.a.V4, "a6", p.a.V6, "b4", p.b.V4, "b6", p.b.V6), httpCheck)
	a4, a6, b4, b6 := p.a.At4(8080), p.a.At6(8080), p.b.At4(8080), p.b.At6(8080)
	h.WaitStates("web", all(harness.Healthy, a4, a6, b4, b6))
	p.sicken(true)
	want := with(all(harness.Healthy, a4, a6), all(harness.Unhealthy, b4, b6))
	h.WaitStates("web", want)
	h.WaitRoutes("web", a4, a6)
	h.WaitCondition("web", "Healthy", "False", "SomeUnhealthy")
	h.Eventually("a status that says so", func() error { // it may be up to 10 s late
		if is := h.Backend("web").Status.Endpoints; is == nil || is.Ready != 2 || is.Unhealthy != 2 {
			return fmt.Errorf("it says %+v", is)
		}
		return nil
	})

	served := p.sb.Requests()
	writes := h.CountWrites()
	load := startLoad(h, clusterAddrs(h, "web", 80)[0])
	for _, end := range []struct {
		name string
		how  func(*harness.Manager)
	}{{"SIGTERM", (*harness.Manager).Stop}, {"SIGKILL", (*harness.Manager).Kill}} {
		end.how(m)
		load.more()
		m = h.StartManager()
		probed(h, p.sa, p.sb)
		if written := writes.Of(); len(written) > 0 {
			t.Errorf("after %s and a new start there were written %v", end.name, written)
		}
	}
	h.WaitStates("web", want)
	load.stopUnharmed()
	if n := p.sb.Requests() - served; n > 0 {
		t.Errorf("%d requests reached the unhealthy backend", n)
	}

	// It is not that nobody looks any more.
	p.sicken(false)
	h.WaitStates("web", all(harness.Healthy, a4, a6, b4, b6))
}

// probed waits until each server has been checked several times more: as often as it takes to
// change a verdict.
func probed(h *harness.Test, servers ...*lab.Server) {
	h.T.Helper()
	for _, s := range servers {
		until := s.Checks() + 4 // two rounds of two addresses, or more
		h.Eventually("further checks", func() error {
			if n := s.Checks(); n < until {
				return fmt.Errorf("%d of %d came", n, until)
			}
			return nil
		})
	}
}

// TestPortRenamed: requests go on while the port gets another name, and where it gets its first
// one.
func TestPortRenamed(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	p := newPair(h, "http", 8080)
	apply := func(name string) {
		t.Helper()
		h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: web}
spec:
  service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
  ports: [{name: %q, port: 80, targetPort: 8080}]
  targets: %s
  healthCheck: %s
`, name, targets("a", p.a.V4, "b", p.b.V4), httpCheck)
		h.Eventually("slices of port "+name, func() error {
			for _, s := range h.Slices("web") {
				if *s.Ports[0].Name != name {
					return fmt.Errorf("%s is of port %q", s.Name, *s.Ports[0].Name)
				}
			}
			return nil
		})
		h.WaitStates("web", all(harness.Healthy, p.a.At4(8080), p.b.At4(8080)))
		h.WaitRoutes("web", p.a.At4(8080), p.b.At4(8080))
	}
	apply("")
	load := startLoad(h, clusterAddrs(h, "web", 80)[0])
	load.reaches(p.a)
	for _, name := range []string{"web", "http"} {
		apply(name)
		load.more()
	}
	load.stopUnharmed()
}
