package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// Publication is what to publish now, with the facts about it that status shows.
type Publication struct {
	// Conditions are parallel to the endpoints of the Candidates.
	Conditions []Conditions
	// Verdicts are parallel to Conditions. They are Unknown for endpoints that are not probed.
	Verdicts []Verdict
	// State is the one in PublishInput. It has the reasons for the verdicts.
	State func(probe int) ProbeState
	// TierState is for the next Publish.
	TierState TierState
	// Tiers are the tiers that TierState was chosen from, sorted by number.
	Tiers []TierCount
	// FailOpen reports whether every endpoint of an Active target is ready, because no tier qualifies
	// and spec.failover.whenNoTierQualifies is AllEndpoints.
	FailOpen bool
	// Next is when the plan may change because time passes; zero if it does not.
	Next time.Time
}

// HasAllVerdicts reports whether no endpoint waits for its first verdict.
func (p *Publication) HasAllVerdicts(c *Candidates) bool {
	for i := range c.origins {
		if c.origins[i].probed() && p.Verdicts[i] == Unknown {
			return false
		}
	}
	return true
}

// PublishInput is what decides the conditions of endpoints, besides the candidates.
type PublishInput struct {
	Backend *v1alpha1.ExternalBackend
	// Published is what the slices hold now.
	Published *endpointslice.PublishedEndpoints
	// State returns what is known about an endpoint, by its index in Candidates.Probes.
	State func(probe int) ProbeState
	// TierState is that of the previous plan. It is nil at the start; then the active tier is read
	// back from Published.
	TierState *TierState
	// PublishNotReady is publishNotReadyAddresses of the Service.
	PublishNotReady bool
	Now             time.Time
}

// Publish decides the conditions of every candidate, by the formulas of the API:
//
//	health      = its verdict; without one the health published last, else initialState
//	serving     = fail-open, or health and in the active tier; if no tier is active, health
//	terminating = its target is Draining, or its address is leaving
//	ready       = publishNotReadyAddresses, or serving and not terminating
func Publish(in PublishInput, c *Candidates) Publication {
	out := Publication{
		Conditions: make([]Conditions, len(c.Endpoints)),
		Verdicts:   make([]Verdict, len(c.Endpoints)),
		State:      in.State,
	}
	counts := newTierCounts(in.Backend, c)
	out.setHealth(in, c, counts)

	previous := in.TierState
	restored := previous == nil || previous.Provisional
	if restored {
		previous = new(PublishedTier(c.publishedEndpoints(in.Published)))
	}
	var next time.Time
	out.Tiers = counts.tiers
	out.TierState, next = ChooseTier(failover(in.Backend), out.Tiers, *previous, in.Now)
	out.Next = earlier(c.nextDrainEnd, next)
	out.TierState.Provisional = restored && c.keepsPublished

	noTier := out.TierState.Active == nil
	out.FailOpen = noTier && counts.endpoints > 0 &&
		in.Backend.Spec.Failover.EffectiveWhenNoTierQualifies() == v1alpha1.NoTierAllEndpoints
	for i := range out.Conditions {
		if c.keepsPublished && c.origins[i].asPublished {
			continue
		}
		set := &out.Conditions[i]
		set.Serving = out.FailOpen || set.Healthy && (noTier || *out.TierState.Active == c.Endpoints[i].Tier)
		set.Ready = in.PublishNotReady || set.Serving && !set.Terminating
	}
	return out
}

// setHealth sets whether the endpoints are healthy and terminating, and counts them by tier. One
// that stays as it is published keeps its conditions.
func (p *Publication) setHealth(in PublishInput, c *Candidates, counts *tierCounts) {
	enforced := in.Backend.Spec.HealthCheck != nil && !observes(in.Backend)
	readyInitially := enforced && in.Backend.Spec.HealthCheck.EffectiveInitialState() == v1alpha1.InitialStateReady
	probe := 0
	for i := range c.Endpoints {
		e, o, set := &c.Endpoints[i], &c.origins[i], &p.Conditions[i]
		if o.asPublished {
			*set = e.Conditions
			continue
		}
		if o.probed() {
			p.Verdicts[i] = in.State(probe).Verdict
			probe++
		}

		verdict := p.Verdicts[i]
		if !enforced {
			verdict = Healthy
		}
		keeps, healthy, unread := c.keptHealth(i)
		set.Terminating = o.terminating
		set.Healthy = verdict == Healthy || verdict == Unknown && (keeps && healthy || !keeps && readyInitially)
		set.Unread = unread && o.probed() && verdict == Unknown
		if !o.terminating {
			counts.add(e.Tier, verdict)
		}
	}
}

// tierCounts counts the endpoints of each tier.
type tierCounts struct {
	tiers     []TierCount // sorted by number
	last      int         // the index that tier returned last
	endpoints int
}

// newTierCounts returns every tier that waits for the first answer of a name.
func newTierCounts(b *v1alpha1.ExternalBackend, c *Candidates) *tierCounts {
	t := &tierCounts{}
	for i := range b.Spec.Targets {
		target := &b.Spec.Targets[i]
		active := target.EffectiveAdminState() == v1alpha1.AdminStateActive
		answer := &c.Notes[i].Answer
		if active && (answer.Status == AnswerPending || c.keepsPublished && answer.unknown()) {
			t.tier(target.EffectiveTier()).Pending = true
		}
	}
	return t
}

// tier returns the tier with that number, and inserts it if necessary. Mostly it is the same as the
// last one.
func (t *tierCounts) tier(number int32) *TierCount {
	if t.last < len(t.tiers) && t.tiers[t.last].Number == number {
		return &t.tiers[t.last]
	}
	i, ok := slices.BinarySearchFunc(t.tiers, number, func(t TierCount, n int32) int { return cmp.Compare(t.Number, n) })
	if !ok {
		t.tiers = slices.Insert(t.tiers, i, TierCount{Number: number})
	}
	t.last = i
	return &t.tiers[i]
}

func (t *tierCounts) add(number int32, v Verdict) {
	tier := t.tier(number)
	tier.Endpoints++
	t.endpoints++
	if v != Unknown {
		tier.Verdicts++
	}
	if v == Healthy {
		tier.Healthy++
	}
}
