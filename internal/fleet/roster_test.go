package fleet

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

var histories = flag.Int("histories", 10_000, "random histories of a fleet; a tenth of them with -short")

const (
	step = 100 * time.Millisecond
	// maxDelay is how long a watch needs to show a change, and a renewal to arrive, at most.
	maxDelay = time.Second
	// settled is how long after the last change each ExternalBackend has its replica: 18 s, and what
	// the news of a Lease and a renewal may take in this world.
	settled = 18*time.Second + 4*maxDelay
)

// world is a fleet and its API server, in simulated time.
type world struct {
	rand     *rand.Rand
	now      time.Time
	leases   map[string]record
	replicas []*simulated
	started  int
	down     bool // the API server is away
}

// simulated is a replica with a clock of its own.
type simulated struct {
	*roster
	began    time.Time
	offset   time.Duration
	rate     float64 // of its clock
	cut      bool    // from the API server
	paused   bool
	renewsAt time.Time // when the renewal under way reaches the API server; zero: none is
	endsAt   time.Time // when its answer arrives
	failed   bool
	news     []news // on their way
	wasCut   bool
	listed   bool // it has seen the Leases once
}

// news is a change of a Lease on its way through a watch.
type news struct {
	at   time.Time
	name string
	is   record
	gone bool
}

func newWorld(seed uint64) *world {
	return &world{
		rand: rand.New(rand.NewPCG(seed, 1)), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC),
		leases: map[string]record{},
	}
}

func (w *world) delay(most time.Duration) time.Duration {
	return time.Duration(w.rand.Int64N(int64(most)))
}

// join starts a replica.
func (w *world) join(name string) *simulated {
	w.started++
	s := &simulated{
		roster: newRoster(name, fmt.Sprint(name, "_", w.started)), began: w.now,
		offset: w.delay(40*time.Second) - 20*time.Second, rate: 0.98 + 0.04*w.rand.Float64(),
	}
	w.replicas = append(w.replicas, s)
	w.list(s)
	return s
}

// clock returns the time as the replica knows it.
func (s *simulated) clock(now time.Time) time.Time {
	return s.began.Add(s.offset + time.Duration(float64(now.Sub(s.began))*s.rate))
}

// list shows a replica all Leases, as at the start and after its watch was interrupted.
func (w *world) list(s *simulated) {
	s.news = nil
	at := w.now.Add(w.delay(maxDelay))
	for name, is := range w.leases {
		s.news = append(s.news, news{at: at, name: name, is: is})
	}
	for name := range s.others {
		if _, there := w.leases[name]; !there {
			s.news = append(s.news, news{at: at, name: name, gone: true})
		}
	}
}

// write changes a Lease, and sends the news to all that have a watch.
func (w *world) write(name string, is record, gone bool) {
	if w.leases[name] = is; gone {
		delete(w.leases, name)
	}
	for _, s := range w.replicas {
		if s.cut || w.down {
			continue
		}
		at := w.now.Add(w.delay(maxDelay))
		if n := len(s.news); n > 0 && at.Before(s.news[n-1].at) {
			at = s.news[n-1].at // a watch keeps the order
		}
		s.news = append(s.news, news{at, name, is, gone})
	}
}

// leave ends a replica in order, or kills it.
func (w *world) leave(s *simulated, orderly bool) {
	w.replicas = slices.DeleteFunc(w.replicas, func(other *simulated) bool { return other == s })
	if orderly && !s.cut && !w.down {
		w.write(s.self, record{}, true)
	}
}

// run lets time pass, and calls check after every step.
func (w *world) run(long time.Duration, check func()) {
	for end := w.now.Add(long); w.now.Before(end); w.now = w.now.Add(step) {
		for _, s := range w.replicas {
			w.step(s)
		}
		if check != nil {
			check()
		}
	}
}

