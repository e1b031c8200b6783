package plan

import (
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// PassthroughSlices plans the one slice that publishes the name of b's target. Nobody resolves or
// probes the name. There is no slice if the target is Disabled or may not be published (allowed is
// false).
func PassthroughSlices(
	t endpointslice.Template, b *v1alpha1.ExternalBackend, serves func(*v1alpha1.Port) bool, allowed bool,
	existing []*discoveryv1.EndpointSlice,
) (endpointslice.Changes, Publication) {
	target := &b.Spec.Targets[0]
	ports := slicePorts(b, target, serves, 0)
	if !allowed || target.AdminState == v1alpha1.AdminStateDisabled || len(ports) == 0 {
		return endpointslice.PlanFQDN(t, "", nil, existing), Publication{}
	}
	e := Endpoint{
		Target: target.Name, Ports: ports, Hostname: target.Name, Zone: target.Zone, NodeName: target.NodeName,
	}
	e.Serving, e.Healthy, e.Terminating = true, true, target.AdminState == v1alpha1.AdminStateDraining
	e.Ready = !e.Terminating
	changes := endpointslice.PlanFQDN(t, target.Hostname, &e, existing)
	return changes, Publication{Conditions: []Conditions{e.Conditions}, Verdicts: make([]Verdict, 1)}
}

// WithoutName returns b, an alias, with UnresolvableName in place of the name of its target.
func WithoutName(b *v1alpha1.ExternalBackend) *v1alpha1.ExternalBackend {
	b = b.DeepCopy()
	b.Spec.Targets[0].Hostname = UnresolvableName
	return b
}

// NoEndpoints returns the candidates of an ExternalBackend that publishes no addresses. Each target
// gets notes.
func NoEndpoints(b *v1alpha1.ExternalBackend, notes TargetNotes) Candidates {
	c := Candidates{Notes: make([]TargetNotes, len(b.Spec.Targets))}
	for i := range c.Notes {
		c.Notes[i] = notes
	}
	return c
}
