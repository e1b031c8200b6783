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

// TestRemovalDelay shows a name's addresses in turn, as pools do, and then no longer one of them.
// While it is only their turn both get requests; what is gone for good drains and leaves, and no
// request is lost.
func TestRemovalDelay(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	p := newPair(h, "http", 8080)
	authority := h.Machine("dns")
	onlyA, onlyB := "db A "+p.a.V4.String(), "db A "+p.b.V4.String()
	dns := h.StartDNS(authority, map[string]string{"example.com": onlyA})
	const removalDelay, drain = 12 * time.Second, 4 * time.Second
	h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: web}
spec:
  service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
  ports: [{name: web, port: 80, targetPort: 8080}]
  targets: [{name: db, hostname: db.example.com}]
  dns: {nameservers: ["%s"], minTTLSeconds: 1, removalDelaySeconds: %d}
  drainSeconds: %d
  healthCheck: %s
`, authority.V4, int(removalDelay.Seconds()), int(drain.Seconds()), httpCheck)
	a, b := p.a.At4(8080), p.b.At4(8080)
	show := func(records string) {
		t.Helper()
		if err := dns.SetZone(t.Context(), "example.com", records); err != nil {
			t.Fatal(err)
		}
	}
	h.WaitStates("web", all(harness.Healthy, a))
	h.WaitRoutes("web", a)
	load := startLoad(h, clusterAddrs(h, "web", 80)[0])
	show(onlyB)
	h.WaitStates("web", all(harness.Healthy, a, b))
	h.WaitRoutes("web", a, b)

	writes := h.CountWrites()
	for _, turn := range []string{onlyA, onlyB} {
		show(turn)
		asked(h, dns)
		load.reaches(p.a)
		load.reaches(p.b)
	}
	if written := writes.Of("endpointslices"); len(written) > 0 {
		t.Errorf("while the addresses took turns there was written %v", written)
	}

	gone := time.Now() // or a little later
	show(onlyA)
	h.WaitStates("web", harness.States{a: harness.Healthy, b: harness.Draining})
	if after := time.Since(gone); after < removalDelay {
		t.Errorf("the address began to drain after %v", after)
	}
	h.WaitRoutes("web", a)
	load.spares(p.sb)
	h.WaitStates("web", all(harness.Healthy, a))
	if after := time.Since(gone); after < removalDelay+drain-time.Second { // whole seconds are kept
		t.Errorf("the address was gone after %v", after)
	}
	load.stopUnharmed()
}

// asked waits until a nameserver has answered twice more for a host's IPv4 addresses.
func asked(h *harness.Test, s *devcluster.Nameserver) {
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
			return fmt.Errorf("it was %d times of %d", n, until)
		}
		return nil
	})
}

// TestServicePriorities: the priorities of SRV records are tiers. Requests follow them through the
// first one's illness, and through a change of the records, and none is lost.
func TestServicePriorities(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	p := newPair(h, "http", 8080)
	more := h.Serve(p.b, "http", 8081) // another port of the machine b
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
  failover: {failbackDelaySeconds: 1}
`, authority.V4, pace)
	a, b, other := p.a.At4(8080), p.b.At4(8080), p.b.At4(8081)
	first := harness.States{a: harness.Healthy, b: harness.Standby, other: harness.Standby}
	h.WaitStates("web", first)
	h.WaitRoutes("web", a)
	load := startLoad(h, clusterAddrs(h, "web", 80)[0])
	load.reaches(p.a)

	p.sa.SetSick(true)
	h.WaitStates("web", harness.States{a: harness.Unhealthy, b: harness.Healthy, other: harness.Standby})
	h.WaitRoutes("web", b)
	load.spares(p.sa)
	p.sa.SetSick(false)
	h.WaitStates("web", first)
	h.WaitRoutes("web", a)

	if err := dns.SetZone(t.Context(), "example.com", zone(300, 20, 10)); err != nil {
		t.Fatal(err)
	}
	h.WaitStates("web", harness.States{a: harness.Standby, b: harness.Standby, other: harness.Healthy})
	h.WaitRoutes("web", other)
	load.spares(p.sa)
	if more.Requests() == 0 {
		t.Error("no request reached the port of the best record")
	}
	load.stopUnharmed()
}