func (w *world) step(s *simulated) {
	unreachable := s.cut || w.down
	if s.wasCut && !unreachable {
		w.list(s)
	}
	s.wasCut = unreachable
	if !s.renewsAt.IsZero() && !w.now.Before(s.renewsAt) {
		s.renewsAt = time.Time{}
		if s.failed = unreachable; !unreachable {
			w.write(s.self, record{holder: s.holder, renewed: s.clock(w.now), duration: leaseDuration, aside: s.telling}, false)
		}
	}
	if s.paused {
		return
	}

	s.listed = s.listed || !unreachable && (len(s.news) == 0 || !w.now.Before(s.news[0].at))
	if !s.listed {
		return
	}
	now := s.clock(w.now)
	for len(s.news) > 0 && !w.now.Before(s.news[0].at) && !unreachable {
		n := s.news[0]
		s.news = s.news[1:]
		switch {
		case n.name == s.self:
			s.seeOwn(n.is, now)
		case n.gone:
			s.lose(n.name)
		default:
			s.seeOther(n.name, n.is, now)
		}
	}
	if !s.endsAt.IsZero() && !w.now.Before(s.endsAt) && s.renewsAt.IsZero() {
		s.endsAt = time.Time{}
		s.endRenewal(!s.failed, now)
	}
	if s.beginRenewal(now) {
		s.renewsAt = w.now.Add(w.delay(maxDelay))
		s.endsAt = s.renewsAt.Add(w.delay(maxDelay))
	}
}

// writers counts, for each key, the replicas whose writes would succeed now.
func (w *world) writers(all []types.NamespacedName) []int {
	counts := make([]int, len(all))
	for _, s := range w.replicas {
		now := s.clock(w.now)
		if s.cut || w.down || s.paused || !s.mayWrite(now) {
			continue
		}
		share := s.share(now)
		for i, key := range all {
			if share.Owns(key) {
				counts[i]++
			}
		}
	}
	return counts
}

// disturb does something to the fleet, and returns a text about it.
func (w *world) disturb() string {
	pick := func() *simulated { return w.replicas[w.rand.IntN(len(w.replicas))] }
	switch n := w.rand.IntN(11); {
	case n == 0 && len(w.replicas) < 5:
		return "join " + w.join(fmt.Sprint("replica-", w.started)).self
	case n == 1 && len(w.replicas) > 1:
		s := pick()
		w.leave(s, true)
		return "leave " + s.self
	case n == 2 && len(w.replicas) > 1:
		s := pick()
		w.leave(s, false)
		return "kill " + s.self
	case n == 3:
		s := pick()
		w.leave(s, false)
		w.join(s.self)
		return "restart " + s.self
	case n == 4 || n == 5:
		s := pick()
		s.cut = !s.cut
		return fmt.Sprint("cut ", s.self, " ", s.cut)
	case n == 6 || n == 7:
		s := pick()
		s.paused = !s.paused
		return fmt.Sprint("pause ", s.self, " ", s.paused)
	case n == 8 || n == 9:
		s := pick()
		s.setAside(!s.aside)
		return fmt.Sprint("set aside ", s.self, " ", s.aside)
	default:
		w.down = !w.down
		return fmt.Sprint("API server down ", w.down)
	}
}

// Replicas join, leave, die, pause, are cut off, are set aside and lose the API server at random.
// Their clocks disagree. Two of them never write for one ExternalBackend for longer than a watch
// needs to tell them. Once all has settled, each ExternalBackend has one replica that writes.
func TestEachBackendHasOneWriter(t *testing.T) {
	n := *histories
	if testing.Short() {
		n /= 10
	}
	all := keys(3)
	for seed := range uint64(n) {
		w := newWorld(seed)
		story := []string{}
		for range 1 + w.rand.IntN(3) {
			w.join(fmt.Sprint("replica-", w.started))
		}
		overlap := make([]time.Duration, len(all))
		check := func() {
			for i, writers := range w.writers(all) {
				if writers < 2 {
					overlap[i] = 0
				} else if overlap[i] += step; overlap[i] > maxDelay {
					t.Fatalf("seed %d: two replicas write for %s for %v; %q", seed, all[i], overlap[i], story)
				}
			}
		}
		for range 3 + w.rand.IntN(4) {
			w.run(w.delay(20*time.Second), check)
			story = append(story, fmt.Sprint(w.now.Unix()%1000, " ", w.disturb()))
		}
		w.down = false
		for _, s := range w.replicas {
			s.cut, s.paused = false, false
		}
		w.run(settled, check)
		for i, writers := range w.writers(all) {
			if writers != 1 {
				t.Fatalf("seed %d: when all has settled, %d replicas write for %s; %q", seed, writers, all[i], story)
			}
		}
	}
}

