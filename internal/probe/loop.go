package probe

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/fairqueue"
)

const (
	// tick is how often the loop looks for what is due. What is due within one tick begins together,
	// which spares most of the waking up: nothing begins more than a tick late for it.
	tick = 5 * time.Millisecond

	// patience is how long a probe may stay unanswered before it counts as silent, for an endpoint of
	// which no better is known.
	patience = 100 * time.Millisecond

	// slow is how long an answer takes to count its endpoint among the silent ones, with whom it
	// shares half of the room.
	slow = time.Second

	// maxKeptPeriod is the longest period over which a connection is kept from one probe to the next.
	// Over longer ones firewalls forget connections without a word.
	maxKeptPeriod = time.Minute

	// maxReuse is for how long after its dial a kept connection carries further probes. A server
	// that accepts no more connections may serve the old ones for ever, and so may one with a new
	// certificate. After that the connection is kept only to notice at once that the peer closes it.
	maxReuse = 10 * time.Second

	// maxBegun is how many probes begin in one turn of the loop at most, so that what has been
	// answered is heard between.
	maxBegun = 256

	// stall is the longest time from one turn to the next that counts in full against the probes in
	// flight. After a longer one this process was away for a part of it, and a late turn counts for
	// glance alone. While a probe is in flight the loop waits no longer than glance.
	//
	// What a peer says in a late turn is heard before time counts against it, but an exchange takes
	// several turns. Ten of them for each second of a timeout are enough for any.
	stall  = 2 * glance
	glance = 100 * time.Millisecond

	// stopped is how long the loop was away when this process was not late, but stopped, maybe with
	// its machine. What peers have sent meanwhile may be lost, and they repeat it ever less often.
	stopped = 10 * time.Second
)

// network carries probes. All methods but wake are called by the loop's goroutine alone.
type network interface {
	// start begins a probe. Its end comes from wait, once, unless it is expired or cancelled before.
	start(a *attempt)
	// expire ends a probe whose time is over, and judges it.
	expire(a *attempt) outcome
	// cancel ends a probe.
	cancel(a *attempt)
	// drop closes the connection that is kept for t, if there is one.
	drop(t *target)
	// wait returns when something has happened, wake was called, or d is over; never before something
	// has happened where d is negative. The result is valid until the next call.
	wait(d time.Duration) events
	// wake makes wait return, now or when it is called next. It never blocks.
	wake()
	// close frees everything, and returns once all goroutines have ended. Everything was cancelled and
	// dropped before.
	close()
}

// attempt is one probe in flight.
type attempt struct {
	target   *target
	handler  *handler
	endpoint Endpoint // as it was when the probe began
	keep     bool     // its connection may be kept
	since    instant  // a connection that was dialled earlier may not carry it
	serial   uint32   // its number among the target's
	outcome  outcome  // once it has ended

	started   instant
	deadline  instant
	preempted bool     // it made room and is to be begun anew
	givenUp   bool     // it was ended by the engine itself
	heap      int32    // place in loop.flights
	next      *attempt // of the same target

	silent       bool     // it holds a place of loop.silent
	older, newer *attempt // of those of its namespace that hold one

	conn *conn // the network's own
}

func (a *attempt) place() *int32 { return &a.heap }

// events are what wait returns.
type events struct {
	ended  []*attempt // with their outcomes
	redial []*attempt // to be started again: the kept connection was closed before it took the probe
	hints  []*target  // the peer has closed the connection that was kept
}

// loop drives an engine. Only the goroutine that runs it touches it.
type loop struct {
	*Engine
	net     network
	flights queue[*attempt] // what is in flight, by the time that it is looked at if nothing happens
	// targets whose probe is due and finds no room, by namespace, so that nobody waits for all that
	// somebody else wants probed
	line    fairqueue.Queue[*target]
	silent  *silentRoom // where those that are silent or slow wait, and what of the room they hold
	ended   []*attempt  // not settled yet
	overdue []*attempt  // unanswered for long, which is to be noted
	begun   []*attempt  // not handed to the network yet, or to be handed to it again
	notify  map[types.NamespacedName]struct{}
	looked  instant // when the schedule was last looked at
	crowded bool    // more probes could begin than one turn may
}

