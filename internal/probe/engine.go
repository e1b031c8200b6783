package probe

import (
	"slices"
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
	due    schedule[*target] // by what is next: a probe, or the publication of a recovery
	stale  []*target         // the loop has to end their probes in flight and kept connections
	net    network           // nil while the engine does not run
	sight  sight
}

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
