package probe

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// place is an endpoint of a fleet: the number of its owner, and its number within the owner.
type place struct{ owner, endpoint int }

// fleet is a number of owners, each in a namespace and a /24 of its own unless told otherwise.
type fleet struct {
	owners, each int
	check        func(owner int) *Check // nil: tcpCheck
	together     bool                   // all in one namespace and one /24
}

func (f fleet) key(owner int) types.NamespacedName {
	if f.together {
		return types.NamespacedName{Namespace: "shop", Name: fmt.Sprint("db", owner)}
	}
	return types.NamespacedName{Namespace: fmt.Sprint("ns", owner), Name: "db"}
}

func (f fleet) list(owner int) []Endpoint {
	list := make([]Endpoint, f.each)
	for i := range list {
		net, host := owner, i
		if f.together {
			net, host = 0, owner*f.each+i
		}
		addr := netip.AddrFrom4([4]byte{10, byte(net >> 8), byte(net), byte(host)})
		list[i] = Endpoint{
			ID:   ID{fmt.Sprintf("t%d-%d", owner, i), addr, 80},
			Dial: netip.AddrPortFrom(addr, 80),
			Seed: Healthy,
		}
	}
	return list
}

// outage is a time in which the peers of a fleet answer differently.
type outage struct {
	fleet     fleet
	threshold int
	lasts     time.Duration
	peers     func(place) peer // of each endpoint while it lasts
	after     func(place) peer // from its end on; nil: all answer
}

// seen is what the prober reported in an outage.
type seen struct {
	unhealthy map[place]time.Duration // when each was reported first, since the outage began
	blind     []time.Duration         // when the prober became blind, and when it was no longer
	end       map[place]Verdict       // of those that are not Healthy
	probes    int                     // in the last period of the outage
}

// endure runs an engine through an outage, and for two minutes after it.
func endure(t *testing.T, o outage) (got seen) {
	got = seen{unhealthy: map[place]time.Duration{}, end: map[place]Verdict{}}
	var begun time.Time
	var e *Engine
	owners, places := map[types.NamespacedName]int{}, map[string]place{}
	options := Options{
		BlindThreshold: o.threshold,
		Blind:          func(bool, int, int) { got.blind = append(got.blind, time.Since(begun)) },
		Notify: func(key types.NamespacedName) {
			for i, s := range e.States(key) {
				at := place{owners[key], i}
				if _, told := got.unhealthy[at]; s.Verdict == Unhealthy && !told {
					got.unhealthy[at] = time.Since(begun)
				}
			}
		},
	}
	become := func(n *fakeNetwork, of func(place) peer) {
		n.become(func(e Endpoint) (outcome, time.Duration) { return of(places[e.ID.Target])(e) })
	}
	bubble(t, options, answers, func(t *testing.T, engine *Engine, n *fakeNetwork) {
		e = engine
		for i := range o.fleet.owners {
			check := tcpCheck()
			if o.fleet.check != nil {
				check = o.fleet.check(i)
			}
			list := o.fleet.list(i)
			for j, endpoint := range list {
				places[endpoint.ID.Target] = place{i, j}
			}
			owners[o.fleet.key(i)] = i
			e.Sync(o.fleet.key(i), check, list)
		}
		settled(70 * sec)
		begun = time.Now()
		become(n, o.peers)
		settled(o.lasts)
		got.probes, _, _ = n.count(time.Now().Add(-10*sec), time.Now())
		if o.after == nil {
			o.after = func(place) peer { return answers }
		}
		become(n, o.after)
		settled(2 * time.Minute)
		for key, i := range owners {
			for j, s := range e.States(key) {
				if s.Verdict != Healthy {
					got.end[place{i, j}] = s.Verdict
				}
			}
		}
	})
	return got
}

func all(p peer) func(place) peer { return func(place) peer { return p } }

// some is p for every n-th endpoint of an owner, and q for the others.
func some(n int, p, q peer) func(place) peer {
	return func(at place) peer {
		if at.endpoint%n == 0 {
			return p
		}
		return q
	}
}

