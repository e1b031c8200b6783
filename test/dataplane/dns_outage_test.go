package dataplane

import (
	"fmt"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// While DNS does not answer, for far longer than the TTL and across restarts of the manager,
// requests flow, checks continue, no slice is written, and status reports the problem. Afterwards
// the manager follows DNS again.
func TestTrafficSurvivesDNSOutage(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager()
	p := newPair(h, "http", 8080)
	authority := h.Machine("dns")
	dns := h.StartDNS(authority, map[string]string{"example.com": fmt.Sprintf("db A %s\ndb A %s", p.a.V4, p.b.V4)})
	h.ApplyBackend("web", `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80, targetPort: 8080}]
targets: [{name: db, hostname: db.example.com}]
dns: {nameservers: ["%s"], minTTLSeconds: 1}
healthCheck: %s
`, authority.V4, harness.HTTPCheck)
	a, b := p.a.At4(8080), p.b.At4(8080)
	h.WaitStates("web", harness.All(harness.Healthy, a, b))
	h.WaitRoutes("web", a, b)
	h.WaitCondition("web", v1alpha1.ConditionNamesResolved, metav1.ConditionTrue, v1alpha1.ConditionNamesResolved)
	load := startLoad(h, clusterAddrs(h, "web", 80)[0])
	load.waitAnswerFrom(p.a)
	load.waitAnswerFrom(p.b)

	if err := authority.BlackHole(); err != nil {
		t.Fatal(err)
	}
	waitStale := func() {
		t.Helper()
		h.WaitCondition("web", v1alpha1.ConditionNamesResolved, metav1.ConditionFalse, v1alpha1.ReasonServingStale)
	}
	waitStale()
	slices, writes := h.Slices("web"), h.CountWrites()
	for _, change := range []struct {
		name string
		to   func() *harness.Manager
	}{
		{"SIGTERM", func() *harness.Manager { m.Stop(); return h.StartManager() }},
		{"SIGKILL", func() *harness.Manager { m.Kill(); return h.StartManager() }},
		{"a change of the leader", func() *harness.Manager {
			m.Stop()
			leader := h.StartManager("--leader-elect")
			waitTimeouts(h, leader)
			standby := h.StartManager("--leader-elect")
			leader.Stop()
			return standby
		}},
	} {
		m = change.to()
		waitTimeouts(h, m)
		h.WaitChecked(p.sa, p.sb)
		waitStale()
		if written := writes.Of(); len(written) > 0 {
			t.Errorf("after %s, the manager wrote %v", change.name, written)
		}
		if diff := gocmp.Diff(slices, h.Slices("web")); diff != "" {
			t.Errorf("the slices after %s, -before +after:\n%s", change.name, diff)
		}
		load.waitAnswerFrom(p.a)
		load.waitAnswerFrom(p.b)
	}

	// The manager follows health without DNS.
	p.sicken(true)
	h.WaitStates("web", harness.States{a: harness.Healthy, b: harness.Unhealthy})
	h.WaitRoutes("web", a)
	load.wantNoneAt(p.sb)
	p.sicken(false)
	h.WaitStates("web", harness.All(harness.Healthy, a, b))

	if err := authority.Undrop(); err != nil {
		t.Fatal(err)
	}
	h.WaitCondition("web", v1alpha1.ConditionNamesResolved, metav1.ConditionTrue, v1alpha1.ConditionNamesResolved)
	h.WaitRoutes("web", a, b)
	load.waitAnswerFrom(p.b)
	// The manager still follows DNS.
	if err := dns.SetZone(t.Context(), "example.com", "db A "+p.a.V4.String()); err != nil {
		t.Fatal(err)
	}
	h.WaitStates("web", harness.All(harness.Healthy, a))
	h.WaitRoutes("web", a)
	load.wantNoneAt(p.sb)
	load.stopWithoutLoss()
}

// waitTimeouts waits until a lookup of the manager has timed out, which takes 5 s. No lookup may
// have had another outcome.
func waitTimeouts(h *harness.Test, m *harness.Manager) {
	h.T.Helper()
	h.Eventually("a lookup to time out", func() error {
		lookups := map[string]float64{}
		for series, n := range m.Metrics() {
			if strings.HasPrefix(series, "externalbackend_dns_lookups_total{") {
				lookups[series] = n
			}
		}
		const timeouts = `externalbackend_dns_lookups_total{rcode="timeout"}`
		if len(lookups) != 1 || lookups[timeouts] < 1 {
			return fmt.Errorf("the lookups are %v", lookups)
		}
		return nil
	})
}
