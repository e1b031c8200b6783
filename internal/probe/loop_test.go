package probe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

// fakeNetwork is a network without sockets, for a synctest bubble. Its peers answer as the test
// says.
type fakeNetwork struct {
	bell chan struct{}

	mu        sync.Mutex
	peer      peer
	flying    map[*attempt]*time.Timer
	maxFlying int
	starts    map[string][]time.Time // by endpoint
	canceled  int
	onStart   func(*attempt)
	stopped   time.Duration // how long the next wait oversleeps
	late      time.Duration // how long each wait oversleeps
	steps     int           // how many waits it takes besides until an answer is complete
	unheard   map[*attempt]int
	events    events
}

// peer says how an endpoint answers, and after what time; where that is negative, never.
type peer func(Endpoint) (o outcome, took time.Duration)

func newFakeNetwork(p peer) *fakeNetwork {
	return &fakeNetwork{
		peer: p, bell: make(chan struct{}, 1),
		flying: map[*attempt]*time.Timer{}, starts: map[string][]time.Time{}, unheard: map[*attempt]int{},
	}
}

func (n *fakeNetwork) start(a *attempt) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.starts[a.endpoint.ID.Target] = append(n.starts[a.endpoint.ID.Target], time.Now())
	if n.onStart != nil {
		n.onStart(a)
	}
	n.flying[a] = nil
	n.maxFlying = max(n.maxFlying, len(n.flying))
	if o, took := n.peer(a.endpoint); took >= 0 {
		n.flying[a] = time.AfterFunc(took, func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			a.outcome = o
			n.unheard[a] = n.steps
			n.wake()
		})
	}
}

func (n *fakeNetwork) expire(a *attempt) outcome {
	n.cancel(a)
	return failed(ReasonTimeout)
}

func (n *fakeNetwork) cancel(a *attempt) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if timer := n.flying[a]; timer != nil {
		timer.Stop()
	}
	delete(n.flying, a)
	delete(n.unheard, a)
	n.canceled++
}

func (n *fakeNetwork) drop(*probed) {}

func (n *fakeNetwork) wake() {
	select {
	case n.bell <- struct{}{}:
	default:
	}
}

func (n *fakeNetwork) wait(d time.Duration) events {
	if d < 0 {
		d = 24 * time.Hour
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-n.bell:
	case <-timer.C:
	}
	n.mu.Lock()
	stopped := n.stopped + n.late
	n.stopped = 0
	n.mu.Unlock()
	time.Sleep(stopped)

	n.mu.Lock()
	defer n.mu.Unlock()
	happened := n.events
	n.events = events{}
	for a, steps := range n.unheard {
		if n.unheard[a]--; steps <= 0 {
			happened.ended = append(happened.ended, a)
			delete(n.flying, a)
			delete(n.unheard, a)
		}
	}
	return happened
}

func (n *fakeNetwork) close() {}

// become makes all peers answer as p from now on.
func (n *fakeNetwork) become(p peer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.peer = p
}

// flights returns what is in flight.
func (n *fakeNetwork) flights() []ID {
	n.mu.Lock()
	defer n.mu.Unlock()
	var ids []ID
	for a := range n.flying {
		ids = append(ids, a.endpoint.ID)
	}
	return ids
}

// of returns when the probes of e began.
func (n *fakeNetwork) of(e Endpoint) []time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.starts[e.ID.Target])
}

// hint says that the peer has closed the connection that is kept for ep.
func (n *fakeNetwork) hint(ep *probed) {
	n.mu.Lock()
	n.events.hints = append(n.events.hints, ep)
	n.mu.Unlock()
	n.wake()
}

// bubble runs an engine over a fake network in a synctest bubble until play returns.
func bubble(t *testing.T, options Options, p peer, play func(t *testing.T, e *Engine, n *fakeNetwork)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		e, n := New(options), newFakeNetwork(p)
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() {
			if err := e.run(ctx, n); err != nil {
				t.Error(err)
			}
		})
		play(t, e, n)
		cancel()
		group.Wait()
		if flights := n.flights(); len(flights) != 0 {
			t.Errorf("%v outlive their engine", flights)
		}
	})
}

// redial says that the peers have closed the connections of all probes in flight before they took
// them.
func (n *fakeNetwork) redial() {
	n.mu.Lock()
	n.events.redial = append(n.events.redial, slices.Collect(maps.Keys(n.flying))...)
	n.mu.Unlock()
	n.wake()
}

// endpoints returns n endpoints, sorted.
func endpoints(n int, seed Verdict) []Endpoint {
	list := make([]Endpoint, n)
	for i := range list {
		addr := netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})
		list[i] = Endpoint{ID: ID{fmt.Sprintf("t%05d", i), addr, 80}, Dial: netip.AddrPortFrom(addr, 80), Seed: seed}
	}
	return list
}

func tcpCheck() *Check {
	return &Check{
		TCP: &TCPSocket{}, Period: 10 * sec, Timeout: 3 * sec, Confirm: sec, SuccessThreshold: 1, FailureThreshold: 3,
	}
}

func with(check *Check, change func(*Check)) *Check {
	copied := *check
	change(&copied)
	return &copied
}

func answers(Endpoint) (outcome, time.Duration) { return outcome{result: success}, ms }

// answersIn answers after some time.
func answersIn(took time.Duration) peer {
	return func(Endpoint) (outcome, time.Duration) { return outcome{result: success}, took }
}

func refuses(Endpoint) (outcome, time.Duration) { return failed(ReasonConnectionRefused), ms }
func vanishes(Endpoint) (outcome, time.Duration) {
	return outcome{}, -1
}