func paced(change func(*Check)) func(int) *Check {
	return func(int) *Check { return with(tcpCheck(), change) }
}

var thousand, hundred = fleet{owners: 50, each: 20}, fleet{owners: 10, each: 10}

// TestBlindProberTakesNothingDown has nearly all endpoints fall silent together. None is
// Unhealthy for that, neither during the silence nor after it.
func TestBlindProberTakesNothingDown(t *testing.T) {
	unreachable := func(Endpoint) (outcome, time.Duration) { return failed(ReasonUnreachable), 20 * ms }
	for name, o := range map[string]outage{
		"for 8 seconds":  {fleet: hundred, lasts: 8 * sec, peers: all(vanishes)},
		"for 11 seconds": {fleet: hundred, lasts: 11 * sec, peers: all(vanishes)},
		"for 15 seconds": {fleet: thousand, lasts: 15 * sec, peers: all(vanishes)},
		"for 20 seconds": {fleet: hundred, lasts: 20 * sec, peers: all(vanishes)},
		"for 10 minutes": {fleet: thousand, lasts: 10 * time.Minute, peers: all(vanishes)},
		"unreachable":    {fleet: hundred, lasts: time.Minute, peers: all(unreachable)},
		"but for 10 %":   {fleet: thousand, lasts: 2 * time.Minute, peers: some(10, answers, vanishes)},
		"but for 5 %":    {fleet: fleet{owners: 10, each: 20}, lasts: 10 * time.Minute, peers: some(20, answers, vanishes)},
		"6 endpoints":    {fleet: fleet{owners: 2, each: 3}, lasts: 10 * time.Minute, peers: all(vanishes)},
		"every second": {
			fleet: fleet{owners: 20, each: 20, check: paced(func(c *Check) {
				c.Period, c.Timeout, c.Confirm = sec, sec, 200*ms
			})},
			lasts: 2 * time.Minute, peers: some(20, answers, vanishes),
		},
		"once a minute": {
			fleet: fleet{owners: 20, each: 20, check: paced(func(c *Check) { c.Period = time.Minute })},
			lasts: 10 * time.Minute, peers: all(vanishes),
		},
		"one failure is enough": {
			fleet: fleet{owners: 20, each: 20, check: paced(func(c *Check) { c.FailureThreshold, c.Timeout = 1, sec })},
			lasts: 2 * time.Minute, peers: all(vanishes),
		},
		"slow to decide": {
			fleet: fleet{owners: 20, each: 20, check: paced(func(c *Check) { c.FailureThreshold, c.Confirm = 10, 10*sec })},
			lasts: 10 * time.Minute, peers: all(vanishes),
		},
		"quick and slow ones": {
			fleet: fleet{owners: 20, each: 20, check: func(owner int) *Check {
				return with(tcpCheck(), func(c *Check) {
					if owner%2 == 0 {
						c.Period, c.Timeout, c.Confirm, c.FailureThreshold = 2*sec, sec, 100*ms, 2
					} else {
						c.Period, c.Timeout = time.Minute, 30*sec
					}
				})
			}},
			lasts: 2 * time.Minute, peers: all(vanishes),
		},
	} {
		t.Run(name, func(t *testing.T) {
			o.threshold = 90
			got := endure(t, o)
			if len(got.unhealthy)+len(got.end) > 0 {
				t.Errorf("%d of %d became Unhealthy, %d are not Healthy at the end; blind at %v",
					len(got.unhealthy), o.fleet.owners*o.fleet.each, len(got.end), got.blind)
			}
			if o.lasts > 15*sec && len(got.blind) != 2 {
				t.Errorf("blindness changed at %v", got.blind)
			}
		})
	}
}

