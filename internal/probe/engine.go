package probe

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Engine probes the endpoints of all owners. Its methods may be called from any goroutine.
type Engine struct {
	options Options
	metrics *metrics
	epoch   time.Time

	mu     sync.Mutex
	owners map[types.NamespacedName]*owner
	due    queue[*target] // targets by what is next: a probe, or a return that was held back
	stale  []*target      // their probes in flight and kept connections have lost their meaning
	net    network        // nil while the engine doesn't run
	sight  sight
}

// owner is one check with its targets.
type owner struct {
	key       types.NamespacedName
	check     *Check
	handler   *handler // replaced when the check asks something else
	rules     rules
	suspended bool
	endpoints []Endpoint // of the last Sync
	targets   []*target  // parallel to them
}

// target is one endpoint with its machine.
type target struct {
	// Guarded by Engine.mu.
	Endpoint
	owner   *owner
	machine machine
	witness witness
	heap    int32   // place in Engine.due
	gone    bool    // no longer wanted
	waiting bool    // in one of the loop's lines
	due     instant // when its next probe is due, or for one that waits, was

	// The loop's own.
	silent  bool          // its last probe stayed unanswered for long
	usual   time.Duration // how long its last success took
	flights *attempt      // its probes in flight, the newest first

	// The network's own.
	kept   *conn // a connection that waits for the next probe
	closes uint8 // how many kept connections in a row the peer has closed
}

func (t *target) place() *int32 { return &t.heap }

func (t *target) origin() origin { return originOf(t.owner.key, t.ID.Addr) }

func (t *target) phase() uint64 { return phaseOf(t.owner.key, t.ID) }

// New returns an engine that records what Sync tells it, and probes once it is started.
func New(options Options) *Engine {
	if options.MaxConcurrent <= 0 {
		options.MaxConcurrent = 4096
	}
	options.MaxConcurrent = min(options.MaxConcurrent, fileLimit()/2)
	return &Engine{
		options: options,
		metrics: newMetrics(options.Registerer),
		epoch:   time.Now().Add(-epochOffset),
		owners:  map[types.NamespacedName]*owner{},
		sight:   sight{threshold: options.BlindThreshold},
	}
}

func (e *Engine) now() instant { return time.Since(e.epoch) }

// Forget ends all probing for owner.
func (e *Engine) Forget(owner types.NamespacedName) { e.Sync(owner, nil, nil) }

// States returns the states of owner's endpoints, parallel to those of its last Sync; nil where
// there is no such owner.
func (e *Engine) States(owner types.NamespacedName) []State {
	e.mu.Lock()
	defer e.mu.Unlock()
	o := e.owners[owner]
	if o == nil {
		return nil
	}
	states := make([]State, len(o.targets))
	for i, t := range o.targets {
		states[i] = t.machine.state()
		states[i].Blind = e.sight.blind && t.witness.last == silence && t.machine.verdict != Unhealthy
	}
	return states
}

// Sync says what is to be probed for owner from now on, and how. Endpoints that stay keep their
// verdicts; where the check asks something else than before, or an endpoint is dialled elsewhere,
// only their counts begin anew. IDs are unique; the order of endpoints means nothing, but one that
// stays as it was is cheaper, and the very same list costs nothing: it is the engine's to keep. A
// nil check is Forget.
func (e *Engine) Sync(key types.NamespacedName, check *Check, endpoints []Endpoint) {
	if check == nil {
		endpoints = nil
	}
	e.mu.Lock()
	changed := e.syncLocked(key, check, endpoints)
	net := e.net
	e.mu.Unlock()
	if changed && net != nil {
		net.wake()
	}
}

func (e *Engine) syncLocked(key types.NamespacedName, check *Check, endpoints []Endpoint) (changed bool) {
	o := e.owners[key]
	if o == nil {
		if check == nil {
			return false
		}
		o = &owner{key: key}
		e.owners[key] = o
	}
	var news change
	if check == nil {
		delete(e.owners, key)
	} else if news = o.adopt(check); news == nothing && o.given(endpoints) {
		return false
	}
	o.endpoints = endpoints
	if !sameIDs(o.targets, endpoints) {
		e.mergeLocked(o, endpoints)
		changed = true
	}
	for i, t := range o.targets {
		changed = e.updateLocked(t, &endpoints[i], news) || changed
	}
	return changed
}