// settled waits for d and until the engine has done all that is due by then.
func settled(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// count returns how many probes began within [from, to), at most how many of them within one
// hundredth of it, and how many per endpoint.
func (n *fakeNetwork) count(from, to time.Time) (total, most int, perEndpoint map[int]int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var buckets [100]int
	perEndpoint = map[int]int{}
	for _, starts := range n.starts {
		mine := 0
		for _, at := range starts {
			if !at.Before(from) && at.Before(to) {
				buckets[int(at.Sub(from)*100/to.Sub(from))]++
				mine++
			}
		}
		total += mine
		perEndpoint[mine]++
	}
	return total, slices.Max(buckets[:]), perEndpoint
}

// TestStartsNeverBunch has a thousand endpoints added, changed and dying together. Their probes
// stay spread over the period.
func TestStartsNeverBunch(t *testing.T) {
	const number = 1000
	bubble(t, Options{}, answers, func(t *testing.T, e *Engine, n *fakeNetwork) {
		spread := func(event string, period time.Duration) {
			t.Helper()
			synctest.Wait()
			from := time.Now()
			settled(3 * period)
			for i := range 3 {
				begin := from.Add(time.Duration(i) * period)
				total, most, perEndpoint := n.count(begin, begin.Add(period))
				if most > 4*number/100 || total < number*98/100 || total > number*102/100 {
					t.Errorf("%s, period %d: %d probes begin, %d within a hundredth; per endpoint %v",
						event, i, total, most, perEndpoint)
				}
			}
		}
		list := endpoints(number, Healthy)
		e.Sync(owner1, tcpCheck(), list)
		spread("after a start", 10*sec)
		e.Sync(owner1, with(tcpCheck(), func(c *Check) { c.Period = 2 * sec }), list)
		spread("after a change of the period", 2*sec)
		e.Sync(owner1, with(tcpCheck(), func(c *Check) { c.Suspended = true }), list)
		settled(time.Minute)
		e.Sync(owner1, tcpCheck(), list)
		spread("after a suspension", 10*sec)

		n.become(refuses)
		settled(time.Minute)
		spread("with all dead", 10*sec)
		n.become(vanishes)
		settled(time.Minute)
		spread("with all in a black hole", 10*sec)
		n.become(answers)
		settled(time.Minute)
		spread("after an outage", 10*sec)

		e.Forget(owner1)
		other := types.NamespacedName{Name: "other"}
		e.Sync(other, with(tcpCheck(), func(c *Check) { c.Suspended = true }), endpoints(number, Unknown))
		settled(time.Minute)
		e.Sync(other, tcpCheck(), endpoints(number, Unknown))
		from := time.Now()
		settled(2 * sec)
		if total, most, _ := n.count(from, from.Add(sec)); total < number || most > 4*number/100 {
			t.Errorf("%d first probes within a second, %d within a hundredth", total, most)
		}
		spread("after first verdicts", 10*sec)
	})
}

// TestStartLongAfterSyncDoesNotBunch starts an engine hours after Sync. The first probes are
// spread.
func TestStartLongAfterSyncDoesNotBunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, n := New(Options{}), newFakeNetwork(answers)
		e.Sync(owner1, tcpCheck(), endpoints(1000, Healthy))
		other := types.NamespacedName{Name: "other"}
		e.Sync(other, tcpCheck(), endpoints(1000, Unknown))
		time.Sleep(3*time.Hour + 1234*ms)
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { _ = e.run(ctx, n) })
		from := time.Now()
		settled(10 * sec)
		if _, most, _ := n.count(from, from.Add(10*sec)); most > 250 { // those without a verdict begin within one confirm
			t.Errorf("%d of 2000 probes begin within 100 ms", most)
		}
		for id, state := range snapshot(e, other) {
			if state.Verdict != Healthy || !state.Probed {
				t.Fatalf("%v: %+v", id, state)
			}
		}
		cancel()
		group.Wait()
	})
}

// TestIgnoredProbeDialsAgain has a peer close a kept connection before it takes the probe. The
// probe begins again, unless it has ended meanwhile.
func TestIgnoredProbeDialsAgain(t *testing.T) {
	for _, test := range []struct {
		name      string
		meanwhile func(*Engine)
		want      int
	}{
		{"nothing happens meanwhile", func(*Engine) {}, 2},
		{"it is no longer wanted", func(e *Engine) { e.Forget(owner1) }, 1},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, Options{}, vanishes, func(t *testing.T, e *Engine, n *fakeNetwork) {
				list := endpoints(1, Unknown)
				e.Sync(owner1, with(tcpCheck(), func(c *Check) { c.FailureThreshold = 1 }), list)
				settled(2 * sec)
				test.meanwhile(e)
				n.redial()
				settled(100 * ms)
				if starts := n.of(list[0]); len(starts) != test.want {
					t.Errorf("it was started %d times, not %d", len(starts), test.want)
				}
			})
		})
	}
}

