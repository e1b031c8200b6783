package probe

import (
	"hash/fnv"
	"math/bits"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// slot returns the first regular start after t. The regular starts of an endpoint lie one period
// apart, at a place within the period that its phase alone decides: whatever happens to many
// endpoints at once, they don't bunch after it. The place is at a tick of the loop, which begins
// none between two.
func slot(t instant, period time.Duration, phase uint64) instant {
	offset := fraction(period, phase).Truncate(tick)
	n := (t - offset) / period
	if t < offset {
		n--
	}
	return (n+1)*period + offset
}

// replacedAt returns when an endpoint's kept connection was last to be replaced: one that was
// dialled earlier carries no further probes. The times lie maxReuse apart and are spread like the
// starts, but not in step with them. So endpoints that came together don't dial together ever
// after.
func replacedAt(t instant, phase uint64) instant {
	return slot(t, maxReuse, bits.RotateLeft64(phase, 32)) - maxReuse
}

// fraction returns the share of d, 0 included and d not, that phase stands for.
func fraction(d time.Duration, phase uint64) time.Duration {
	high, _ := bits.Mul64(uint64(d), phase)
	return time.Duration(high)
}

// phaseOf returns an endpoint's phase, spread evenly over all values and the same in every process.
func phaseOf(owner types.NamespacedName, id ID) uint64 {
	h := fnv.New64a()
	for _, s := range []string{owner.Namespace, owner.Name, id.Target} {
		h.Write([]byte(s))
		h.Write([]byte{0})
	}
	addr := id.Addr.As16()
	h.Write(addr[:])
	h.Write([]byte{byte(id.Port >> 8), byte(id.Port)})

	// FNV leaves the high bits of similar keys alike; two multiplications spread them.
	x := h.Sum64()
	x = (x ^ x>>32) * 0x9e3779b97f4a7c15
	x = (x ^ x>>29) * 0xbf58476d1ce4e5b9
	return x ^ x>>32
}

// queue is a binary heap of items by due time. An item knows its place, so that it can be moved and
// removed.
type queue[T queued] struct{ items []entry[T] }

// queued is an item of a queue: place is its index, -1 while it is in none.
type queued interface {
	comparable
	place() *int32
}

type entry[T queued] struct {
	due  instant
	item T
}

// next returns the earliest due time, never where the queue is empty.
func (q *queue[T]) next() instant {
	if len(q.items) == 0 {
		return never
	}
	return q.items[0].due
}

// pop removes the earliest item if it is due at now.
func (q *queue[T]) pop(now instant) (item T, due instant, ok bool) {
	if q.next() > now || len(q.items) == 0 {
		return item, 0, false
	}
	e := q.items[0]
	q.remove(e.item)
	return e.item, e.due, true
}

// set puts item at due, wherever it was before; never removes it.
func (q *queue[T]) set(item T, due instant) {
	if due == never {
		q.remove(item)
		return
	}
	i := int(*item.place())
	if i < 0 {
		i = len(q.items)
		q.items = append(q.items, entry[T]{})
	}
	q.put(i, entry[T]{due, item})
	q.down(q.up(i))
}

// remove takes item out, if it is in.
func (q *queue[T]) remove(item T) {
	i := int(*item.place())
	if i < 0 {
		return
	}
	*item.place() = -1
	end := len(q.items) - 1
	moved := q.items[end]
	q.items[end] = entry[T]{}
	q.items = q.items[:end]
	if i < end {
		q.put(i, moved)
		q.down(q.up(i))
	}
}

func (q *queue[T]) put(i int, e entry[T]) {
	q.items[i] = e
	*e.item.place() = int32(i)
}

func (q *queue[T]) up(i int) int {
	e := q.items[i]
	for i > 0 {
		parent := (i - 1) / 2
		if q.items[parent].due <= e.due {
			break
		}
		q.put(i, q.items[parent])
		i = parent
	}
	q.put(i, e)
	return i
}

func (q *queue[T]) down(i int) {
	e := q.items[i]
	for {
		child := 2*i + 1
		if child >= len(q.items) {
			break
		}
		if child+1 < len(q.items) && q.items[child+1].due < q.items[child].due {
			child++
		}
		if e.due <= q.items[child].due {
			break
		}
		q.put(i, q.items[child])
		i = child
	}
	q.put(i, e)
}
