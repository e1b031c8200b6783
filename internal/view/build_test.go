package view

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// TestStateComesFromConditions: Ready decides between Down and the others. After that the first
// condition that is not as it should be decides. A status about an older spec says nothing.
func TestStateComesFromConditions(t *testing.T) {
	condition := func(name string, status metav1.ConditionStatus) metav1.Condition {
		return metav1.Condition{Type: name, Status: status, Message: name + " is " + string(status)}
	}
	const yes, no, maybe = metav1.ConditionTrue, metav1.ConditionFalse, metav1.ConditionUnknown
	for name, test := range map[string]struct {
		conditions []metav1.Condition
		generation int64
		want       State
		summary    string
	}{
		"no status": {want: StateUnknown, summary: "The operator has not written a status yet."},
		"all fine": {conditions: []metav1.Condition{condition("Ready", yes), condition("Healthy", yes)},
			want: StateHealthy, summary: "Ready is True"},
		"not ready": {conditions: []metav1.Condition{condition("Ready", no), condition("Healthy", no)},
			want: StateDown, summary: "Ready is False"},
		"ready unknown": {conditions: []metav1.Condition{condition("Ready", maybe)},
			want: StateUnknown, summary: "Ready is Unknown"},
		"some unhealthy": {conditions: []metav1.Condition{condition("Ready", yes), condition("Healthy", no)},
			want: StateDegraded, summary: "Healthy is False"},
		"no verdict": {conditions: []metav1.Condition{condition("Ready", yes), condition("Healthy", maybe)},
			want: StateUnknown, summary: "Healthy is Unknown. Healthy is Unknown"},
		"stalled": {conditions: []metav1.Condition{condition("Ready", yes), condition("Stalled", yes)},
			want: StateDegraded, summary: "Stalled is True"},
		"not stalled": {conditions: []metav1.Condition{condition("Ready", yes), condition("Stalled", no)},
			want: StateHealthy, summary: "Ready is True"},
		"older spec": {conditions: []metav1.Condition{condition("Ready", yes)}, generation: 2,
			want: StateUnknown, summary: "The operator has not acted on the latest spec yet."},
	} {
		b := &v1alpha1.ExternalBackend{ObjectMeta: metav1.ObjectMeta{Generation: test.generation}}
		b.Status.Conditions = test.conditions
		if state, summary := StateOf(b); state != test.want || summary != test.summary {
			t.Errorf("%s: %s, %q", name, state, summary)
		}
	}
}

// TestQualityIsNeverGuessed: a name whose target is unhealthy has no reason of its own in status.
// Its answer is Unknown unless all names are resolved.
func TestQualityIsNeverGuessed(t *testing.T) {
	for name, test := range map[string]struct {
		target   Target
		resolved metav1.ConditionStatus
		want     Quality
	}{
		"all are":   {Target{State: v1alpha1.TargetStateUnhealthy, Reason: "Timeout"}, metav1.ConditionTrue, QualityCurrent},
		"some not":  {Target{State: v1alpha1.TargetStateUnhealthy, Reason: "Timeout"}, metav1.ConditionFalse, QualityUnknown},
		"healthy":   {Target{State: v1alpha1.TargetStateHealthy}, metav1.ConditionFalse, QualityCurrent},
		"omitted":   {Target{State: v1alpha1.TargetStateHealthy, Omitted: true}, metav1.ConditionFalse, QualityUnknown},
		"stale":     {Target{Reason: v1alpha1.ReasonServingStale}, metav1.ConditionFalse, QualityStale},
		"not found": {Target{Reason: v1alpha1.TargetReasonNameNotFound}, metav1.ConditionFalse, QualityFailed},
		"pending":   {Target{Reason: v1alpha1.ReasonPending}, metav1.ConditionUnknown, QualityPending},
		"disabled":  {Target{State: v1alpha1.TargetStateDisabled}, metav1.ConditionTrue, QualityNotAsked},
	} {
		b := &v1alpha1.ExternalBackend{}
		b.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionNamesResolved, Status: test.resolved}}
		if got := qualityOf(b, &test.target); got != test.want {
			t.Errorf("%s: %s", name, got)
		}
	}
}
