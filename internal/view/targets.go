package view

import (
	"cmp"
	"slices"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

// buildTargets lists the targets, worst first: those in the order of status, then those that it
// omits.
func buildTargets(o *Objects, e *endpoints) []Target {
	b := o.Backend
	rank := map[string]int{}
	listed := map[string]*v1alpha1.TargetStatus{}
	for i := range b.Status.Targets {
		t := &b.Status.Targets[i]
		rank[t.Name], listed[t.Name] = i, t
	}
	overridden := overriddenStates(o)

	out := make([]Target, len(b.Spec.Targets))
	for i := range b.Spec.Targets {
		t := &b.Spec.Targets[i]
		shown := &out[i]
		*shown = Target{
			Name: t.Name, Tier: t.EffectiveTier(), Zone: t.Zone, AdminState: t.EffectiveAdminState(),
			Endpoints: e.byTarget[t.Name],
		}
		shown.Source, shown.Value = sourceOf(t)
		if state, ok := overridden[t.Name]; ok {
			shown.AdminState, shown.Override = state, b.Status.Override
		}
		shown.addStatus(b, listed[t.Name])
	}

	slices.SortStableFunc(out, func(a, b Target) int {
		if c := compareBool(a.Omitted, b.Omitted); c != 0 || !a.Omitted {
			return cmp.Or(c, cmp.Compare(rank[a.Name], rank[b.Name]))
		}
		return cmp.Or(
			cmp.Compare(slices.Index(healthWorstFirst, a.Health), slices.Index(healthWorstFirst, b.Health)),
			cmp.Compare(a.Name, b.Name),
		)
	})
	return out
}

// addStatus adds what status says; nil if it omits the target.
func (t *Target) addStatus(b *v1alpha1.ExternalBackend, s *v1alpha1.TargetStatus) {
	if s != nil {
		t.State, t.Health, t.Reason, t.Message = s.State, s.Health, s.Reason, s.Message
		t.Since, t.Addresses = s.LastTransitionTime, s.Addresses
		t.Total, t.Ready = s.Endpoints.Total, s.Endpoints.Ready
		return
	}

	t.Omitted = true
	counts := count(t.Endpoints)
	t.Total, t.Ready = int32(counts.Total), int32(counts.Ready)
	if len(t.Endpoints) > 0 {
		t.Health = t.Endpoints[0].Verdict // the worst
	}
	switch t.AdminState {
	case v1alpha1.AdminStateDraining:
		t.State = v1alpha1.TargetStateDraining
	case v1alpha1.AdminStateDisabled:
		t.State = v1alpha1.TargetStateDisabled
	default:
		t.State = v1alpha1.TargetState(cmp.Or(t.Health, v1alpha1.TargetHealthUnknown))
	}
}

// sourceOf returns the field that says where a target is, and what it says.
func sourceOf(t *v1alpha1.Target) (source, value string) {
	switch {
	case t.Address != "":
		return "address", t.Address
	case t.Hostname != "":
		return "hostname", t.Hostname
	}
	return "srvName", t.SRVName
}

// appliedOverride returns the override that status names; nil if it was not read or there is none.
func appliedOverride(o *Objects) *v1alpha1.ExternalBackendOverride {
	i := slices.IndexFunc(o.Overrides, func(override v1alpha1.ExternalBackendOverride) bool {
		return override.Name == o.Backend.Status.Override
	})
	if i < 0 {
		return nil
	}
	return &o.Overrides[i]
}

// overriddenStates returns the adminStates that the applied override sets.
func overriddenStates(o *Objects) map[string]v1alpha1.AdminState {
	states := map[string]v1alpha1.AdminState{}
	if applied := appliedOverride(o); applied != nil {
		for _, t := range applied.Spec.Targets {
			states[t.Name] = t.AdminState
		}
	}
	return states
}

// pinnedTier returns the tier that is pinned, or nil.
func pinnedTier(o *Objects) *int32 {
	if applied := appliedOverride(o); applied != nil && applied.Spec.PinnedTier != nil {
		return applied.Spec.PinnedTier
	}
	if f := o.Backend.Spec.Failover; f != nil {
		return f.PinnedTier
	}
	return nil
}

// buildTiers lists the tiers that targets are in, and those of published endpoints.
func buildTiers(o *Objects, e *endpoints) []Tier {
	b := o.Backend
	counts := map[int32]*Counts{}
	for i := range b.Spec.Targets {
		counts[b.Spec.Targets[i].EffectiveTier()] = &Counts{}
	}
	for _, list := range e.byTarget {
		for i := range list {
			if counts[list[i].Tier] == nil {
				counts[list[i].Tier] = &Counts{}
			}
			counts[list[i].Tier].add(&list[i])
		}
	}
	active, pinned := b.Status.ActiveTier, pinnedTier(o)

	var out []Tier
	for number, c := range counts {
		t := Tier{
			Number: number, Active: active != nil && *active == number, Pinned: pinned != nil && *pinned == number,
		}
		if e.known {
			t.Counts = c
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b Tier) int { return cmp.Compare(a.Number, b.Number) })
	return out
}

// buildNames lists what the names of targets resolve to, in the order of targets.
func buildNames(o *Objects, targets []Target) []Name {
	var out []Name
	for i := range targets {
		t := &targets[i]
		if t.Source == "address" {
			continue
		}
		n := Name{Target: t.Name, Name: t.Value, Type: "A/AAAA", Addresses: currentAddresses(t)}
		if t.Source == "srvName" {
			n.Type = "SRV"
		}
		n.Quality = qualityOf(o.Backend, t)
		if n.Quality == QualityStale || n.Quality == QualityFailed {
			n.Reason, n.Message, n.Since = t.Reason, t.Message, t.Since
		}
		out = append(out, n)
	}
	return out
}

// qualityOf says how good the answer for the name of a target is. A target that is unhealthy has
// the reason of that, and not the one of its name. Then only NamesResolved can tell.
func qualityOf(b *v1alpha1.ExternalBackend, t *Target) Quality {
	switch t.Reason {
	case v1alpha1.ReasonServingStale:
		return QualityStale
	case v1alpha1.ReasonResolutionFailed, v1alpha1.TargetReasonNameNotFound:
		return QualityFailed
	case v1alpha1.ReasonPending:
		return QualityPending
	}
	switch {
	case !plan.Resolves(b), t.State == v1alpha1.TargetStateDisabled, t.State == v1alpha1.TargetStateDenied:
		return QualityNotAsked
	case conditionOf(b.Status.Conditions, v1alpha1.ConditionNamesResolved).Status == "True":
		return QualityCurrent
	case !t.Omitted && (t.State == v1alpha1.TargetStateHealthy || t.State == v1alpha1.TargetStateUnprobed):
		return QualityCurrent
	}
	return QualityUnknown
}

// currentAddresses returns the addresses of a target that are published and not leaving; if the
// slices could not be read, those in status.
func currentAddresses(t *Target) []string {
	if len(t.Endpoints) == 0 {
		return t.Addresses
	}
	var addresses []string
	for i := range t.Endpoints {
		if e := &t.Endpoints[i]; e.DrainUntil == nil {
			addresses = append(addresses, e.Address)
		}
	}
	slices.Sort(addresses)
	return slices.Compact(addresses)
}
