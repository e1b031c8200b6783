package probe

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Witnesses are other replicas, which an Engine asks about endpoints that are silent for it.
type Witnesses interface {
	// Ask asks about endpoints. It does not block. The opinions come by Engine.Hear. It reports
	// whether there is anybody to ask.
	Ask(questions []Question) bool
}

// Question asks the witnesses about an endpoint that is silent.
type Question struct {
	Owner types.NamespacedName
	ID    ID
	// First reports whether this doubt is new. What the witnesses knew before counts no more.
	First bool
	// Silent is how long the endpoint has been silent.
	Silent time.Duration
	// Wait is how long the engine waits for the opinions. 0: it does not need them yet, and the
	// witnesses only begin to probe.
	Wait time.Duration
}

// Opinions are what the witnesses say about an endpoint. The three numbers together are how many
// were asked, except those that have not answered in time or refuse to.
type Opinions struct {
	Healthy, Unhealthy int
	// Pending is how many have not answered yet.
	Pending int
}

// majority returns what most of the replicas say, this one included, whose opinion is own. It is
// Unknown in a tie, and as long as those that have not answered can still decide.
func (o Opinions) majority(own Verdict) Verdict {
	healthy, unhealthy := o.Healthy, o.Unhealthy
	switch own {
	case Healthy:
		healthy++
	case Unhealthy:
		unhealthy++
	}
	switch {
	case unhealthy > healthy+o.Pending:
		return Unhealthy
	case healthy > unhealthy+o.Pending:
		return Healthy
	default:
		return Unknown
	}
}

// agree reports whether all have answered and say verdict.
func (o Opinions) agree(verdict Verdict) bool {
	return o.Pending == 0 && (verdict == Unhealthy && o.Healthy == 0 || verdict == Healthy && o.Unhealthy == 0)
}

// consultation is about one endpoint that is, or was, silent. It lasts until all agree, or until
// the endpoint answers this replica.
type consultation struct {
	opinions Opinions
	heard    bool // opinions have come, or there is nobody to ask

	asked    instant // when the witnesses were asked last
	deadline instant // until when the engine waits for opinions; 0: it does not

	// own is what this replica says: Unknown as long as its thresholds are not reached. cause and
	// started are those of the last silent probe, if it says Unhealthy.
	own     Verdict
	cause   cause
	started instant
}

// current returns the opinions as they count at a moment. Those that have not come in time count
// for nothing.
func (c *consultation) current(now instant) Opinions {
	o := c.opinions
	switch {
	case c.deadline > 0 && now >= c.deadline:
		o.Pending = 0
	case !c.heard:
		o.Pending = max(o.Pending, 1)
	}
	return o
}

// hear takes opinions in place of those that came before.
func (c *consultation) hear(o Opinions) {
	c.opinions, c.heard = o, true
	if o.Pending == 0 {
		c.deadline = 0
	}
}

// complete reports whether all who were asked have answered, or nobody could be asked.
func (c *consultation) complete() bool { return c != nil && c.heard && c.opinions.Pending == 0 }

// finds reports whether any witness has an opinion.
func (c *consultation) finds() bool { return c != nil && c.opinions.Healthy+c.opinions.Unhealthy > 0 }

// explained returns the cause of a verdict. It says how many found the endpoint silent if not all
// did.
func (c *consultation) explained() cause {
	out := c.cause
	if o := c.opinions; o.Healthy > 0 {
		text := fmt.Sprintf("silent for %d of %d replicas", o.Unhealthy+1, o.Unhealthy+o.Healthy+1)
		if out.detail != "" {
			text = out.detail + ", " + text
		}
		out.detail = text
	}
	return out
}

// subject names an endpoint of an engine.
type subject struct {
	owner types.NamespacedName
	id    ID
}

// Hear takes the opinions about an endpoint. They replace those that came before.
func (e *Engine) Hear(owner types.NamespacedName, id ID, o Opinions) {
	e.mu.Lock()
	ep := e.consulted[subject{owner, id}]
	if ep != nil {
		ep.consultation.hear(o)
		e.heard = append(e.heard, ep)
	}
	net := e.net
	e.mu.Unlock()
	if ep != nil && net != nil {
		net.wake()
	}
}

// Overruled returns about how many endpoints this replica alone would say something else than
// what most say, and how many endpoints it has.
func (e *Engine) Overruled() (overruled, endpoints int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, ep := range e.consulted {
		c := ep.consultation
		if majority := c.opinions.majority(c.own); c.own != Unknown && majority != Unknown && majority != c.own {
			overruled++
		}
	}
	for _, o := range e.owners {
		endpoints += len(o.probed)
	}
	return overruled, endpoints
}

