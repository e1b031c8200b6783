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

// TestNamesDown: DNS is silent for far longer than the TTL, and the manager that knew the answer is
// gone. Requests flow all the while, checks go on, no endpoint is written, and the status says what
// is wrong, until DNS is back.
func TestNamesDown(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager()
	p := newPair(h, "http", 8080)
	authority := h.Machine("dns")
	// for a second
	dns := h.StartDNS(authority, map[string]string{"example.com": fmt.Sprintf("db A %s\ndb A %s", p.a.V4, p.b.V4)})
	h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: web}
spec:
  service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
  ports: [{name: web, port: 80, targetPort: 8080}]
  targets: [{name: db, hostname: db.example.com}]
  dns: {nameservers: ["%s"], minTTLSeconds: 1}
  healthCheck: %s
`, authority.V4, httpCheck)
	a, b := p.a.At4(8080), p.b.At4(8080)
	h.WaitStates("web", all(harness.Healthy, a, b))
	h.WaitRoutes("web", a, b)
	h.WaitCondition("web", v1alpha1.ConditionNamesResolved, metav1.ConditionTrue, v1alpha1.ConditionNamesResolved)
	load := startLoad(h, clusterAddrs(h, "web", 80)[0])
	load.reaches(p.a)
	load.reaches(p.b)

	if err := authority.BlackHole(); err != nil {
		t.Fatal(err)
	}
	stale := func() {
		t.Helper()
		h.WaitCondition("web", v1alpha1.ConditionNamesResolved, metav1.ConditionFalse, v1alpha1.ReasonServingStale)
	}
	stale()
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
			askedInVain(h, leader)
			standby := h.StartManager("--leader-elect")
			leader.Stop()
			return standby
		}},
	} {
		m = change.to()
		askedInVain(h, m)
		probed(h, p.sa, p.sb)
		stale()
		if written := writes.Of(); len(written) > 0 {
			t.Errorf("after %s there was written %v", change.name, written)
		}
		if diff := gocmp.Diff(slices, h.Slices("web")); diff != "" {
			t.Errorf("the slices after %s, -before +after:\n%s", change.name, diff)
		}
		load.reaches(p.a)
		load.reaches(p.b)
	}

	// Health is followed without DNS.
	p.sicken(true)
	h.WaitStates("web", harness.States{a: harness.Healthy, b: harness.Unhealthy})
	h.WaitRoutes("web", a)
	load.spares(p.sb)
	p.sicken(false)
	h.WaitStates("web", all(harness.Healthy, a, b))

	if err := authority.Undrop(); err != nil {
		t.Fatal(err)
	}
	h.WaitCondition("web", v1alpha1.ConditionNamesResolved, metav1.ConditionTrue, v1alpha1.ConditionNamesResolved)
	h.WaitRoutes("web", a, b)
	load.reaches(p.b)
	// It is not that nobody listens to DNS any more.
	if err := dns.SetZone(t.Context(), "example.com", "db A "+p.a.V4.String()); err != nil {
		t.Fatal(err)
	}
	h.WaitStates("web", all(harness.Healthy, a))
	h.WaitRoutes("web", a)
	load.spares(p.sb)
	load.stopUnharmed()
}

// askedInVain waits until a manager has asked for a name for all of 5 s, and never had an answer.
func askedInVain(h *harness.Test, m *harness.Manager) {
	h.T.Helper()
	h.Eventually("DNS to be asked in vain", func() error {
		lookups := map[string]float64{}
		for series, n := range m.Metrics() {
			if strings.HasPrefix(series, "externalbackend_dns_lookups_total{") {
				lookups[series] = n
			}
		}
		const timeouts = `externalbackend_dns_lookups_total{rcode="timeout"}`
		if len(lookups) != 1 || lookups[timeouts] < 1 {
			return fmt.Errorf("there were %v", lookups)
		}
		return nil
	})
}
