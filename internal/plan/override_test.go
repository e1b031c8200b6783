package plan

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// An override is created an hour before overrideNow and ends an hour after it, unless a test says
// otherwise.
var overrideNow = time.Date(2026, 12, 1, 9, 0, 0, 0, time.UTC)

func newOverride(name string, spec v1alpha1.ExternalBackendOverrideSpec) v1alpha1.ExternalBackendOverride {
	o := v1alpha1.ExternalBackendOverride{Spec: spec}
	o.Name, o.Generation = name, 1
	o.CreationTimestamp = metav1.NewTime(overrideNow.Add(-time.Hour))
	o.Spec.ExternalBackendRef.Name = "orders-db"
	if o.Spec.ExpirationTime.IsZero() {
		o.Spec.ExpirationTime = metav1.NewTime(overrideNow.Add(time.Hour))
	}
	return o
}

func draining(target string) v1alpha1.ExternalBackendOverrideSpec {
	return v1alpha1.ExternalBackendOverrideSpec{
		Targets: []v1alpha1.TargetOverride{{Name: target, AdminState: v1alpha1.AdminStateDraining}},
	}
}

func pinning(tier int32) v1alpha1.ExternalBackendOverrideSpec {
	return v1alpha1.ExternalBackendOverrideSpec{PinnedTier: &tier}
}

// overriddenBackend has two tiers with a target each.
func overriddenBackend() *v1alpha1.ExternalBackend {
	b := &v1alpha1.ExternalBackend{Spec: v1alpha1.ExternalBackendSpec{
		Failover: &v1alpha1.Failover{Failback: v1alpha1.FailbackManual},
		Targets: []v1alpha1.Target{
			{Name: "web-1", Address: "203.0.113.1"},
			{Name: "web-2", Address: "203.0.113.2", Tier: new(int32(1))},
		},
	}}
	b.Name = "orders-db"
	return b
}

// Only what holds is applied, as a whole, and every other override says why it is not.
func TestOverrideIsAppliedAsAWholeOrNotAtAll(t *testing.T) {
	both := draining("web-1")
	both.PinnedTier = new(int32(1))
	unknownState := draining("web-1")
	unknownState.Targets[0].AdminState = "Paused"
	unknownField := pinning(1)
	unknownField.Unknown = []string{`unknown field "drainSeconds"`}
	halfKnown := draining("web-1")
	halfKnown.Targets = append(halfKnown.Targets, v1alpha1.TargetOverride{Name: "web-9", AdminState: "Disabled"})
	expired := pinning(1)
	expired.ExpirationTime = metav1.NewTime(overrideNow)

	for _, test := range []struct {
		name            string
		spec            v1alpha1.ExternalBackendOverrideSpec
		reason, message string
	}{
		{"a pin", pinning(1), "Applied", `ExternalBackend "orders-db" is subject to pinnedTier 1.`},
		{"both", both, "Applied", `ExternalBackend "orders-db" is subject to pinnedTier 1, adminState Draining of web-1.`},
		{"expired", expired, "Expired", "The override has ended."},
		{"an unknown tier", pinning(2), "TierNotFound",
			`spec.pinnedTier is 2, and no target of ExternalBackend "orders-db" can be in that tier. ` +
				"Nothing of the override is applied."},
		{"one unknown target", halfKnown, "TargetNotFound",
			`spec.targets[1].name is "web-9", and ExternalBackend "orders-db" has no such target. ` +
				"Nothing of the override is applied."},
		{"a state of a later version", unknownState, "InvalidSpec",
			`spec.targets[0].adminState is "Paused", which is none of Active, Draining and Disabled.`},
		{"a field of a later version", unknownField, "InvalidSpec",
			`This version of the manager does not know all of spec: unknown field "drainSeconds".`},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := overriddenBackend()
			o := newOverride("night-shift", test.spec)
			got := Override(b, true, []v1alpha1.ExternalBackendOverride{o}, overrideNow)

			want := isFalse(test.reason, test.message)
			if test.reason == v1alpha1.ReasonApplied {
				want.Status = metav1.ConditionTrue
			}
			if got.Outcomes[0] != want {
				t.Errorf("the outcome is %+v, want %+v", got.Outcomes[0], want)
			}
			if diff := cmp.Diff(overriddenBackend(), b); diff != "" {
				t.Errorf("the input was changed (-want +got):\n%s", diff)
			}
			wantBackend := overriddenBackend()
			if test.reason == v1alpha1.ReasonApplied {
				wantBackend.Spec.Failover.PinnedTier = test.spec.PinnedTier
				for range test.spec.Targets {
					wantBackend.Spec.Targets[0].AdminState = v1alpha1.AdminStateDraining
				}
			}
			if diff := cmp.Diff(wantBackend, got.Backend); diff != "" {
				t.Errorf("the spec that holds (-want +got):\n%s", diff)
			}
		})
	}
}

