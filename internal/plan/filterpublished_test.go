package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// TestFilterJudgesByNameOfLastPlan filters endpoints by the name that led to them. If no plan is
// remembered, the name of the target in the spec counts. An endpoint with neither stays if some
// name could allow it.
func TestFilterJudgesByNameOfLastPlan(t *testing.T) {
	endpoints, remembered := planNamedTargets()
	renamed := v1alpha1.Target{Name: "renamed", Hostname: "pool.example.com"}
	elsewhere := v1alpha1.Target{Name: "pool", Hostname: "pool.example.org"}
	all := []string{"pool .1", "pool .2", "srv .3"}
	for _, tt := range []struct {
		name    string
		targets []v1alpha1.Target
		named   []NamedAddr
		want    []string
	}{
		{"renamed", []v1alpha1.Target{renamed, srvTarget}, remembered, all},
		{"with another hostname", []v1alpha1.Target{elsewhere, srvTarget}, remembered, all},
		{"not in the last plan", []v1alpha1.Target{poolTarget, srvTarget}, remembered[1:], all[1:]},
		{"renamed, after a restart", []v1alpha1.Target{renamed, srvTarget}, nil, []string{all[0], all[2]}},
		{"with another hostname, after a restart", []v1alpha1.Target{elsewhere, srvTarget}, nil, all[2:]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			in := FilterInput{
				Backend: inputWithDrain(nil, tt.targets...).Backend, Published: endpoints, NamedAddrs: tt.named,
				Permit: permitExampleCom,
				PermitUnnamed: func(addr netip.Addr, _ []Port) Refusal {
					return Refusal{Denied: addr == netip.MustParseAddr("203.0.113.2"), Kind: "never"}
				},
			}
			first := FilterPublished(in)
			expectEndpoints(t, first.Kept, tt.want...)
			count := len(first.Kept) + len(first.Refused)
			if count != len(endpoints) || first.Changed != (len(first.Refused) > 0) {
				t.Errorf("of %d endpoints: %+v", len(endpoints), first)
			}

			in.Published, in.Withdrawn = first.Kept, first.Refused
			if again := FilterPublished(in); again.Changed || len(again.Refused) != len(first.Refused) ||
				!maps.Equal(again.Reasons, first.Reasons) {
				t.Errorf("the same filter gives %+v first, and then %+v", first, again)
			}

			in.Withdrawn = slices.Concat(first.Refused, first.Refused, first.Kept)
			in.Permit = func(string, netip.Addr, []Port) Refusal { return Refusal{} }
			in.PermitUnnamed = func(netip.Addr, []Port) Refusal { return Refusal{} }
			back := FilterPublished(in)
			if len(back.Kept) != len(endpoints) || len(back.Reasons) > 0 || back.Changed != first.Changed {
				t.Errorf("when policy allows all again: %+v", back)
			}
		})
	}
}

