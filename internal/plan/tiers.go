package plan

import (
	"maps"
	"slices"
	"time"
)

// Failover says how the active tier is chosen (spec.failover, defaults applied).
type Failover struct {
	// MinHealthyPercent is the healthy share in percent, 1 to 100, from which on a tier qualifies.
	MinHealthyPercent int32
	// FailbackDelay is how long a better tier must have qualified without a break before it is active
	// again.
	FailbackDelay time.Duration
	// Manual leaves an active tier only when it no longer qualifies.
	Manual bool
	// Pinned makes this tier active whatever its health.
	Pinned *int32
}

// Tier is what the choice of the active tier needs to know of the endpoints of one number. Only
// endpoints of Active targets that are not leaving count.
type Tier struct {
	Number int32
	// Endpoints, of which Verdicts have been judged, of which Healthy are healthy.
	Endpoints, Verdicts, Healthy int
	// Pending: a name of the tier has not had its first answer yet.
	Pending bool
}

// TierState is what a choice hands on to the next one.
type TierState struct {
	// Active is the active tier; nil where none qualifies.
	Active *int32
	// None: there are endpoints, all judged, and no tier qualifies. Read back after a restart, with
	// Active: one of the two holds.
	None bool
	// Presumed: Active is only the first that may qualify once it has been judged.
	Presumed bool
	// Provisional: some of what is published can't be told yet whose it is, so that the next choice reads
	// Active and None back again.
	Provisional bool
	// Since tells from when on each tier that qualifies has done so without a break. It is held in
	// memory alone: a restart starts it anew, which can only lengthen a delay.
	Since map[int32]time.Time
}

// qualifies: the tier's healthy share suffices to carry the traffic.
func (f Failover) qualifies(t Tier) bool {
	return t.Healthy > 0 && int64(t.Healthy)*100 >= int64(f.MinHealthyPercent)*int64(t.Verdicts)
}

// expected reports whether the tier has endpoints or waits for some.
func (t Tier) expected() bool { return t.Endpoints > 0 || t.Pending }

// mayQualify reports whether the tier would qualify if every endpoint that has no verdict yet
// turned out healthy. A tier whose name has no answer yet may get any number of healthy endpoints.
func (f Failover) mayQualify(t Tier) bool {
	best := Tier{Verdicts: t.Endpoints, Healthy: t.Healthy + t.Endpoints - t.Verdicts}
	return t.Pending || f.qualifies(best)
}

// ChooseTier returns the active tier among tiers, which are sorted by number, and the time of the
// next look (zero: none by time alone).
//
//  1. A pinned tier is active.
//  2. The best tier is the first that qualifies. While a better one may still qualify, the best
//     wins no race against it:
//     the active tier stays where it qualifies, and where it may while no better tier has a healthy endpoint. Else the first
//     tier that has, or waits for, endpoints is active. Where none was active, endpoints without a verdict change nothing.
//  3. Where no tier qualifies, none is active.
//  4. An active tier that no longer qualifies hands over to the best at once.
//  5. From one that does, a better tier takes over once it has qualified for FailbackDelay, and
//     never where failback is Manual.
func ChooseTier(f Failover, tiers []Tier, prev TierState, now time.Time) (TierState, time.Time) {
	next := TierState{Since: f.qualifiedSince(tiers, prev, now)}
	best := slices.IndexFunc(tiers, f.qualifies)
	better := tiers[:max(best, 0)]
	if best < 0 {
		better = tiers
	}
	stays := false // the active tier still qualifies
	if prev.Active != nil {
		_, stays = next.Since[*prev.Active]
	}

	switch {
	case f.Pinned != nil:
		next.Active = new(*f.Pinned)
	case slices.ContainsFunc(better, f.mayQualify) && stays:
		next.Active = prev.Active
	case slices.ContainsFunc(better, f.mayQualify):
		f.await(better, prev, &next)
	case best < 0:
		next.None = slices.ContainsFunc(tiers, Tier.expected)
	case !stays:
		next.Active = new(tiers[best].Number)
	default:
		number, look := failback(f, *prev.Active, next.Since, now)
		next.Active = new(number)
		return next, look
	}
	return next, time.Time{}
}

// qualifiedSince tells of each tier that qualifies since when it has done so.
func (f Failover) qualifiedSince(tiers []Tier, prev TierState, now time.Time) map[int32]time.Time {
	since := map[int32]time.Time{}
	for _, t := range tiers {
		if !f.qualifies(t) {
			continue
		}
		since[t.Number] = now
		if before, ok := prev.Since[t.Number]; ok {
			since[t.Number] = before
		}
	}
	return since
}

// await is step 2 where the active tier does not qualify. tiers are those better than the best that
// qualifies.
func (f Failover) await(tiers []Tier, prev TierState, next *TierState) {
	first := tiers[slices.IndexFunc(tiers, Tier.expected)].Number
	switch {
	case prev.Active != nil && f.awaits(tiers, *prev.Active):
		next.Active = prev.Active
	case prev.None && (prev.Active == nil || *prev.Active != first):
		next.None = true
	default:
		next.Active, next.Presumed = new(first), true
	}
}

// awaits reports whether that tier may still qualify, and no better one has a healthy endpoint
// meanwhile.
func (f Failover) awaits(tiers []Tier, number int32) bool {
	for _, t := range tiers {
		switch {
		case t.Number == number:
			return f.mayQualify(t)
		case t.Healthy > 0:
			return false
		}
	}
	return false
}

// failback is step 5: the tier that is active now, given that active still qualifies.
func failback(f Failover, active int32, since map[int32]time.Time, now time.Time) (int32, time.Time) {
	if f.Manual {
		return active, time.Time{}
	}
	chosen, look := active, time.Time{}
	for number, from := range maps.All(since) {
		if number >= active {
			continue
		}
		if due := from.Add(f.FailbackDelay); !due.After(now) {
			chosen = min(chosen, number)
		} else if look.IsZero() || due.Before(look) {
			look = due
		}
	}
	return chosen, look
}

// PublishedTier reads back from what is published which tier was active: the one whose endpoints
// are serving. Where those of several are, or unhealthy ones (fail-open), none was. Where all that
// is healthy is serving, and all in one tier, that one was, or none. Where nothing is serving there
// is no telling.
func PublishedTier(published []Endpoint) TierState {
	var state TierState
	standby := false
	for i := range published {
		e := &published[i]
		switch {
		case e.Target == "":
		case !e.Serving:
			standby = standby || e.Healthy
		case !e.Healthy, state.Active != nil && *state.Active != e.Tier:
			return TierState{None: true}
		default:
			state.Active = new(e.Tier)
		}
	}
	state.None = state.Active != nil && !standby
	return state
}
