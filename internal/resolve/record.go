package resolve

import (
	"cmp"
	"context"
	"hash/maphash"
	"slices"
	"time"
)

const (
	beliefDelay = 30 * time.Second // a denial that lasts this long is believed, and takes addresses away
	// between two lookups of one record, whatever TTLs and owners say (RFC 9520 section 3.2)
	minInterval = time.Second
	maxBackoff  = 30 * time.Second // between lookups that fail (RFC 8767 section 5; RFC 9520 allows 5 min)
	maxKept     = 8192             // data of a record, those absent from the latest answer included
)

// record is what is known of one name and type at one upstream, shared by all owners that want it.
type record struct {
	recordKey
	history
	up    *upstream
	timer timer // the next lookup, or the end of a record that nobody wants
	users map[*question]struct{}
	busy  bool // waiting for a worker or with one
	slow  bool // the latest lookup took long

	lookups context.Context // ends when nobody wants the record any more; nil before the first lookup
	cancel  context.CancelFunc
}

// lookupContext is for the record's lookups, and for what they leave under way.
func (r *record) lookupContext(ctx context.Context) context.Context {
	if r.lookups == nil {
		r.lookups, r.cancel = context.WithCancel(ctx)
	}
	return r.lookups
}

// endLookups lets no further question be sent.
func (r *record) endLookups() {
	if r.lookups != nil {
		r.cancel()
		r.lookups, r.cancel = nil, nil
	}
}

// class is the line that the record's next lookup stands in.
func (r *record) class() class {
	switch {
	case r.kind == kindNone:
		return classNew
	case r.kind == kindFailed, r.slow:
		return classSlow
	default:
		return classKnown
	}
}

type recordKey struct {
	name     string
	t        qtype
	upstream string
}

// history is a record's past, as far as it can matter to any owner.
type history struct {
	entries []entry       // sorted by compareData: what good answers said
	room    int           // for entries, at most maxKept; 0 = maxKept
	omitted int           // data of the latest good answer that there was no room for
	goodAt  time.Time     // the latest good answer; zero = none that is still believed
	ttl     time.Duration // of the latest answer that has one: good, or a denial
	cached  bool          // that answer ends when the one before does: a cache gave it twice
	goodTTL time.Duration // of the latest good answer

	kind     kind      // of the latest result
	at       time.Time // of the latest result
	saidAt   time.Time // of the latest result that was no failure
	since    time.Time // since when results have been of this kind
	badSince time.Time // since when results have not been good
	failures int       // in a row
	cause    string

	// The latest unbroken time of NODATA; it outlasts a failure behind it.
	noDataFrom, noDataTo time.Time

	wasGood bool // some answer was good
	settled bool // some answer was good, or a denial was believed
}

// entry is one datum of a good answer.
type entry struct {
	datum
	gone time.Time // of the first good answer that lacked it; zero = the latest one has it
}

// apply takes over a lookup's result and says whether anything but its time is new. Data absent
// from good answers is kept for keep, the longest removal delay of any owner.
func (h *history) apply(r result, now time.Time, keep time.Duration) (changed bool) {
	before := h.kind
	changed = before != r.kind || h.cause != r.cause
	h.leave(now)
	h.at, h.cause = now, r.cause
	if r.kind != kindFailed {
		h.cached = r.kind == before && now.Add(r.ttl).Sub(h.saidAt.Add(h.ttl)).Abs() <= time.Second
		h.ttl, h.saidAt, h.failures = r.ttl, now, 0
	}
	switch r.kind {
	case kindGood:
		if before != kindGood && before != kindNone {
			h.thaw(now.Sub(h.badSince))
		}
		data := h.fit(r.data)
		omitted := len(r.data) - len(data)
		changed = h.merge(data, now, keep) || changed || h.omitted != omitted
		h.omitted = omitted
		h.goodAt, h.goodTTL, h.wasGood, h.settled = now, r.ttl, true, true
		h.noDataFrom, h.noDataTo = time.Time{}, time.Time{}
	case kindNoData:
		if h.noDataTo.Sub(h.noDataFrom) < beliefDelay && before != kindNoData {
			h.noDataFrom = now
		}
		h.noDataTo = now
	case kindFailed:
		h.failures++
	}
	if r.kind != before {
		h.since = now
	}
	if r.kind != kindGood && (before == kindGood || before == kindNone) {
		h.badSince = now
	}
	h.kind = r.kind
	return changed
}

