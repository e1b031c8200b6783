package controllers

import (
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
)

// refusalStore holds what policy says about each ExternalBackend, for the status of the policies.
// Anybody may use it at any time.
type refusalStore struct {
	// changed has room for one value. It gets one after every change.
	changed chan struct{}

	mu    sync.Mutex
	byKey map[types.NamespacedName]plan.PolicyRefusals
	// withdrawn are the ExternalBackends of which policy has taken away endpoints that were published,
	// since takeWithdrawn.
	withdrawn map[types.NamespacedName]bool
}

func newRefusalStore() *refusalStore {
	return &refusalStore{
		changed:   make(chan struct{}, 1),
		byKey:     map[types.NamespacedName]plan.PolicyRefusals{},
		withdrawn: map[types.NamespacedName]bool{},
	}
}

// notify says that the status of policies may have changed. It never blocks.
func (s *refusalStore) notify() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// report keeps what policy says about an ExternalBackend. withdrawn reports whether it has just
// begun to take away endpoints that were published.
func (s *refusalStore) report(key types.NamespacedName, d plan.PolicyRefusals, withdrawn bool) {
	s.mu.Lock()
	before, known := s.byKey[key]
	s.byKey[key] = d
	if withdrawn {
		s.withdrawn[key] = true
	}
	s.mu.Unlock()
	if !known || before != d || withdrawn {
		s.notify()
	}
}

// forget drops an ExternalBackend that is gone.
func (s *refusalStore) forget(key types.NamespacedName) {
	s.mu.Lock()
	_, known := s.byKey[key]
	delete(s.byKey, key)
	s.mu.Unlock()
	if known {
		s.notify()
	}
}

// of returns what policy says about an ExternalBackend. known reports whether anybody has judged it
// since the process started.
func (s *refusalStore) of(key types.NamespacedName) (d plan.PolicyRefusals, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d, known = s.byKey[key]
	return d, known
}

// takeWithdrawn returns the ExternalBackends of which policy has taken away published endpoints
// since the last call.
func (s *refusalStore) takeWithdrawn() []types.NamespacedName {
	s.mu.Lock()
	defer s.mu.Unlock()
	taken := slices.Collect(maps.Keys(s.withdrawn))
	clear(s.withdrawn)
	return taken
}

// noteWithdrawal records that policy takes away what is published, if it does. If the attempt is
// repeated, the next one may not see that any more.
func (r *reconciliation) noteWithdrawal() {
	in := &r.result.statusInput
	published := func() []endpointslice.Endpoint { return endpointslice.Published(r.observed.slices).Endpoints() }
	if plan.RefusesPublished(r.backend, published, in.Candidates, in.Filtered) || r.refusesPublishedName() {
		r.state.reported.withdraws = true
	}
}

// refusesPublishedName reports whether policy refuses a name that is published itself.
func (r *reconciliation) refusesPublishedName() bool {
	candidates, service := r.result.statusInput.Candidates, r.observed.service
	if candidates == nil || plan.Resolves(r.backend) || candidates.Notes[0].Denied == "" {
		return false
	}
	isAlias := service != nil && service.Spec.ExternalName == r.backend.Spec.Targets[0].Hostname
	return isAlias || len(r.observed.slices) > 0
}

// reportRefusals keeps what policy says, and on a transition that it takes away what was published.
func (r *reconciliation) reportRefusals(d plan.PolicyRefusals) {
	state := &r.state.reported
	r.refusals.report(r.key(), d, state.withdraws && !state.withdrew)
	state.refusals, state.withdrew, state.withdraws = d, state.withdraws, false
}
