package view

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
)

// Prediction says what traffic will do once the overrides of an ExternalBackend have changed, if
// health, names and policies stay as they are.
type Prediction struct {
	// TierBefore and TierAfter are the active tiers; nil if none is.
	TierBefore *int32 `json:"tierBefore,omitempty"`
	TierAfter  *int32 `json:"tierAfter,omitempty"`
	// Targets are those whose traffic changes, in the order of the spec.
	Targets []Traffic `json:"targets,omitempty"`
	// ReadyBefore and ReadyAfter count the ready endpoints of all targets.
	ReadyBefore int `json:"readyBefore"`
	ReadyAfter  int `json:"readyAfter"`
	// Within is how long a return to a better tier may take; 0 if all happens at once.
	Within metav1.Duration `json:"within,omitzero"`
}

// Traffic is how many endpoints of a target are ready, before and after.
type Traffic struct {
	Target      string `json:"target"`
	Tier        int32  `json:"tier"`
	ReadyBefore int    `json:"readyBefore"`
	TotalBefore int    `json:"totalBefore"`
	ReadyAfter  int    `json:"readyAfter"`
	TotalAfter  int    `json:"totalAfter"`
}

// Predict plans an ExternalBackend with these overrides in place of its own, as the operator does.
// It fails if what it needs could not be read, or if there are no endpoints to plan.
func Predict(o *Objects, overrides []v1alpha1.ExternalBackendOverride, now time.Time) (*Prediction, error) {
	if unread := o.WhyUnread(PartSlices); unread != nil {
		return nil, errors.New(unread.Why)
	}
	if !plan.Resolves(o.Backend) {
		return nil, errors.New("the Service passes a name on, and has no endpoints")
	}
	p := newPredictor(o, plan.Override(o.Backend, specKnown(o.Backend), overrides, now), now)
	planned := p.plan(nil)

	out := &Prediction{TierBefore: o.Backend.Status.ActiveTier}
	if delay := p.backend.Spec.Failover.EffectiveFailbackDelay(); delay > 0 {
		p.now = now.Add(delay)
		later := p.plan(&planned.Publication.TierState)
		if !equalTiers(planned.Publication.TierState.Active, later.Publication.TierState.Active) {
			planned, out.Within = later, metav1.Duration{Duration: delay}
		}
	}
	out.TierAfter = planned.Publication.TierState.Active
	out.compare(o.Backend, p.published.Endpoints(), planned.Candidates.WithConditions(planned.Conditions))
	return out, nil
}

func equalTiers(a, b *int32) bool {
	return (a == nil) == (b == nil) && valueOr(a) == valueOr(b)
}

// predictor plans what is published now with another spec.
type predictor struct {
	backend   *v1alpha1.ExternalBackend // with the override
	applied   plan.AppliedOverride
	now       time.Time
	published *endpointslice.PublishedEndpoints
	traits    plan.ServiceTraits
	answers   map[string]plan.Answer
	// addresses are those that may be published: those that are, and those of targets that are
	// Disabled now. Others are left out for reasons that an override does not change.
	addresses map[netip.Addr]bool
}

func newPredictor(o *Objects, overridden plan.Overridden, now time.Time) *predictor {
	own := o.OwnSlices()
	p := &predictor{
		backend: overridden.Backend, applied: overridden.Applied, now: now,
		published: endpointslice.Published(own), addresses: map[netip.Addr]bool{},
	}
	if o.Service != nil {
		p.traits = plan.TraitsOf(o.Service)
	} else {
		p.traits = plan.TraitsOfSlices(own, false)
	}
	for _, e := range p.published.Endpoints() {
		p.addresses[e.Addr] = true
	}
	disabled := map[string]bool{}
	for i := range o.Backend.Status.Targets {
		t := &o.Backend.Status.Targets[i]
		disabled[t.Name] = t.State == v1alpha1.TargetStateDisabled
	}

	p.answers = map[string]plan.Answer{}
	addrs := plan.PublishedAddrs(o.Backend, p.published)
	for i := range o.Backend.Spec.Targets {
		t := &o.Backend.Spec.Targets[i]
		addr, err := netip.ParseAddr(t.Address)
		switch {
		case err == nil && disabled[t.Name]:
			p.addresses[addr] = true
		case err != nil && len(addrs[t.Name]) > 0:
			p.answers[t.Name] = plan.Answer{Status: plan.AnswerCurrent, Addrs: addrs[t.Name]}
		case err != nil:
			p.answers[t.Name] = plan.Answer{Status: plan.AnswerFailed, Reason: v1alpha1.TargetReasonNameNotFound}
		}
	}
	return p
}

