package plan

import (
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
	// Override is the override that the spec is subject to.
	Override AppliedOverride
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
	// Refusals are those of the previous report; none after a restart.
	Refusals PolicyRefusals
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
	setCondition(&w.out.Conditions, condition, c, w.Backend.Generation, w.Now)
}
