package probe

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/fairqueue"
)

const (
	// tick is how often the loop looks at the schedule. Probes that are due within one tick begin
	// together, which saves most of the wake-ups. No probe begins more than a tick late because of
	// it.
	tick = 5 * time.Millisecond

	// minPatience is how long a probe may stay unanswered before it counts as slow, for an endpoint
	// whose last success is unknown or was fast.
	minPatience = 100 * time.Millisecond

	// slowAfter is how long an answer takes for its endpoint to count as slow. Slow probes share half
	// of the places.
	slowAfter = time.Second

	// maxKeptPeriod is the longest period over which a connection is kept from one probe to the next.
	// Over longer periods, firewalls drop the connection without notice.
	maxKeptPeriod = time.Minute

	// maxReuse is for how long after its dial a kept connection carries further probes. A server that
	// accepts no more connections may serve the old ones for ever, and so may a server with a new
	// certificate. After maxReuse the connection is kept only to notice at once when the peer closes
	// it.
	maxReuse = 10 * time.Second

	// maxBegun is how many probes begin in one run of the loop at most, so that it reads answers in
	// between.
	maxBegun = 256

	// maxCounted is the longest time between two looks at the schedule that counts in full against
	// the probes in flight. After a longer time this process was away for a part of it, and only
	// maxWait counts. While a probe is in flight the loop waits no longer than maxWait.
	//
	// The loop takes what peers have sent before it counts time against them, but an exchange takes
	// several runs of the loop. Ten runs for each second of a timeout are enough for any exchange.
	maxCounted = 2 * maxWait
	maxWait    = 100 * time.Millisecond

	// maxAway is the longest absence of the loop in which this process was only late. After a longer
	// one the process was stopped, perhaps with its machine. What peers have sent meanwhile may be
	// lost, and they repeat it at growing intervals.
	maxAway = 10 * time.Second
)

// loop drives an engine. Only the goroutine that runs it touches it.
type loop struct {
	*Engine
	net      network
	inFlight schedule[*attempt] // by the time at which the loop looks at a probe, unless it ends before

	// Targets whose probe is due and has no place yet. Namespaces take turns, so none waits for all
	// the probes of another one.
	fast fairqueue.Queue[*target]
	slow *slowProbePool

	ended   []*attempt // not settled yet
	overdue []*attempt // unanswered for long, and not noted yet
	begun   []*attempt // to be handed to the network
	notify  map[types.NamespacedName]struct{}
	looked  instant // when the loop looked at the schedule last
	waiting bool    // more probes are due than may begin in one run
}

func newLoop(e *Engine, net network) *loop {
	// Half of the places at most are for slow probes, so that they delay no other ones.
	return &loop{
		Engine: e, net: net,
		slow:   newSlowProbePool(max(e.options.MaxConcurrent/2, 1)),
		notify: map[types.NamespacedName]struct{}{},
	}
}

// runOnce does one round:
//
//  1. It waits for something to happen.
//  2. It cancels what Sync has made stale.
//  3. It ends the probes whose time is over.
//  4. It settles the probes that have ended, and begins those that are due and have a place.
//  5. It notifies of the owners whose states have changed.
//
// It takes what has happened on the network before it counts time against the probes.
func (l *loop) runOnce() {
	happened := l.net.wait(l.untilNext())
	l.ended = append(l.ended, happened.ended...)
	for _, a := range happened.ended {
		l.leaveFlight(a)
	}
	l.begun = append(l.begun, happened.redial...)
	l.cancelStale()

	now := l.now()
	look := now/tick > l.looked/tick
	if look {
		l.excuse(now - l.looked)
		l.expire(now)
		l.looked = now
	}

	l.mu.Lock()
	for _, a := range l.ended {
		l.settleLocked(a, now)
	}
	clear(l.ended)
	l.ended = l.ended[:0]
	for _, t := range happened.hints {
		l.hintLocked(t, now)
	}
	l.noteOverdueLocked()
	if look {
		l.queueDueLocked(now)
	}
	l.admitLocked(now)
	l.mu.Unlock()

	l.launch()
	l.sendNotifications()
	l.metrics.inFlight.Set(float64(l.inFlight.Len()))
}