// plan plans with the health that is published. previous is the state of tiers before; nil to read
// it back.
func (p *predictor) plan(previous *plan.TierState) plan.PlannedEndpoints {
	var cache plan.Cache
	return cache.PlanEndpoints(plan.EndpointsInput{
		Input: plan.Input{
			Backend: p.backend, Answers: p.answers, Permit: p.permit, Override: p.applied,
			Status: p.backend.Status, Max: math.MaxInt, Now: p.now,
		},
		Traits:   p.traits,
		Template: plan.SliceTemplate(p.backend, nil, &p.traits, nil, maxPredictedSlice),
		Existing: p.published,
		Probe: func(c *plan.Candidates) func(int) plan.ProbeState {
			probes, _ := c.Probes(nil)
			return func(i int) plan.ProbeState { return plan.ProbeState{Verdict: probes[i].SeedVerdict} }
		},
		TierState: previous,
	})
}

// maxPredictedSlice is the bound of the slices of a prediction, which nobody writes.
const maxPredictedSlice = 1000

func (p *predictor) permit(_ string, addr netip.Addr, _ []endpointslice.Port) plan.Refusal {
	return plan.Refusal{Denied: !p.addresses[addr], Kind: "is not published now"}
}

// compare fills in the targets whose traffic changes.
func (out *Prediction) compare(b *v1alpha1.ExternalBackend, before, after []endpointslice.Endpoint) {
	traffic := map[string]*Traffic{}
	at := func(e *endpointslice.Endpoint) *Traffic {
		t := traffic[e.Target]
		if t == nil {
			t = &Traffic{}
			traffic[e.Target] = t
		}
		return t
	}
	for i := range before {
		t := at(&before[i])
		t.TotalBefore++
		t.ReadyBefore += boolToInt(before[i].Ready)
	}
	for i := range after {
		t := at(&after[i])
		t.TotalAfter++
		t.ReadyAfter += boolToInt(after[i].Ready)
	}

	for i := range b.Spec.Targets {
		t := traffic[b.Spec.Targets[i].Name]
		if t == nil {
			continue
		}
		out.ReadyBefore += t.ReadyBefore
		out.ReadyAfter += t.ReadyAfter
		if t.ReadyBefore != t.ReadyAfter || t.TotalBefore != t.TotalAfter {
			t.Target, t.Tier = b.Spec.Targets[i].Name, b.Spec.Targets[i].EffectiveTier()
			out.Targets = append(out.Targets, *t)
		}
	}
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// specKnown reports whether this version knows all of the spec.
func specKnown(b *v1alpha1.ExternalBackend) bool { return len(b.Spec.Unknown) == 0 }

// CheckOverride says why an ExternalBackend would not be subject to a new override; nil if it
// would.
func CheckOverride(o *Objects, override *v1alpha1.ExternalBackendOverride, now time.Time) error {
	overridden := plan.Override(o.Backend, specKnown(o.Backend), append(slices.Clip(o.Overrides), *override), now)
	outcome := overridden.Outcomes[len(o.Overrides)]
	if outcome.Status == metav1.ConditionTrue {
		return nil
	}
	return fmt.Errorf("%s: %s", cmp.Or(outcome.Reason, "Unknown"), outcome.Message)
}