// consultLocked asks the witnesses about ep, which is silent since started. wait reports whether
// their opinions are needed now. Without that it asks no more than once in a confirm period.
func (l *loop) consultLocked(ep *probed, started, now instant, wait bool) {
	if l.options.Witnesses == nil {
		return
	}
	c := ep.consultation
	first := c == nil
	if first {
		c = &consultation{}
		ep.consultation = c
		l.consulted[subject{ep.owner.key, ep.ID}] = ep
	} else if !wait && now < c.asked+ep.owner.rules.confirm {
		return
	}
	q := Question{Owner: ep.owner.key, ID: ep.ID, First: first, Silent: now - started}
	if wait {
		q.Wait = ep.owner.rules.confirm
		if c.deadline == 0 {
			c.deadline = now + q.Wait
		}
	}
	c.asked = now
	l.questions = append(l.questions, q)
}

// endConsultationLocked asks nobody about ep any more.
func (e *Engine) endConsultationLocked(ep *probed) {
	if ep.consultation != nil {
		ep.consultation = nil
		delete(e.consulted, subject{ep.owner.key, ep.ID})
	}
}

// settleLocked ends the consultation about ep if all agree on verdict.
func (e *Engine) settleLocked(ep *probed, verdict Verdict) {
	if c := ep.consultation; c != nil && c.heard && c.own == verdict && c.opinions.agree(verdict) {
		e.endConsultationLocked(ep)
	}
}

// sendQuestions asks what was collected. If there is nobody to ask, this replica decides alone.
func (l *loop) sendQuestions() {
	if len(l.questions) == 0 {
		return
	}
	asked := l.options.Witnesses.Ask(l.questions)
	if !asked {
		l.mu.Lock()
		now := l.now()
		for _, q := range l.questions {
			if ep := l.consulted[subject{q.Owner, q.ID}]; ep != nil {
				ep.consultation.hear(Opinions{})
				l.reconsiderLocked(ep, now)
			}
		}
		l.mu.Unlock()
	}
	clear(l.questions)
	l.questions = l.questions[:0]
}

// judgeSilenceLocked returns the machine of a's endpoint after a silent probe. next is what it
// would be by the thresholds alone.
func (l *loop) judgeSilenceLocked(a *attempt, o outcome, next machine, now instant) machine {
	ep := a.probed
	turns := ep.machine.turnsUnhealthy(next)
	if turns || ep.consultation != nil {
		l.consultLocked(ep, a.started, now, turns && !ep.consultation.complete())
	}
	if !turns {
		return next
	}
	if c := ep.consultation; c != nil {
		c.own, c.cause, c.started = Unhealthy, o.cause, a.started
	}
	if l.believesSilenceLocked(ep, a.started, now) {
		if c := ep.consultation; c != nil {
			next.cause = c.explained()
			l.settleLocked(ep, Unhealthy)
		}
		return next
	}
	next = ep.machine.end(ep.owner.rules, a.generation, outcome{}, now)
	next.doubtful = !l.sight.blind
	return next
}

// believesSilenceLocked reports whether ep, which is silent for this replica, may become
// Unhealthy: if most of those say so that were asked, or, where nobody answers, if this replica
// is not blind.
func (l *loop) believesSilenceLocked(ep *probed, started, now instant) bool {
	if c := ep.consultation; c != nil {
		if o := c.current(now); o != (Opinions{}) {
			return o.majority(Unhealthy) == Unhealthy
		}
	}
	wasBlind := l.sight.blind
	believed := l.sight.judgeSilence(&ep.evidence, started, now)
	if l.sight.blind && !wasBlind {
		l.announceBlindLocked()
	}
	return believed
}

// judgeReturnLocked returns the machine of a's endpoint after a success. While the witnesses
// disagree, the endpoint becomes Healthy only if most say so.
func (l *loop) judgeReturnLocked(a *attempt, next machine, now instant) machine {
	ep := a.probed
	c := ep.consultation
	if c == nil || next.rawVerdict != Healthy {
		return next
	}
	if c.own = Healthy; ep.machine.rawVerdict == Unhealthy && c.current(now).majority(Healthy) != Healthy {
		l.consultLocked(ep, a.started, now, true)
		return ep.machine.end(ep.owner.rules, a.generation, outcome{}, now)
	}
	l.endConsultationLocked(ep)
	return next
}

// reconsiderLocked decides about ep again after opinions have come.
func (l *loop) reconsiderLocked(ep *probed, now instant) {
	c := ep.consultation
	if ep.gone || c == nil {
		return
	}
	next := ep.machine
	switch {
	case c.own == Unhealthy && next.rawVerdict != Unhealthy:
		if l.believesSilenceLocked(ep, c.started, now) {
			next = next.condemn(c.explained())
		}
	case c.own != Unknown && next.rawVerdict == Unhealthy:
		if c.current(now).majority(c.own) == Healthy {
			next = next.recover(now).release(now)
		}
	}
	l.replaceMachineLocked(ep, next)
	l.settleLocked(ep, next.rawVerdict)
	l.scheduleLocked(ep, now)
}
