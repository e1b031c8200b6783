package security

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

const (
	// slowNames is how many names of a tenant's are answered slowly: more than there are lookups at a
	// time.
	slowNames = 600
	// largeNames is how many are answered by largeAnswer addresses each, which all together nobody can
	// publish.
	largeNames, largeAnswer = 64, 2000
)

// TestNameservers has a tenant's nameservers take their time for more names than are looked up at a
// time, and answer others with more addresses than one ExternalBackend may have. Others' names are
// resolved all the same, and the manager keeps what may be published.
func TestNameservers(t *testing.T) {
	tenant, other := harness.New(t), harness.New(t)
	w := theWorld(tenant)
	m := tenant.StartManager("--resolv-conf=" + w.dns.resolvConf)
	size := func() float64 { return m.Metrics()["go_memstats_heap_inuse_bytes"] }
	before := size()
	named := func(name string, names int, how func(i int) lie) {
		b := newBackend(name, byName["none"])
		b.Spec.DNS = &v1alpha1.DNS{
			MinTTLSeconds: 1,
			Transport:     v1alpha1.DNSTransportTCP,
			Nameservers:   []string{w.dns.V4.String()},
		}
		for i := range names {
			host := fmt.Sprintf("t%d.%s.good.example", i, name)
			w.dns.tell(host, how(i))
			b.Spec.Targets = append(b.Spec.Targets, v1alpha1.Target{Name: fmt.Sprint("t", i), Hostname: host})
		}
		tenant.ApplyObject(b)
	}
	named("slow", slowNames, func(i int) lie {
		return func(a *reply, _ int) {
			<-time.After(3 * time.Second) // the lookup would end after 5
			a.add(a.name, goodAddr(i, netip.IPv4Unspecified()))
		}
	})
	named("large", largeNames, func(i int) lie {
		return func(a *reply, n int) { // others each time
			for j := range largeAnswer {
				a.add(a.name, goodAddr((i+n)*largeAnswer+j, netip.IPv4Unspecified()))
			}
		}
	})
	published := func(h *harness.Test, name string, n int) error {
		if is := len(h.Endpoints(name)); is < n {
			return fmt.Errorf("%d endpoints of %d are published", is, n)
		}
		return nil
	}
	tenant.Within(2*harness.Patience, "slow names to be resolved",
		func() error { return published(tenant, "slow", slowNames) })
	for i := range 5 {
		b := newBackend(fmt.Sprint("other-", i), byName["none"])
		host := b.Name + ".good.example"
		w.dns.tell(host, truth(goodAddr(44000+i, netip.IPv4Unspecified())))
		b.Spec.Targets = []v1alpha1.Target{{Name: "t", Hostname: host}}
		began := time.Now()
		other.ApplyObject(b)
		other.WaitReady(b.Name)
		t.Logf("another's name is resolved after %v", time.Since(began).Round(time.Millisecond))
	}
	tenant.Eventually("status to tell what is left out", func() error {
		for _, is := range tenant.Backend("large").Status.Targets {
			if is.Reason == v1alpha1.TargetReasonTruncated {
				return nil
			}
		}
		return errors.New("it does not")
	})
	if after := size(); after > before+maxGrowth {
		t.Errorf("the heap has grown from %.0f to %.0f MiB", before/(1<<20), after/(1<<20))
	} else {
		t.Logf("the heap has grown from %.0f to %.0f MiB", before/(1<<20), after/(1<<20))
	}
	m.Stop()
}