func newLoop(e *Engine, net network) *loop {
	// Half of the room at most is for the silent, so that they delay nobody who answers.
	return &loop{Engine: e, net: net, silent: newSilentRoom(max(e.options.MaxConcurrent/2, 1)), notify: map[types.NamespacedName]struct{}{}}
}

// turn does one round: it
//
//  1. waits for something to happen,
//  2. cancels what Sync has made stale,
//  3. ends the probes whose time is over,
//  4. settles the probes that have ended and begins those that are due, as far as there is room,
//  5. tells whose state has changed.
//
// What has happened on the network is always taken before time counts against it.
func (l *loop) turn() {
	happened := l.net.wait(l.untilNext())
	l.ended = append(l.ended, happened.ended...)
	for _, a := range happened.ended {
		l.landed(a)
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
		l.lineUpLocked(now)
	}
	l.admitLocked(now)
	l.mu.Unlock()

	l.launch()
	l.tell()
	l.metrics.inFlight.Set(float64(len(l.flights.items)))
}

// untilNext returns how long the network may wait.
func (l *loop) untilNext() time.Duration {
	if len(l.ended) > 0 || l.crowded {
		return 0
	}
	l.mu.Lock()
	next := l.due.next()
	l.mu.Unlock()
	next = min(next, l.flights.next())
	if next == never {
		return -1
	}
	if len(l.flights.items) > 0 {
		next = min(next, l.looked+glance)
	}
	next = max((next+tick-1)/tick, l.looked/tick+1) * tick // the tick that finds it due
	return max(next-l.now(), 0)
}

// cancelStale ends the probes and the kept connections that Sync has made meaningless.
func (l *loop) cancelStale() {
	l.mu.Lock()
	stale := l.stale
	l.stale = nil
	l.mu.Unlock()
	for _, t := range stale {
		for a := t.flights; a != nil; a = t.flights {
			l.net.cancel(a)
			l.giveUp(a)
		}
		l.net.drop(t)
		t.silent, t.closes, t.usual = false, 0, 0
	}
}

// excuse keeps the time for which the loop was away from counting against the probes in flight.
// Their timeouts last longer by it, so that a process that is always late notices silence all the
// same.
func (l *loop) excuse(away time.Duration) {
	switch {
	case away <= stall:
	case away <= stopped:
		for i := range l.flights.items { // all by the same, so that their order stays
			l.flights.items[i].due += away - glance
			l.flights.items[i].item.deadline += away - glance
		}
	default:
		for len(l.flights.items) > 0 {
			a := l.flights.items[0].item
			l.net.cancel(a)
			l.end(a, outcome{})
		}
	}
}

// expire looks at the probes that have been unanswered for long: it ends those whose time is over,
// and counts the others as silent. One that finds no room among the silent makes room at once and
// waits in line.
func (l *loop) expire(now instant) {
	for {
		a, due, ok := l.flights.pop(now)
		if !ok {
			return
		}
		switch {
		case due >= a.deadline:
			l.end(a, l.net.expire(a))
		case l.joinsSilent(a):
			a.target.silent = true
			l.flights.set(a, a.deadline)
			l.overdue = append(l.overdue, a)
		default:
			a.target.silent = true
			l.preempt(a)
			l.overdue = append(l.overdue, a)
		}
	}
}

// joinsSilent counts a as silent, if there is room for it among those.
func (l *loop) joinsSilent(a *attempt) bool {
	if l.silent.full() {
		giving := l.silent.giving(a.target)
		if giving == nil {
			return false
		}
		l.preempt(giving)
	}
	l.silent.take(a)
	return true
}

// preempt ends a, to be begun anew.
func (l *loop) preempt(a *attempt) {
	a.preempted = true
	l.net.cancel(a)
	l.giveUp(a)
}

// giveUp notes that a has ended because the engine wants it no more, which is nobody's failure.
func (l *loop) giveUp(a *attempt) {
	a.givenUp = true
	l.end(a, outcome{})
}

// end notes that a has ended with o.
func (l *loop) end(a *attempt, o outcome) {
	a.outcome = o
	l.landed(a)
	l.ended = append(l.ended, a)
}

