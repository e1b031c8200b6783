package probe

import (
	"context"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/priorityqueue"
)

// Engine probes the endpoints of all owners. Its methods may be called from any goroutine.
type Engine struct {
	options Options
	metrics *metrics
	epoch   time.Time

	mu     sync.Mutex
	owners map[types.NamespacedName]*owner
	due    schedule[*target] // by what is next: a probe, or the publication of a recovery
	stale  []*target         // the loop has to end their probes in flight and kept connections
	net    network           // nil while the engine does not run
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
	gone    bool    // no longer wanted
	queued  bool    // in one of the loop's queues
	due     instant // when its next probe is due; where it is queued, since when its probe is due

	position priorityqueue.Position // in Engine.due

	// The loop's own.
	slow         bool          // its last probe stayed unanswered for long
	lastDuration time.Duration // how long its last success took
	attempts     *attempt      // its probes in flight, the newest first

	// The network's own.
	kept   *conn // a connection that waits for the next probe
	closes uint8 // how many kept connections in a row the peer has closed
}

// Position implements priorityqueue.Item.
func (t *target) Position() *priorityqueue.Position { return &t.position }

func (t *target) offset() uint64 { return offsetOf(t.owner.key, t.ID) }

// New returns an engine. It records what Sync sets, and probes once it is started.
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

// States returns the states of owner's endpoints, parallel to those of its last Sync. It returns
// nil where there is no such owner.
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
		states[i].Blind = e.sight.blind && t.witness.last == silence && t.machine.verdict() != Unhealthy
	}
	return states
}

// Sync sets what is probed for owner from now on, and how. Endpoints that stay keep their
// verdicts. Where the check asks something else than before, or an endpoint has another address
// to dial, its counts start again at zero. IDs are unique. The order of endpoints does not
// matter, but an unchanged order is cheaper, and the very same slice costs nothing. The engine
// keeps the slice, so it must not be changed. With a nil check, Sync is Forget.
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
	var difference change
	if check == nil {
		delete(e.owners, key)
	} else if difference = o.replaceCheck(check); difference == nothing && o.has(endpoints) {
		return false
	}
	o.endpoints = endpoints
	if !slices.EqualFunc(o.targets, endpoints, func(t *target, e Endpoint) bool { return t.ID == e.ID }) {
		e.mergeLocked(o, endpoints)
		changed = true
	}
	for i, t := range o.targets {
		changed = e.updateLocked(t, &endpoints[i], difference) || changed
	}
	return changed
}

// change says in which respect a check differs from the one before.
type change uint8

const (
	nothing  change = iota
	pace            // when probes begin, or how many make a verdict
	question        // what is asked; earlier answers do not count
)

// replaceCheck gives o a check, and returns in which respect it differs from the one before.
func (o *owner) replaceCheck(check *Check) change {
	difference := nothing
	if rules := check.rules(); rules != o.rules || check.Suspended != o.suspended {
		o.rules, o.suspended = rules, check.Suspended
		difference = pace
	}
	if o.check == nil || !check.asksTheSame(o.check) {
		o.handler = newHandler(check)
		difference = question
	}
	o.check = check
	return difference
}

// has reports whether endpoints is the very slice of the last Sync.
func (o *owner) has(endpoints []Endpoint) bool {
	return len(endpoints) > 0 && len(endpoints) == len(o.endpoints) && &endpoints[0] == &o.endpoints[0]
}

// mergeLocked makes one target for each endpoint. An endpoint that stays keeps its target.
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
			t = &target{Endpoint: endpoint, owner: o}
			e.addLocked(t)
		}
		t.gone = false
		o.targets[i] = t
	}
	for _, t := range old {
		if t.gone {
			e.due.Remove(t)
			e.sight.gone(&t.witness, t.origin())
			e.cancelLocked(t)
		}
	}
}

// addLocked gives t a machine, and schedules its first probe.
func (e *Engine) addLocked(t *target) {
	now := e.now()
	t.machine = machine{rawVerdict: t.Seed}.spread(t.owner.rules, t.offset(), now)
	e.sight.judged(&t.witness, t.origin(), t.Seed == Healthy)
	e.scheduleLocked(t, now)
}

// updateLocked applies the difference of the check, and of the endpoint, to a target that stays.
// It reports whether anything has changed.
func (e *Engine) updateLocked(t *target, endpoint *Endpoint, difference change) bool {
	if t.Dial != endpoint.Dial || t.Host != endpoint.Host {
		t.Dial, t.Host = endpoint.Dial, endpoint.Host
		difference = question
	}
	if difference == question {
		t.machine = t.machine.forgetCounts()
	}
	if difference == question || t.owner.suspended {
		e.sight.forget(&t.witness, t.origin())
		e.cancelLocked(t)
	}
	if difference > nothing {
		now := e.now()
		t.machine = t.machine.spread(t.owner.rules, t.offset(), now)
		e.scheduleLocked(t, now)
	}
	return difference > nothing
}

// cancelLocked makes the loop end the probes in flight and the kept connection of t.
func (e *Engine) cancelLocked(t *target) {
	if e.net != nil {
		e.stale = append(e.stale, t)
	}
}

// scheduleLocked schedules what t's machine needs next. While the prober is blind it probes silent
// endpoints no more often than others.
func (e *Engine) scheduleLocked(t *target, now instant) {
	if e.net == nil || t.gone {
		return
	}
	if t.queued {
		e.due.set(t, t.machine.settlesAt())
		return
	}
	switch {
	case t.owner.suspended:
		t.due = never
	case e.sight.blind && t.witness.last == silence:
		t.due = t.machine.regular(t.owner.rules, t.offset(), now)
	default:
		t.due = t.machine.next(t.owner.rules, t.offset(), now)
	}
	e.due.set(t, min(t.due, t.machine.settlesAt()))
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
			e.addLocked(t)
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