// TestReuseIsBoundedAndSpread checks that a connection carries further probes for less than
// maxReuse, and all probes of that time. The dials of many endpoints that were added together do
// not bunch.
func TestReuseIsBoundedAndSpread(t *testing.T) {
	const number, rounds = 1000, 6
	for period, most := range map[time.Duration]int{ // probes that a connection carries at most
		500 * ms: 20, sec: 10, 4 * sec: 3, 10 * sec: 1, time.Minute: 1,
	} {
		t.Run(period.String(), func(t *testing.T) {
			bubble(t, Options{}, answers, func(t *testing.T, e *Engine, n *fakeNetwork) {
				dialled, carried := map[*probed]instant{}, map[*probed]int{}
				dials, busiest := 0, map[instant]int{}
				span := max(period, maxReuse) // the time in which each endpoint is dialled at least once
				n.onStart = func(a *attempt) {
					if at, kept := dialled[a.probed]; kept && at >= a.since {
						carried[a.probed]++
						if a.started-at >= maxReuse || carried[a.probed] > most {
							t.Fatalf("probe %d of a connection begins %v after its dial", carried[a.probed], a.started-at)
						}
						return
					}
					dialled[a.probed], carried[a.probed] = a.started, 1
					dials++
					if a.started > epochOffset+span { // in the first round all are dialled as they come
						busiest[a.started/(span/10)]++
					}
				}
				e.Sync(owner1, with(tcpCheck(), func(c *Check) { c.Period = period }), endpoints(number, Healthy))
				settled(rounds * span)
				if wanted := number * rounds * int(span) / int(max(period, maxReuse)); dials > wanted+number {
					t.Errorf("%d dials, want %d", dials, wanted)
				}
				if most := slices.Max(slices.Collect(maps.Values(busiest))); most > 2*number/10 {
					t.Errorf("%d dials in a tenth of a round, of %d in each round", most, number)
				}
			})
		})
	}
}

// TestBlackHolesDelayNobody has 40 % of the peers stop answering. The others are probed on time.
func TestBlackHolesDelayNobody(t *testing.T) {
	for _, test := range []struct {
		name string
		seed Verdict
		max  int
	}{
		{"they die together", Healthy, 100},
		{"they are dead from the start", Unknown, 100},
		{"with room for all", Healthy, 4000},
	} {
		t.Run(test.name, func(t *testing.T) {
			far := func(e Endpoint) bool { return e.Dial.Addr().As4()[3]%10 == 9 }
			dead := func(e Endpoint) bool { return e.Dial.Addr().As4()[3]%5 < 2 }
			alive := func(e Endpoint) (outcome, time.Duration) {
				if far(e) {
					return outcome{result: success}, 300 * ms
				}
				return outcome{result: success}, ms
			}
			holes := func(e Endpoint) (outcome, time.Duration) {
				if dead(e) {
					return outcome{}, -1
				}
				return alive(e)
			}
			check := with(tcpCheck(), func(c *Check) { c.Period, c.Timeout, c.Confirm = 2*sec, sec, 200*ms })
			list := endpoints(1000, test.seed)
			bubble(t, Options{MaxConcurrent: test.max}, alive, func(t *testing.T, e *Engine, n *fakeNetwork) {
				if test.seed == Unknown {
					n.become(holes)
				}
				e.Sync(owner1, check, list)
				settled(20 * sec)
				n.become(holes)
				from := time.Now()
				settled(40 * sec)
				if n.maxFlying > test.max {
					t.Errorf("%d in flight, want at most %d", n.maxFlying, test.max)
				}
				states := snapshot(e, owner1)
				for _, endpoint := range list {
					if dead(endpoint) {
						if states[endpoint.ID].Verdict != Unhealthy {
							t.Errorf("%v is dead and %v", endpoint.ID, states[endpoint.ID])
						}
						continue
					}
					if states[endpoint.ID].Verdict != Healthy {
						t.Errorf("%v is alive and %v", endpoint.ID, states[endpoint.ID])
					}
					starts := slices.DeleteFunc(n.of(endpoint), func(at time.Time) bool { return at.Before(from) })
					for i := 1; i < len(starts); i++ {
						if gap := starts[i].Sub(starts[i-1]); gap > check.Period+50*ms {
							t.Errorf("%v is alive and not probed for %v", endpoint.ID, gap)
						}
					}
				}
			})
		})
	}
}

// TestSlowPeersDelayNobody has one namespace with far more slow servers than there are places.
// Only that namespace waits.
func TestSlowPeersDelayNobody(t *testing.T) {
	for _, took := range []time.Duration{maxPatience - ms, 2900 * ms} {
		t.Run(took.String(), func(t *testing.T) {
			crowd := types.NamespacedName{Namespace: "crowd", Name: "slow"}
			peers := func(e Endpoint) (outcome, time.Duration) {
				if e.ID.Port == 81 {
					return outcome{result: success}, took
				}
				return outcome{result: success}, ms
			}
			check := with(tcpCheck(), func(c *Check) { c.Period = 3 * sec })
			many, list := endpoints(4000, Healthy), endpoints(20, Healthy)
			for i := range many {
				many[i].ID.Target, many[i].ID.Port = "slow-"+many[i].ID.Target, 81
			}
			bubble(t, Options{MaxConcurrent: 100}, peers, func(t *testing.T, e *Engine, n *fakeNetwork) {
				e.Sync(crowd, check, many)
				settled(20 * sec)
				e.Sync(owner1, check, list)
				from := time.Now()
				settled(60 * sec)
				for _, endpoint := range list {
					starts := n.of(endpoint)
					for i, last := 0, from; i < len(starts); i++ {
						if gap := starts[i].Sub(last); gap > check.Period+maxPatience+50*ms { // at worst all room was just taken
							t.Errorf("%v was not probed for %v", endpoint.ID, gap)
						}
						last = starts[i]
					}
					if len(starts) < 19 {
						t.Errorf("%v was probed %d times in a minute", endpoint.ID, len(starts))
					}
				}
			})
		})
	}
}