// landed takes a out of what is in flight.
func (l *loop) landed(a *attempt) {
	l.flights.remove(a)
	if a.silent {
		l.silent.leave(a)
	}
	for at := &a.target.flights; *at != nil; at = &(*at).next {
		if *at == a {
			*at = a.next
			break
		}
	}
}

// settleLocked takes the outcome of a over.
func (l *loop) settleLocked(a *attempt, now instant) {
	t := a.target
	o := a.outcome
	if a.handler != t.owner.handler || a.endpoint.Dial != t.Dial || a.endpoint.Host != t.Host {
		o = outcome{} // it answers what is no longer asked
	}
	if !a.givenUp {
		l.metrics.ended(a.handler.kind, o.result, now-a.started)
	}
	if t.gone {
		return
	}
	if o.result != unknown {
		t.silent = now >= a.deadline || now-a.started >= slow
	}
	if o.result == success {
		t.usual = now - a.started
	}
	l.stepLocked(t, l.endLocked(a, o, now))
	if a.preempted {
		l.queueLocked(t, now)
	}
	l.scheduleLocked(t, now)
}

// stepLocked replaces t's machine, and notes whether that changes what is told.
func (l *loop) stepLocked(t *target, next machine) {
	before, after := t.machine.state(), next.state()
	before.Probed = after.Probed // that a seeded verdict has been confirmed is no news
	if before != after {
		l.notify[t.owner.key] = struct{}{}
	}
	t.machine = next
	if healthy := next.verdict == Healthy; healthy != t.witness.healthy {
		l.sight.judged(&t.witness, t.origin(), healthy)
	}
}

// endLocked returns the machine of a's target after its outcome. Silence counts where this host is
// seen to hear from others.
func (l *loop) endLocked(a *attempt, o outcome, now instant) machine {
	t := a.target
	rules := t.owner.rules
	switch {
	case o.result == unknown:
	case o.silent():
		l.endBlindnessLocked(now) // those who had to answer may have gone
		l.unansweredLocked(t, a.started)
		if l.sight.discounts(a.started) {
			o = outcome{}
		}
	default:
		l.answeredLocked(t, now)
		l.endBlindnessLocked(now)
	}
	next := t.machine.end(rules, a.serial, o, now)
	if !o.silent() || !t.machine.condemned(next) || l.sight.believes(&t.witness, a.started, now) {
		return next
	}
	next = t.machine.end(rules, a.serial, outcome{}, now)
	if l.sight.blind {
		l.turnBlindLocked()
	} else {
		next.doubtful = true
	}
	return next
}

// answeredLocked takes an answer of t for evidence that this host is not blind.
func (l *loop) answeredLocked(t *target, now instant) {
	if l.sight.blind && t.witness.last == silence {
		l.notify[t.owner.key] = struct{}{}
	}
	l.sight.answered(&t.witness, t.origin(), now)
}

// unansweredLocked takes the silence of t since started for evidence that it is.
func (l *loop) unansweredLocked(t *target, started instant) {
	if l.sight.blind && t.witness.last != silence {
		l.notify[t.owner.key] = struct{}{}
	}
	l.sight.unanswered(&t.witness, t.origin(), started)
}

// noteOverdueLocked notes who has been silent for long, before any timeout is over.
func (l *loop) noteOverdueLocked() {
	for _, a := range l.overdue {
		if t := a.target; !t.gone && !t.owner.suspended && a.handler == t.owner.handler {
			l.unansweredLocked(t, a.started)
		}
	}
	clear(l.overdue)
	l.overdue = l.overdue[:0]
}

// turnBlindLocked tells that the prober has come to take itself for blind.
func (l *loop) turnBlindLocked() {
	l.tellSightLocked()
	for key, o := range l.owners {
		if slices.ContainsFunc(o.targets, func(t *target) bool { return t.witness.last == silence }) {
			l.notify[key] = struct{}{}
		}
	}
}

