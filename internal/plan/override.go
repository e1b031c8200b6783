package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/api/v1alpha1"
)

// AppliedOverride is the ExternalBackendOverride that an ExternalBackend is subject to. The zero
// value is none.
type AppliedOverride struct {
	Name       string
	UID        types.UID
	Generation int64
	// PinsTier reports whether the override pins a tier. Effect says for people what it sets.
	PinsTier bool
	Effect   string
}

// pin names the field that pins the tier.
func (o AppliedOverride) pin() string {
	if o.PinsTier {
		return fmt.Sprintf("pinnedTier of ExternalBackendOverride %q", o.Name)
	}
	return "spec.failover.pinnedTier"
}

// Overridden is the result of Override.
type Overridden struct {
	// Backend is the ExternalBackend that was given, or a copy with the spec that the override makes.
	Backend *v1alpha1.ExternalBackend
	Applied AppliedOverride
	// Outcomes are the conditions Applied of the overrides, parallel to them.
	Outcomes []metav1.Condition
	// Next is when time alone changes an outcome; zero if it changes none.
	Next time.Time
}

// Override applies the oldest of the overrides of b that holds. An override holds until its end, if
// b has each target that it names, if a target can be in the tier that it pins, and if all of it is
// known. b may be nil, or have an unknown spec: then none is applied.
func Override(
	b *v1alpha1.ExternalBackend, specKnown bool, overrides []v1alpha1.ExternalBackendOverride, now time.Time,
) Overridden {
	out := Overridden{Backend: b, Outcomes: make([]metav1.Condition, len(overrides))}
	oldestFirst := make([]int, len(overrides))
	for i := range oldestFirst {
		oldestFirst[i] = i
	}
	slices.SortFunc(oldestFirst, func(i, j int) int {
		a, b := &overrides[i], &overrides[j]
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})

	for _, i := range oldestFirst {
		o := &overrides[i]
		end := o.EndTime()
		switch {
		case !end.After(now):
			out.Outcomes[i] = isFalse(v1alpha1.ReasonExpired, "The override has ended.")
			continue
		case b == nil:
			out.Outcomes[i] = isFalse(v1alpha1.ReasonBackendNotFound,
				fmt.Sprintf("There is no ExternalBackend %q in this namespace.", o.Spec.ExternalBackendRef.Name))
		case !specKnown:
			out.Outcomes[i] = isUnknown(v1alpha1.ReasonPending,
				fmt.Sprintf("The spec of ExternalBackend %q is invalid.", b.Name))
		case out.Applied.Name != "":
			out.Outcomes[i] = isFalse(v1alpha1.ReasonSuperseded,
				fmt.Sprintf("ExternalBackendOverride %q is older, and is applied.", out.Applied.Name))
		default:
			overridden := withOverride(b, &o.Spec)
			if out.Outcomes[i] = checkOverride(overridden, &o.Spec); out.Outcomes[i].Reason == v1alpha1.ReasonApplied {
				out.Backend = overridden
				out.Applied = AppliedOverride{o.Name, o.UID, o.Generation, o.Spec.PinnedTier != nil, DescribeOverride(&o.Spec)}
			}
		}
		out.Next = earlier(out.Next, end)
	}
	return out
}

// OverrideStatus makes the status of an override with that outcome.
func OverrideStatus(
	o *v1alpha1.ExternalBackendOverride, outcome metav1.Condition, now time.Time,
) v1alpha1.ExternalBackendOverrideStatus {
	s := *o.Status.DeepCopy()
	s.ObservedGeneration = o.Generation
	setCondition(&s.Conditions, v1alpha1.ConditionApplied, outcome, o.Generation, now)
	return s
}

// withOverride returns a copy of b with what an override sets.
func withOverride(b *v1alpha1.ExternalBackend, o *v1alpha1.ExternalBackendOverrideSpec) *v1alpha1.ExternalBackend {
	overridden := *b
	if o.PinnedTier != nil {
		var failover v1alpha1.Failover
		if b.Spec.Failover != nil {
			failover = *b.Spec.Failover
		}
		failover.PinnedTier = o.PinnedTier
		overridden.Spec.Failover = &failover
	}
	if len(o.Targets) > 0 {
		overridden.Spec.Targets = slices.Clone(b.Spec.Targets)
		for i := range o.Targets {
			if t := targetNamed(overridden.Spec.Targets, o.Targets[i].Name); t != nil {
				t.AdminState = o.Targets[i].AdminState
			}
		}
	}
	return &overridden
}

func targetNamed(targets []v1alpha1.Target, name string) *v1alpha1.Target {
	i := slices.IndexFunc(targets, func(t v1alpha1.Target) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return &targets[i]
}

// checkOverride says whether an override holds. overridden is its ExternalBackend with all that the
// override sets.
func checkOverride(
	overridden *v1alpha1.ExternalBackend, o *v1alpha1.ExternalBackendOverrideSpec,
) metav1.Condition {
	if len(o.Unknown) > 0 {
		return isFalse(v1alpha1.ReasonInvalidSpec, fmt.Sprintf(
			"This version of the manager does not know all of spec: %s.", strings.Join(o.Unknown, ", ")))
	}
	for i := range o.Targets {
		t := &o.Targets[i]
		switch t.AdminState {
		case v1alpha1.AdminStateActive, v1alpha1.AdminStateDraining, v1alpha1.AdminStateDisabled:
		default:
			return isFalse(v1alpha1.ReasonInvalidSpec, fmt.Sprintf(
				"spec.targets[%d].adminState is %q, which is none of Active, Draining and Disabled.", i, t.AdminState))
		}
		if targetNamed(overridden.Spec.Targets, t.Name) == nil {
			return isFalse(v1alpha1.ReasonTargetNotFound, fmt.Sprintf(
				"spec.targets[%d].name is %q, and ExternalBackend %q has no such target. Nothing of the override is applied.",
				i, t.Name, overridden.Name))
		}
	}
	if o.PinnedTier != nil && len(validatePinnedTier(overridden)) > 0 {
		return isFalse(v1alpha1.ReasonTierNotFound, fmt.Sprintf(
			"spec.pinnedTier is %d, and no target of ExternalBackend %q can be in that tier. "+
				"Nothing of the override is applied.", *o.PinnedTier, overridden.Name))
	}
	return isTrue(v1alpha1.ReasonApplied,
		fmt.Sprintf("ExternalBackend %q is subject to %s.", overridden.Name, DescribeOverride(o)))
}

// DescribeOverride says for people what an override sets.
func DescribeOverride(o *v1alpha1.ExternalBackendOverrideSpec) string {
	var parts []string
	if o.PinnedTier != nil {
		parts = append(parts, fmt.Sprintf("pinnedTier %d", *o.PinnedTier))
	}
	named := map[v1alpha1.AdminState][]string{}
	for i := range o.Targets {
		t := &o.Targets[i]
		named[t.AdminState] = append(named[t.AdminState], t.Name)
	}
	for _, state := range []v1alpha1.AdminState{
		v1alpha1.AdminStateActive, v1alpha1.AdminStateDraining, v1alpha1.AdminStateDisabled,
	} {
		if names := named[state]; len(names) > 0 {
			parts = append(parts, fmt.Sprintf("adminState %s of %s", state, FirstFew(names, maxNamed)))
		}
	}
	return strings.Join(parts, ", ")
}
