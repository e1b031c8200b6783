package probe

import "slices"

// settleLocked takes over the outcome of a.
func (l *loop) settleLocked(a *attempt, now instant) {
	t := a.target
	o := a.outcome
	if a.handler != t.owner.handler || a.endpoint.Dial != t.Dial || a.endpoint.Host != t.Host {
		o = outcome{} // it answers a question that is no longer asked
	}
	if !a.givenUp {
		l.metrics.ended(a.handler.kind, o.result, now-a.started)
	}
	if t.gone {
		return
	}

	if o.result != unknown {
		t.slow = now >= a.deadline || now-a.started >= slowAfter
	}
	if o.result == success {
		t.lastDuration = now - a.started
	}
	l.replaceMachineLocked(t, l.judgeLocked(a, o, now))
	if a.preempted {
		l.queueLocked(t, now)
	}
	l.scheduleLocked(t, now)
}

// replaceMachineLocked gives t its next machine, and notifies where that changes the state.
func (l *loop) replaceMachineLocked(t *target, next machine) {
	before, after := t.machine.state(), next.state()
	before.Probed = after.Probed // a probe that confirms a seeded verdict changes nothing
	if before != after {
		l.notify[t.owner.key] = struct{}{}
	}
	t.machine = next
	if healthy := next.verdict() == Healthy; healthy != t.witness.healthy {
		l.sight.judged(&t.witness, t.origin(), healthy)
	}
}

// judgeLocked returns the machine of a's target after its outcome. A silence counts only where
// the prober hears from others.
func (l *loop) judgeLocked(a *attempt, o outcome, now instant) machine {
	t := a.target
	rules := t.owner.rules
	switch {
	case o.result == unknown:
	case o.silent():
		l.endBlindnessLocked(now) // the endpoints that it waits for may be gone
		l.unansweredLocked(t, a.started)
		if l.sight.discounts(a.started) {
			o = outcome{}
		}
	default:
		l.answeredLocked(t, now)
		l.endBlindnessLocked(now)
	}

	next := t.machine.end(rules, a.generation, o, now)
	if !o.silent() || !t.machine.turnsUnhealthy(next) || l.sight.believes(&t.witness, a.started, now) {
		return next
	}
	next = t.machine.end(rules, a.generation, outcome{}, now)
	if l.sight.blind {
		l.turnBlindLocked()
	} else {
		next.doubtful = true
	}
	return next
}

// answeredLocked notes that t has answered, which is evidence that the prober is not blind.
func (l *loop) answeredLocked(t *target, now instant) {
	if l.sight.blind && t.witness.last == silence {
		l.notify[t.owner.key] = struct{}{}
	}
	l.sight.answered(&t.witness, t.origin(), now)
}

// unansweredLocked notes that t has been silent since started, which is evidence that the prober
// is blind.
func (l *loop) unansweredLocked(t *target, started instant) {
	if l.sight.blind && t.witness.last != silence {
		l.notify[t.owner.key] = struct{}{}
	}
	l.sight.unanswered(&t.witness, t.origin(), started)
}

// noteOverdueLocked notes which targets have been silent for long, before their timeouts are
// over.
func (l *loop) noteOverdueLocked() {
	for _, a := range l.overdue {
		if t := a.target; !t.gone && !t.owner.suspended && a.handler == t.owner.handler {
			l.unansweredLocked(t, a.started)
		}
	}
	clear(l.overdue)
	l.overdue = l.overdue[:0]
}

// turnBlindLocked reports that the prober is blind from now on.
func (l *loop) turnBlindLocked() {
	l.reportSightLocked()
	for key, o := range l.owners {
		if slices.ContainsFunc(o.targets, func(t *target) bool { return t.witness.last == silence }) {
			l.notify[key] = struct{}{}
		}
	}
}

// endBlindnessLocked ends a blindness in which enough endpoints have answered. Each endpoint that
// was silent in it starts again with no failure counted.
func (l *loop) endBlindnessLocked(now instant) {
	if !l.sight.returns(now) {
		return
	}
	l.reportSightLocked()
	for key, o := range l.owners {
		for _, t := range o.targets {
			if t.witness.last != silence {
				continue
			}
			l.notify[key] = struct{}{}
			l.sight.forget(&t.witness, t.origin())
			t.machine = t.machine.forgetCounts()
			l.scheduleLocked(t, now)
		}
	}
}

func (l *loop) reportSightLocked() {
	blind, silent, healthy := l.sight.blind, l.sight.silent.n, l.sight.healthy.n
	gauge := 0.0
	if blind {
		gauge = 1
	}
	l.metrics.blind.Set(gauge)
	l.options.Log.Info("The prober's sight has changed", "blind", blind, "silent", silent, "healthy", healthy)
	if l.options.Blind != nil {
		l.options.Blind(blind, silent, healthy)
	}
}
