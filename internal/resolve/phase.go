package resolve

import "time"

// phase is what a history amounts to at one time, for one owner.
type phase uint8

const (
	phaseNew     phase = iota // no lookup has ended yet
	phaseGood                 // the latest answer is good
	phaseFailing              // lookups fail, or no family of the name has addresses
	phaseDenied               // the latest answer is a denial that is not believed yet

	// phaseBelieved means that a denial is believed. A failure after NODATA keeps it. A failure after
	// NXDOMAIN makes it failing, but nothing serves then, because the data are gone (settleDenial).
	phaseBelieved
)

// otherFamily is what the other family of a name adds to the judgement of a denial.
type otherFamily struct {
	has       bool      // it has addresses
	goodUntil time.Time // until when its answers were good; zero = never
}

func (h *history) asOtherFamily(o settings, now time.Time) otherFamily {
	if h == nil {
		return otherFamily{}
	}
	if h.kind == kindGood {
		return otherFamily{has: true, goodUntil: now}
	}
	var f otherFamily
	if h.kind == kindFailed && len(h.entries) > 0 {
		f.has = now.Before(h.expiry(time.Time{}, o).Add(o.stale))
	}
	if h.wasGood {
		f.goodUntil = h.goodUntil
	}
	return f
}

// phase returns the history's phase by the first row that matches:
//
//	latest result     other family       denied for the belief delay   phase
//	none yet          any                -                             new
//	good              any                -                             good
//	NXDOMAIN          any                yes                           believed
//	NXDOMAIN          any                no                            denied
//	NODATA, failure   was good meanwhile yes                           believed
//	NODATA            has addresses      no                            denied
//	NODATA, failure   any                any                           failing
func (h *history) phase(other otherFamily, now time.Time) phase {
	switch h.kind {
	case kindNone:
		return phaseNew
	case kindGood:
		return phaseGood
	case kindNXDomain:
		if now.Before(h.entered.Add(beliefDelay)) {
			return phaseDenied
		}
		return phaseBelieved
	}

	switch {
	case h.deniedBeside(other, now):
		return phaseBelieved
	case h.kind == kindNoData && other.has:
		return phaseDenied
	default:
		return phaseFailing
	}
}

// deniedBeside reports whether this family had no data for the belief delay while the other one was
// good.
func (h *history) deniedBeside(other otherFamily, now time.Time) bool {
	denied := h.noData
	if h.kind == kindNoData {
		denied.to = now
	}
	if denied.from.IsZero() || other.goodUntil.IsZero() {
		return false
	}
	if other.goodUntil.Before(denied.to) {
		denied.to = other.goodUntil
	}
	return denied.length() >= beliefDelay
}

// assessment is how far one owner may publish a history at one time.
type assessment struct {
	phase      phase
	serves     bool      // the last good answer may be published, or the seed where there is none
	conclusive bool      // the seed, if any, is superseded
	cause      string    // why the history is not current; "" = it is
	expiry     time.Time // of the last good answer, or of the seed
	next       time.Time // when time alone changes this; zero = never
}

// assess assesses the history for an owner whose seed expired at seedExpiry:
//   - A good answer serves. So does the seed while there is no result.
//   - While lookups fail, the last good answer serves until it is stale for too long.
//   - During a denial that is not believed yet it serves until it is stale for too long. If the
//     denial came straight after good answers, it serves for the whole belief delay in any case.
//   - Behind a denial that is believed nothing serves.
func (h *history) assess(other otherFamily, seedExpiry time.Time, o settings, now time.Time) assessment {
	a := assessment{phase: h.phase(other, now), conclusive: h.conclusive, expiry: h.expiry(seedExpiry, o)}
	if a.phase == phaseNew || a.phase == phaseGood {
		a.serves = true
		return a
	}

	staleEnd, beliefEnd := a.expiry.Add(o.stale), h.entered.Add(beliefDelay)
	switch a.phase {
	case phaseFailing:
		a.serves = now.Before(staleEnd)
	case phaseDenied:
		a.serves = now.Before(staleEnd) || h.followsGood() && now.Before(beliefEnd)
	case phaseBelieved:
		a.conclusive = true
	}

	since, stale := h.staleSince(other, a.expiry, o)
	if stale && !now.Before(since) {
		a.cause = h.cause
	}
	a.next = soonest(now, since, staleEnd, beliefEnd, h.noData.from.Add(beliefDelay))
	return a
}

// expiry returns the end of the last good answer's TTL, or the seed's where there is none.
func (h *history) expiry(seedExpiry time.Time, o settings) time.Time {
	if h.good.from.IsZero() {
		return seedExpiry
	}
	return h.good.end(o)
}

// staleSince returns from when on a latest result that is not good means that the history is not
// current, if ever: NXDOMAIN at once, others when the last good answer has expired. Beside a family
// that has addresses a denial is a good answer, and stays one until its TTL ends where lookups fail
// after it.
func (h *history) staleSince(other otherFamily, expiry time.Time, o settings) (since time.Time, ok bool) {
	switch denialEnd := h.latest.end(o); {
	case other.has && h.kind != kindFailed:
		return time.Time{}, false
	case h.kind == kindNXDomain:
		return time.Time{}, true
	case other.has && denialEnd.After(expiry):
		return denialEnd, true
	default:
		return expiry, true
	}
}

// visible returns the entries that are present or inside their removal delay, and when time alone
// changes that. While no good answers come, removal delays stand still.
func (h *history) visible(o settings, now time.Time) (entries []entry, next time.Time) {
	clock := now
	if h.kind != kindGood {
		clock = h.goodUntil
	}
	entries = make([]entry, 0, len(h.entries))
	for _, e := range h.entries {
		end := e.absentSince.Add(o.removalDelay)
		if e.absentSince.IsZero() || clock.Before(end) {
			entries = append(entries, e)
		}
		if !e.absentSince.IsZero() && h.kind == kindGood {
			next = soonest(now, next, end)
		}
	}
	return entries, next
}

// soonest returns the first of the times that are still to come; zero = none is.
func soonest(now time.Time, times ...time.Time) (first time.Time) {
	for _, t := range times {
		if t.After(now) && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}