// TestStatusOfFilteredEndpoints reports endpoints while the spec cannot be acted on. Status shows
// what is published and what policy refuses, and leaves everything else as it was.
func TestStatusOfFilteredEndpoints(t *testing.T) {
	long, now := metav1.NewTime(testNow.Add(-time.Hour)), metav1.NewTime(testNow).Rfc3339Copy()
	two := v1alpha1.TargetEndpointCounts{Total: 2, Ready: 2}
	one := v1alpha1.TargetEndpointCounts{Total: 1, Ready: 1}
	healthy := v1alpha1.TargetStatus{
		Name: "a", State: v1alpha1.TargetStateHealthy, Health: v1alpha1.TargetHealthHealthy, Tier: 3, Endpoints: two,
		Addresses: []string{"203.0.113.1", "203.0.113.2"}, LastTransitionTime: &long,
	}
	partly := v1alpha1.TargetStatus{
		Name: "a", State: v1alpha1.TargetStateHealthy, Health: v1alpha1.TargetHealthHealthy, Tier: 3, Endpoints: one,
		Addresses: []string{"203.0.113.1"},
		Reason:    v1alpha1.ReasonTargetDenied, Message: "no rule", LastTransitionTime: &long,
	}
	denied := v1alpha1.TargetStatus{
		Name: "a", State: v1alpha1.TargetStateDenied, Tier: 3,
		Reason: v1alpha1.ReasonTargetDenied, Message: "no rule", LastTransitionTime: &now,
	}
	unlisted := denied
	unlisted.Tier = 0
	unresolved := v1alpha1.TargetStatus{
		Name: "b", State: v1alpha1.TargetStateUnresolved,
		Reason: v1alpha1.ReasonResolutionFailed, LastTransitionTime: &long,
	}
	first, second, third := at("a", "203.0.113.1"), at("a", "203.0.113.2"), at("c", "203.0.113.3")
	dead := second
	dead.Ready, dead.Serving, dead.Healthy = false, false, false
	unhealthy := healthy
	unhealthy.State, unhealthy.Health = v1alpha1.TargetStateUnhealthy, v1alpha1.TargetHealthUnhealthy
	unhealthy.LastTransitionTime = &now
	unhealthy.Endpoints.Ready = 1
	why := map[string]string{"a": "no rule"}
	const before = "False TargetDenied as it was"
	const refused = `False TargetDenied Refused by policy: target "a" (no rule).`
	const permitted = "True Permitted No target is refused."

	for _, tt := range []struct {
		name      string
		before    []v1alpha1.TargetStatus
		filtered  Filtered
		want      []v1alpha1.TargetStatus
		permitted string
		counts    string
	}{
		{
			"nothing is refused", []v1alpha1.TargetStatus{unresolved, healthy},
			Filtered{Kept: []Endpoint{first, second}},
			[]v1alpha1.TargetStatus{unresolved, healthy}, permitted, "2/2 2+0",
		},
		{
			"an address is refused", []v1alpha1.TargetStatus{unresolved, healthy},
			Filtered{Kept: []Endpoint{first}, Refused: []Endpoint{second}, Reasons: why},
			[]v1alpha1.TargetStatus{unresolved, partly}, refused, "1/1 1+0",
		},
		{
			"a target is refused", []v1alpha1.TargetStatus{unresolved, healthy},
			Filtered{Refused: []Endpoint{first, second}, Reasons: why},
			[]v1alpha1.TargetStatus{unresolved, denied}, refused, "0/0 0+0",
		},
		{
			"a target is refused that was not listed", []v1alpha1.TargetStatus{unresolved},
			Filtered{Kept: []Endpoint{third}, Refused: []Endpoint{first}, Reasons: why},
			[]v1alpha1.TargetStatus{unresolved, unlisted}, refused, "1/1 1+0",
		},
		{
			"an address comes back", []v1alpha1.TargetStatus{unresolved, partly},
			Filtered{Kept: []Endpoint{first, second}},
			[]v1alpha1.TargetStatus{unresolved, healthy}, permitted, "2/2 2+0",
		},
		{
			"a target comes back, dead in part", []v1alpha1.TargetStatus{unresolved, denied},
			Filtered{Kept: []Endpoint{dead, first}},
			[]v1alpha1.TargetStatus{unhealthy, unresolved}, permitted, "1/2 1+1",
		},
		{
			"nobody knows any more what was refused", []v1alpha1.TargetStatus{unresolved, denied},
			Filtered{Kept: []Endpoint{third}},
			[]v1alpha1.TargetStatus{unresolved, denied}, before, "1/1 1+0",
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := &v1alpha1.ExternalBackend{}
			b.Spec.HealthCheck = &v1alpha1.HealthCheck{}
			previous := v1alpha1.ExternalBackendStatus{Targets: tt.before}
			w := statusWriter{StatusInput: StatusInput{Backend: b, Now: testNow}, out: &previous}
			w.set(v1alpha1.ConditionPermitted, isFalse(v1alpha1.ReasonTargetDenied, "as it was"))
			s := Status(StatusInput{
				Backend: b, Previous: previous, Invalid: "spec.targets: wrong", Filtered: &tt.filtered, Now: testNow,
			}).Status
			if diff := cmp.Diff(tt.want, s.Targets); diff != "" {
				t.Errorf("targets (-want +got):\n%s", diff)
			}
			c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionPermitted)
			if got := fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message); got != tt.permitted {
				t.Errorf("Permitted is %q, want %q", got, tt.permitted)
			}
			e := s.Endpoints
			if got := fmt.Sprintf("%s %d+%d", e.ReadyOfTotal, e.Healthy, e.Unhealthy); got != tt.counts {
				t.Errorf("%s, want %s", got, tt.counts)
			}
		})
	}
}
