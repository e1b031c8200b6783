package probe

import (
	"hash/fnv"
	"math"
	"math/bits"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/priorityqueue"
)

// instant is a point in time, as the time since one hour before the engine was made. So the zero
// instant is earlier than any delay that the engine knows, except a period.
type instant = time.Duration

const (
	epochOffset = time.Hour

	// never is later than every instant.
	never instant = math.MaxInt64

	// tick is how often the loop looks at the schedule. Probes that are due within one tick begin
	// together, which saves most of the wake-ups. No probe begins more than a tick late because of
	// it.
	tick = 5 * time.Millisecond

	// maxPatience is the upper limit of patience. An answer that takes this long leaves its endpoint
	// slow. Slow probes share half of the places.
	maxPatience = time.Second

	// maxReuse is the time between two replacements of a kept connection; see replacedAt. A connection
	// carries further probes for at most that long after its dial, so with the default period of 10 s
	// it is hardly ever used again. A server that accepts no more connections may serve the old ones
	// for ever, and so may a server with a new certificate. After that time the connection is kept
	// only to notice at once when the peer closes it.
	maxReuse = 10 * time.Second
)

// slot returns the first regular start after t. The regular starts of an endpoint are one period
// apart, and its offset alone decides where in the period they are. So endpoints do not bunch,
// whatever happens to many of them at once. A start is at a tick of the loop, because the loop
// begins no probe between two ticks.
func slot(t instant, period time.Duration, offset uint64) instant {
	first := fraction(period, offset).Truncate(tick)
	n := (t - first) / period
	if t < first {
		n--
	}
	return (n+1)*period + first
}

// replacedAt returns the last time, up to t, at which an endpoint's kept connection had to be
// replaced. A connection that was dialled earlier carries no further probes. These times are
// maxReuse apart. They are spread like the regular starts, but not in step with them, so
// endpoints that were added together do not dial together for ever.
func replacedAt(t instant, offset uint64) instant {
	return slot(t, maxReuse, bits.RotateLeft64(offset, 32)) - maxReuse
}

// fraction returns the part of d that offset stands for. It is at least 0 and less than d.
func fraction(d time.Duration, offset uint64) time.Duration {
	high, _ := bits.Mul64(uint64(d), offset)
	return time.Duration(high)
}

// offsetOf returns an endpoint's offset. Offsets are spread evenly over all values, and are the
// same in every process.
func offsetOf(owner types.NamespacedName, id ID) uint64 {
	h := fnv.New64a()
	for _, s := range []string{owner.Namespace, owner.Name, id.Target} {
		h.Write([]byte(s))
		h.Write([]byte{0})
	}
	addr := id.Addr.As16()
	h.Write(addr[:])
	h.Write([]byte{byte(id.Port >> 8), byte(id.Port)})

	// FNV leaves the high bits of similar keys alike. Two multiplications spread them.
	x := h.Sum64()
	x = (x ^ x>>32) * 0x9e3779b97f4a7c15
	x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	return x ^ x>>32
}

// schedule is a queue of items by the time at which they are due.
type schedule[T priorityqueue.Item] struct {
	priorityqueue.Queue[dueTime, T]
}

type dueTime instant

// Before implements priorityqueue.Key.
func (d dueTime) Before(other dueTime) bool { return d < other }

// next returns the earliest due time, or never where the schedule is empty.
func (s *schedule[T]) next() instant {
	if _, due, ok := s.First(); ok {
		return instant(due)
	}
	return never
}

// set schedules item at due, whether or not it was scheduled before. It removes an item that is
// never due.
func (s *schedule[T]) set(item T, due instant) {
	if due == never {
		s.Remove(item)
	} else {
		s.Set(item, dueTime(due))
	}
}
