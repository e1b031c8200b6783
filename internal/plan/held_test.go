package plan

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// Where there is no spec to act on, status tells what stands and what policy refuses of it, and
// leaves what nobody knows as it was.
func TestStatusOfWhatIsHeld(t *testing.T) {
	long, now := metav1.NewTime(testNow.Add(-time.Hour)), metav1.NewTime(testNow).Rfc3339Copy()
	two := v1alpha1.TargetEndpointCounts{Total: 2, Ready: 2}
	one := v1alpha1.TargetEndpointCounts{Total: 1, Ready: 1}
	healthy := v1alpha1.TargetStatus{
		Name: "a", State: v1alpha1.TargetStateHealthy, Health: v1alpha1.TargetHealthHealthy, Tier: 3, Endpoints: two, Addresses: []string{"203.0.113.1", "203.0.113.2"}, LastTransitionTime: &long,
	}
	partly := v1alpha1.TargetStatus{
		Name: "a", State: v1alpha1.TargetStateHealthy, Health: v1alpha1.TargetHealthHealthy, Tier: 3, Endpoints: one, Addresses: []string{"203.0.113.1"},
		Reason: v1alpha1.ReasonTargetDenied, Message: "no rule", LastTransitionTime: &long,
	}
	denied := v1alpha1.TargetStatus{
		Name:               "a",
		State:              v1alpha1.TargetStateDenied,
		Tier:               3,
		Reason:             v1alpha1.ReasonTargetDenied,
		Message:            "no rule",
		LastTransitionTime: &now,
	}
	unlisted := denied
	unlisted.Tier = 0
	unresolved := v1alpha1.TargetStatus{
		Name:               "b",
		State:              v1alpha1.TargetStateUnresolved,
		Reason:             v1alpha1.ReasonResolutionFailed,
		LastTransitionTime: &long,
	}
	first, second, third := at("a", "203.0.113.1"), at("a", "203.0.113.2"), at("c", "203.0.113.3")
	dead := second
	dead.Ready, dead.Serving, dead.Healthy = false, false, false
	unhealthy := healthy
	unhealthy.State, unhealthy.Health, unhealthy.LastTransitionTime = v1alpha1.TargetStateUnhealthy, v1alpha1.TargetHealthUnhealthy, &now
	unhealthy.Endpoints.Ready = 1
	why := map[string]string{"a": "no rule"}
	const was, refused, permitted = "False TargetDenied as it was", `False TargetDenied Refused by policy: target "a" (no rule).`, "True Permitted No target is refused."

	for _, tt := range []struct {
		name      string
		before    []v1alpha1.TargetStatus
		held      Filtered
		want      []v1alpha1.TargetStatus
		permitted string
		counts    string
	}{
		{
			"nothing is refused", []v1alpha1.TargetStatus{unresolved, healthy}, Filtered{Kept: []Endpoint{first, second}},
			[]v1alpha1.TargetStatus{unresolved, healthy}, permitted, "2/2 2+0",
		},
		{
			"an address is refused", []v1alpha1.TargetStatus{unresolved, healthy}, Filtered{Kept: []Endpoint{first}, Refused: []Endpoint{second}, Reasons: why},
			[]v1alpha1.TargetStatus{unresolved, partly}, refused, "1/1 1+0",
		},
		{
			"a target is refused", []v1alpha1.TargetStatus{unresolved, healthy}, Filtered{Refused: []Endpoint{first, second}, Reasons: why},
			[]v1alpha1.TargetStatus{unresolved, denied}, refused, "0/0 0+0",
		},
		{
			"a target is refused that was not listed", []v1alpha1.TargetStatus{unresolved}, Filtered{Kept: []Endpoint{third}, Refused: []Endpoint{first}, Reasons: why},
			[]v1alpha1.TargetStatus{unresolved, unlisted}, refused, "1/1 1+0",
		},
		{
			"an address comes back", []v1alpha1.TargetStatus{unresolved, partly}, Filtered{Kept: []Endpoint{first, second}},
			[]v1alpha1.TargetStatus{unresolved, healthy}, permitted, "2/2 2+0",
		},
		{
			"a target comes back, dead in part", []v1alpha1.TargetStatus{unresolved, denied}, Filtered{Kept: []Endpoint{dead, first}},
			[]v1alpha1.TargetStatus{unhealthy, unresolved}, permitted, "1/2 1+1",
		},
		{
			"nobody knows any more what was refused", []v1alpha1.TargetStatus{unresolved, denied}, Filtered{Kept: []Endpoint{third}},
			[]v1alpha1.TargetStatus{unresolved, denied}, was, "1/1 1+0",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := &v1alpha1.ExternalBackend{}
			b.Spec.HealthCheck = &v1alpha1.HealthCheck{}
			before := v1alpha1.ExternalBackendStatus{Targets: tt.before}
			w := statusWriter{StatusInput: StatusInput{Backend: b, Now: testNow}, out: &before}
			w.set(v1alpha1.ConditionPermitted, "False", v1alpha1.ReasonTargetDenied, "as it was")
			s := Status(
				StatusInput{Backend: b, Previous: before, Invalid: "spec.targets: wrong", Filtered: &tt.held, Now: testNow},
			).Status
			if diff := cmp.Diff(tt.want, s.Targets); diff != "" {
				t.Errorf("targets (-want +got):\n%s", diff)
			}
			c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionPermitted)
			if got := fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message); got != tt.permitted {
				t.Errorf("Permitted is %q, want %q", got, tt.permitted)
			}
			if got := fmt.Sprintf("%s %d+%d", s.Endpoints.ReadyOfTotal, s.Endpoints.Healthy, s.Endpoints.Unhealthy); got != tt.counts {
				t.Errorf("%s, want %s", got, tt.counts)
			}
		})
	}
}