// untilNext returns how long the network may wait.
func (l *loop) untilNext() time.Duration {
	if len(l.ended) > 0 || l.waiting {
		return 0
	}
	l.mu.Lock()
	next := l.due.next()
	l.mu.Unlock()
	next = min(next, l.inFlight.next())
	if next == never {
		return -1
	}
	if l.inFlight.Len() > 0 {
		next = min(next, l.looked+maxWait)
	}
	next = max((next+tick-1)/tick, l.looked/tick+1) * tick // the tick at which it is due
	return max(next-l.now(), 0)
}

// cancelStale ends the probes and the kept connections that Sync has made meaningless.
func (l *loop) cancelStale() {
	l.mu.Lock()
	stale := l.stale
	l.stale = nil
	l.mu.Unlock()
	for _, t := range stale {
		for a := t.attempts; a != nil; a = t.attempts {
			l.giveUp(a)
		}
		l.net.drop(t)
		t.slow, t.closes, t.lastDuration = false, 0, 0
	}
}

// excuse keeps the time for which this process was away from counting against the probes in
// flight. Their timeouts last longer by that time. So a process that is always late still finds
// silent peers.
func (l *loop) excuse(away time.Duration) {
	switch {
	case away <= maxCounted:
	case away <= maxAway:
		excused := away - maxWait
		l.inFlight.Rekey(func(a *attempt, due dueTime) dueTime {
			a.deadline += excused
			return due + dueTime(excused)
		})
	default:
		for {
			a, _, ok := l.inFlight.First()
			if !ok {
				return
			}
			l.net.cancel(a)
			l.end(a, outcome{})
		}
	}
}

// expire looks at the probes that have been unanswered for long. It ends those whose time is
// over. The others become slow; one that gets no place among the slow probes is preempted.
func (l *loop) expire(now instant) {
	for {
		a, due, ok := l.inFlight.PopUntil(dueTime(now))
		if !ok {
			return
		}
		if instant(due) >= a.deadline {
			l.end(a, l.net.expire(a))
			continue
		}
		a.target.slow = true
		if l.becomesSlow(a) {
			l.inFlight.set(a, a.deadline)
		} else {
			l.preempt(a)
		}
		l.overdue = append(l.overdue, a)
	}
}

// becomesSlow gives a a place among the slow probes, and reports whether there is one.
func (l *loop) becomesSlow(a *attempt) bool {
	if l.slow.full() {
		other := l.slow.toPreempt(a.target)
		if other == nil {
			return false
		}
		l.preempt(other)
	}
	l.slow.take(a)
	return true
}

// preempt ends a, which begins again later.
func (l *loop) preempt(a *attempt) {
	a.preempted = true
	l.giveUp(a)
}

// giveUp ends a, which is no failure.
func (l *loop) giveUp(a *attempt) {
	a.givenUp = true
	l.net.cancel(a)
	l.end(a, outcome{})
}

// end notes that a has ended with o.
func (l *loop) end(a *attempt, o outcome) {
	a.outcome = o
	l.leaveFlight(a)
	l.ended = append(l.ended, a)
}

// leaveFlight removes a from what is in flight.
func (l *loop) leaveFlight(a *attempt) {
	l.inFlight.Remove(a)
	if a.slow {
		l.slow.leave(a)
	}
	for at := &a.target.attempts; *at != nil; at = &(*at).next {
		if *at == a {
			*at = a.next
			break
		}
	}
}

// launch hands the probes that begin to the network, except those that policy refuses. It asks
// policy before each dial, because a probe that dials again may be a timeout older than its first
// try.
func (l *loop) launch() {
	for _, a := range l.begun {
		if !a.isInFlight() {
			continue // it has ended while it waited to dial again
		}
		if permit := l.options.Permit; permit != nil && permit(a.target.owner.key, a.endpoint.Dial) != nil {
			l.net.drop(a.target)
			l.end(a, outcome{})
			continue
		}
		l.net.start(a)
	}
	clear(l.begun)
	l.begun = l.begun[:0]
}

// sendNotifications notifies of the owners whose states have changed.
func (l *loop) sendNotifications() {
	if l.options.Notify != nil {
		for key := range l.notify {
			l.options.Notify(key)
		}
	}
	clear(l.notify)
}

// shutdown ends all probes and closes all kept connections.
func (l *loop) shutdown() {
	l.mu.Lock()
	l.Engine.net = nil
	for _, o := range l.owners {
		l.stale = append(l.stale, o.targets...)
	}
	l.mu.Unlock()
	l.cancelStale()
	l.metrics.inFlight.Set(0)
}
