package plan

import (
	"fmt"
	"net/netip"

	"github.com/external-backend/operator/api/v1alpha1"
)

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

// countEndpoint counts an endpoint by readiness and verdict.
func countEndpoint(c *v1alpha1.EndpointCounts, ready bool, verdict Verdict) {
	c.Total++
	c.Ready += boolToInt(ready)
	c.Healthy += boolToInt(verdict == Healthy)
	c.Unhealthy += boolToInt(verdict == Unhealthy)
}

func (w *statusWriter) setEndpoints(c *v1alpha1.EndpointCounts) {
	c.ReadyOfTotal = fmt.Sprintf("%d/%d", c.Ready, c.Total)
	w.out.Endpoints = c
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

// isProbed reports whether published endpoint i is probed. The name that Passthrough publishes is
// an endpoint without a candidate.
func (c *Candidates) isProbed(i int) bool { return i < len(c.origins) && c.origins[i].probed() }

// targetEndpoints sums up the endpoints of one target.
type targetEndpoints struct {
	total, ready, probed, unhealthy int32
	// worst is the worst state of a probed endpoint, and worstAt is where that endpoint is probed.
	worst   ProbeState
	worstAt netip.AddrPort
}

// add adds an endpoint. probedAt is where it is probed; without a port it is not.
func (t *targetEndpoints) add(ready bool, state ProbeState, probedAt netip.AddrPort) {
	t.total++
	t.ready += boolToInt(ready)
	if probedAt.Port() == 0 {
		return
	}

	t.unhealthy += boolToInt(state.Verdict == Unhealthy)
	if t.probed == 0 || isWorse(state.Verdict, t.worst.Verdict) {
		t.worst, t.worstAt = state, probedAt
	}
	t.probed++
}

// isWorse reports whether a is worse than b. Unhealthy is worse than Unknown, and Unknown is worse
// than Healthy.
func isWorse(a, b Verdict) bool {
	rank := [...]int{Unknown: 1, Healthy: 0, Unhealthy: 2}
	return rank[a] > rank[b]
}

func (t *targetEndpoints) health() v1alpha1.TargetHealth {
	switch {
	case t.total == 0:
		return ""
	case t.probed == 0:
		return v1alpha1.TargetHealthUnprobed
	case t.worst.Verdict == Unhealthy:
		return v1alpha1.TargetHealthUnhealthy
	case t.worst.Verdict == Healthy:
		return v1alpha1.TargetHealthHealthy
	}
	return v1alpha1.TargetHealthUnknown
}