// TestDeathsAreFoundAsSoonAsWithoutTheRule has endpoints die while others answer. They are
// Unhealthy at the same time as with the rule for a blind prober turned off.
func TestDeathsAreFoundAsSoonAsWithoutTheRule(t *testing.T) {
	owner := func(dead int) func(place) peer {
		return func(at place) peer {
			if at.owner == dead {
				return vanishes
			}
			return answers
		}
	}
	five := fleet{owners: 200, each: 5}
	for name, o := range map[string]outage{
		"half of all": {fleet: thousand, peers: some(2, vanishes, answers)},
		"half of all, quick ones": {fleet: fleet{owners: 20, each: 20, check: paced(func(c *Check) {
			c.Period, c.Timeout, c.Confirm = 2*sec, sec, 200*ms
		})}, peers: some(2, vanishes, answers)},
		"one ExternalBackend of many": {fleet: five, peers: owner(7)},
		"the only ExternalBackend":    {fleet: fleet{owners: 1, each: 5}, peers: all(vanishes)},
		"the only place":              {fleet: fleet{owners: 4, each: 5, together: true}, peers: all(vanishes)},
		"four endpoints":              {fleet: fleet{owners: 2, each: 2}, peers: all(vanishes)},
		"all refuse":                  {fleet: thousand, peers: all(refuses)},
		"quick one beside slow neighbors": {fleet: fleet{owners: 20, each: 20, check: func(owner int) *Check {
			return with(tcpCheck(), func(c *Check) {
				if c.Period = time.Minute; owner == 7 {
					c.Period, c.Timeout, c.Confirm = 2*sec, sec, 200*ms
				}
			})
		}}, peers: owner(7)},
	} {
		t.Run(name, func(t *testing.T) {
			o.lasts = 3 * time.Minute
			want := endure(t, o)
			o.threshold = 90
			got := endure(t, o)
			if diff := cmp.Diff(want.unhealthy, got.unhealthy); diff != "" || len(want.unhealthy) == 0 {
				t.Errorf("%d became Unhealthy: want -, got +:%s", len(want.unhealthy), diff)
			}
			if len(got.blind) > 0 {
				t.Errorf("blind at %v", got.blind)
			}
		})
	}
}

// TestDeathsInABlindnessAreFoundAfterIt has some endpoints die while the prober is blind. They
// are Unhealthy after it, and no others.
func TestDeathsInABlindnessAreFoundAfterIt(t *testing.T) {
	const lasts = 5 * time.Minute
	dead := func(at place) bool { return at.endpoint == 3 }
	after := func(at place) peer {
		if dead(at) {
			return vanishes
		}
		return answers
	}
	got := endure(t, outage{fleet: thousand, threshold: 90, lasts: lasts, peers: all(vanishes), after: after})
	if len(got.unhealthy) != 50 || len(got.end) != 50 || len(got.blind) != 2 {
		t.Fatalf("%d became Unhealthy, %d are at the end, want 50; blind at %v", len(got.unhealthy), len(got.end), got.blind)
	}
	for at, after := range got.unhealthy {
		if !dead(at) || after < lasts || after > lasts+20*sec {
			t.Errorf("%v is Unhealthy %v after the end", at, after-lasts)
		}
	}
	if back := got.blind[1] - lasts; back > 3*sec {
		t.Errorf("sight came back after %v", back)
	}
	if want := 1000; got.probes < want*95/100 || got.probes > want*105/100 {
		t.Errorf("%d probes in a period of blindness, want %d", got.probes, want)
	}
}

// TestProbesOfABlindnessCountForNothing has endpoints that answer again a few seconds after the
// others. They are not Unhealthy for the probes that began in the blindness.
func TestProbesOfABlindnessCountForNothing(t *testing.T) {
	const lasts = time.Minute
	var back time.Time
	later := func(e Endpoint) (outcome, time.Duration) {
		if back.IsZero() {
			back = time.Now().Add(4 * sec)
		}
		if time.Now().Before(back) {
			return vanishes(e)
		}
		return answers(e)
	}
	o := outage{fleet: thousand, threshold: 90, lasts: lasts, peers: all(vanishes), after: some(2, answers, later)}
	if got := endure(t, o); len(got.unhealthy) > 0 || len(got.blind) != 2 {
		t.Errorf("%d became Unhealthy; blind at %v", len(got.unhealthy), got.blind)
	}
}

