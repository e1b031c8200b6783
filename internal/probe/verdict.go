package probe

import "slices"

// endProbeLocked takes over the outcome of a.
func (l *loop) endProbeLocked(a *attempt, now instant) {
	ep := a.probed
	o := a.outcome
	if a.handler != ep.owner.handler || a.endpoint.Dial != ep.Dial || a.endpoint.Host != ep.Host {
		o = outcome{} // it answers a question that is no longer asked
	}
	if !a.givenUp {
		l.metrics.ended(a.handler.kind, o.result, now-a.started)
	}
	if ep.gone {
		return
	}

	if o.result != unknown {
		ep.slow = now >= a.deadline || now-a.started >= maxPatience
	}
	if o.result == success {
		ep.lastDuration = now - a.started
	}
	l.replaceMachineLocked(ep, l.judgeLocked(a, o, now))
	if a.preempted {
		l.queueLocked(ep, now)
	}
	l.scheduleLocked(ep, now)
}

// replaceMachineLocked gives ep its next machine, and notifies where that changes the state.
func (l *loop) replaceMachineLocked(ep *probed, next machine) {
	before, after := ep.machine.state(), next.state()
	before.Probed = after.Probed // a probe that confirms a seeded verdict changes nothing
	if before != after {
		l.notify[ep.owner.key] = struct{}{}
	}
	ep.machine = next
	if healthy := next.verdict() == Healthy; healthy != ep.evidence.healthy {
		l.sight.judged(&ep.evidence, ep.failureDomain(), healthy)
	}
}

// judgeLocked returns the machine of a's endpoint after its outcome. A silence counts only where
// most witnesses find it, too, or where there are none and the prober hears from others.
func (l *loop) judgeLocked(a *attempt, o outcome, now instant) machine {
	ep := a.probed
	rules := ep.owner.rules
	switch {
	case o.result == unknown:
	case o.silent():
		l.endBlindnessLocked(now) // the endpoints that it waits for may be gone
		l.unansweredLocked(ep, a.started)
		if l.sight.discounts(a.started) && !ep.consultation.finds() {
			o = outcome{}
		}
	default:
		l.answeredLocked(ep, now)
		l.endBlindnessLocked(now)
	}

	next := ep.machine.end(rules, a.generation, o, now)
	switch {
	case o.silent():
		return l.judgeSilenceLocked(a, o, next, now)
	case o.result == success:
		return l.judgeReturnLocked(a, next, now)
	case o.result == failure: // the endpoint itself has said so
		l.endConsultationLocked(ep)
	}
	return next
}

// answeredLocked notes that ep has answered, which is evidence that the prober is not blind.
func (l *loop) answeredLocked(ep *probed, now instant) {
	if l.sight.blind && ep.evidence.last == silence {
		l.notify[ep.owner.key] = struct{}{}
	}
	l.sight.answered(&ep.evidence, ep.failureDomain(), now)
}

// unansweredLocked notes that ep has been silent since started, which is evidence that the prober
// is blind.
func (l *loop) unansweredLocked(ep *probed, started instant) {
	if l.sight.blind && ep.evidence.last != silence {
		l.notify[ep.owner.key] = struct{}{}
	}
	l.sight.unanswered(&ep.evidence, ep.failureDomain(), started)
}

// noteOverdueLocked notes which endpoints have been silent for long, before their timeouts are
// over.
func (l *loop) noteOverdueLocked(now instant) {
	for _, a := range l.overdue {
		if ep := a.probed; !ep.gone && !ep.owner.suspended && a.handler == ep.owner.handler {
			l.unansweredLocked(ep, a.started)
			if ep.machine.rawVerdict != Unhealthy {
				l.consultLocked(ep, a.started, now, false)
			}
		}
	}
	clear(l.overdue)
	l.overdue = l.overdue[:0]
}

// announceBlindLocked announces that the prober is blind from now on.
func (l *loop) announceBlindLocked() {
	l.reportSightLocked()
	for key, o := range l.owners {
		if slices.ContainsFunc(o.probed, func(ep *probed) bool { return ep.evidence.last == silence }) {
			l.notify[key] = struct{}{}
		}
	}
}

// endBlindnessLocked ends a blindness in which enough endpoints have answered. Each endpoint that
// was silent in it starts again with no failure counted.
func (l *loop) endBlindnessLocked(now instant) {
	if !l.sight.endIfSeen(now) {
		return
	}
	l.reportSightLocked()
	for key, o := range l.owners {
		for _, ep := range o.probed {
			if ep.evidence.last != silence {
				continue
			}
			l.notify[key] = struct{}{}
			l.sight.clearHeard(&ep.evidence, ep.failureDomain())
			l.endConsultationLocked(ep)
			ep.machine = ep.machine.forgetCounts()
			l.scheduleLocked(ep, now)
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
