package plan

import (
	"slices"
	"time"
)

// Failover says how the active tier is chosen: spec.failover with its defaults.
type Failover struct {
	// MinHealthyPercent is the percentage of healthy endpoints, 1 to 100, that a tier needs to
	// qualify.
	MinHealthyPercent int32
	// FailbackDelay is how long a better tier must qualify without interruption before it becomes
	// active again.
	FailbackDelay time.Duration
	// Manual reports whether the active tier is left only if it no longer qualifies.
	Manual bool
	// Pinned is the tier that is active whatever its health, or nil.
	Pinned *int32
}

// TierCount counts the endpoints of one tier. Only endpoints of Active targets that are not leaving
// count. A tier without any is not counted unless it is Pending.
type TierCount struct {
	Number int32
	// Endpoints is the number of endpoints.
	Endpoints int
	// Verdicts is how many of them have a verdict.
	Verdicts int
	// Healthy is how many of them have the verdict Healthy.
	Healthy int
	// Pending reports whether a name of the tier still waits for its first answer.
	Pending bool
}

// TierState is the result of a choice, and an input of the next one.
type TierState struct {
	// Active is the active tier; nil if none qualifies.
	Active *int32
	// None reports whether no tier is active because none qualifies. If both Active and None are set
	// after a restart, the slices don't show which of the two applied.
	None bool
	// Presumed reports whether Active still waits for verdicts: it is the first tier that may qualify.
	Presumed bool
	// Provisional reports whether some published endpoints have no known target yet, so that the next
	// choice reads Active and None back again.
	Provisional bool
	// Since holds since when each tier that qualifies has done so without interruption. It is only in
	// memory. A restart begins it again, which can only lengthen a delay.
	Since map[int32]time.Time
}

// qualifies reports whether enough endpoints of the tier are healthy to carry the traffic.
func (f Failover) qualifies(t TierCount) bool {
	return t.Healthy > 0 && int64(t.Healthy)*100 >= int64(f.MinHealthyPercent)*int64(t.Verdicts)
}

// mayQualify reports whether the tier would qualify if every endpoint without a verdict were
// healthy. A tier that waits for an answer may get any number of healthy endpoints.
func (f Failover) mayQualify(t TierCount) bool {
	best := TierCount{Verdicts: t.Endpoints, Healthy: t.Healthy + t.Endpoints - t.Verdicts}
	return t.Pending || f.qualifies(best)
}

// ChooseTier returns the active tier among tiers, which are sorted by number, and when to choose
// again; zero if time alone changes nothing. The best tier is the first that qualifies. The tiers
// ahead are those before it, or all tiers if none qualifies: they may still qualify once their
// endpoints have verdicts. The first of these cases that applies decides:
//
//  1. A tier is pinned. It is active.
//  2. A tier ahead may still qualify, and the active tier qualifies. The active tier stays.
//  3. A tier ahead may still qualify, and the active tier does not qualify, or there is none.
//     awaitVerdicts decides.
//  4. No tier qualifies. No tier is active.
//  5. The active tier does not qualify, or there is none. The best tier takes over at once.
//  6. The active tier qualifies. A better one takes over once it has qualified for FailbackDelay;
//     never if failback is Manual.
func ChooseTier(f Failover, tiers []TierCount, previous TierState, now time.Time) (TierState, time.Time) {
	state := TierState{Since: f.qualifiedSince(tiers, previous, now)}
	best := slices.IndexFunc(tiers, f.qualifies)
	ahead := tiers[:max(best, 0)]
	if best < 0 {
		ahead = tiers
	}
	stillQualifies := false // the active tier
	if previous.Active != nil {
		_, stillQualifies = state.Since[*previous.Active]
	}

	switch {
	case f.Pinned != nil:
		state.Active = new(*f.Pinned)
	case slices.ContainsFunc(ahead, f.mayQualify) && stillQualifies:
		state.Active = previous.Active
	case slices.ContainsFunc(ahead, f.mayQualify):
		f.awaitVerdicts(ahead, previous, &state)
	case best < 0:
		state.None = len(tiers) > 0
	case !stillQualifies:
		state.Active = new(tiers[best].Number)
	default:
		active, next := f.failback(*previous.Active, state.Since, now)
		state.Active = new(active)
		return state, next
	}
	return state, time.Time{}
}

// qualifiedSince returns since when each tier that qualifies has done so.
func (f Failover) qualifiedSince(tiers []TierCount, previous TierState, now time.Time) map[int32]time.Time {
	since := map[int32]time.Time{}
	for _, t := range tiers {
		if !f.qualifies(t) {
			continue
		}
		since[t.Number] = now
		if before, ok := previous.Since[t.Number]; ok {
			since[t.Number] = before
		}
	}
	return since
}

// awaitVerdicts is case 3. The active tier stays if it may still qualify and no better tier has a
// healthy endpoint. Otherwise None stays, unless the first tier may have been active. In all other
// cases the first tier is active.
func (f Failover) awaitVerdicts(ahead []TierCount, previous TierState, state *TierState) {
	first := ahead[0].Number
	switch {
	case previous.Active != nil && f.mayStay(ahead, *previous.Active):
		state.Active = previous.Active
	case previous.None && (previous.Active == nil || *previous.Active != first):
		state.None = true
	default:
		state.Active, state.Presumed = new(first), true
	}
}

// mayStay reports whether the active tier may still qualify, and no better one has a healthy
// endpoint.
func (f Failover) mayStay(tiers []TierCount, active int32) bool {
	for _, t := range tiers {
		switch {
		case t.Number == active:
			return f.mayQualify(t)
		case t.Healthy > 0:
			return false
		}
	}
	return false
}

// failback is case 6. It returns the tier that is active now, and when to choose again.
func (f Failover) failback(active int32, since map[int32]time.Time, now time.Time) (int32, time.Time) {
	if f.Manual {
		return active, time.Time{}
	}

	chosen, next := active, time.Time{}
	for number, from := range since {
		if number >= active {
			continue
		}
		if due := from.Add(f.FailbackDelay); !due.After(now) {
			chosen = min(chosen, number)
		} else {
			next = earlier(next, due)
		}
	}
	return chosen, next
}

// earlier returns the earlier of two times. Zero stands for never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// PublishedTier reads back which tier was active: the tier of the endpoints that are serving. No
// tier was active if several tiers serve, or if an unhealthy endpoint serves (fail-open). If all
// healthy endpoints are serving and in one tier, that tier was active, or none was. If no endpoint
// is serving, nobody knows.
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
