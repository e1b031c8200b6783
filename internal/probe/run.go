package probe

import (
	"context"
	"time"
)

const (
	// maxCounted is the longest time between two looks at the schedule that counts in full against
	// the probes in flight. After a longer time this process was away for a part of it, and only
	// maxWait counts. While a probe is in flight the loop waits no longer than maxWait.
	//
	// The loop takes what peers have sent before it counts time against them, but an exchange takes
	// several runs of the loop. Ten runs for each second of a timeout are enough for any exchange.
	maxCounted = 2 * maxWait

	maxWait = 100 * time.Millisecond

	// maxAway is the longest absence of the loop in which this process was only late. After a longer
	// one the process was stopped, perhaps with its machine. What peers have sent meanwhile may be
	// lost, and they repeat it at growing intervals.
	maxAway = 10 * time.Second
)

// Start probes until ctx ends, and returns once every probe has ended and every connection is
// closed. An engine runs once.
func (e *Engine) Start(ctx context.Context) error {
	net, err := newNetwork(e.options.MaxConcurrent, e.options.Log)
	if err != nil {
		return err
	}
	return e.run(ctx, net)
}

// run is Start over any network.
func (e *Engine) run(ctx context.Context, net network) error {
	e.mu.Lock()
	e.net = net
	for _, o := range e.owners {
		for _, ep := range o.probed {
			e.addLocked(ep)
		}
	}
	e.mu.Unlock()

	woken := make(chan struct{})
	context.AfterFunc(ctx, func() {
		net.wake()
		close(woken)
	})
	l := newLoop(e, net)
	for ctx.Err() == nil {
		l.runOnce()
	}
	<-woken
	l.shutdown()
	net.close()
	return nil
}

// runOnce does one round:
//
//  1. It waits for something to happen.
//  2. It cancels what Sync has made stale.
//  3. It ends the probes whose time is over.
//  4. It takes over the outcomes of probes, and begins the probes that are due and have a place.
//  5. It asks witnesses about silent endpoints.
//  6. It notifies of the owners whose states have changed.
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
		l.endProbeLocked(a, now)
	}
	clear(l.ended)
	l.ended = l.ended[:0]
	for _, ep := range happened.hints {
		l.hintLocked(ep, now)
	}
	l.noteOverdueLocked(now)
	for _, ep := range l.heard {
		l.reconsiderLocked(ep, now)
	}
	clear(l.heard)
	l.heard = l.heard[:0]
	if look {
		l.queueDueLocked(now)
	}
	l.admitLocked(now)
	l.mu.Unlock()

	l.launch()
	l.sendQuestions()
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
	for _, ep := range stale {
		for a := ep.attempts; a != nil; a = ep.attempts {
			l.giveUp(a)
		}
		l.net.drop(ep)
		ep.slow, ep.closes, ep.lastDuration = false, 0, 0
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
		a.probed.slow = true
		if l.becomesSlow(a) {
			l.inFlight.set(a, a.deadline)
		} else {
			l.preempt(a)
		}
		l.overdue = append(l.overdue, a)
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
		if permit := l.options.Permit; permit != nil && permit(a.probed.owner.key, a.endpoint.Dial) != nil {
			l.net.drop(a.probed)
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
		l.stale = append(l.stale, o.probed...)
	}
	l.mu.Unlock()
	l.cancelStale()
	l.metrics.inFlight.Set(0)
}
