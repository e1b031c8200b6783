package plan

import (
	"github.com/external-backend/operator/internal/endpointslice"
)

// EndpointsInput is everything that PlanEndpoints plans from. Families, Headless, ServesPort and
// Published of Input are set by PlanEndpoints.
type EndpointsInput struct {
	Input
	Traits ServiceTraits
	// Template is what the slices have in common.
	Template endpointslice.Template
	// Existing are the slices that are there, and Handover is what ours shall take over from.
	Existing *endpointslice.PublishedEndpoints
	Handover []Endpoint
	// Probe hands the candidates to the prober. It returns what is known about them, by their index in
	// Candidates.Probes.
	Probe func(*Candidates) func(probe int) ProbeState
	// TierState is that of the previous plan; nil at the start.
	TierState *TierState
}

// PlannedEndpoints are the endpoints to publish.
type PlannedEndpoints struct {
	Candidates  Candidates
	Publication Publication
	// Conditions are those to write. They differ from those of Publication while others hand over.
	Conditions []Conditions
	// HandedOver reports whether the others may go once the conditions are written.
	HandedOver bool
}

// PlanEndpoints goes from answers to the endpoints of slices. The slices of the template will hold
// them: see [Cache.Slices].
func (pc *Cache) PlanEndpoints(in EndpointsInput) PlannedEndpoints {
	in.Published = in.Existing
	in.Families, in.Headless, in.ServesPort = in.Traits.Families, in.Traits.Headless, in.Traits.ServesPort
	out := PlannedEndpoints{Candidates: pc.Candidates(in.Input, in.Template)}
	c := &out.Candidates
	out.Publication = Publish(PublishInput{
		Backend: in.Backend, Published: in.Existing, State: in.Probe(c), TierState: in.TierState,
		PublishNotReady: in.Traits.PublishNotReady, Now: in.Now,
	}, c)
	out.Conditions, out.HandedOver = HandOver(
		c.Endpoints, out.Publication.Conditions, in.Handover, out.Publication.HasAllVerdicts(c))
	return out
}
