package plan

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// StatusInput is everything that a status is made from.
type StatusInput struct {
	Backend *v1alpha1.ExternalBackend
	// Service is the live Service in front of the endpoints, or nil.
	Service *corev1.Service
	// Previous is the status written last. What is unknown now stays as it says.
	Previous v1alpha1.ExternalBackendStatus
	// TargetMemory is that of the previous report; nil after a restart.
	TargetMemory TargetMemory
	// Invalid says what is wrong with the spec; "" if it is valid.
	Invalid string
	// References is the state of the Secrets and ConfigMaps that the spec names; nil if they were not
	// read.
	References *References
	// Nameserver names the entries of spec.dns.nameservers that policy refuses, and NameserverAudited
	// those that it would refuse. Both are "" if there are none.
	Nameserver, NameserverAudited string
	// Programmed is v1alpha1.ReasonProgrammed, the reason why the objects are not as planned, or "" if
	// the spec was not acted on. ProgrammedMessage explains it for people.
	Programmed, ProgrammedMessage string
	// Filtered is set if the spec cannot be acted on; else nil.
	Filtered *Filtered
	// Candidates and Publication are nil if there is no plan.
	Candidates  *Candidates
	Publication *Publication
	// Blind reports whether some endpoints do not answer and the prober blames its own network.
	Blind bool
	Now   time.Time
}

// References says whether every Secret and ConfigMap that a spec names can be used.
type References struct {
	// Reason is v1alpha1.ReasonRefNotFound, ReasonRefNotPermitted or ReasonInvalidRef; "" if all can
	// be used.
	Reason string
	// Message names the field and the object, for people.
	Message string
}

// StatusReport is the result of Status.
type StatusReport struct {
	Status v1alpha1.ExternalBackendStatus
	// TargetMemory is for the next StatusInput.
	TargetMemory TargetMemory
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
	s.Conditions = slices.Clone(s.Conditions)
	w := statusWriter{StatusInput: in, out: &s, memory: in.TargetMemory}
	if in.Candidates != nil {
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
	return StatusReport{Status: s, TargetMemory: w.memory, Next: next}
}

// conditionOrder is the order in which users read conditions: Ready first, which sums the others
// up, then the others on the way from spec to traffic.
var conditionOrder = []string{
	v1alpha1.ConditionReady, v1alpha1.ConditionAccepted, v1alpha1.ConditionResolvedRefs, v1alpha1.ConditionPermitted,
	v1alpha1.ConditionNamesResolved, v1alpha1.ConditionProgrammed, v1alpha1.ConditionHealthy, v1alpha1.ConditionStalled,
}

// statusWriter holds the state of one Status.
type statusWriter struct {
	StatusInput
	out    *v1alpha1.ExternalBackendStatus
	memory TargetMemory
	// probed counts the probed endpoints.
	probed v1alpha1.EndpointCounts
	// sharedReason is the reason for Ready that all targets share, or "".
	sharedReason string
}

// condition returns the condition of that type as it is now, or nil.
func (w *statusWriter) condition(name string) *metav1.Condition {
	return meta.FindStatusCondition(w.out.Conditions, name)
}

// set sets a condition, unless c is zero.
func (w *statusWriter) set(condition string, c metav1.Condition) {
	if c.Status == "" {
		return
	}
	c.Type, c.Message = condition, bounded(c.Message, maxMessage)
	c.ObservedGeneration, c.LastTransitionTime = w.Backend.Generation, metav1.NewTime(w.Now)
	meta.SetStatusCondition(&w.out.Conditions, c)
}