// TestSilentPeersHoldNobodyUp has one namespace take all places for slow probes, with peers that
// never answer and the longest timeout. No other namespace waits for it, and it keeps its share.
func TestSilentPeersHoldNobodyUp(t *testing.T) {
	const half = 50
	crowd := types.NamespacedName{Namespace: "crowd", Name: "silent"}
	check := with(tcpCheck(), func(c *Check) { c.Period, c.Timeout, c.Confirm = 2*sec, sec, 200*ms })
	greedy := with(tcpCheck(), func(c *Check) { c.Timeout, c.Confirm, c.FailureThreshold = time.Hour, 100*ms, 100 })
	many, list := endpoints(21, Unknown), endpoints(8, Healthy) // the eight need three places each at worst
	for i := range many {
		many[i].ID.Target, many[i].ID.Port = "silent-"+many[i].ID.Target, 81
	}
	for _, test := range []struct {
		name  string
		peer  peer
		want  State
		known time.Duration
	}{
		{"who takes a while", answersIn(150 * ms), healthy, check.Period + 150*ms},
		{"who takes long", answersIn(900 * ms), healthy, check.Period + 900*ms},
		{"who vanishes", vanishes, unhealthy(ReasonTimeout), check.Period + sec + 2*200*ms},
	} {
		t.Run(test.name, func(t *testing.T) {
			rest := answers
			peers := func(e Endpoint) (outcome, time.Duration) {
				if e.ID.Port == 81 {
					return vanishes(e)
				}
				return rest(e)
			}
			bubble(t, Options{MaxConcurrent: 2 * half}, peers, func(t *testing.T, e *Engine, n *fakeNetwork) {
				e.Sync(crowd, greedy, many)
				settled(20 * sec)
				if held := len(n.flights()); held != half {
					t.Fatalf("the crowd holds %d places, want %d", held, half)
				}
				e.Sync(owner1, check, list)
				settled(time.Minute)
				n.mu.Lock()
				rest = test.peer
				n.mu.Unlock()
				from := time.Now()
				settled(test.known + 100*ms)
				for _, endpoint := range list {
					if state := snapshot(e, owner1)[endpoint.ID]; state != test.want {
						t.Errorf("%v: %+v, want %+v", endpoint.ID, state, test.want)
					}
				}
				settled(time.Minute)
				for _, endpoint := range list {
					starts := slices.DeleteFunc(n.of(endpoint), func(at time.Time) bool { return at.Before(from) })
					for i := 1; i < len(starts); i++ {
						if gap := starts[i].Sub(starts[i-1]); gap > check.Period+250*ms {
							t.Errorf("%v was not probed for %v", endpoint.ID, gap)
						}
					}
					if len(starts) < 29 {
						t.Errorf("%v was probed %d times in a minute", endpoint.ID, len(starts))
					}
				}
				n.mu.Lock()
				defer n.mu.Unlock()
				old := 0
				for a := range n.flying {
					if a.endpoint.ID.Port == 81 && a.started < from.Sub(e.epoch) {
						old++
					}
				}
				if old < half/2 {
					t.Errorf("%d of the crowd's probes were let run on, want its share of %d", old, half/2)
				}
			})
		})
	}
}

// TestSilentNamespacesShare has three namespaces with far more black holes than there are places.
// All of them are Unhealthy in the end, each after its full timeout.
func TestSilentNamespacesShare(t *testing.T) {
	bubble(t, Options{MaxConcurrent: 60}, vanishes, func(t *testing.T, e *Engine, n *fakeNetwork) {
		owners := map[types.NamespacedName]time.Duration{
			{Namespace: "quick", Name: "a"}:  sec,
			{Namespace: "slow", Name: "a"}:   3 * sec,
			{Namespace: "slower", Name: "a"}: 8 * sec,
		}
		for owner, timeout := range owners {
			e.Sync(owner, with(tcpCheck(), func(c *Check) { c.Timeout = timeout }), endpoints(100, Healthy))
		}
		settled(10 * time.Minute) // 100 endpoints need 30 timeouts of ten probes each
		for owner := range owners {
			for id, state := range snapshot(e, owner) {
				if state != unhealthy(ReasonTimeout) {
					t.Errorf("%v %v: %+v", owner, id, state)
				}
			}
		}
	})
}

// TestPatienceIsBounded has endpoints that once answered late stop answering. They count as slow
// as soon as any others.
func TestPatienceIsBounded(t *testing.T) {
	late := func(Endpoint) (outcome, time.Duration) { return outcome{result: success}, 50 * sec }
	bubble(t, Options{MaxConcurrent: 20}, late, func(t *testing.T, e *Engine, n *fakeNetwork) {
		e.Sync(
			types.NamespacedName{Namespace: "crowd", Name: "late"},
			with(tcpCheck(), func(c *Check) { c.Timeout = time.Hour }),
			endpoints(20, Unhealthy),
		)
		settled(5 * time.Minute)
		n.become(refuses)
		settled(5 * time.Minute)
		n.become(vanishes)
		settled(time.Minute)
		if held := len(n.flights()); held > 10 {
			t.Errorf("the silent hold %d places of 20", held)
		}
	})
}

