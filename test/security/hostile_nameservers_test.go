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
	// slowNames is the number of names that are answered slowly. It is larger than the number of
	// concurrent lookups.
	slowNames = 600
	// largeNames is the number of names that are answered by largeAnswer addresses each. One
	// ExternalBackend can't publish that many.
	largeNames, largeAnswer = 64, 2000
)

// A tenant's nameservers answer slowly, for more names than are looked up at a time, or with more
// addresses than one ExternalBackend may have. The names of others are still resolved, and the
// manager keeps no more addresses than may be published.
func TestHostileNameserversDelayNoOthers(t *testing.T) {
	tenant, other := harness.New(t), harness.New(t)
	env := sharedEnvironment(tenant)
	m := tenant.StartManager("--resolv-conf=" + env.dns.resolvConf)
	size := func() float64 { return m.Metrics()["go_memstats_heap_inuse_bytes"] }
	before := size()
	named := func(name string, names int, how func(i int) answerFunc) {
		b := newBackend(name, handlerNamed["none"])
		b.Spec.DNS = &v1alpha1.DNS{
			MinTTLSeconds: 1,
			Transport:     v1alpha1.DNSTransportTCP,
			Nameservers:   []string{env.dns.V4.String()},
		}
		for i := range names {
			host := fmt.Sprintf("t%d.%s.good.example", i, name)
			env.dns.setAnswer(host, how(i))
			b.Spec.Targets = append(b.Spec.Targets, v1alpha1.Target{Name: fmt.Sprint("t", i), Hostname: host})
		}
		tenant.ApplyObject(b)
	}
	named("slow", slowNames, func(i int) answerFunc {
		return func(a *dnsReply, _ int) {
			<-time.After(3 * time.Second) // the lookup would end after 5
			a.add(a.name, allowedAddr(i, netip.IPv4Unspecified()))
		}
	})
	named("large", largeNames, func(i int) answerFunc {
		return func(a *dnsReply, n int) { // each answer has other addresses
			for j := range largeAnswer {
				a.add(a.name, allowedAddr((i+n)*largeAnswer+j, netip.IPv4Unspecified()))
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
		b := newBackend(fmt.Sprint("other-", i), handlerNamed["none"])
		host := b.Name + ".good.example"
		env.dns.setAnswer(host, addressAnswer(allowedAddr(44000+i, netip.IPv4Unspecified())))
		b.Spec.Targets = []v1alpha1.Target{{Name: "t", Hostname: host}}
		began := time.Now()
		other.ApplyObject(b)
		other.WaitReady(b.Name)
		t.Logf("the other tenant's name is resolved after %v", time.Since(began).Round(time.Millisecond))
	}
	tenant.Eventually("status to report what is truncated", func() error {
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