// owners returns the owner of each key as each replica sees it.
func (w *world) owners(all []types.NamespacedName) (out []string) {
	for _, s := range w.replicas {
		share := s.share(s.clock(w.now))
		for _, key := range all {
			out = append(out, share.Owner(key))
		}
	}
	return out
}

// While the API server is away for ten minutes, and after its return, nothing moves. The replicas
// write again within two seconds of their next renewal.
func TestNothingMovesWhileAPIServerIsAway(t *testing.T) {
	for seed := range uint64(20) {
		w, all := newWorld(seed), keys(20)
		for i := range 4 {
			w.join(fmt.Sprint("replica-", i))
		}
		w.run(30*time.Second, nil)
		want := w.owners(all)
		unmoved := func() {
			if got := w.owners(all); !slices.Equal(got, want) {
				t.Fatalf("seed %d: an ExternalBackend has moved", seed)
			}
		}
		w.down = true
		w.run(10*time.Minute, unmoved)
		for _, s := range w.replicas {
			if s.mayWrite(s.clock(w.now)) {
				t.Fatalf("seed %d: %s may write, without a Lease", seed, s.self)
			}
		}
		w.down = false
		w.run(maxDelay*2+retryPeriod+handover+2*time.Second, unmoved)
		for i, writers := range w.writers(all) {
			if writers != 1 {
				t.Fatalf("seed %d: %d replicas write for %s", seed, writers, all[i])
			}
		}
		w.run(time.Minute, unmoved)
	}
}

// A replica that was killed is replaced 15 s after its last renewal was seen, and one that left in
// order at once.
func TestShareOfLostReplicaIsTakenOver(t *testing.T) {
	for _, orderly := range []bool{true, false} {
		w, all := newWorld(1), keys(20)
		for i := range 3 {
			w.join(fmt.Sprint("replica-", i))
		}
		w.run(30*time.Second, nil)
		w.leave(w.replicas[0], orderly)
		wait := leaseDuration + 2*maxDelay
		if orderly {
			wait = maxDelay + step
		}
		w.run(wait, nil)
		for i, writers := range w.writers(all) {
			if writers != 1 {
				t.Errorf("orderly %t: %d replicas write for %s", orderly, writers, all[i])
			}
		}
	}
}

// A replica that starts after another one has died joins when it knows that. So nobody waits for
// the one that is gone. Beside replicas that live, it joins at once.
func TestNewReplicaKnowsWhoIsGone(t *testing.T) {
	all := keys(20)
	w := newWorld(1)
	joinInTime := func(name string) *simulated { // the clocks agree
		s := w.join(name)
		s.offset, s.rate = 0, 1
		return s
	}
	for i := range 3 {
		joinInTime(fmt.Sprint("replica-", i))
	}
	w.run(30*time.Second, nil)
	w.leave(w.replicas[0], false)
	w.run(leaseDuration+2*maxDelay, nil)
	newcomer := joinInTime("replica-3")
	without := make([]time.Duration, len(all))
	w.run(leaseDuration+4*maxDelay, func() {
		for i, writers := range w.writers(all) {
			if writers > 0 {
				without[i] = 0
			} else if without[i] += step; without[i] > handover+3*maxDelay {
				t.Fatalf("nobody writes for %s for %v", all[i], without[i])
			}
		}
	})
	if share := newcomer.share(newcomer.clock(w.now)); !share.works || len(share.members) != 3 {
		t.Errorf("the new replica works %t, among %d", share.works, len(share.members))
	}

	now := time.Now()
	r := newRoster("a", "a_1")
	r.seeOther("b", record{holder: "b_1", renewed: now.Add(-3 * time.Second), duration: leaseDuration}, now)
	if !r.beginRenewal(now) {
		t.Error("a replica does not join beside one that lives")
	}
}