// change is what a new check means for the endpoints of the one before.
type change uint8

const (
	nothing  change = iota
	pace            // when probes begin, or what they count for
	question        // what is asked: earlier answers are no answer to it
)

// adopt takes check over and tells in what it differs from the one before.
func (o *owner) adopt(check *Check) change {
	news := nothing
	if rules := check.rules(); rules != o.rules || check.Suspended != o.suspended {
		o.rules, o.suspended = rules, check.Suspended
		news = pace
	}
	if o.check == nil || !check.asksTheSame(o.check) {
		o.handler = newHandler(check)
		news = question
	}
	o.check = check
	return news
}

// given reports whether endpoints are the list of the last Sync.
func (o *owner) given(endpoints []Endpoint) bool {
	return len(endpoints) > 0 && len(endpoints) == len(o.endpoints) && &endpoints[0] == &o.endpoints[0]
}

func sameIDs(targets []*target, endpoints []Endpoint) bool {
	if len(targets) != len(endpoints) {
		return false
	}
	for i, t := range targets {
		if t.ID != endpoints[i].ID {
			return false
		}
	}
	return true
}

// mergeLocked makes targets of endpoints: those that stay stay the same targets.
func (e *Engine) mergeLocked(o *owner, endpoints []Endpoint) {
	old := o.targets
	known := make(map[ID]*target, len(old))
	for _, t := range old {
		t.gone = true
		known[t.ID] = t
	}
	o.targets = make([]*target, len(endpoints))
	for i, endpoint := range endpoints {
		t := known[endpoint.ID]
		if t == nil || !t.gone {
			t = &target{Endpoint: endpoint, owner: o, heap: -1}
			e.enlistLocked(t)
		}
		t.gone = false
		o.targets[i] = t
	}
	for _, t := range old {
		if t.gone {
			e.retireLocked(t)
		}
	}
}

// enlistLocked gives a target its first place in the schedule.
func (e *Engine) enlistLocked(t *target) {
	now := e.now()
	t.machine = newMachine(t.Seed, t.owner.rules, t.phase(), now)
	e.sight.judged(&t.witness, t.origin(), t.Seed == Healthy)
	e.scheduleLocked(t, now)
}

func (e *Engine) retireLocked(t *target) {
	e.due.remove(t)
	e.sight.gone(&t.witness, t.origin())
	e.dropLocked(t)
}

// updateLocked takes over what is new for a target that stays, and reports whether anything is.
func (e *Engine) updateLocked(t *target, endpoint *Endpoint, news change) bool {
	if t.Dial != endpoint.Dial || t.Host != endpoint.Host {
		t.Dial, t.Host = endpoint.Dial, endpoint.Host
		news = question
	}
	if news == question {
		t.machine = t.machine.forgetCounts()
	}
	if news == question || t.owner.suspended {
		e.sight.forget(&t.witness, t.origin())
		e.dropLocked(t)
	}
	if news > nothing {
		now := e.now()
		t.machine = t.machine.spread(t.owner.rules, t.phase(), now)
		e.scheduleLocked(t, now)
	}
	return news > nothing
}

// dropLocked has the loop cancel what is in flight and kept for t.
func (e *Engine) dropLocked(t *target) {
	if e.net != nil {
		e.stale = append(e.stale, t)
	}
}

// scheduleLocked puts t where its machine wants to be woken next.
func (e *Engine) scheduleLocked(t *target, now instant) {
	if e.net == nil || t.gone {
		return
	}
	if !t.waiting {
		t.due = never
		if !t.owner.suspended {
			t.due = e.nextLocked(t, now)
		}
		e.due.set(t, min(t.due, t.machine.wake()))
		return
	}
	e.due.set(t, t.machine.wake())
}

// nextLocked says when t's next probe begins. A prober that is blind asks who is silent no more
// often than who answers.
func (e *Engine) nextLocked(t *target, now instant) instant {
	if e.sight.blind && t.witness.last == silence {
		return t.machine.steady(t.owner.rules, t.phase(), now)
	}
	return t.machine.next(t.owner.rules, t.phase(), now)
}

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
		for _, t := range o.targets {
			e.enlistLocked(t)
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
		l.turn()
	}
	<-woken
	l.shutdown()
	net.close()
	return nil
}
