package controllers

import (
	"context"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/api/v1alpha1"
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

// withdrawDenied keeps the published endpoints that policy allows, while there is no spec to act on.
// Endpoints that policy denies come back when it allows them again.
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
	state.denied, r.desired = filtered.Refused, filtered.Kept

	if filtered.Changed || !endpointslice.OwnedBy(r.slices, plan.SliceOwner(r.backend, r.service)) {
		template := r.template(r.serviceTraits())
		template.Labels = state.deniedLabels
		_, changes := endpointslice.Plan(template, filtered.Kept, r.slices)
		if !r.applySlices(ctx, changes) { // an endpoint that was to come back may not have
			state.denied = slices.Concat(former, filtered.Refused)
		}
	}
	r.result.status.Filtered = &filtered
}

// filterPublished separates the endpoints that policy allows from those that it denies.
func (r *reconciliation) filterPublished(published []*discoveryv1.EndpointSlice, denied []endpointslice.Endpoint) plan.Filtered {
	view := r.observed.view
	return plan.FilterPublished(plan.FilterInput{
		Backend: r.backend, Published: endpointslice.Published(published).Endpoints(), Withdrawn: denied,
		NamedAddrs: r.state.planning.named, Permit: permit(view), PermitUnnamed: permitUnnamed(view),
	})
}

// reportWithdrawn stops the engines and reports that nothing is published, once all slices are gone.
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

// nameNotes is what policy says about a name that is published itself, whose addresses nobody
// checks. It is empty for all other ExternalBackends.
func (o *observation) nameNotes(b *v1alpha1.ExternalBackend) plan.TargetNotes {
	notes := plan.TargetNotes{Answer: plan.Answer{Status: plan.AnswerCurrent}}
	if plan.Resolves(b) {
		return notes
	}
	switch d := o.view.Name(b.Spec.Targets[0].Hostname, targetPorts(b, &b.Spec.Targets[0])...); {
	case !d.Allowed:
		notes.Denied = d.Kind.String()
	case d.WouldDeny:
		notes.Audited = d.Kind.String()
	}
	return notes
}

// withDeniedName returns b. If policy denies the name of a Service of type ExternalName, it returns
// b with a name that leads nowhere, because an alias must have one.
func (o *observation) withDeniedName(b *v1alpha1.ExternalBackend) *v1alpha1.ExternalBackend {
	if plan.ServiceType(b) != v1alpha1.ServiceTypeExternalName {
		return b
	}
	if o.nameNotes(b).Denied == "" && b.Spec.Targets[0].AdminState != v1alpha1.AdminStateDisabled {
		return b
	}
	b = b.DeepCopy()
	b.Spec.Targets[0].Hostname = plan.UnresolvableName
	return b
}