// The oldest override that holds is applied, and those after it are superseded until it ends.
func TestOldestOverrideThatHoldsWins(t *testing.T) {
	oldest, older := newOverride("c", draining("nobody")), newOverride("b", pinning(1))
	younger := newOverride("a", pinning(0))
	oldest.CreationTimestamp = metav1.NewTime(overrideNow.Add(-3 * time.Hour))
	older.CreationTimestamp = metav1.NewTime(overrideNow.Add(-2 * time.Hour))
	older.Spec.ExpirationTime = metav1.NewTime(overrideNow.Add(time.Minute))
	all := []v1alpha1.ExternalBackendOverride{younger, older, oldest}

	got := Override(overriddenBackend(), true, all, overrideNow)
	if got.Applied.Name != "b" || *got.Backend.Spec.Failover.PinnedTier != 1 {
		t.Errorf("%q is applied, with %+v", got.Applied.Name, got.Backend.Spec.Failover)
	}
	for i, want := range []string{"Superseded", "Applied", "TargetNotFound"} {
		if got.Outcomes[i].Reason != want {
			t.Errorf("override %s is %s, want %s", all[i].Name, got.Outcomes[i].Reason, want)
		}
	}
	if want := overrideNow.Add(time.Minute); !got.Next.Equal(want) {
		t.Errorf("the next change is at %v, want %v", got.Next, want)
	}

	got = Override(overriddenBackend(), true, all, got.Next)
	if got.Applied.Name != "a" || got.Outcomes[1].Reason != "Expired" {
		t.Errorf("after its end, %q is applied: %+v", got.Applied.Name, got.Outcomes)
	}
}

// An override ends 7 days after its creation, whatever its expirationTime.
func TestOverrideEndsAfterSevenDays(t *testing.T) {
	o := newOverride("forgotten", pinning(1))
	o.Spec.ExpirationTime = metav1.NewTime(overrideNow.AddDate(1, 0, 0))
	end := o.CreationTimestamp.Add(7 * 24 * time.Hour)
	for at, want := range map[time.Time]string{end.Add(-time.Second): "Applied", end: "Expired"} {
		got := Override(overriddenBackend(), true, []v1alpha1.ExternalBackendOverride{o}, at)
		if got.Outcomes[0].Reason != want {
			t.Errorf("%v before its end it is %s, want %s", end.Sub(at), got.Outcomes[0].Reason, want)
		}
	}
}

// Without an ExternalBackend, or while its spec is unknown, no override is applied.
func TestOverrideWaitsForAKnownSpec(t *testing.T) {
	o := []v1alpha1.ExternalBackendOverride{newOverride("night-shift", pinning(1))}
	if got := Override(nil, false, o, overrideNow); got.Outcomes[0].Reason != "BackendNotFound" || got.Backend != nil {
		t.Errorf("without an ExternalBackend: %+v", got)
	}
	b := overriddenBackend()
	if got := Override(b, false, o, overrideNow); got.Outcomes[0].Reason != "Pending" || got.Backend != b {
		t.Errorf("with an unknown spec: %+v", got)
	}
}
