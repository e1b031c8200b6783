package plan

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// policyInput is that of a policy that has not been looked at.
func policyInput() PolicyStatusInput {
	return PolicyStatusInput{
		Policy: &v1alpha1.ExternalBackendPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "shop", Generation: 2},
			Status:     v1alpha1.ExternalBackendPolicyStatus{ObservedGeneration: -1},
		},
		Namespaces: 3, ExternalBackends: 12, Refused: 1, Now: statusStart,
	}
}

// TestStatusOfPolicyCounts reports counts, 0 included, and the generation that they are about.
func TestStatusOfPolicyCounts(t *testing.T) {
	in := policyInput()
	in.Refused = 0
	accepted := metav1.Condition{
		Type: "Accepted", Status: "True", Reason: "Accepted", Message: "The policy can be acted on.",
		ObservedGeneration: 2, LastTransitionTime: metav1.NewTime(statusStart),
	}
	want := v1alpha1.ExternalBackendPolicyStatus{
		ObservedGeneration: 2, SelectedNamespaces: new(int32(3)), SelectedExternalBackends: new(int32(12)),
		RefusedExternalBackends: new(int32(0)), Conditions: []metav1.Condition{accepted},
	}
	first := PolicyStatus(in)
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if in.Policy.Status.ObservedGeneration != -1 {
		t.Error("it changes the policy")
	}

	in.Policy.Status, in.Now = first, statusStart.Add(time.Hour)
	if diff := cmp.Diff(want, PolicyStatus(in)); diff != "" {
		t.Errorf("an hour later, with nothing new (-want +got):\n%s", diff)
	}
}

// TestUnreadablePolicyIsNotAccepted names the fields that can't be read, in both conditions, until
// they are corrected.
func TestUnreadablePolicyIsNotAccepted(t *testing.T) {
	in := policyInput()
	in.Problems = []string{"spec.mode: no such mode", "spec.allow[0]: neither", "spec.allow[1]: neither", "spec: more"}
	in.Policy.Status = PolicyStatus(in)
	for _, condition := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionStalled} {
		c := meta.FindStatusCondition(in.Policy.Status.Conditions, condition)
		const message = "spec.mode: no such mode; spec.allow[0]: neither; spec.allow[1]: neither; and 1 more"
		isTrue := condition == v1alpha1.ConditionStalled
		if c == nil || (c.Status == metav1.ConditionTrue) != isTrue || c.Reason != "InvalidSpec" || c.Message != message {
			t.Errorf("%s is %+v", condition, c)
		}
	}
	if n := *in.Policy.Status.SelectedExternalBackends; n != 12 {
		t.Errorf("it selects %d ExternalBackends, not 12", n)
	}

	in.Problems = []string{strings.Repeat("x", 5000)}
	if c := PolicyStatus(in).Conditions[0]; len(c.Message) > maxMessage {
		t.Errorf("a message of %d bytes", len(c.Message))
	}

	in.Problems = nil
	in.Policy.Status = PolicyStatus(in)
	if s := in.Policy.Status; len(s.Conditions) != 1 || s.Conditions[0].Status != metav1.ConditionTrue {
		t.Errorf("once it can be read: %+v", s.Conditions)
	}
}
