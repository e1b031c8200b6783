package plan

import (
	"fmt"

	"github.com/external-backend/operator/api/v1alpha1"
)

// countEndpoint counts an endpoint by readiness and verdict.
func countEndpoint(c *v1alpha1.EndpointCounts, ready bool, verdict Verdict) {
	c.Total++
	c.Ready += boolToInt(ready)
	c.Healthy += boolToInt(verdict == Healthy)
	c.Unhealthy += boolToInt(verdict == Unhealthy)
}

// setCounts counts the endpoints. Those that are not probed count as healthy.
func (w *statusWriter) setCounts() {
	all := &v1alpha1.EndpointCounts{}
	for i := range w.Publication.Conditions {
		ready, verdict := w.Publication.Conditions[i].Ready, Healthy
		if w.Candidates.isProbed(i) {
			verdict = w.Publication.Verdicts[i]
			countEndpoint(&w.probed, ready, verdict)
		}
		countEndpoint(all, ready, verdict)
	}
	w.setEndpoints(all)

	w.out.ActiveTier = w.Publication.TierState.Active
	sameSpec := w.Previous.ObservedGeneration == w.Backend.Generation
	if w.Publication.TierState.Presumed && w.Previous.ActiveTier == nil && sameSpec {
		w.out.ActiveTier = nil // after a restart the status written last holds until there is a verdict or an answer
	}
}

func (w *statusWriter) setEndpoints(c *v1alpha1.EndpointCounts) {
	c.ReadyOfTotal = fmt.Sprintf("%d/%d", c.Ready, c.Total)
	w.out.Endpoints = c
}

// isProbed reports whether published endpoint i is probed. The name that Passthrough publishes is
// an endpoint without a candidate.
func (c *Candidates) isProbed(i int) bool { return i < len(c.origins) && c.origins[i].probed() }

func boolToInt(b bool) int32 {
	if b {
		return 1
	}
	return 0
}

// EndpointStates are the states that CountStates counts.
var EndpointStates = []v1alpha1.TargetState{
	v1alpha1.TargetStateHealthy, v1alpha1.TargetStateUnhealthy, v1alpha1.TargetStateUnknown,
	v1alpha1.TargetStateUnprobed, v1alpha1.TargetStateDraining,
}

// CountStates counts the published endpoints by state. Every endpoint is in one of EndpointStates.
// Here Draining includes endpoints that are leaving; the target state of that name does not.
func CountStates(c *Candidates, p *Publication) map[v1alpha1.TargetState]int {
	counts := make(map[v1alpha1.TargetState]int, len(EndpointStates))
	for i := range p.Conditions {
		state := v1alpha1.TargetStateUnprobed
		switch {
		case p.Conditions[i].Terminating:
			state = v1alpha1.TargetStateDraining
		case !c.isProbed(i):
		case p.Verdicts[i] == Healthy:
			state = v1alpha1.TargetStateHealthy
		case p.Verdicts[i] == Unhealthy:
			state = v1alpha1.TargetStateUnhealthy
		default:
			state = v1alpha1.TargetStateUnknown
		}
		counts[state]++
	}
	return counts
}
