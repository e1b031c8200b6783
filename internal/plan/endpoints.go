package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// Verdict is what the probes have made of an endpoint.
type Verdict uint8

const (
	// Unknown: no verdict yet.
	Unknown Verdict = iota
	// Healthy: successThreshold probes running have succeeded.
	Healthy
	// Unhealthy: failureThreshold probes running have failed.
	Unhealthy
)

// ProbeState is what is known of a probed endpoint.
type ProbeState struct {
	Verdict Verdict
	// Reason is the fixed word for the last failure, Detail what was seen and what was expected, for
	// people; both "" where nothing is known of it.
	Reason, Detail string
}

// Publication is what is to be published now, and what status tells of it.
type Publication struct {
	// Endpoints are those of the Candidates, with their conditions.
	Endpoints []Endpoint
	// States are parallel to Endpoints; Unknown for what is not probed.
	States []ProbeState
	// Tier is to be handed to the next Publish. Active is nil where no tier qualifies.
	Tier TierState
	// Tiers are those that Tier was chosen among, sorted by number.
	Tiers []Tier
	// FailOpen: no tier qualifies, and spec.failover.whenNoTierQualifies is AllEndpoints: every
	// endpoint of an Active target is ready.
	FailOpen bool
	// Next is when time alone may change the plan; zero: never.
	Next time.Time
}

// HasAllVerdicts reports that no endpoint waits for its first verdict.
func (p *Publication) HasAllVerdicts(c *Candidates) bool {
	for i := range c.origins {
		if c.origins[i].probed() && p.States[i].Verdict == Unknown {
			return false
		}
	}
	return true
}

// PublishInput is what decides the endpoints' conditions, beside the candidates.
type PublishInput struct {
	Backend *v1alpha1.ExternalBackend
	// Published is what stands.
	Published *endpointslice.PublishedEndpoints
	// State tells what has been made of an endpoint, by its place among Candidates.Probes.
	State func(probe int) ProbeState
	// Tier is that of the plan before; nil at the start, when the active tier is read back from
	// Published.
	Tier *TierState
	// PublishNotReady is publishNotReadyAddresses of the Service.
	PublishNotReady bool
	Now             time.Time
}

// Publish sets every candidate's conditions, by the formulas of the API:
//
//	health      = its verdict; without one the health last published, else initialState
//	serving     = fail-open, or health and in the active tier; where no tier is active, health
//	terminating = its target is Draining, or its address is leaving
//	ready       = publishNotReadyAddresses, or serving and not terminating
func Publish(in PublishInput, c *Candidates) Publication {
	out := Publication{Endpoints: c.Endpoints, States: make([]ProbeState, len(c.Endpoints)), Next: c.nextDrainEnd}
	tiers := newTally(in.Backend, c)
	out.judge(in, c, tiers)

	prev := in.Tier
	restored := prev == nil || prev.Provisional
	if restored {
		prev = new(PublishedTier(in.Published.Endpoints()))
	}
	f := failover(in.Backend)
	var look time.Time
	out.Tiers = tiers.tiers
	out.Tier, look = ChooseTier(f, out.Tiers, *prev, in.Now)
	if !look.IsZero() && (out.Next.IsZero() || look.Before(out.Next)) {
		out.Next = look
	}
	out.Tier.Provisional = restored && c.keepsPublished

	noTier := out.Tier.Active == nil
	out.FailOpen = noTier && tiers.endpoints > 0 &&
		in.Backend.Spec.Failover.EffectiveWhenNoTierQualifies() == v1alpha1.NoTierAllEndpoints
	for i := range c.Endpoints {
		e := &c.Endpoints[i]
		if c.keepsPublished && c.origins[i].asPublished {
			continue
		}
		e.Serving = out.FailOpen || e.Healthy && (noTier || *out.Tier.Active == e.Tier)
		e.Ready = in.PublishNotReady || e.Serving && !e.Terminating
	}
	return out
}

// judge sets the endpoints' health and whether they are terminating, and counts them by tier.
func (p *Publication) judge(in PublishInput, c *Candidates, tiers *tally) {
	enforced := in.Backend.Spec.HealthCheck != nil && !observes(in.Backend)
	initial := enforced && in.Backend.Spec.HealthCheck.EffectiveInitialState() == v1alpha1.InitialStateReady
	probe := 0
	for i := range c.Endpoints {
		e, o := &c.Endpoints[i], &c.origins[i]
		if o.asPublished {
			continue
		}
		if o.probed() {
			p.States[i] = in.State(probe)
			probe++
		}
		verdict := p.States[i].Verdict
		if !enforced {
			verdict = Healthy
		}
		e.Terminating = o.draining
		published, healthy, unread := c.publishedHealth(i)
		e.Healthy = verdict == Healthy || verdict == Unknown && (published && healthy || !published && initial)
		e.Unread = unread && o.probed() && verdict == Unknown
		if !o.draining {
			tiers.count(e.Tier, verdict)
		}
	}
}

// tally counts the endpoints of each tier.
type tally struct {
	tiers     []Tier
	last      int // index of the tier asked for last
	endpoints int
}

// newTally knows every tier that has endpoints or waits for the first answer of a name, so that
// count need not grow it.
func newTally(b *v1alpha1.ExternalBackend, c *Candidates) *tally {
	t := &tally{}
	for i := range c.origins {
		if o := &c.origins[i]; !o.draining && !o.asPublished {
			t.tier(c.Endpoints[i].Tier)
		}
	}
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

// tier finds or makes the tier of that number: most of the time the last one.
func (t *tally) tier(number int32) *Tier {
	if t.last < len(t.tiers) && t.tiers[t.last].Number == number {
		return &t.tiers[t.last]
	}
	i, ok := slices.BinarySearchFunc(t.tiers, number, func(t Tier, p int32) int { return cmp.Compare(t.Number, p) })
	if !ok {
		t.tiers = slices.Insert(t.tiers, i, Tier{Number: number})
	}
	t.last = i
	return &t.tiers[i]
}

func (t *tally) count(number int32, v Verdict) {
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