// TestSlowProbePoolIsShared compares the pool with a naive count, and checks what its comment
// promises.
func TestSlowProbePoolIsShared(t *testing.T) {
	const size = 24
	random := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		pool := newSlowProbePool(size)
		owners := make([]*owner, 1+random.IntN(30))
		for i := range owners {
			owners[i] = &owner{key: types.NamespacedName{Namespace: fmt.Sprint(i)}}
		}
		held, waits := map[*owner][]*attempt{}, map[*owner]int{}
		total := func() (n int) {
			for _, attempts := range held {
				n += len(attempts)
			}
			return n
		}
		leave := func(a *attempt) {
			o := a.probed.owner
			held[o] = slices.DeleteFunc(held[o], func(other *attempt) bool { return other == a })
			pool.leave(a)
		}
		for range 2000 {
			o := owners[min(random.IntN(len(owners)), random.IntN(len(owners)))]
			switch random.IntN(5) {
			case 0:
				if len(held[o]) > 0 {
					leave(held[o][random.IntN(len(held[o]))])
				}
			case 1:
				pool.push(&probed{owner: o})
				waits[o]++
			case 2:
				if first := pool.first(); first != nil {
					for other, n := range waits {
						if n > 0 && len(held[other]) < len(held[first.owner]) {
							t.Fatalf("it is the turn of one who holds %d, another holds %d", len(held[first.owner]), len(held[other]))
						}
					}
					pool.pop()
					waits[first.owner]--
				}
			default:
				a := &attempt{probed: &probed{owner: o}}
				if preempted := pool.toPreempt(a.probed); total() == size && preempted != nil {
					g := preempted.probed.owner
					for _, other := range owners {
						if len(held[other]) > len(held[g]) {
							t.Fatal("another one holds more")
						}
					}
					if preempted != held[g][len(held[g])-1] {
						t.Fatal("it gives up one that isn't its newest")
					}
					if len(held[g])-1 < len(held[o])+1 {
						t.Fatal("who gives holds less than who gets")
					}
					leave(preempted)
				} else if total() == size {
					for _, other := range owners {
						if len(held[other]) > len(held[o])+1 {
							t.Fatalf("no place for one who holds %d, while another holds %d", len(held[o]), len(held[other]))
						}
					}
					continue
				}
				pool.take(a)
				held[o] = append(held[o], a)
			}
			if pool.held != total() || pool.full() != (total() == size) {
				t.Fatalf("%d places are taken, not %d", total(), pool.held)
			}
		}
		for _, o := range owners {
			for len(held[o]) > 0 {
				leave(held[o][0])
			}
		}
		for pool.first() != nil {
			pool.pop()
		}
		if len(pool.shares) != 0 {
			t.Fatalf("%d namespaces are kept for nothing", len(pool.shares))
		}
	}
}

