package controllers

import (
	"context"
	"fmt"
	"slices"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/translate"
)

// slicePlan is what publish goes by.
type slicePlan struct {
	plan.PlannedEndpoints
	traits  plan.ServiceTraits
	changes endpointslice.Changes
}

// publish writes the slices with the endpoints.
func (r *reconciliation) publish(ctx context.Context) {
	p := r.planSlices()
	written := r.applySlices(ctx, p.changes)
	// After a failure the Service may not be ours, and its other endpoints with it.
	if p.HandedOver && written && r.result.ok() {
		r.removeForeignEndpoints(ctx)
	}
	r.reportMismatch(&p.traits, &p.Candidates)

	r.result.next = earlier(r.result.next, p.Publication.Next)
	status := &r.result.statusInput
	status.Candidates, status.Publication = &p.Candidates, &p.Publication
	status.Blind = r.state.engines.blind()
}

// publishAhead creates the slices for ports that the Service is about to get. kube-proxy ignores
// them as long as the Service lacks these ports, and uses them as soon as it has them, so a port
// that is renamed is served all the time. publishAhead reports whether the Service may be written
// now.
func (r *reconciliation) publishAhead(ctx context.Context) bool {
	if !r.managesService() || r.service == nil || len(r.slices) == 0 || !plan.Resolves(r.backend) {
		return true
	}
	p := plan.Service(r.backend, r.service, r.observed.previousAdopterGone)
	if p.Write == nil || !plan.GainsPorts(r.service, p.Write) {
		return true
	}

	ahead := *r
	ahead.service, ahead.result = p.Write, result{}
	creations := ahead.planSlices().changes.Create
	created := r.applySlices(ctx, endpointslice.Changes{Create: creations})
	for _, s := range creations {
		if s.UID != "" {
			r.slices = append(slices.Clip(r.slices), s)
		}
	}
	if !created {
		r.assumePorts()
	}
	return created
}

// planSlices goes from names to addresses, from addresses to endpoints, from endpoints to slices.
func (r *reconciliation) planSlices() slicePlan {
	o, state, engines := r.observed, &r.state.planning, &r.state.engines
	p := slicePlan{traits: r.serviceTraits()}
	template := r.template(p.traits)
	published := endpointslice.Published(r.slices, o.handover...)
	p.PlannedEndpoints = state.cache.PlanEndpoints(plan.EndpointsInput{
		Input: plan.Input{
			Backend: r.backend, Answers: r.resolve(p.traits.Families, published),
			Permit: translate.Permit(o.view), Rules: o.view,
			Status: o.status, Siblings: o.siblings, FormerSiblings: state.siblings, Probes: engines.probes,
			NamedAddrs: state.named, Override: o.overridden.Applied, Max: r.Options.MaxEndpointsPerBackend, Now: r.now(),
		},
		Traits: p.traits, Template: template, Existing: published, Handover: o.handover,
		Probe: r.probe, TierState: state.tier,
	})
	state.siblings, state.named, state.refused = o.siblings, p.Candidates.NamedAddrs(state.named), nil
	state.tier = new(p.Publication.TierState) // a copy, so that the rest of the publication can be freed
	candidates, conditions := p.Candidates, p.Conditions
	r.planned = sync.OnceValue(func() []endpointslice.Endpoint { return candidates.WithConditions(conditions) })

	if r.oldService == nil {
		p.changes = state.cache.Slices(&p.Candidates, conditions)
		return p
	}
	old := plan.OldPortsInput{
		Backend: r.backend, Live: r.oldService, Published: published, Permit: translate.Permit(o.view),
	}
	withOldPorts := candidates.WithOldPorts(old, r.desired())
	r.planned = func() []endpointslice.Endpoint { return withOldPorts }
	_, p.changes = endpointslice.Plan(template, withOldPorts, nil, r.slices)
	state.cache = plan.Cache{} // the slices have more endpoints than the cache knows
	return p
}

// resolve hands the names to the resolver and returns its answers, by target.
func (r *reconciliation) resolve(
	families plan.Families, published *endpointslice.PublishedEndpoints,
) map[string]plan.Answer {
	names := translate.NamesOf(r.backend, r.observed.view, families, published)
	engines := &r.state.engines
	r.Resolver.Sync(r.key(), r.permittedDNS(), names.Wanted(!engines.namesHandedOver))
	engines.namesHandedOver = true
	return names.Answers(r.Resolver.Snapshot(r.key()))
}

// probe hands the planned probes to the prober, takes its verdicts and returns them.
func (r *reconciliation) probe(c *plan.Candidates) func(probe int) plan.ProbeState {
	b, engines := r.backend, &r.state.engines
	if b.Spec.HealthCheck == nil {
		r.Prober.Forget(r.key())
		engines.stopProbing()
		return engines.state
	}
	probes, changed := c.Probes(engines.probes)
	if changed || engines.endpoints == nil || engines.generation != b.Generation {
		endpoints, dial := translate.ProbeEndpoints(probes)
		engines.endpoints, engines.generation = endpoints, b.Generation
		engines.dial.Store(&dial)
	}
	check := translate.HealthCheck(b.Spec.HealthCheck, r.state.planning.refs.credentials())
	r.Prober.Sync(r.key(), check, engines.endpoints)
	engines.verdicts = verdicts{probes: probes, states: r.Prober.States(r.key())}
	return engines.state
}

// publishName writes the slice with the name of the target itself.
func (r *reconciliation) publishName(ctx context.Context) {
	r.stopEngines()
	traits, notes := r.serviceTraits(), r.observed.nameNotes(r.backend)
	changes, publication := plan.PassthroughSlices(
		r.template(traits), r.backend, traits.ServesPort, notes.Denied == "", r.slices)
	if r.applySlices(ctx, changes) && len(publication.Conditions) > 0 && r.result.ok() {
		r.removeForeignEndpoints(ctx)
	}

	candidates := plan.NoEndpoints(r.backend, notes)
	r.reportMismatch(&traits, &candidates)
	r.result.statusInput.Candidates, r.result.statusInput.Publication = &candidates, &publication
}

// removeForeignEndpoints removes what others publish behind the Service and may be removed, now
// that our endpoints are published.
func (r *reconciliation) removeForeignEndpoints(ctx context.Context) {
	for _, s := range r.observed.replaceableSlices {
		err := r.Delete(ctx, s, client.Preconditions{UID: &s.UID})
		if err == nil {
			r.result.events = append(r.result.events, foreignRemovedEvent("EndpointSlice", s.Name))
		} else if !apierrors.IsNotFound(err) {
			r.result.failWrite(fmt.Sprintf("EndpointSlice %q can't be deleted", s.Name), err)
		}
	}

	live := r.observed.replaceableEndpoints
	if live == nil {
		return
	}
	marked := live.DeepCopy()
	metav1.SetMetaDataLabel(&marked.ObjectMeta, discoveryv1.LabelSkipMirror, "true")
	switch err := r.Patch(ctx, marked, client.MergeFrom(live)); {
	case err == nil:
		r.state.planning.markedEndpoints = marked.ResourceVersion
		r.result.events = append(r.result.events, foreignRemovedEvent("Endpoints", marked.Name))
	case !apierrors.IsNotFound(err):
		r.result.failWrite(fmt.Sprintf("Endpoints %q can't be marked", marked.Name), err)
	}
}