// While a leader of an earlier version, or of --shard=false, holds its Lease, nobody else works.
func TestNobodyWorksBesideLeader(t *testing.T) {
	r, now := newRoster("a", "a_1"), time.Now()
	works := func() bool { return r.share(now).works }
	renew := func() {
		r.beginRenewal(now)
		r.endRenewal(true, now)
		r.seeOwn(record{holder: "a_1", renewed: now, duration: leaseDuration}, now)
	}
	renewLeader := func() { r.seeLeader(record{holder: "leader", renewed: now, duration: 45 * time.Second}, now) }
	renewLeader()
	for range 30 {
		renew()
		now = now.Add(5 * time.Second)
		if works() {
			t.Fatal("the replica works beside a leader")
		}
		renewLeader()
	}
	r.seeLeader(record{duration: leaseDuration}, now) // it has ended in order
	if !works() {
		t.Error("the replica does not work after the leader")
	}
	renewLeader()
	if works() {
		t.Error("the replica works beside a new leader")
	}
	for range 10 { // the leader has died
		renew()
		now = now.Add(5 * time.Second)
	}
	if !works() {
		t.Error("the replica does not work after the leader's Lease has expired")
	}
}

// A replica that did not run for long forgets what it remembers.
func TestPauseBeginsNewTerm(t *testing.T) {
	r, now := newRoster("a", "a_1"), time.Now()
	r.beginRenewal(now)
	r.endRenewal(true, now)
	now = now.Add(time.Second)
	if share := r.share(now); !share.works || share.Term() != 0 || !r.mayWrite(now) {
		t.Fatalf("the replica works %t in term %d", share.works, share.Term())
	}
	now = now.Add(30 * time.Second)
	if r.mayWrite(now) {
		t.Error("the replica may write right after a pause")
	}
	r.beginRenewal(now)
	r.endRenewal(true, now)
	if r.share(now).works || r.mayWrite(now) {
		t.Error("the replica works at once")
	}
	now = now.Add(handover)
	if share := r.share(now); !share.works || share.Term() != 1 || !r.mayWrite(now) {
		t.Errorf("the replica works %t in term %d", share.works, share.Term())
	}
}

// A replica that is set aside works for nothing, and the others for all. Where all are set aside,
// they share the work as before. Nobody else's work moves.
func TestReplicaThatIsSetAsideGivesItsShareAway(t *testing.T) {
	w, all := newWorld(3), keys(30)
	for i := range 3 {
		w.join(fmt.Sprint("replica-", i))
	}
	w.run(30*time.Second, nil)
	before := w.owners(all)
	settle := func() { w.run(leaseDuration, nil) }

	w.replicas[0].setAside(true)
	settle()
	for i, owner := range w.owners(all) {
		if owner == w.replicas[0].self || before[i] != w.replicas[0].self && owner != before[i] {
			t.Errorf("%s has moved from %s to %s", all[i%len(all)], before[i], owner)
		}
	}
	w.replicas[1].setAside(true)
	w.replicas[2].setAside(true)
	settle()
	if got := w.owners(all); !slices.Equal(got, before) {
		t.Errorf("with all of them set aside, the owners are %v, want %v", got, before)
	}
	for _, s := range w.replicas {
		s.setAside(false)
	}
	settle()
	if got := w.owners(all); !slices.Equal(got, before) || slices.Contains(w.writers(all), 0) {
		t.Errorf("the owners are %v, want %v", got, before)
	}
}
