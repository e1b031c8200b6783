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
	due    schedule[*probed] // by what is next: a probe, or the release of a held recovery
	stale  []*probed         // the loop has to end their probes in flight and kept connections
	net    network           // nil while the engine does not run
	sight  sight

	consulted map[subject]*probed // those that witnesses are asked about
	heard     []*probed           // opinions about them have come, and are not considered yet
}

// New returns an engine. It records what Sync sets, and probes once it is started.
func New(options Options) *Engine {
	if options.MaxConcurrent <= 0 {
		options.MaxConcurrent = 4096
	}
	options.MaxConcurrent = min(options.MaxConcurrent, fileLimit()/2)
	return &Engine{
		options:   options,
		metrics:   newMetrics(options.Registerer),
		epoch:     time.Now().Add(-epochOffset),
		owners:    map[types.NamespacedName]*owner{},
		consulted: map[subject]*probed{},
		sight:     sight{blindPercent: options.BlindThreshold},
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
	states := make([]State, len(o.probed))
	for i, ep := range o.probed {
		states[i] = ep.machine.state()
		states[i].Blind = e.sight.blind && ep.evidence.last == silence && ep.machine.verdict() != Unhealthy
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
	if !slices.EqualFunc(o.probed, endpoints, func(ep *probed, e Endpoint) bool { return ep.ID == e.ID }) {
		e.mergeLocked(o, endpoints)
		changed = true
	}
	for i, ep := range o.probed {
		changed = e.updateLocked(ep, &endpoints[i], difference) || changed
	}
	return changed
}

// mergeLocked makes one probed for each endpoint. An endpoint that stays keeps its own.
func (e *Engine) mergeLocked(o *owner, endpoints []Endpoint) {
	old := o.probed
	known := make(map[ID]*probed, len(old))
	for _, ep := range old {
		ep.gone = true
		known[ep.ID] = ep
	}
	o.probed = make([]*probed, len(endpoints))
	for i, endpoint := range endpoints {
		ep := known[endpoint.ID]
		if ep == nil || !ep.gone {
			ep = &probed{Endpoint: endpoint, owner: o}
			e.addLocked(ep)
		}
		ep.gone = false
		o.probed[i] = ep
	}
	for _, ep := range old {
		if ep.gone {
			e.due.Remove(ep)
			e.sight.remove(&ep.evidence, ep.failureDomain())
			e.endConsultationLocked(ep)
			e.cancelLocked(ep)
		}
	}
}

// addLocked gives ep a machine, and schedules its first probe.
func (e *Engine) addLocked(ep *probed) {
	now := e.now()
	ep.machine = machine{rawVerdict: ep.Seed}
	if !e.options.AtOnce {
		ep.machine = ep.machine.spread(ep.owner.rules, ep.offset(), now)
	}
	e.sight.judged(&ep.evidence, ep.failureDomain(), ep.Seed == Healthy)
	e.scheduleLocked(ep, now)
}

// updateLocked applies the difference of the check, and of the endpoint, to ep, which stays. It
// reports whether anything has changed.
func (e *Engine) updateLocked(ep *probed, endpoint *Endpoint, difference change) bool {
	if ep.Dial != endpoint.Dial || ep.Host != endpoint.Host {
		ep.Dial, ep.Host = endpoint.Dial, endpoint.Host
		difference = question
	}
	if difference == question {
		ep.machine = ep.machine.forgetCounts()
	}
	if difference == question || ep.owner.suspended {
		e.endConsultationLocked(ep)
		e.sight.clearHeard(&ep.evidence, ep.failureDomain())
		e.cancelLocked(ep)
	}
	if difference > nothing {
		now := e.now()
		ep.machine = ep.machine.spread(ep.owner.rules, ep.offset(), now)
		e.scheduleLocked(ep, now)
	}
	return difference > nothing
}

// cancelLocked makes the loop end the probes in flight and the kept connection of ep.
func (e *Engine) cancelLocked(ep *probed) {
	if e.net != nil {
		e.stale = append(e.stale, ep)
	}
}

// scheduleLocked schedules what ep's machine needs next. While the prober is blind it probes silent
// endpoints no more often than others.
func (e *Engine) scheduleLocked(ep *probed, now instant) {
	if e.net == nil || ep.gone {
		return
	}
	if ep.queued {
		e.due.set(ep, ep.machine.releasesAt())
		return
	}
	switch {
	case ep.owner.suspended:
		ep.due = never
	case e.sight.blind && ep.evidence.last == silence:
		ep.due = ep.machine.regular(ep.owner.rules, ep.offset(), now)
	default:
		ep.due = ep.machine.next(ep.owner.rules, ep.offset(), now)
	}
	e.due.set(ep, min(ep.due, ep.machine.releasesAt()))
}