// TestRefusalsEndBlindness has all endpoints refuse after a blindness. A refusal is an answer, so
// the blindness ends and the refusals make them Unhealthy.
func TestRefusalsEndBlindness(t *testing.T) {
	got := endure(t, outage{fleet: thousand, threshold: 90, lasts: time.Minute, peers: all(vanishes), after: all(refuses)})
	if len(got.end) != 1000 || len(got.blind) != 2 {
		t.Errorf("%d of 1000 are Unhealthy at the end; blind at %v", len(got.end), got.blind)
	}
}

// TestStatesShowBlindness checks that the states of silent endpoints are Blind while the prober
// is.
func TestStatesShowBlindness(t *testing.T) {
	f := fleet{owners: 4, each: 5}
	bubble(t, Options{BlindThreshold: 90}, answers, func(t *testing.T, e *Engine, n *fakeNetwork) {
		for i := range f.owners {
			e.Sync(f.key(i), tcpCheck(), f.list(i))
		}
		blind := func() (total int) {
			for i := range f.owners {
				for _, s := range e.States(f.key(i)) {
					if s.Blind {
						total++
					}
				}
			}
			return total
		}
		settled(time.Minute)
		n.become(vanishes)
		settled(time.Minute)
		if got := blind(); got != 20 {
			t.Errorf("%d of 20 are Blind", got)
		}
		e.Forget(f.key(0))
		n.become(answers)
		settled(time.Minute)
		if got := blind(); got != 0 || e.sight.blind {
			t.Errorf("%d are Blind after it", got)
		}
		for i := 1; i < f.owners; i++ {
			e.Forget(f.key(i))
		}
		settled(sec)
		if s := &e.sight; s.healthy.n+s.silent.n+s.answers.total+s.silences.total+len(s.healthy.owners)+len(
			s.silent.nets,
		) != 0 {
			t.Errorf("%+v is left without endpoints", s.healthy)
		}
	})
}

// TestBlindnessEndsWithItsEndpoints removes all silent endpoints. New ones are judged as usual.
func TestBlindnessEndsWithItsEndpoints(t *testing.T) {
	f := fleet{owners: 5, each: 5}
	bubble(t, Options{BlindThreshold: 90}, answers, func(t *testing.T, e *Engine, n *fakeNetwork) {
		for i := range f.owners - 1 {
			e.Sync(f.key(i), tcpCheck(), f.list(i))
		}
		settled(time.Minute)
		n.become(vanishes)
		settled(time.Minute)
		if !e.sight.blind {
			t.Fatal("the prober is not blind")
		}
		for i := range f.owners - 1 {
			e.Forget(f.key(i))
		}
		fresh := f.list(f.owners - 1)
		for i := range fresh {
			fresh[i].Seed = Unknown
		}
		e.Sync(f.key(f.owners-1), tcpCheck(), fresh)
		settled(time.Minute)
		for _, s := range e.States(f.key(f.owners - 1)) {
			if s != unhealthy(ReasonTimeout) {
				t.Errorf("%+v", s)
			}
		}
	})
}

// TestTimelineCountsByTime compares the counts with a naive list.
func TestTimelineCountsByTime(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	var line timeline
	had := map[instant]int{}
	now := epochOffset
	for range 3000 {
		now += time.Duration(random.IntN(50)) * ms
		if random.IntN(1000) == 0 {
			now += 3 * time.Minute
		}
		at := now
		if random.IntN(4) == 0 {
			at -= time.Duration(random.IntN(100_000)) * ms
		}
		line.add(at, true)
		had[at]++
		for old := range maps.Keys(had) {
			if random.IntN(3) == 0 {
				line.add(old, false)
				if had[old]--; had[old] == 0 {
					delete(had, old)
				}
			}
			break
		}
		since := now - time.Duration(random.IntN(60_000))*ms
		from, after := 0, 0
		for at, n := range had {
			if bucketOf(at) >= bucketOf(since) {
				from += n
			}
			if bucketOf(at) > bucketOf(since) {
				after += n
			}
		}
		if got := line.from(since); got != from {
			t.Fatalf("%d from then on, want %d", got, from)
		}
		if got := line.after(since); got != after {
			t.Fatalf("%d after it, want %d", got, after)
		}
	}
}