// TestDeathsAreDetectedInTime measures the time from a death to the verdict.
func TestDeathsAreDetectedInTime(t *testing.T) {
	check := with(tcpCheck(), func(c *Check) { c.Period, c.Timeout, c.Confirm = 2*sec, sec, 200*ms })
	for _, test := range []struct {
		name   string
		peer   peer
		hint   bool
		reason string
		bound  time.Duration
	}{
		{"refused", refuses, false, ReasonConnectionRefused, 2*sec + 2*200*ms},
		{"refused after a hint", refuses, true, ReasonConnectionRefused, 2 * 200 * ms},
		{"black hole", vanishes, false, ReasonTimeout, 2*sec + sec + 2*200*ms},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, Options{}, answers, func(t *testing.T, e *Engine, n *fakeNetwork) {
				e.Sync(owner1, check, endpoints(1, Unknown))
				settled(4321 * ms)
				n.become(test.peer)
				death := time.Now()
				if test.hint {
					n.hint(e.owners[owner1].probed[0])
				}
				for e.machineOf(endpoints(1, Unknown)[0]).verdict() == Healthy {
					settled(ms)
				}
				if took := time.Since(death); took > test.bound+3*tick {
					t.Errorf("known after %v, want at most %v", took, test.bound)
				}
				want := map[ID]State{endpoints(1, 0)[0].ID: {Verdict: Unhealthy, Reason: test.reason, Probed: true}}
				if diff := cmp.Diff(want, snapshot(e, owner1), compareAddr); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

var compareAddr = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

// TestLateSuccessEndsTheStreak has peers that answer after more than a confirm period. They stay
// Healthy, and no chain of confirmations begins.
func TestLateSuccessEndsTheStreak(t *testing.T) {
	slow := func(Endpoint) (outcome, time.Duration) { return outcome{result: success}, 2500 * ms }
	bubble(t, Options{}, slow, func(t *testing.T, e *Engine, n *fakeNetwork) {
		e.Sync(owner1, tcpCheck(), endpoints(50, Healthy))
		settled(time.Minute)
		for id, state := range snapshot(e, owner1) {
			if state.Verdict != Healthy {
				t.Errorf("%v: %+v", id, state)
			}
		}
		// Of each slow probe two more begin at its side, and no chain of them.
		if total, _, _ := n.count(time.Now().Add(-30*sec), time.Now()); total > 3*3*50 {
			t.Errorf("%d probes of 50 endpoints in three periods", total)
		}
	})
}

// TestSyncKeepsWhatItCan changes checks and endpoints in all ways. Verdicts stay, and counts stay
// where the question does.
func TestSyncKeepsWhatItCan(t *testing.T) {
	list := endpoints(3, Unknown)
	one := list[:1]
	verdicts := func(e *Engine) (v []Verdict) {
		states := snapshot(e, owner1)
		for _, id := range slices.SortedFunc(maps.Keys(states), ID.Compare) {
			v = append(v, states[id].Verdict)
		}
		return v
	}
	expect := func(t *testing.T, e *Engine, want ...Verdict) {
		t.Helper()
		if diff := cmp.Diff(want, verdicts(e)); diff != "" {
			t.Error(diff)
		}
	}
	t.Run("seeds are for new IDs only", func(t *testing.T) {
		bubble(t, Options{}, answers, func(t *testing.T, e *Engine, n *fakeNetwork) {
			seeded := slices.Clone(list)
			seeded[1].Seed, seeded[2].Seed = Healthy, Unhealthy
			e.Sync(owner1, with(tcpCheck(), func(c *Check) { c.Suspended = true }), seeded[1:])
			expect(t, e, Healthy, Unhealthy)
			seeded[1].Seed, seeded[2].Seed = Unhealthy, Healthy
			seeded[0].Seed = Unhealthy
			e.Sync(owner1, with(tcpCheck(), func(c *Check) { c.Suspended = true }), seeded)
			expect(t, e, Unhealthy, Healthy, Unhealthy)
			settled(time.Minute)
			if total, _, _ := n.count(time.Time{}, time.Now()); total != 0 {
				t.Error("a suspended check probes")
			}
			for _, state := range snapshot(e, owner1) {
				if state.Probed {
					t.Error("probed without a probe")
				}
			}
		})
	})
	t.Run("an equal sync changes nothing", func(t *testing.T) {
		bubble(t, Options{}, refuses, func(t *testing.T, e *Engine, n *fakeNetwork) {
			long := with(tcpCheck(), func(c *Check) { c.FailureThreshold = 1000 })
			for range 60 {
				e.Sync(owner1, with(long, func(*Check) {}), list)
				settled(999 * ms)
			}
			for _, endpoint := range list {
				if n := len(n.of(endpoint)); n < 55 {
					t.Errorf("%v was probed %d times in a minute of doubt", endpoint.ID, n)
				}
			}
			long = with(long, func(c *Check) { c.FailureThreshold = 20 })
			e.Sync(owner1, long, list) // the failures so far count
			settled(1100 * ms)
			expect(t, e, Unhealthy, Unhealthy, Unhealthy)
		})
	})
	for name, change := range map[string]func(*Check){
		"a path":        func(c *Check) { c.TCP, c.HTTP = nil, &HTTPGet{Path: "/new"} },
		"a text":        func(c *Check) { c.TCP = &TCPSocket{Expect: "x"} },
		"TLS":           func(c *Check) { c.TLS = &TLS{} },
		"an identity":   func(c *Check) { c.TLS = &TLS{Identity: "2"} },
		"a probed port": func(*Check) {},
	} {
		t.Run("after a change of "+name+" counts begin anew", func(t *testing.T) {
			bubble(t, Options{}, answers, func(t *testing.T, e *Engine, n *fakeNetwork) {
				e.Sync(owner1, tcpCheck(), one)
				settled(12 * sec)
				expect(t, e, Healthy)
				n.become(refuses)
				for e.machineOf(one[0]).consecutive(failure) < 2 {
					settled(100 * ms)
				}
				moved := slices.Clone(one)
				if name == "a probed port" {
					moved[0].Dial = netip.AddrPortFrom(moved[0].Dial.Addr(), 81)
				}
				e.Sync(owner1, with(tcpCheck(), change), moved)
				before := len(n.of(one[0]))
				for e.machineOf(one[0]).verdict() == Healthy {
					settled(100 * ms)
				}
				if failed := len(n.of(one[0])) - before; failed != 3 {
					t.Errorf("dead after %d failures, want 3", failed)
				}
			})
		})
	}
	t.Run("what is in flight under the old check says nothing", func(t *testing.T) {
		late := func(Endpoint) (outcome, time.Duration) { return failed(ReasonConnectionReset), 900 * ms }
		bubble(t, Options{}, late, func(t *testing.T, e *Engine, n *fakeNetwork) {
			check := with(tcpCheck(), func(c *Check) { c.FailureThreshold = 1 })
			healthy := endpoints(1, Healthy)
			e.Sync(owner1, check, healthy)
			for len(n.flights()) == 0 {
				settled(50 * ms)
			}
			n.become(answers)
			e.Sync(owner1, with(check, func(c *Check) { c.TCP = &TCPSocket{Expect: "x"} }), healthy)
			settled(50 * ms)
			if flights := n.flights(); len(flights) != 0 {
				t.Errorf("%v are still in flight", flights)
			}
			settled(20 * sec)
			expect(t, e, Healthy)
		})
	})
	t.Run("what is gone is left alone at once", func(t *testing.T) {
		bubble(t, Options{}, vanishes, func(t *testing.T, e *Engine, n *fakeNetwork) {
			e.Sync(owner1, tcpCheck(), list)
			settled(1500 * ms)
			e.Sync(owner1, tcpCheck(), list[:1])
			e.Forget(types.NamespacedName{Name: "nobody"})
			settled(10 * ms)
			for _, id := range n.flights() {
				if id != list[0].ID {
					t.Errorf("%v is still probed", id)
				}
			}
			e.Forget(owner1)
			settled(10 * ms)
			began := len(n.of(list[0]))
			settled(time.Minute)
			if len(n.flights()) != 0 || len(n.of(list[0])) != began || snapshot(e, owner1) != nil {
				t.Error("probing goes on for an owner that is forgotten")
			}
		})
	})
	t.Run("states stay parallel to a list that changes its order", func(t *testing.T) {
		bubble(t, Options{}, answers, func(t *testing.T, e *Engine, n *fakeNetwork) {
			seeded := slices.Clone(list)
			seeded[0].Seed, seeded[2].Seed = Healthy, Unhealthy
			suspended := with(tcpCheck(), func(c *Check) { c.Suspended = true })
			e.Sync(owner1, suspended, seeded)
			for _, order := range [][]int{{2, 1, 0}, {1, 2}, {2, 0, 1}} {
				var mixed []Endpoint
				var want []Verdict
				for _, i := range order {
					mixed = append(mixed, list[i])
					want = append(want, seeded[i].Seed)
				}
				if !slices.Contains(order, 0) {
					seeded[0].Seed = Unknown // forgotten
				}
				e.Sync(owner1, suspended, mixed)
				for i, state := range e.States(owner1) {
					if state.Verdict != want[i] {
						t.Errorf("order %v: state %d is %v, want %v", order, i, state.Verdict, want[i])
					}
				}
			}
		})
	})
	t.Run("order and doubles don't matter", func(t *testing.T) {
		bubble(t, Options{}, answers, func(t *testing.T, e *Engine, n *fakeNetwork) {
			mixed := []Endpoint{list[2], list[0], list[1], list[0]}
			kept := slices.Clone(mixed)
			e.Sync(owner1, tcpCheck(), mixed)
			settled(2 * sec)
			expect(t, e, Healthy, Healthy, Healthy)
			if states := e.States(owner1); len(states) != len(mixed) {
				t.Errorf("%d states of %d endpoints", len(states), len(mixed))
			}
			if !slices.Equal(mixed, kept) {
				t.Error("the input was changed")
			}
		})
	})
}

func (e *Engine) machineOf(endpoint Endpoint) machine {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ep := range e.owners[owner1].probed {
		if ep.ID == endpoint.ID {
			return ep.machine
		}
	}
	return machine{}
}

// probesThatWere is how many probes ended with a result.
func probesThatWere(t *testing.T, registry *prometheus.Registry, result string) (total float64) {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "externalbackend_probe_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetValue() == result {
					total += m.GetCounter().GetValue()
				}
			}
		}
	}
	return total
}

