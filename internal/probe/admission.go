package probe

import "time"

const (
	// minPatience is how long a probe may stay unanswered before it counts as slow, for an endpoint
	// whose last success is unknown or was fast.
	minPatience = 100 * time.Millisecond

	// maxKeptPeriod is the longest period over which a connection is kept from one probe to the next.
	// Over longer periods, firewalls drop the connection without notice.
	maxKeptPeriod = time.Minute

	// maxBegun is how many probes begin in one run of the loop at most, so that it reads answers in
	// between.
	maxBegun = 256
)

// hintLocked schedules a probe of ep at once, unless one is in flight anyway.
func (l *loop) hintLocked(ep *probed, now instant) {
	if !ep.gone && !ep.queued && !ep.owner.suspended && ep.machine.inFlight == 0 {
		ep.due = now
		l.due.set(ep, now)
	}
}

// queueDueLocked queues the endpoints whose probe is due.
func (l *loop) queueDueLocked(now instant) {
	for {
		ep, _, ok := l.due.PopUntil(dueTime(now))
		if !ok {
			return
		}
		l.replaceMachineLocked(ep, ep.machine.release(now))
		if ep.due <= now {
			l.queueLocked(ep, ep.due)
		}
		l.scheduleLocked(ep, now)
	}
}

// admitLocked begins the probes of the endpoints that are queued, as far as there are places. Of
// the first fast and the first slow endpoint, the one that has been due longer comes first.
//
// A slow probe that is preempted here was not begun in the same run, because slow probes begin in
// the order of what their namespaces hold.
func (l *loop) admitLocked(now instant) {
	for len(l.begun) < maxBegun {
		fast, slow := l.admissibleLocked()
		switch {
		case fast != nil && (slow == nil || fast.due <= slow.due):
			l.fast.Pop()
			l.beginLocked(fast, false, now)
		case slow != nil:
			l.slow.pop()
			l.beginLocked(slow, true, now)
		default:
			l.waiting = false
			return
		}
	}
	l.waiting = true
}

// admissibleLocked returns the first fast and the first slow endpoint that are queued, each nil
// where there is no place for it. A slow one may take the place of another slow probe.
func (l *loop) admissibleLocked() (fast, slow *probed) {
	free := l.inFlight.Len() < l.options.MaxConcurrent
	if free {
		fast, _ = l.fast.First()
	}
	slow = l.slow.first()
	if slow == nil {
		return fast, nil
	}
	if l.slow.full() {
		free = l.slow.toPreempt(slow) != nil
	}
	if !free {
		slow = nil
	}
	return fast, slow
}

// beginLocked begins a probe of ep, unless ep no longer needs one. slow reports whether ep was
// queued among the slow ones, which have a place for it.
func (l *loop) beginLocked(ep *probed, slow bool, now instant) {
	ep.queued = false
	if ep.gone {
		return
	}
	o := ep.owner
	needless := ep.machine.inFlight > 0 && ep.machine.next(o.rules, ep.offset(), now) > now
	if !o.suspended && !needless {
		l.metrics.begun(o.handler.kind, now-ep.due, o.rules.period)
		a := l.newAttemptLocked(ep, now)
		look := a.deadline
		if slow {
			l.becomesSlow(a)
		} else {
			look = min(look, now+patience(ep.lastDuration))
		}
		l.inFlight.set(a, look)
		l.begun = append(l.begun, a)
	}
	l.scheduleLocked(ep, now)
}

// newAttemptLocked makes a probe of ep that begins now.
func (l *loop) newAttemptLocked(ep *probed, now instant) *attempt {
	rules := ep.owner.rules
	// The machine counts from the tick. Otherwise each confirmation would come a part of a tick later
	// than the one before.
	ep.machine = ep.machine.start(now.Truncate(tick))
	a := &attempt{
		probed: ep, handler: ep.owner.handler, endpoint: ep.Endpoint,
		keep: rules.period <= maxKeptPeriod, since: replacedAt(now, ep.offset()), generation: ep.machine.generation,
		started: now, deadline: now + rules.timeout, next: ep.attempts,
	}
	ep.attempts = a
	return a
}

// patience returns how long a probe may stay unanswered before it counts as slow. last is how
// long the last success took.
func patience(last time.Duration) time.Duration { return min(max(minPatience, 4*last), maxPatience) }
