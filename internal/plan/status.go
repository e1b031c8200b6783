package plan

import (
	"cmp"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// StatusReport is the result of Status.
type StatusReport struct {
	Status v1alpha1.ExternalBackendStatus
	// TargetMemory is for the next StatusInput.
	TargetMemory TargetMemory
	Refusals     PolicyRefusals
	// Next is when a condition changes because time passes; zero if none does.
	Next time.Time
}

// Status makes the status. Its messages contain no time, no latency, no response body and no
// refused address.
func Status(in StatusInput) StatusReport {
	s := in.Previous
	s.ObservedGeneration = in.Backend.Generation
	s.ServiceName, s.ServiceType = in.Backend.EffectiveServiceName(), ServiceType(in.Backend)
	if in.Backend.Spec.ServiceRef != nil && in.Service != nil {
		s.ServiceType = liveType(in.Service)
	}
	s.Override = in.Override.Name
	s.Conditions = slices.Clone(s.Conditions)
	w := statusWriter{StatusInput: in, out: &s, memory: in.TargetMemory}
	wouldRefuse := in.Refusals.WouldRefuse || RefusalsOf(&s).WouldRefuse
	if in.Candidates != nil {
		w.restoreRefusals()
		wouldRefuse = w.isAudited()
		w.setCounts()
		w.setTargets()
		w.set(v1alpha1.ConditionPermitted, w.permitted())
		w.set(v1alpha1.ConditionNamesResolved, w.namesResolved())
		w.set(v1alpha1.ConditionHealthy, w.healthy())
	}
	if in.Filtered != nil {
		w.setFiltered()
	}
	w.set(v1alpha1.ConditionAccepted, w.accepted())
	w.set(v1alpha1.ConditionResolvedRefs, w.resolvedRefs())
	w.set(v1alpha1.ConditionProgrammed, w.programmed())
	for _, condition := range conditionOrder[1 : len(conditionOrder)-1] { // Ready and Stalled depend on them
		w.set(condition, w.previousOr(condition, "Not known yet."))
	}
	w.set(v1alpha1.ConditionReady, w.ready())
	next := w.setStalled()

	slices.SortFunc(s.Conditions, func(a, b metav1.Condition) int {
		return cmp.Compare(slices.Index(conditionOrder, a.Type), slices.Index(conditionOrder, b.Type))
	})
	return StatusReport{
		Status: s, TargetMemory: w.memory, Next: next,
		Refusals: PolicyRefusals{Refused: RefusalsOf(&s).Refused, WouldRefuse: wouldRefuse},
	}
}

// conditionOrder is the order in which users read conditions: Ready first, which sums the others
// up, then the others on the way from spec to traffic.
var conditionOrder = []string{
	v1alpha1.ConditionReady, v1alpha1.ConditionAccepted, v1alpha1.ConditionResolvedRefs, v1alpha1.ConditionPermitted,
	v1alpha1.ConditionNamesResolved, v1alpha1.ConditionProgrammed, v1alpha1.ConditionHealthy, v1alpha1.ConditionStalled,
}
