package resolve

import (
	"context"
	"hash/maphash"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/priorityqueue"
)

const (
	// minInterval lies between two lookups of one record, whatever TTLs and owners say (RFC 9520
	// section 3.2).
	minInterval = time.Second
	// maxBackoff lies between lookups that fail (RFC 8767 section 5; RFC 9520 allows 5 min).
	maxBackoff = 30 * time.Second
)

// owner is a caller of Sync and what it wants.
type owner struct {
	key       types.NamespacedName
	upstream  *upstream
	settings  settings
	questions map[Question]*question
	hosts     int // of all service questions
	data      int // of all records that they are tied to
}

// question is one owner's question. Beside its records it remembers what was published before they
// could answer.
type question struct {
	Question
	owner *owner
	timer timer // when time alone changes the answer

	names   [2]*record             // of the name's families; without SRV
	service *record                // SRV
	hosts   map[string]*[2]*record // SRV: the families of each host

	seeds             []seed
	seedExpiry        time.Time // of all seeds
	hostsMissingSince time.Time // SRV: since when an answer's hosts have no addresses, while earlier ones had
	conclusive        bool      // SRV: all hosts of an answer were known once
	resulted          bool      // the status was something else than Pending once
	answer            Answer
}

// seed is an address that was published before. It serves until the records supersede it.
type seed struct {
	Addr
	absentSince time.Time // since when good answers lack it; zero = none came, or answers are not good now
}

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

type recordKey struct {
	name     string
	t        qtype
	upstream string
}

// timer is an item of the schedule: a record's next lookup, or a question's next change by time.
// Exactly one of record and question is set.
type timer struct {
	position priorityqueue.Position
	record   *record
	question *question
}

// Position implements priorityqueue.Item.
func (t *timer) Position() *priorityqueue.Position { return &t.position }

// schedule is a queue of timers, the earliest first.
type schedule struct {
	priorityqueue.Queue[time.Time, *timer]
}

// set moves the timer to a time; zero removes it.
func (s *schedule) set(t *timer, at time.Time) {
	if at.IsZero() {
		s.Remove(t)
	} else {
		s.Set(t, at)
	}
}

// lookupContext returns the context of the record's lookups, and of the checks that they start.
func (r *record) lookupContext(ctx context.Context) context.Context {
	if r.lookups == nil {
		r.lookups, r.cancel = context.WithCancel(ctx)
	}
	return r.lookups
}

// endLookups ends the record's lookups, so that no further query is sent.
func (r *record) endLookups() {
	if r.lookups != nil {
		r.cancel()
		r.lookups, r.cancel = nil, nil
	}
}

// refreshAt returns when an owner with these settings wants the next lookup. With soon, what the
// record lacks should be looked for again soon.
func (h *history) refreshAt(o settings, soon bool, jitter float64) time.Time {
	ttl, lower, cached := min(h.latest.ttl, o.maxTTL), o.minTTL, h.cached && h.latest.ttl < o.maxTTL
	switch h.kind {
	case kindNone:
		return h.at
	case kindGood:
	case kindFailed:
		d := lengthen(min(minInterval<<min(h.failures-1, 10), maxBackoff), 0.1*jitter)
		return h.at.Add(max(d, minInterval))
	default:
		lower = min(lower, beliefDelay*4/5)
		if soon || h.kind == kindNXDomain {
			// A denial may be asked for again before its TTL ends: RFC 2308 bounds its use from above only.
			// So a denial that would take addresses away is seen twice before it is believed.
			ttl, cached = min(ttl, beliefDelay), false
		}
	}

	d := interval(ttl, lower, o.maxTTL, jitter)
	if cached && lower < ttl {
		// A cache repeats its answer until the entry ends, and gives the time left in whole seconds.
		d = min(ttl+time.Duration((0.2+0.4*jitter)*float64(lower)), o.maxTTL)
	}
	return h.at.Add(max(d, minInterval))
}

// interval returns 81 to 90 % of the TTL, depending on jitter, which lies in [0, 1). Where that is
// less than the lower bound, it returns the lower bound and up to 1 % more, so that names with
// short TTLs drift apart too and a change is still seen in time. It never exceeds the upper bound.
func interval(ttl, lower, upper time.Duration, jitter float64) time.Duration {
	d := time.Duration(0.9 * (1 - 0.1*jitter) * float64(ttl))
	if d < lower {
		d = min(lengthen(lower, 0.01*jitter), max(lower, upper))
	}
	return d
}

// lengthen returns d and a share of it.
func lengthen(d time.Duration, share float64) time.Duration {
	return d + time.Duration(share*float64(d))
}

var jitterSeed = maphash.MakeSeed()

// jitter returns a number in [0, 1) that stays the same for the key while the process lives.
func (k recordKey) jitter() float64 {
	return float64(maphash.Comparable(jitterSeed, k)>>11) / (1 << 53)
}
