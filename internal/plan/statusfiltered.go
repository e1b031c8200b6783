package plan

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// setFiltered sets the counts, the targets and Permitted if the spec cannot be acted on. Everything
// else stays as the previous status says.
func (w *statusWriter) setFiltered() {
	counts := &v1alpha1.EndpointCounts{}
	for i := range w.Filtered.Kept {
		e := &w.Filtered.Kept[i]
		verdict := Unhealthy
		if e.Healthy {
			verdict = Healthy
		}
		countEndpoint(counts, e.Ready, verdict)
	}
	w.setEndpoints(counts)

	w.setFilteredTargets()
	isDenied := func(t v1alpha1.TargetStatus) bool { return t.State == v1alpha1.TargetStateDenied }
	if refused := w.Filtered.refusedTargets(); refused != "" {
		w.set(v1alpha1.ConditionPermitted,
			isFalse(v1alpha1.ReasonTargetDenied, sentence("Refused by policy: %s.", refused)))
	} else if !slices.ContainsFunc(w.out.Targets, isDenied) { // otherwise the previous condition still holds
		w.set(v1alpha1.ConditionPermitted, isTrue(v1alpha1.ReasonPermitted, "No target is refused."))
	}
}

// setFilteredTargets updates the targets that policy refuses, or no longer refuses.
func (w *statusWriter) setFilteredTargets() {
	kept := map[string][]*Endpoint{}
	for i := range w.Filtered.Kept {
		e := &w.Filtered.Kept[i]
		kept[e.Target] = append(kept[e.Target], e)
	}

	all := slices.Clone(w.Previous.Targets)
	for name := range w.Filtered.Reasons {
		if name != "" && w.previousTarget(name) == nil {
			all = append(all, v1alpha1.TargetStatus{Name: name})
		}
	}
	for i := range all {
		t := &all[i]
		if w.Filtered.Reasons[t.Name] != "" || t.Reason == v1alpha1.ReasonTargetDenied && kept[t.Name] != nil {
			w.updateFilteredTarget(t, kept[t.Name])
		}
	}

	known := len(w.Previous.Targets) + int(w.Previous.OmittedTargets)
	w.listWorst(all)
	w.out.OmittedTargets = max(w.out.OmittedTargets, int32(known-len(w.out.Targets)))
}

// updateFilteredTarget updates t. kept are the endpoints of t that stay published.
func (w *statusWriter) updateFilteredTarget(t *v1alpha1.TargetStatus, kept []*Endpoint) {
	before := t.State
	t.Reason, t.Message = "", w.Filtered.Reasons[t.Name]
	if t.Message != "" {
		t.Reason = v1alpha1.ReasonTargetDenied
	}
	t.Health = w.publishedHealth(kept)
	switch {
	case len(kept) == 0:
		t.State = v1alpha1.TargetStateDenied
	case before == v1alpha1.TargetStateDenied, before == "":
		t.State = v1alpha1.TargetState(t.Health)
	}
	if t.State != before {
		t.LastTransitionTime = new(metav1.NewTime(w.Now).Rfc3339Copy())
	}

	t.Endpoints = v1alpha1.TargetEndpointCounts{Total: int32(len(kept))}
	t.Addresses = nil
	for _, e := range kept {
		t.Endpoints.Ready += boolToInt(e.Ready)
		t.Addresses = append(t.Addresses, e.Addr.String())
	}
	slices.Sort(t.Addresses)
	t.Addresses = slices.Compact(t.Addresses)
	t.Addresses = t.Addresses[:min(len(t.Addresses), v1alpha1.MaxStatusAddresses)]
}

// publishedHealth returns the worst health that endpoints are published with.
func (w *statusWriter) publishedHealth(endpoints []*Endpoint) v1alpha1.TargetHealth {
	switch {
	case len(endpoints) == 0:
		return ""
	case w.Backend.Spec.HealthCheck == nil:
		return v1alpha1.TargetHealthUnprobed
	case slices.ContainsFunc(endpoints, func(e *Endpoint) bool { return !e.Healthy }):
		return v1alpha1.TargetHealthUnhealthy
	}
	return v1alpha1.TargetHealthHealthy
}