// leave settles what the time since the latest result has made of it: a denial that was believed
// stays so.
func (h *history) leave(now time.Time) {
	if h.kind == kindNoData {
		h.noDataTo = now
	}
	if h.kind == kindNXDomain && now.Sub(h.since) >= beliefDelay {
		h.entries, h.goodAt, h.settled = nil, time.Time{}, true
	}
}

// thaw moves removal delays by the time without good answers: rotation had no chance to show what
// it holds.
func (h *history) thaw(by time.Duration) {
	for i := range h.entries {
		if !h.entries[i].gone.IsZero() {
			h.entries[i].gone = h.entries[i].gone.Add(by)
		}
	}
}

func (h *history) limit() int { return min(cmp.Or(h.room, maxKept), maxKept) }

// fit leaves of an answer's data (sorted, each once) what there is room for: that which is known
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

// merge makes the answer's data (sorted, each once) the present one, marks what it lacks as gone,
// and forgets what has been gone for longer than keep.
func (h *history) merge(data []datum, now time.Time, keep time.Duration) (changed bool) {
	merged := make([]entry, 0, max(len(data), len(h.entries)))
	old := h.entries
	for _, d := range data {
		for len(old) > 0 && compareData(old[0].datum, d) < 0 {
			merged, changed = appendGone(merged, old[0], now, keep, changed)
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
		merged, changed = appendGone(merged, e, now, keep, changed)
	}
	h.entries = bounded(merged, h.limit())
	return changed
}

func appendGone(to []entry, e entry, now time.Time, keep time.Duration, changed bool) ([]entry, bool) {
	if e.gone.IsZero() {
		e.gone, changed = now, true
	}
	if now.Sub(e.gone) < keep {
		to = append(to, e)
	}
	return to, changed
}

// bounded drops the entries that have been gone longest where there are too many.
func bounded(entries []entry, most int) []entry {
	excess := len(entries) - most
	if excess <= 0 {
		return entries
	}
	var times []time.Time
	for _, e := range entries {
		if !e.gone.IsZero() {
			times = append(times, e.gone)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	limit := times[excess-1] // one answer holds no more than that
	return slices.DeleteFunc(entries, func(e entry) bool {
		return !e.gone.IsZero() && !e.gone.After(limit)
	})
}

// refresh returns when an owner with these settings wants the next lookup. needed says whether the
// return of what this record lacks should be seen soon.
func (h *history) refresh(o settings, needed bool, jitter float64) time.Time {
	ttl, lower, cached := min(h.ttl, o.maxTTL), o.minTTL, h.cached && h.ttl < o.maxTTL
	switch h.kind {
	case kindNone:
		return h.at
	case kindGood:
	case kindFailed:
		d := spread(min(minInterval<<min(h.failures-1, 10), maxBackoff), 0.1*jitter)
		return h.at.Add(max(d, minInterval))
	default:
		lower = min(lower, beliefDelay*4/5)
		if needed || h.kind == kindNXDomain {
			// Nobody loses by asking before a denial's TTL is over (RFC 2308 bounds its use from above), and
			// one that would take addresses away is so heard twice before it is believed.
			ttl, cached = min(ttl, beliefDelay), false
		}
	}

	d := interval(ttl, lower, o.maxTTL, jitter)
	if cached && lower < ttl {
		// A cache says the same until its entry ends, and tells the time left in whole seconds.
		d = min(ttl+time.Duration((0.2+0.4*jitter)*float64(lower)), o.maxTTL)
	}
	return h.at.Add(max(d, minInterval))
}

// interval is 81 to 90% of the TTL, by jitter from [0, 1), or where that is less than the lower
// bound up to 1% more than that: names whose TTLs are short drift apart all the same, and a change
// is seen in time. It never exceeds the upper bound.
func interval(ttl, lower, upper time.Duration, jitter float64) time.Duration {
	d := time.Duration(0.9 * (1 - 0.1*jitter) * float64(ttl))
	if d < lower {
		d = min(spread(lower, 0.01*jitter), max(lower, upper))
	}
	return d
}

// spread lengthens d by a share of it.
func spread(d time.Duration, share float64) time.Duration {
	return d + time.Duration(share*float64(d))
}

var jitterSeed = maphash.MakeSeed()

// jitter is the key's own place in [0, 1), the same for the life of the process.
func (k recordKey) jitter() float64 {
	return float64(maphash.Comparable(jitterSeed, k)>>11) / (1 << 53)
}