// TestProbesGivenUpAreNotUnknown has probes preempted and forgotten. They could be run, so the
// metric of unknown probes, on which people alert, does not count them.
func TestProbesGivenUpAreNotUnknown(t *testing.T) {
	const room = 100
	registry := prometheus.NewRegistry()
	crowd := types.NamespacedName{Namespace: "crowd", Name: "silent"}
	greedy := with(tcpCheck(), func(c *Check) {
		c.Period, c.Timeout, c.Confirm, c.FailureThreshold = time.Hour, time.Hour, 100*ms, 100
	})
	options := Options{MaxConcurrent: room, Registerer: registry}
	bubble(t, options, vanishes, func(t *testing.T, e *Engine, n *fakeNetwork) {
		e.Sync(crowd, greedy, endpoints(20, Unknown))
		settled(20 * sec)
		check := with(tcpCheck(), func(c *Check) { c.Timeout = time.Hour })
		e.Sync(owner1, check, endpoints(10, Unknown))
		settled(5 * sec)
		n.mu.Lock()
		preempted := n.canceled
		n.mu.Unlock()
		if preempted == 0 {
			t.Fatal("nobody had to make room")
		}
		e.Forget(owner1)
		settled(sec)
		if got := probesThatWere(t, registry, "unknown"); got != 0 {
			t.Errorf("%v probes are unknown", got)
		}
	})
}

// TestWhatCannotRunIsUnknown has probes that policy refuses, that find no socket, or whose
// process was stopped. None of them changes a verdict.
func TestWhatCannotRunIsUnknown(t *testing.T) {
	registry := prometheus.NewRegistry()
	t.Run("not permitted", func(t *testing.T) {
		var asked []netip.AddrPort
		deny := func(_ types.NamespacedName, addr netip.AddrPort) error {
			asked = append(asked, addr)
			return errors.New("no")
		}
		list := endpoints(1, Healthy)
		bubble(t, Options{Permit: deny, Registerer: registry}, refuses, func(t *testing.T, e *Engine, n *fakeNetwork) {
			e.Sync(owner1, tcpCheck(), list)
			settled(time.Minute)
			if state := snapshot(e, owner1)[list[0].ID]; state != (State{Verdict: Healthy}) {
				t.Errorf("%+v", state)
			}
			if dials := n.of(list[0]); len(dials) != 0 || len(asked) != 6 || asked[0] != list[0].Dial {
				t.Errorf("dialled %v, asked for %v", dials, asked)
			}
			if got := probesThatWere(t, registry, "unknown"); got != 6 {
				t.Errorf("%v probes are unknown, want 6", got)
			}
		})
	})
	for name, test := range map[string]struct {
		stop time.Duration // from a second after the start of a probe on
		peer peer
	}{
		"this process was stopped":                       {time.Minute, vanishes},
		"this process was stopped for most of a timeout": {2*sec + 200*ms, answersIn(4 * sec)},
		"this process was stopped for long":              {9 * sec, answersIn(11 * sec)},
	} {
		t.Run(name, func(t *testing.T) {
			told := 0
			bubble(
				t,
				Options{Notify: func(types.NamespacedName) { told++ }},
				test.peer,
				func(t *testing.T, e *Engine, n *fakeNetwork) {
					list := endpoints(1, Healthy)
					e.Sync(owner1, with(tcpCheck(), func(c *Check) { c.FailureThreshold = 1 }), list)
					for len(n.flights()) == 0 {
						settled(50 * ms)
					}
					settled(sec)
					n.mu.Lock()
					n.stopped = test.stop
					n.mu.Unlock()
					n.wake()
					n.become(answers)
					settled(90 * sec)
					if state := snapshot(e, owner1)[list[0].ID]; state != (State{Verdict: Healthy, Probed: true}) || told != 0 {
						t.Errorf("%+v, told %d times", state, told)
					}
				},
			)
		})
	}
	t.Run("no socket", func(t *testing.T) {
		lacking := func(Endpoint) (outcome, time.Duration) { return outcome{}, 0 }
		bubble(t, Options{}, lacking, func(t *testing.T, e *Engine, n *fakeNetwork) {
			list := endpoints(1, Healthy)
			e.Sync(owner1, tcpCheck(), list)
			settled(time.Minute)
			if state, tried := snapshot(e, owner1)[list[0].ID], len(n.of(list[0])); state != (State{Verdict: Healthy}) ||
				tried != 6 {
				t.Errorf("%+v after %d probes, want 6", state, tried)
			}
		})
	})
}

