package plan

import (
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// PolicyStatusInput is everything that the status of a policy is made from.
type PolicyStatusInput struct {
	// Policy has the status that was written last.
	Policy *v1alpha1.ExternalBackendPolicy
	// Problems name the fields that can't be read, and say why.
	Problems []string
	// Namespaces and ExternalBackends are how many the policy selects, and Refused is how many of
	// these ExternalBackends name something that the policies of its mode refuse, or would refuse.
	Namespaces, ExternalBackends, Refused int
	Now                                   time.Time
}

// PolicyStatus makes the status of a policy.
func PolicyStatus(in PolicyStatusInput) v1alpha1.ExternalBackendPolicyStatus {
	s := *in.Policy.Status.DeepCopy()
	s.ObservedGeneration = in.Policy.Generation
	s.SelectedNamespaces = new(int32(in.Namespaces))
	s.SelectedExternalBackends = new(int32(in.ExternalBackends))
	s.RefusedExternalBackends = new(int32(in.Refused))

	set := func(condition string, c metav1.Condition) {
		setCondition(&s.Conditions, condition, c, in.Policy.Generation, in.Now)
	}
	if len(in.Problems) == 0 {
		set(v1alpha1.ConditionAccepted, isTrue(v1alpha1.ReasonAccepted, "The policy can be acted on."))
		meta.RemoveStatusCondition(&s.Conditions, v1alpha1.ConditionStalled)
		return s
	}
	message := describeProblems(in.Problems)
	set(v1alpha1.ConditionAccepted, isFalse(v1alpha1.ReasonInvalidSpec, message))
	set(v1alpha1.ConditionStalled, isTrue(v1alpha1.ReasonInvalidSpec, message))
	return s
}
