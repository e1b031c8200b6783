package dataplane

import (
	"fmt"
	"testing"

	"github.com/external-backend/operator/test/harness"
)

// A Draining target gets requests only while no other target can take them. A Disabled target gets
// none.
func TestDrainingTargetIsLastResort(t *testing.T) {
	h, p := setUp(t)
	apply := func(stateOfB string) {
		t.Helper()
		h.ApplyBackend("web", `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80, targetPort: 8080}]
targets:
- {name: a, address: %s}
- {name: b, address: %s, adminState: %s}
healthCheck: %s
`, p.a.V4, p.b.V4, stateOfB, harness.HTTPCheck)
	}
	a, b := p.a.At4(8080), p.b.At4(8080)
	apply("Active")
	h.WaitStates("web", harness.All(harness.Healthy, a, b))
	h.WaitRoutes("web", a, b)
	addr := clusterAddrs(h, "web", 80)[0]
	load := startLoad(h, addr)
	load.waitAnswerFrom(p.b)

	apply("Draining")
	h.WaitStates("web", harness.States{a: harness.Healthy, b: harness.Draining})
	h.WaitRoutes("web", a)
	load.waitMore()
	load.stopWithoutLoss()
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
	h.WaitStates("web", harness.All(harness.Healthy, a, b))
	h.WaitRoutes("web", a, b)
	wantAnswers(h, "http", addr, p.a, p.b)
}

// A standby tier gets requests only while it is active. Failover and failback are followed, and
// failback loses no request.
func TestStandbyGetsRequestsOnlyWhileActive(t *testing.T) {
	h, p := setUp(t) // b is in the first tier, a in the standby tier
	h.ApplyBackend("web", `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80, targetPort: 8080}]
targets:
- {name: first, address: %s}
- {name: standby, address: %s, tier: 1}
healthCheck: %s
failover: {failbackDelaySeconds: 1}
`, p.b.V4, p.a.V4, harness.HTTPCheck)
	standby, first := p.a.At4(8080), p.b.At4(8080)
	h.WaitStates("web", harness.States{first: harness.Healthy, standby: harness.Standby})
	h.WaitRoutes("web", first)
	load := startLoad(h, clusterAddrs(h, "web", 80)[0])
	load.waitAnswerFrom(p.b)
	if n := p.sa.Requests(); n > 0 {
		t.Errorf("the standby got %d requests", n)
	}

	p.sicken(true)
	h.WaitStates("web", harness.States{first: harness.Unhealthy, standby: harness.Healthy})
	h.WaitRoutes("web", standby)
	load.waitAnswerFrom(p.a)
	h.WaitEvent("web", "TierChanged")
	load.wantNoneAt(p.sb)

	p.sicken(false)
	h.WaitStates("web", harness.States{first: harness.Healthy, standby: harness.Standby})
	h.WaitRoutes("web", first)
	load.waitAnswerFrom(p.b)
	load.waitMore()
	load.stopWithoutLoss()
	wantAnswers(h, "http", clusterAddrs(h, "web", 80)[0], p.b)
}

// With whenNoTierQualifies AllEndpoints, every endpoint gets requests while none is healthy.
func TestFailOpenSendsToEveryEndpoint(t *testing.T) {
	h, p := setUp(t)
	h.ApplyBackend("web", `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80, targetPort: 8080}]
targets: %s
healthCheck: {httpGet: {path: /healthz}, %s}
failover: {minHealthyPercent: 50, whenNoTierQualifies: AllEndpoints}
`, targets("a", p.a.V4, "b", p.b.V4), harness.FastPace)
	a, b := p.a.At4(8080), p.b.At4(8080)
	h.WaitStates("web", harness.All(harness.Healthy, a, b))
	p.sicken(true)
	h.WaitStates("web", harness.States{a: harness.Healthy, b: harness.Unhealthy})
	p.sa.SetSick(true)
	h.WaitStates("web", harness.All(harness.FailOpen, a, b))
	h.WaitEvent("web", "FailOpen")
	h.WaitRoutes("web", a, b)
	wantAnswers(h, "http", clusterAddrs(h, "web", 80)[0], p.a, p.b)
	p.sa.SetSick(false)
	h.WaitStates("web", harness.States{a: harness.Healthy, b: harness.Unhealthy})
	h.WaitRoutes("web", a)
	wantAnswers(h, "http", clusterAddrs(h, "web", 80)[0], p.a)
}

// While one backend is healthy and one is not, a restart of the manager changes no endpoint, writes
// nothing and loses no request.
func TestManagerRestartChangesNothing(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager()
	p := newPair(h, "http", 8080)
	h.ApplyBackend("web", `
service: {ipFamilyPolicy: RequireDualStack}
ports: [{name: web, port: 80, targetPort: 8080}]
targets: %s
healthCheck: %s
`, targets("a4", p.a.V4, "a6", p.a.V6, "b4", p.b.V4, "b6", p.b.V6), harness.HTTPCheck)
	a4, a6, b4, b6 := p.a.At4(8080), p.a.At6(8080), p.b.At4(8080), p.b.At6(8080)
	h.WaitStates("web", harness.All(harness.Healthy, a4, a6, b4, b6))
	p.sicken(true)
	want := harness.Union(harness.All(harness.Healthy, a4, a6), harness.All(harness.Unhealthy, b4, b6))
	h.WaitStates("web", want)
	h.WaitRoutes("web", a4, a6)
	h.WaitCondition("web", "Healthy", "False", "SomeUnhealthy")
	h.Eventually("a status that says so", func() error { // status may be 10 s late
		if is := h.Backend("web").Status.Endpoints; is == nil || is.Ready != 2 || is.Unhealthy != 2 {
			return fmt.Errorf("status.endpoints is %+v", is)
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
		load.waitMore()
		m = h.StartManager()
		h.WaitChecked(p.sa, p.sb)
		if written := writes.Of(); len(written) > 0 {
			t.Errorf("after %s, the next manager wrote %v", end.name, written)
		}
	}
	h.WaitStates("web", want)
	load.stopWithoutLoss()
	if n := p.sb.Requests() - served; n > 0 {
		t.Errorf("%d requests reached the unhealthy backend", n)
	}

	// The manager still follows health.
	p.sicken(false)
	h.WaitStates("web", harness.All(harness.Healthy, a4, a6, b4, b6))
}
