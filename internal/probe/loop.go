package probe

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/fairqueue"
)

// loop drives an engine. Only the goroutine that runs it touches it.
type loop struct {
	*Engine
	net      network
	inFlight schedule[*attempt] // by the time at which the loop looks at a probe, unless it ends before

	// Endpoints whose probe is due and has no place yet. Namespaces take turns, so none waits for all
	// the probes of another one.
	fast fairqueue.Queue[*probed]
	slow *slowProbePool

	ended     []*attempt // with outcomes that are not taken over yet
	overdue   []*attempt // unanswered for long, and not noted yet
	begun     []*attempt // to be handed to the network
	questions []Question // to be asked
	notify    map[types.NamespacedName]struct{}
	looked    instant // when the loop looked at the schedule last
	waiting   bool    // more probes are due than may begin in one run
}

func newLoop(e *Engine, net network) *loop {
	// Half of the places at most are for slow probes, so that they delay no other ones.
	return &loop{
		Engine: e, net: net,
		slow:   newSlowProbePool(max(e.options.MaxConcurrent/2, 1)),
		notify: map[types.NamespacedName]struct{}{},
	}
}

// queueLocked queues ep for a probe that is due at due.
func (l *loop) queueLocked(ep *probed, due instant) {
	if ep.queued {
		return
	}
	ep.queued, ep.due = true, due
	if ep.slow {
		l.slow.push(ep)
	} else {
		l.fast.Push(ep.owner.key.Namespace, ep)
	}
}

// becomesSlow gives a a place among the slow probes, and reports whether there is one.
func (l *loop) becomesSlow(a *attempt) bool {
	if l.slow.full() {
		other := l.slow.toPreempt(a.probed)
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
	for at := &a.probed.attempts; *at != nil; at = &(*at).next {
		if *at == a {
			*at = a.next
			break
		}
	}
}
