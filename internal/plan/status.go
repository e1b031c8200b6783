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

// StatusInput is all that status tells.
type StatusInput struct {
	Backend *v1alpha1.ExternalBackend
	// Service is the one that the endpoints stand behind; nil where there is none.
	Service *corev1.Service
	// Previous is the status written last; what is not known now stays as it says.
	Previous v1alpha1.ExternalBackendStatus
	// TargetMemory are the targets as they were told last, those that Previous omits too; nil after a restart.
	TargetMemory TargetMemory
	// Invalid says what is wrong with the spec; "" where nothing is.
	Invalid string
	// References tell of the Secrets and ConfigMaps that the spec names; nil where they were not read.
	References *References
	// Nameserver says which of spec.dns.nameservers policy refuses, or with NameserverAudited would
	// refuse; "" where none is.
	Nameserver, NameserverAudited string
	// Programmed is v1alpha1.ReasonProgrammed or why it is not so, in ProgrammedMessage for people.
	Programmed, ProgrammedMessage string
	// Filtered is what stands where there is no spec to act on; nil where there is one.
	Filtered *Filtered
	// Candidates and Publication are nil where none could be planned.
	Candidates  *Candidates
	Publication *Publication
	// Blind: some endpoints do not answer, and the prober takes its own network for the cause.
	Blind bool
	Now   time.Time
}

// References tell whether every Secret and ConfigMap that a spec names can be used.
type References struct {
	// Reason is v1alpha1.ReasonRefNotFound, ReasonRefNotPermitted or ReasonInvalidRef; "" where all
	// can be used.
	Reason string
	// Message names the field and the object, for people.
	Message string
}

// serviceType is the type that spec says, and with serviceRef that of the Service which is there.
func (in *StatusInput) serviceType() v1alpha1.ServiceType {
	switch {
	case in.Backend.Spec.ServiceRef == nil:
		return ServiceType(in.Backend)
	case in.Service == nil:
		return ""
	}
	return liveType(in.Service)
}

// StatusReport is what Status returns.
type StatusReport struct {
	Status v1alpha1.ExternalBackendStatus
	// TargetMemory is for the next StatusInput.
	TargetMemory TargetMemory
	// Next is when time alone changes a condition; zero: never.
	Next time.Time
}

// Status is what users read. Its messages hold no time, no latency, no body and no refused address.
func Status(in StatusInput) StatusReport {
	s := v1alpha1.ExternalBackendStatus{
		ObservedGeneration: in.Backend.Generation,
		ServiceName:        ServiceName(in.Backend),
		ServiceType:        in.serviceType(),
		Endpoints:          in.Previous.Endpoints,
		ActiveTier:         in.Previous.ActiveTier,
		Targets:            in.Previous.Targets,
		OmittedTargets:     in.Previous.OmittedTargets,
		Conditions:         slices.Clone(in.Previous.Conditions),
	}
	w := statusWriter{StatusInput: in, out: &s, known: in.TargetMemory}
	if in.Candidates != nil {
		w.count()
		w.targets()
		w.permitted()
		w.resolved()
		w.healthy()
	}
	if in.Filtered != nil {
		w.held()
	}
	w.accepted()
	w.resolvedRefs()
	w.programmed()
	for _, t := range []string{v1alpha1.ConditionResolvedRefs, v1alpha1.ConditionPermitted, v1alpha1.ConditionNamesResolved, v1alpha1.ConditionHealthy} {
		if meta.FindStatusCondition(s.Conditions, t) == nil {
			w.set(t, metav1.ConditionUnknown, v1alpha1.ReasonPending, "Not known yet.")
		}
	}
	w.ready()
	next := w.stalled()
	slices.SortFunc(s.Conditions, func(a, b metav1.Condition) int {
		return cmp.Compare(slices.Index(conditionOrder, a.Type), slices.Index(conditionOrder, b.Type))
	})
	return StatusReport{Status: s, TargetMemory: w.known, Next: next}
}

// conditionOrder is the order in which users read conditions: the sum first, then the way from spec
// to traffic.
var conditionOrder = []string{
	v1alpha1.ConditionReady, v1alpha1.ConditionAccepted, v1alpha1.ConditionResolvedRefs, v1alpha1.ConditionPermitted,
	v1alpha1.ConditionNamesResolved, v1alpha1.ConditionProgrammed, v1alpha1.ConditionHealthy, v1alpha1.ConditionStalled,
}

type statusWriter struct {
	StatusInput
	out    *v1alpha1.ExternalBackendStatus
	known  TargetMemory
	probed probeCount
	// cause is Ready's reason that all targets share; "" where they share none.
	cause string
}

func (w *statusWriter) set(kind string, status metav1.ConditionStatus, reason, message string) {
	meta.SetStatusCondition(&w.out.Conditions, metav1.Condition{
		Type:               kind,
		Status:             status,
		Reason:             reason,
		Message:            bounded(message, maxMessage),
		ObservedGeneration: w.Backend.Generation,
		LastTransitionTime: metav1.NewTime(w.Now),
	})
}
