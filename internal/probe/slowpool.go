package probe

import "github.com/external-backend/operator/internal/priorityqueue"

// slowProbePool bounds how many slow probes are in flight, and shares the places among namespaces.
// Of the endpoints that wait for a place, those of the namespace that holds the fewest come first;
// namespaces that hold equally many take turns. Where all places are held, a namespace still gets
// one if another namespace would then hold more than it. The namespace that holds the most gives up
// its newest probe.
//
// So no namespace waits for the timeouts of another one, however many probes that one wants, and
// a namespace that is alone has all places. The oldest probes of each namespace, up to its equal
// share, run to their ends: only a probe beyond the share is given up. The namespace that gives a
// place still holds at least as many as the one that gets it. So no two namespaces take the same
// place from each other in turn.
type slowProbePool struct {
	size, held int
	shares     map[string]*share // of the namespaces that hold a place or wait for one
	waiting    priorityqueue.Queue[turn, waiter]
	holding    priorityqueue.Queue[mostHeld, holder]
	turns      int // how many turns have been given
}

// share is a namespace's part of the pool. Taking a place, giving it back and waiting for it cost
// O(log namespaces).
type share struct {
	namespace string
	held      int
	newest    *attempt  // of those that hold a place
	waits     []*probed // the one that has waited longest first
	turn      int       // the number of its last turn
	positions struct{ waiting, holding priorityqueue.Position }
}

type (
	waiter struct{ *share }
	holder struct{ *share }
)

// Position implements priorityqueue.Item.
func (w waiter) Position() *priorityqueue.Position { return &w.positions.waiting }

// Position implements priorityqueue.Item.
func (h holder) Position() *priorityqueue.Position { return &h.positions.holding }

// turn orders the namespaces that wait.
type turn struct{ held, number int }

// Before implements priorityqueue.Key.
func (t turn) Before(other turn) bool {
	return t.held < other.held || t.held == other.held && t.number < other.number
}

// mostHeld orders the namespaces that hold places.
type mostHeld int

// Before implements priorityqueue.Key.
func (m mostHeld) Before(other mostHeld) bool { return m > other }

func newSlowProbePool(size int) *slowProbePool {
	return &slowProbePool{size: size, shares: map[string]*share{}}
}

// shareOf returns the share of ep's namespace. A new one is empty.
func (p *slowProbePool) shareOf(ep *probed) *share {
	namespace := ep.owner.key.Namespace
	s := p.shares[namespace]
	if s == nil {
		s = &share{namespace: namespace}
		p.shares[namespace] = s
	}
	return s
}

// changed puts s into both queues, as its places and its waiting endpoints require.
func (p *slowProbePool) changed(s *share) {
	if len(s.waits) > 0 {
		p.waiting.Set(waiter{s}, turn{s.held, s.turn})
	} else {
		p.waiting.Remove(waiter{s})
	}
	if s.held > 0 {
		p.holding.Set(holder{s}, mostHeld(s.held))
	} else {
		p.holding.Remove(holder{s})
	}
	if len(s.waits) == 0 && s.held == 0 {
		delete(p.shares, s.namespace)
	}
}

// take gives a a place. One has to be free.
func (p *slowProbePool) take(a *attempt) {
	s := p.shareOf(a.probed)
	if a.older = s.newest; a.older != nil {
		a.older.newer = a
	}
	a.slow, s.newest = true, a
	p.held++
	s.held++
	p.changed(s)
}

// leave frees the place of a.
func (p *slowProbePool) leave(a *attempt) {
	s := p.shareOf(a.probed)
	if a.newer != nil {
		a.newer.older = a.older
	} else {
		s.newest = a.older
	}
	if a.older != nil {
		a.older.newer = a.newer
	}
	a.slow, a.older, a.newer = false, nil, nil
	p.held--
	s.held--
	p.changed(s)
}

func (p *slowProbePool) full() bool { return p.held >= p.size }

// toPreempt returns the probe that gives up its place for one of ep's namespace, or nil where none
// has to.
func (p *slowProbePool) toPreempt(ep *probed) *attempt {
	held := 0
	if s := p.shares[ep.owner.key.Namespace]; s != nil {
		held = s.held
	}
	if most, _, ok := p.holding.First(); ok && held+1 < most.held {
		return most.newest
	}
	return nil
}

// push makes ep wait.
func (p *slowProbePool) push(ep *probed) {
	s := p.shareOf(ep)
	if len(s.waits) == 0 {
		p.turns++
		s.turn = p.turns
	}
	s.waits = append(s.waits, ep)
	p.changed(s)
}

// first returns the endpoint that pop would remove, or nil where none waits.
func (p *slowProbePool) first() *probed {
	if s, _, ok := p.waiting.First(); ok {
		return s.waits[0]
	}
	return nil
}

// pop removes the first of the endpoints that wait. One has to wait.
func (p *slowProbePool) pop() {
	first, _, _ := p.waiting.First()
	s := first.share
	s.waits[0] = nil
	s.waits = s.waits[1:]
	p.turns++
	s.turn = p.turns
	p.changed(s)
}