// endBlindnessLocked ends a blindness in which enough have answered. Everybody who was silent in it
// is judged anew.
func (l *loop) endBlindnessLocked(now instant) {
	if !l.sight.returns(now) {
		return
	}
	l.tellSightLocked()
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

func (l *loop) tellSightLocked() {
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

// hintLocked has t probed at once, if no probe of it runs anyway.
func (l *loop) hintLocked(t *target, now instant) {
	if !t.gone && !t.waiting && !t.owner.suspended && t.machine.inFlight == 0 {
		t.due = now
		l.due.set(t, now)
	}
}

// lineUpLocked puts the targets whose probe is due into line.
func (l *loop) lineUpLocked(now instant) {
	for {
		t, _, ok := l.due.pop(now)
		if !ok {
			return
		}
		l.stepLocked(t, t.machine.settle(now))
		if t.due <= now {
			l.queueLocked(t, t.due)
		}
		l.scheduleLocked(t, now)
	}
}

// queueLocked puts t into its line, to be probed as from due.
func (l *loop) queueLocked(t *target, due instant) {
	if t.waiting {
		return
	}
	t.waiting, t.due = true, due
	if t.silent {
		l.silent.push(t)
	} else {
		l.line.Push(t.owner.key.Namespace, t)
	}
}

// admitLocked begins the probes of those who wait, the longest waiting first, as far as there is
// room. A silent one that another makes room for was not begun in the same turn: they begin in the
// order of what their namespaces hold.
func (l *loop) admitLocked(now instant) {
	for len(l.begun) < maxBegun {
		answering, _ := l.line.First()
		silent := l.silent.first()
		room := len(l.flights.items) < l.options.MaxConcurrent
		if !room {
			answering = nil
		}
		if silent != nil && (l.silent.full() && l.silent.giving(silent) == nil || !l.silent.full() && !room) {
			silent = nil
		}
		switch {
		case answering != nil && (silent == nil || answering.due <= silent.due):
			l.line.Pop()
			l.beginLocked(answering, false, now)
		case silent != nil:
			l.silent.pop()
			l.beginLocked(silent, true, now)
		default:
			l.crowded = false
			return
		}
	}
	l.crowded = true
}

// beginLocked begins a probe of t, unless it has lost its meaning while t waited. silent: t has
// waited among the silent, and there is room for it.
func (l *loop) beginLocked(t *target, silent bool, now instant) {
	t.waiting = false
	if t.gone {
		return
	}
	o := t.owner
	lost := t.machine.inFlight > 0 && t.machine.next(o.rules, t.phase(), now) > now
	if !o.suspended && !lost {
		l.metrics.begun(o.handler.kind, now-t.due, o.rules.period)
		// As of the tick, so that not each confirmation comes a part of a tick later still.
		t.machine = t.machine.start(now.Truncate(tick))
		serial := t.machine.serial
		a := &attempt{
			target: t, handler: o.handler, endpoint: t.Endpoint, serial: serial, keep: o.rules.period <= maxKeptPeriod,
			since:   replacedAt(now, t.phase()),
			started: now, deadline: now + o.rules.timeout, heap: -1, next: t.flights,
		}
		t.flights = a
		look := a.deadline
		if silent {
			l.joinsSilent(a)
		} else {
			look = min(look, now+min(max(patience, 4*t.usual), slow))
		}
		l.flights.set(a, look)
		l.begun = append(l.begun, a)
	}
	l.scheduleLocked(t, now)
}

// launch hands the probes that begin to the network, but those that are not permitted. Policy is
// asked before each dial: a probe that dials again may be a timeout older than its first try.
func (l *loop) launch() {
	for _, a := range l.begun {
		if a.heap < 0 {
			continue // it has ended while it waited to dial again
		}
		if permit := l.options.Permit; permit != nil {
			if err := permit(a.target.owner.key, a.endpoint.Dial); err != nil {
				l.net.drop(a.target)
				l.end(a, outcome{})
				continue
			}
		}
		l.net.start(a)
	}
	clear(l.begun)
	l.begun = l.begun[:0]
}

// tell notifies of the owners whose endpoints have changed.
func (l *loop) tell() {
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
	var targets []*target
	for _, o := range l.owners {
		targets = append(targets, o.targets...)
	}
	l.stale = append(l.stale, targets...)
	l.mu.Unlock()
	l.cancelStale()
	l.metrics.inFlight.Set(0)
}