// TestLateProcessFindsTheSilent has a process whose loop always runs late. It finds an endpoint
// that does not answer, though later.
func TestLateProcessFindsTheSilent(t *testing.T) {
	for _, late := range []time.Duration{0, 240 * ms, 400 * ms, 600 * ms, 2 * sec, 9 * sec} {
		t.Run(late.String(), func(t *testing.T) {
			bubble(t, Options{}, vanishes, func(t *testing.T, e *Engine, n *fakeNetwork) {
				n.late = late
				check := tcpCheck()
				e.Sync(owner1, check, endpoints(1, Healthy))
				begun := time.Now()
				for e.machineOf(endpoints(1, Healthy)[0]).verdict() == Healthy && time.Since(begun) < time.Hour {
					settled(50 * ms)
				}
				turn := late + maxWait + tick
				bound := check.Period + 2*check.Confirm + 3*turn + check.Timeout
				if turn > maxCounted {
					bound += check.Timeout / maxWait * turn
				}
				if took := time.Since(begun); took > bound {
					t.Errorf("found after %v, want at most %v", took, bound)
				}
			})
		})
	}
}

// TestLateProcessFailsNobody has a process whose loop always runs late. A probe takes several
// runs of the loop, so it takes longer than its timeout, and still does not fail.
func TestLateProcessFailsNobody(t *testing.T) {
	for _, late := range []time.Duration{150 * ms, 300 * ms, 900 * ms, 5 * sec} {
		t.Run(late.String(), func(t *testing.T) {
			bubble(t, Options{}, answers, func(t *testing.T, e *Engine, n *fakeNetwork) {
				n.late, n.steps = late, 4
				e.Sync(owner1, with(tcpCheck(), func(c *Check) { c.Timeout, c.FailureThreshold = sec, 1 }), endpoints(20, Unknown))
				settled(5 * time.Minute)
				for id, state := range snapshot(e, owner1) {
					if state != healthy {
						t.Errorf("%v: %+v", id, state)
					}
				}
			})
		})
	}
}

// TestLatenessIsMeasured reads the metrics of punctual probes.
func TestLatenessIsMeasured(t *testing.T) {
	registry := prometheus.NewRegistry()
	bubble(t, Options{Registerer: registry}, answers, func(t *testing.T, e *Engine, n *fakeNetwork) {
		e.Sync(owner1, tcpCheck(), endpoints(100, Healthy))
		settled(time.Minute)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, family := range families {
			names = append(names, family.GetName())
			h := family.GetMetric()[0].GetHistogram()
			if family.GetName() != "externalbackend_probe_lateness_seconds" {
				continue
			}
			if h.GetSampleCount() != 600 || h.GetSampleSum()/600 > tick.Seconds() {
				t.Errorf("%d probes, together %v s late", h.GetSampleCount(), h.GetSampleSum())
			}
		}
		want := []string{
			"externalbackend_probe_duration_seconds", "externalbackend_probe_lateness_seconds",
			"externalbackend_probe_total", "externalbackend_prober_blind", "externalbackend_probes_in_flight",
		}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Error(diff)
		}
	})
}

// TestNotifyOnChangesOnly counts notifications over an hour of equal answers, and of changes.
func TestNotifyOnChangesOnly(t *testing.T) {
	told := 0
	bubble(
		t,
		Options{Notify: func(types.NamespacedName) { told++ }},
		answers,
		func(t *testing.T, e *Engine, n *fakeNetwork) {
			e.Sync(owner1, tcpCheck(), endpoints(1, Healthy))
			settled(11 * sec)
			if told != 0 { // that its seed was confirmed is no news
				t.Errorf("told %d times of nothing", told)
			}
			settled(time.Hour)
			n.become(refuses)
			settled(time.Minute)
			n.become(vanishes)
			settled(time.Minute)
			if told != 2 { // that it is dead, and of what it is dead later
				t.Errorf("told %d times, want twice", told)
			}
		},
	)
}

// TestFlappingReturnsWithoutAProbe suspends the check of an endpoint whose recovery is held back.
// The recovery is shown when its time has come.
func TestFlappingReturnsWithoutAProbe(t *testing.T) {
	bubble(t, Options{}, answers, func(t *testing.T, e *Engine, n *fakeNetwork) {
		check := with(tcpCheck(), func(c *Check) { c.Period, c.FailureThreshold = sec, 1 })
		list := endpoints(1, Healthy)
		e.Sync(owner1, check, list)
		settled(sec)
		for range 4 {
			n.become(refuses)
			settled(2 * sec)
			n.become(answers)
			settled(2 * sec)
		}
		if state := snapshot(e, owner1)[list[0].ID]; !state.Flapping || state.Verdict != Unhealthy ||
			state.Reason != ReasonConnectionRefused {
			t.Errorf("%+v, want it held back", state)
		}
		e.Sync(owner1, with(check, func(c *Check) { c.Suspended = true }), list)
		settled(time.Minute)
		if state := snapshot(e, owner1)[list[0].ID]; state.Flapping || state.Verdict != Healthy {
			t.Errorf("%+v, want it back", state)
		}
	})
}

// TestCostIsTheSameDeadOrAlive counts the probes of answering, refusing and silent endpoints.
func TestCostIsTheSameDeadOrAlive(t *testing.T) {
	check := with(tcpCheck(), func(c *Check) { c.Period, c.Timeout = 2*sec, sec })
	counts := map[string]int{}
	for name, peer := range map[string]peer{"alive": answers, "refused": refuses, "black hole": vanishes} {
		bubble(t, Options{}, peer, func(t *testing.T, e *Engine, n *fakeNetwork) {
			e.Sync(owner1, check, endpoints(500, Unknown))
			settled(20 * sec)
			from := time.Now()
			settled(20 * sec)
			counts[name], _, _ = n.count(from, from.Add(20*sec))
		})
	}
	if counts["alive"] != 5000 || counts["refused"] != 5000 || counts["black hole"] != 5000 {
		t.Errorf("%v probes in ten periods of 500 endpoints", counts)
	}
}
