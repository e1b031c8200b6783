package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/external-backend/operator/api/v1alpha1"
)

// setTargets lists the worst targets, and remembers the states of all.
func (w *statusWriter) setTargets() {
	sums := w.sumEndpoints()
	all := make([]v1alpha1.TargetStatus, len(sums))
	for i := range all {
		w.fillTarget(i, &sums[i], &all[i])
	}
	w.sharedReason = w.findSharedReason(all, sums)
	w.rememberStates(all)
	w.listWorst(all)
	w.completeListed()
}

// sumEndpoints returns the sums of all targets, parallel to spec.targets.
func (w *statusWriter) sumEndpoints() []targetEndpoints {
	sums := make([]targetEndpoints, len(w.Backend.Spec.Targets))
	probe := 0
	for i := range w.Candidates.origins {
		o := &w.Candidates.origins[i]
		var state ProbeState
		if o.probed() {
			state = w.Publication.State(probe)
			probe++
		}
		if o.target >= 0 {
			sums[o.target].add(w.Publication.Conditions[i].Ready, state, w.Candidates.probedAt(i))
		}
	}
	if Passthrough(w.Backend) { // the name of the only target is the endpoint
		for i := range w.Publication.Conditions {
			sums[0].add(w.Publication.Conditions[i].Ready, ProbeState{}, netip.AddrPort{})
		}
	}
	return sums
}

// fillTarget fills in the status of target i, except what completeListed adds.
func (w *statusWriter) fillTarget(i int, sum *targetEndpoints, out *v1alpha1.TargetStatus) {
	t, notes := &w.Backend.Spec.Targets[i], &w.Candidates.Notes[i]
	out.Name, out.Tier, out.Health = t.Name, tierOf(t, 0), sum.health()
	out.Endpoints = v1alpha1.TargetEndpointCounts{Total: sum.total, Ready: sum.ready}
	out.State = w.targetState(t, notes, sum)
	if out.State == v1alpha1.TargetStateDisabled {
		return
	}

	if out.Health == v1alpha1.TargetHealthUnhealthy {
		out.Reason, out.Message = w.unhealthyReason(t.Name, sum)
	}
	if out.Reason == "" {
		out.Reason, out.Message = w.unpublishedReason(t, notes)
	}
	if out.Reason == "" && out.State == v1alpha1.TargetStateUnresolved {
		out.Reason, out.Message = v1alpha1.ReasonPending, "no answer yet"
	}
	out.Message = bounded(out.Message, v1alpha1.MaxTargetMessage)
}

func (w *statusWriter) targetState(t *v1alpha1.Target, notes *TargetNotes, sum *targetEndpoints) v1alpha1.TargetState {
	switch {
	case t.AdminState == v1alpha1.AdminStateDisabled:
		return v1alpha1.TargetStateDisabled
	case sum.total == 0 && notes.Denied != "":
		return v1alpha1.TargetStateDenied
	case sum.total == 0 && targetName(t) != "" && len(notes.Answer.Addrs) == 0 && Resolves(w.Backend):
		return v1alpha1.TargetStateUnresolved
	case t.AdminState == v1alpha1.AdminStateDraining:
		return v1alpha1.TargetStateDraining
	case w.Backend.Spec.HealthCheck == nil || !Resolves(w.Backend):
		return v1alpha1.TargetStateUnprobed
	case sum.probed > 0 && sum.worst.Verdict == Healthy:
		return v1alpha1.TargetStateHealthy
	case sum.worst.Verdict == Unhealthy:
		return v1alpha1.TargetStateUnhealthy
	}
	return v1alpha1.TargetStateUnknown
}

// rememberStates updates the memory of targets. After a restart the status written last stands in
// for the memory, and nothing is known about the targets that it omitted.
func (w *statusWriter) rememberStates(all []v1alpha1.TargetStatus) {
	memory, now := w.TargetMemory, uint32(w.Now.Unix())
	newSince := now
	if memory == nil {
		memory = restoreTargetMemory(w.Previous.Targets)
		if w.Previous.OmittedTargets > 0 {
			newSince = 0
		}
	}
	w.memory = memory.update(all, now, newSince)
}

// listWorst lists the worst of all targets. The list does not share the memory of all, because
// callers keep a status.
func (w *statusWriter) listWorst(all []v1alpha1.TargetStatus) {
	slices.SortStableFunc(all, func(a, b v1alpha1.TargetStatus) int {
		return cmp.Or(
			cmp.Compare(severityOf(a.State), severityOf(b.State)),
			compareBool(a.Reason == "", b.Reason == ""),
			cmp.Compare(a.Name, b.Name),
		)
	})
	listed := min(len(all), v1alpha1.MaxStatusTargets)
	w.out.Targets, w.out.OmittedTargets = slices.Clone(all[:listed]), int32(len(all)-listed)
}

// completeListed adds the times of transition and the first addresses, in order, to the listed
// targets.
func (w *statusWriter) completeListed() {
	listed := make(map[string]*v1alpha1.TargetStatus, len(w.out.Targets))
	for i := range w.out.Targets {
		listed[w.out.Targets[i].Name] = &w.out.Targets[i]
	}
	addrs := make([][]netip.Addr, len(w.Backend.Spec.Targets))
	for i := range w.Candidates.origins {
		target := w.Candidates.origins[i].target
		if target >= 0 && listed[w.Backend.Spec.Targets[target].Name] != nil {
			addrs[target] = append(addrs[target], w.Candidates.Endpoints[i].Addr)
		}
	}

	for i := range w.Backend.Spec.Targets {
		t := listed[w.Backend.Spec.Targets[i].Name]
		if t == nil {
			continue
		}
		t.LastTransitionTime = w.memory[i].transitionTime()
		slices.SortFunc(addrs[i], netip.Addr.Compare)
		unique := slices.Compact(addrs[i])
		for _, a := range unique[:min(len(unique), v1alpha1.MaxStatusAddresses)] {
			t.Addresses = append(t.Addresses, a.String())
		}
	}
}
