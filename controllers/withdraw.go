package controllers

import (
	"context"
	"slices"

	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
)

// withdraw deletes all slices: the Service has no endpoints of ours, or is an alias.
func (r *reconciliation) withdraw(ctx context.Context) {
	r.stopEngines()
	r.applySlices(ctx, endpointslice.Changes{Delete: r.slices})
	if r.observed.specKnown {
		r.setNoEndpoints()
	} else {
		r.result.status.Filtered = &plan.Filtered{}
	}
}

// withdrawDenied keeps the published endpoints that policy allows, while there is no spec to act
// on. Endpoints that policy refuses come back when it allows them again.
func (r *reconciliation) withdrawDenied(ctx context.Context) {
	state := &r.state.planning
	if r.service == nil || len(r.slices)+len(state.denied) == 0 {
		return
	}
	if len(r.slices) > 0 { // the labels in the spec may be invalid
		state.deniedLabels = endpointslice.OwnLabels(r.slices[0])
	}
	filtered := r.filterPublished(r.slices, state.denied)
	former := state.denied
	state.denied = filtered.Refused
	r.planned = func() []endpointslice.Endpoint { return filtered.Kept }

	if filtered.Changed || !endpointslice.OwnedBy(r.slices, plan.SliceOwner(r.backend, r.service)) {
		template := r.template(r.serviceTraits())
		template.Labels = state.deniedLabels
		_, changes := endpointslice.Plan(template, filtered.Kept, nil, r.slices)
		if !r.applySlices(ctx, changes) { // an endpoint that was to come back may not have
			state.denied = slices.Concat(former, filtered.Refused)
		}
	}
	r.result.status.Filtered = &filtered
}

// reportWithdrawn stops the engines and reports that nothing is published, once all slices are
// gone.
func (r *reconciliation) reportWithdrawn() {
	if len(r.slices) > 0 {
		return
	}
	if r.result.err == nil { // else the next attempt comes soon, and needs what the engines know
		r.stopEngines()
	}
	if e := r.observed.status.Endpoints; e != nil && e.Total > 0 {
		r.setNoEndpoints()
	}
}

// setNoEndpoints reports that no endpoint is published.
func (r *reconciliation) setNoEndpoints() {
	candidates := plan.NoEndpoints(r.backend, r.observed.nameNotes(r.backend))
	r.result.status.Candidates, r.result.status.Publication = &candidates, &plan.Publication{}
}

// stopEngines ends all lookups and probes.
func (r *reconciliation) stopEngines() {
	r.Prober.Forget(r.key())
	r.Resolver.Forget(r.key())
	r.state.engines.started = false
	r.state.engines.stopProbing()
	state := &r.state.planning
	state.tier, state.cache, state.denied = nil, plan.Cache{}, nil
}
