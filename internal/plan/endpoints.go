package plan

import (
	"cmp"
	"slices"
	"time"

	"github.com/external-backend/operator/api/v1alpha1"
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
	// Reason is the fixed word for the last failure, Detail what was seen and what was expected, for people; both "" where
	// nothing is known of it.
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
	// FailOpen: no tier qualifies, and spec.failover.whenNoTierQualifies is AllEndpoints: every endpoint of an Active target is ready.
	FailOpen bool
	// Next is when time alone may change the plan; zero: never.
	Next time.Time
}

// Judged reports that no endpoint waits for its first verdict.
func (p *Publication) Judged(c *Candidates) bool {
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
	Published *Standing
	// State tells what has been made of an endpoint, by its place among Candidates.Probes.
	State func(probe int) ProbeState
	// Tier is that of the plan before; nil at the start, when the active tier is read back from Published.
	Tier *TierState
	// NotReadyToo is publishNotReadyAddresses of the Service.
	NotReadyToo bool
	Now         time.Time
}

// Publish sets every candidate's conditions, by the three formulas of the API:
//
//	serving     = its health; without a verdict the serving last published, else initialState
//	terminating = its target is Draining, or its address is leaving
//	ready       = publishNotReadyAddresses, or not terminating and (serving and in the active tier, or fail-open)
func Publish(in PublishInput, c *Candidates) Publication {
	out := Publication{Endpoints: c.Endpoints, States: make([]ProbeState, len(c.Endpoints)), Next: c.next}
	enforced := in.Backend.Spec.HealthCheck != nil && !observes(in.Backend)
	initial := enforced && in.Backend.Spec.HealthCheck.EffectiveInitialState() == v1alpha1.InitialStateReady
	tiers := newTally(in.Backend, c)
	probe := 0
	for i := range c.Endpoints {
		e, o := &c.Endpoints[i], &c.origins[i]
		if o.probed() {
			out.States[i] = in.State(probe)
			probe++
		}
		verdict := out.States[i].Verdict
		if !enforced {
			verdict = Healthy
		}
		e.Terminating = o.draining
		e.Serving = verdict == Healthy ||
			verdict == Unknown && (o.published && o.serving || !o.published && initial || e.leaving() && o.serving)
		if !o.draining {
			tiers.count(o.tier, verdict)
		}
	}
	f := failover(in.Backend)
	prev := in.Tier
	if prev == nil {
		prev = &TierState{Active: PublishedTier(in.Published.Endpoints(), publishedTierOf(in.Backend))}
	}
	var look time.Time
	out.Tiers = tiers.tiers
	out.Tier, look = ChooseTier(f, out.Tiers, *prev, in.Now)
	if !look.IsZero() && (out.Next.IsZero() || look.Before(out.Next)) {
		out.Next = look
	}
	noTier := out.Tier.Active == nil
	out.FailOpen = noTier && tiers.endpoints > 0 &&
		in.Backend.Spec.Failover.EffectiveWhenNoTierQualifies() == v1alpha1.NoTierAllEndpoints
	for i := range c.Endpoints {
		e := &c.Endpoints[i]
		active := noTier || *out.Tier.Active == c.origins[i].tier
		e.Ready = in.NotReadyToo || !e.Terminating && (e.Serving && active || out.FailOpen)
	}
	return out
}

// tally counts the endpoints of each tier.
type tally struct {
	tiers     []Tier
	last      int // index of the tier asked for last
	endpoints int
}

// newTally knows every tier that has endpoints or waits for the first answer of a name, so that count need not grow it.
func newTally(b *v1alpha1.ExternalBackend, c *Candidates) *tally {
	t := &tally{}
	for i := range c.origins {
		if o := &c.origins[i]; !o.draining {
			t.tier(o.tier)
		}
	}
	for i := range b.Spec.Targets {
		target := &b.Spec.Targets[i]
		active := target.EffectiveAdminState() == v1alpha1.AdminStateActive
		if active && c.Notes[i].Answer.Status == AnswerPending {
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

// publishedTierOf tells the tier of a published endpoint by the spec of today.
func publishedTierOf(b *v1alpha1.ExternalBackend) func(Endpoint) (int32, bool) {
	targets := make(map[string]*v1alpha1.Target, len(b.Spec.Targets))
	for i := range b.Spec.Targets {
		targets[b.Spec.Targets[i].Name] = &b.Spec.Targets[i]
	}
	return func(e Endpoint) (int32, bool) {
		t, ok := targets[e.Target]
		if !ok {
			return 0, false
		}
		return tierOf(t, e.Rank), true
	}
}
