package plan

import (
	"fmt"

	"github.com/external-backend/operator/api/v1alpha1"
)

// probeCount counts the probed endpoints by verdict.
type probeCount struct{ total, healthy, unhealthy int }

// count sums the endpoints up. Those that are not probed count as healthy.
func (w *statusWriter) count() {
	var c v1alpha1.EndpointCounts
	for i := range w.Publication.Endpoints {
		c.Total++
		if w.Publication.Endpoints[i].Ready {
			c.Ready++
		}
		verdict := Healthy
		if i < len(w.Candidates.origins) && w.Candidates.origins[i].probed() {
			verdict = w.Publication.States[i].Verdict
			w.probed.total++
			w.probed.healthy += count(verdict == Healthy)
			w.probed.unhealthy += count(verdict == Unhealthy)
		}
		c.Healthy += int32(count(verdict == Healthy))
		c.Unhealthy += int32(count(verdict == Unhealthy))
	}
	c.ReadyOfTotal = fmt.Sprintf("%d/%d", c.Ready, c.Total)
	w.out.Endpoints = &c
	w.out.ActiveTier = w.Publication.Tier.Active
	if w.Publication.Tier.Presumed && w.Previous.ActiveTier == nil && w.Previous.ObservedGeneration == w.Backend.Generation {
		w.out.ActiveTier = nil // after a restart what was said holds until there is a verdict, or an answer
	}
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// EndpointStates are the states that published endpoints are counted by.
var EndpointStates = []v1alpha1.TargetState{
	v1alpha1.TargetStateHealthy, v1alpha1.TargetStateUnhealthy, v1alpha1.TargetStateUnknown, v1alpha1.TargetStateUnprobed, v1alpha1.TargetStateDraining,
}

// CountStates counts the published endpoints by EndpointStates; every endpoint is in one of them.
func CountStates(c *Candidates, p *Publication) map[v1alpha1.TargetState]int {
	counts := make(map[v1alpha1.TargetState]int, len(EndpointStates))
	for i := range p.Endpoints {
		state := v1alpha1.TargetStateUnprobed
		switch {
		case p.Endpoints[i].Terminating:
			state = v1alpha1.TargetStateDraining
		case i >= len(c.origins) || !c.origins[i].probed():
		case p.States[i].Verdict == Healthy:
			state = v1alpha1.TargetStateHealthy
		case p.States[i].Verdict == Unhealthy:
			state = v1alpha1.TargetStateUnhealthy
		default:
			state = v1alpha1.TargetStateUnknown
		}
		counts[state]++
	}
	return counts
}
