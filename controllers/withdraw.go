package controllers

import (
	"context"
	"slices"

	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
)

// withdrawAll deletes all slices: the Service has no endpoints of ours, or is an alias.
func (r *reconciliation) withdrawAll(ctx context.Context) {
	r.stopEngines()
	r.applySlices(ctx, endpointslice.Changes{Delete: r.slices})
	if r.observed.specKnown {
		r.setNoEndpoints()
	} else {
		r.result.statusInput.Filtered = &plan.Filtered{}
	}
}

// keepPermitted keeps the published endpoints that policy allows, while there is no spec to act
// on. Endpoints that policy refuses come back when it allows them again.
func (r *reconciliation) keepPermitted(ctx context.Context) {
	state := &r.state.planning
	if r.service == nil || len(r.slices)+len(state.refused) == 0 {
		return
	}
	if len(r.slices) > 0 { // the labels in the spec may be invalid
		state.refusedLabels = endpointslice.OwnLabels(r.slices[0])
	}
	filtered := r.filterPublished(r.slices, state.refused)
	former := state.refused
	state.refused = filtered.Refused
	r.planned = func() []endpointslice.Endpoint { return filtered.Kept }

	if filtered.Changed || !endpointslice.OwnedBy(r.slices, plan.SliceOwner(r.backend, r.service)) {
		template := r.template(r.serviceTraits())
		template.Labels = state.refusedLabels
		_, changes := endpointslice.Plan(template, filtered.Kept, nil, r.slices)
		if !r.applySlices(ctx, changes) { // an endpoint that was to come back may not have
			state.refused = slices.Concat(former, filtered.Refused)
		}
	}
	r.result.statusInput.Filtered = &filtered
}

// reportEmpty stops the engines and reports that nothing is published, once all slices are
// gone.
func (r *reconciliation) reportEmpty() {
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
	r.result.statusInput.Candidates, r.result.statusInput.Publication = &candidates, &plan.Publication{}
}

// stopEngines ends all lookups and probes.
func (r *reconciliation) stopEngines() {
	r.Prober.Forget(r.key())
	r.Resolver.Forget(r.key())
	r.state.engines.namesHandedOver = false
	r.state.engines.stopProbing()
	state := &r.state.planning
	state.tier, state.cache, state.refused = nil, plan.Cache{}, nil
}
