package resolve

import (
	"cmp"
	"slices"
	"time"
)

const (
	beliefDelay = 30 * time.Second // a denial that lasts this long is believed, and takes addresses away
	maxEntries  = 8192             // in a history, those absent from the latest answer included
)

// history is the past of a record, as far as it can matter to any owner.
type history struct {
	kind     kind      // of the latest result
	at       time.Time // of the latest result
	cause    string    // of the latest result
	failures int       // in a row
	entered  time.Time // when results became of this kind
	// goodUntil is when good answers last ended; before the first good answer, when the first result
	// came.
	goodUntil time.Time

	entries  []entry // what good answers said, sorted by compareData
	omitted  int     // data of the latest good answer beyond the capacity
	capacity int     // for entries, at most maxEntries; 0 = maxEntries

	good   lifetime // of the latest good answer; zero = there is none, or a denial was believed since
	latest lifetime // of the latest answer, good or a denial
	cached bool     // the latest two answers end at the same time, so both came from one cache entry
	noData period   // the latest unbroken time of NODATA; from the belief delay on, only a good answer breaks it

	wasGood    bool // some answer was good
	conclusive bool // some answer was good, or a denial was believed: the seed is superseded
}

// entry is one datum of a good answer.
type entry struct {
	datum
	absentSince time.Time // the first good answer without it; zero = the latest good answer has it
}

// lifetime is when an answer came, and the TTL with which it came.
type lifetime struct {
	from time.Time
	ttl  time.Duration
}

// end returns when the answer expires for an owner with these settings.
func (l lifetime) end(o settings) time.Time { return l.from.Add(o.clamp(l.ttl)) }

type period struct{ from, to time.Time }

func (p period) length() time.Duration { return p.to.Sub(p.from) }

// settings are the parts of an owner's Config that assessments depend on.
type settings struct {
	minTTL, maxTTL time.Duration
	stale          time.Duration
	removalDelay   time.Duration
}

// clamp bounds a TTL by the owner's settings.
func (o settings) clamp(ttl time.Duration) time.Duration {
	return max(min(ttl, o.maxTTL), o.minTTL)
}

// apply takes over the result of a lookup, and reports whether anything but its time is new. Data
// that good answers lack are kept for keep, the longest removal delay of any owner.
func (h *history) apply(r result, now time.Time, keep time.Duration) (changed bool) {
	before := h.kind
	changed = before != r.kind || h.cause != r.cause
	h.settleDenial(now)
	h.enter(r.kind, now)
	h.at, h.cause = now, r.cause

	if r.kind == kindFailed {
		h.failures++
		return changed
	}
	h.failures = 0
	h.cached = r.kind == before && now.Add(r.ttl).Sub(h.latest.from.Add(h.latest.ttl)).Abs() <= time.Second
	h.latest = lifetime{from: now, ttl: r.ttl}

	switch r.kind {
	case kindGood:
		if before != kindGood && before != kindNone {
			h.extendRemovalDelays(now.Sub(h.goodUntil))
		}
		data := h.fit(r.data)
		omitted := len(r.data) - len(data)
		changed = h.merge(data, now, keep) || changed || h.omitted != omitted
		h.omitted = omitted
		h.good, h.wasGood, h.conclusive = h.latest, true, true
		h.noData = period{}
	case kindNoData:
		if before != kindNoData && h.noData.length() < beliefDelay {
			h.noData.from = now
		}
		h.noData.to = now
	}
	return changed
}

// settleDenial extends a denial to now, when the next result comes. It drops the data once NXDOMAIN
// is believed.
func (h *history) settleDenial(now time.Time) {
	if h.kind == kindNoData {
		h.noData.to = now
	}
	if h.kind == kindNXDomain && now.Sub(h.entered) >= beliefDelay {
		h.entries, h.good, h.conclusive = nil, lifetime{}, true
	}
}

// enter makes k the kind of the latest result.
func (h *history) enter(k kind, now time.Time) {
	if k != h.kind {
		h.entered = now
	}
	if k != kindGood && (h.kind == kindGood || h.kind == kindNone) {
		h.goodUntil = now
	}
	h.kind = k
}

// followsGood reports whether the present kind of results came straight after good answers, or is
// the first.
func (h *history) followsGood() bool { return h.entered.Equal(h.goodUntil) }

// extendRemovalDelays adds the time without good answers to removal delays: in that time, a name
// that answers in rotation could not show the absent addresses again.
func (h *history) extendRemovalDelays(by time.Duration) {
	for i := range h.entries {
		if !h.entries[i].absentSince.IsZero() {
			h.entries[i].absentSince = h.entries[i].absentSince.Add(by)
		}
	}
}

func (h *history) limit() int { return min(cmp.Or(h.capacity, maxEntries), maxEntries) }

// fit returns as much of an answer's data (sorted, each once) as the limit allows, known data
// first.
func (h *history) fit(data []datum) []datum {
	if len(data) <= h.limit() {
		return data
	}

	fitting := make([]datum, 0, h.limit())
	for _, known := range []bool{true, false} {
		for _, d := range data {
			_, ok := slices.BinarySearchFunc(h.entries, d, func(e entry, d datum) int { return compareData(e.datum, d) })
			if ok == known && len(fitting) < h.limit() {
				fitting = append(fitting, d)
			}
		}
	}
	slices.SortFunc(fitting, compareData)
	return fitting
}

// merge makes the answer's data (sorted, each once) the present ones, marks the other entries as
// absent, and drops those that have been absent for longer than keep.
func (h *history) merge(data []datum, now time.Time, keep time.Duration) (changed bool) {
	merged := make([]entry, 0, max(len(data), len(h.entries)))
	addAbsent := func(e entry) {
		if e.absentSince.IsZero() {
			e.absentSince, changed = now, true
		}
		if now.Sub(e.absentSince) < keep {
			merged = append(merged, e)
		}
	}

	old := h.entries
	for _, d := range data {
		for len(old) > 0 && compareData(old[0].datum, d) < 0 {
			addAbsent(old[0])
			old = old[1:]
		}
		same := len(old) > 0 && compareData(old[0].datum, d) == 0
		if !same || old[0] != (entry{datum: d}) {
			changed = true
		}
		if same {
			old = old[1:]
		}
		merged = append(merged, entry{datum: d})
	}
	for _, e := range old {
		addAbsent(e)
	}
	h.entries = dropLongestAbsent(merged, h.limit())
	return changed
}

// dropLongestAbsent drops the entries that have been absent longest where there are more than
// limit. The present ones are never more.
func dropLongestAbsent(entries []entry, limit int) []entry {
	excess := len(entries) - limit
	if excess <= 0 {
		return entries
	}

	var times []time.Time
	for _, e := range entries {
		if !e.absentSince.IsZero() {
			times = append(times, e.absentSince)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	last := times[excess-1]
	return slices.DeleteFunc(entries, func(e entry) bool {
		return !e.absentSince.IsZero() && !e.absentSince.After(last)
	})
}
