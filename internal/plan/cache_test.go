package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// TestCachedPlanEqualsFreshPlanInRandomLives leads ExternalBackends through random lives and plans
// every step twice: with the cache of the plan before, and from the beginning. The two must not
// differ in anything.
func TestCachedPlanEqualsFreshPlanInRandomLives(t *testing.T) {
	const lives, shards = 1200, 4
	var plans, reused atomic.Int64
	t.Run("lives", func(t *testing.T) {
		for shard := range shards {
			t.Run(fmt.Sprint(shard), func(t *testing.T) {
				t.Parallel()
				for i := range lives / shards {
					l := newLife(t, uint64(i*shards+shard))
					l.live(40)
					plans.Add(l.plans)
					reused.Add(l.reuses)
					if t.Failed() {
						t.Fatalf("life %d", i*shards+shard)
					}
				}
			})
		}
	})
	if 3*reused.Load() < plans.Load() || 4*reused.Load() > 3*plans.Load() {
		t.Errorf("%d of %d plans used the cache: too few or too many to compare", reused.Load(), plans.Load())
	}
}

// FuzzCachedPlan is TestCachedPlanEqualsFreshPlanInRandomLives with seeds of the fuzzer.
func FuzzCachedPlan(f *testing.F) {
	f.Add(uint64(1 << 40))
	f.Fuzz(func(t *testing.T, seed uint64) { newLife(t, seed).live(40) })
}

// planned is everything that a plan decides.
type planned struct {
	Endpoints   []Endpoint
	Notes       []TargetNotes
	Probes      []Probe
	NamedAddrs  []NamedAddr
	Publication Publication
	AllVerdicts bool
	Changes     endpointslice.Changes
}

// run plans with a cache.
func (l *life) run(cache *Cache, probes []Probe, existing []*discoveryv1.EndpointSlice) (out planned, tier *TierState) {
	published := endpointslice.Published(existing, l.handover...)
	c := cache.Candidates(Input{
		Backend: l.backend, Families: l.families, Headless: l.headless,
		ServesPort: func(p *v1alpha1.Port) bool { return p.Name != l.lacking },
		Answers:    l.answers,
		Permit:     func(_ string, a netip.Addr, _ []Port) Refusal { return l.denied[a] }, Rules: l.rules,
		Published: published, Siblings: []Sibling{{Older: true, Endpoints: l.older}},
		FormerSiblings: []Sibling{{Endpoints: l.siblings}},
		Probes:         l.probes, NamedAddrs: l.named, Max: l.limit, Now: l.now,
	}, l.template)
	l.reused = c.layout != nil
	probes, _ = c.Probes(probes)
	state := func(i int) ProbeState { return ProbeState{Verdict: l.verdicts[probes[i].ID]} }
	p := Publish(PublishInput{Backend: l.backend, Published: published, State: state, TierState: l.tier, Now: l.now}, &c)
	conditions, _ := HandOver(c.Endpoints, p.Conditions, l.handover, true)
	out = planned{
		Notes:       slices.Clone(c.Notes),
		Probes:      probes,
		NamedAddrs:  c.NamedAddrs(l.named),
		AllVerdicts: p.HasAllVerdicts(&c),
		Changes:     cache.Slices(&c, conditions),
	}
	p.State = nil // functions can't be compared
	out.Endpoints, out.Publication = c.WithConditions(conditions), p
	return out, &p.TierState
}

// plan plans twice, compares, and writes what is planned. Some of the writes are refused.
func (l *life) plan() {
	existing := l.stored.list()
	if l.earlier != nil && l.random.IntN(15) == 0 { // the cache is behind
		existing = l.earlier
	}
	l.earlier = slices.Clone(existing)
	before := make([]*discoveryv1.EndpointSlice, len(existing))
	for i, s := range existing {
		before[i] = s.DeepCopy()
	}
	if l.random.IntN(8) == 0 {
		l.planAhead(existing)
	}
	var fresh Cache
	want, _ := l.run(&fresh, nil, existing)
	got, tier := l.run(&l.cache, l.probes, existing)
	l.plans++
	if l.reused {
		l.reuses++
	}
	for _, p := range []*planned{&want, &got} {
		p.Probes = append([]Probe{}, p.Probes...)
		for i := range p.Probes {
			p.Probes[i].SeedVerdict = Unknown // only counts when an endpoint is probed for the first time
		}
	}
	if !reflect.DeepEqual(want, got) {
		equal := []gocmp.Option{
			gocmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
			gocmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
		}
		l.t.Errorf(
			"the plan used the cache: %v; -without cache +with cache:\n%s",
			l.reused,
			gocmp.Diff(want, got, equal...),
		)
		return
	}
	if !slices.EqualFunc(before, existing, func(a, b *discoveryv1.EndpointSlice) bool { return reflect.DeepEqual(a, b) }) {
		l.t.Error("planning changed the slices that are there")
	}
	l.tier, l.probes, l.named = tier, slices.Clone(got.Probes), got.NamedAddrs
	refused := func() bool { return l.random.IntN(12) == 0 }
	for _, s := range slices.Concat(got.Changes.Create, got.Changes.Update) {
		if refused() {
			continue
		}
		if len(s.Endpoints) > 0 && l.random.IntN(20) == 0 {
			l.intercept(s)
		}
		l.store(s)
	}
	for _, s := range got.Changes.Delete {
		if !refused() {
			delete(l.stored, s.Name)
		}
	}
}

// planAhead is a first plan of the same reconcile, for the ports that a Service is about to get.
func (l *life) planAhead(existing []*discoveryv1.EndpointSlice) {
	ahead := *l
	ahead.lacking, ahead.families.IPv6 = "", l.random.IntN(2) == 0
	ahead.verdicts = maps.Clone(l.verdicts)
	for id := range ahead.verdicts {
		ahead.verdicts[id] = Verdict(l.random.IntN(3))
	}
	planned, _ := ahead.run(&l.cache, l.probes, existing)
	l.probes, l.named = slices.Clone(planned.Probes), planned.NamedAddrs
}

// store stores a slice as the API server does.
func (l *life) store(s *discoveryv1.EndpointSlice) {
	l.version++
	if s.UID == "" {
		s.UID = types.UID("uid-" + strconv.Itoa(l.version))
	}
	s.ResourceVersion = strconv.Itoa(l.version)
	l.stored[s.Name] = s
}

// intercept changes a slice as a webhook does.
func (l *life) intercept(s *discoveryv1.EndpointSlice) {
	switch e := &s.Endpoints[0]; l.random.IntN(5) {
	case 0:
		s.Labels["hook"] = "x"
	case 1:
		delete(s.Labels, "team")
	case 2:
		e.Conditions.Ready = new(!*e.Conditions.Ready)
	case 3:
		e.Conditions.Serving = new(!*e.Conditions.Serving)
	case 4:
		slices.Reverse(s.Endpoints)
	}
}
