// Package priorityqueue provides a queue whose first item is the one with the least key.
//
// Both engines keep their schedules in it. Items can be moved and removed, which is all that it
// adds to container/heap.
package priorityqueue

// A Queue holds items, each with a key. Set and Remove take O(log n), First takes constant time.
// The zero value is an empty queue. A Queue is not safe for concurrent use.
type Queue[K Key[K], T Item] struct{ entries []entry[K, T] } // a binary heap

// Key is a key of a Queue. time.Time is one.
type Key[K any] interface{ Before(other K) bool }

// Item is an item of a Queue. It has a Position for each queue that it may be in.
type Item interface{ Position() *Position }

// Position is where an item is in a queue. The queue alone writes it. The zero value means that the
// item is not in the queue.
type Position int32

// entry holds its key, so that comparing two entries reads no item.
type entry[K Key[K], T Item] struct {
	key  K
	item T
}

// Len returns the number of items.
func (q *Queue[K, T]) Len() int { return len(q.entries) }

// First returns the item with the least key. It reports false where the queue is empty.
func (q *Queue[K, T]) First() (item T, key K, ok bool) {
	if len(q.entries) == 0 {
		return item, key, false
	}
	return q.entries[0].item, q.entries[0].key, true
}

// PopUntil removes and returns the item with the least key, unless that key is beyond limit.
func (q *Queue[K, T]) PopUntil(limit K) (item T, key K, ok bool) {
	item, key, ok = q.First()
	if ok = ok && !limit.Before(key); ok {
		q.Remove(item)
	}
	return item, key, ok
}

// Set gives item a key, and adds the item if it is not in the queue.
func (q *Queue[K, T]) Set(item T, key K) {
	i := int(*item.Position()) - 1
	if i < 0 {
		i = len(q.entries)
		q.entries = append(q.entries, entry[K, T]{})
	}
	q.move(i, entry[K, T]{key, item})
}

// Remove removes item if it is in the queue.
func (q *Queue[K, T]) Remove(item T) {
	position := item.Position()
	i := int(*position) - 1
	if i < 0 {
		return
	}
	*position = 0

	end := len(q.entries) - 1
	last := q.entries[end]
	q.entries[end] = entry[K, T]{}
	q.entries = q.entries[:end]
	if i < end {
		q.move(i, last)
	}
}

// Rekey replaces every key with the result of f. f must keep the order of the keys.
func (q *Queue[K, T]) Rekey(f func(item T, key K) K) {
	for i, e := range q.entries {
		q.entries[i].key = f(e.item, e.key)
	}
}

// move puts e where its key belongs, beginning at the free index i.
func (q *Queue[K, T]) move(i int, e entry[K, T]) {
	for i > 0 && e.key.Before(q.entries[(i-1)/2].key) {
		q.put(i, q.entries[(i-1)/2])
		i = (i - 1) / 2
	}
	for child := 2*i + 1; child < len(q.entries); child = 2*i + 1 {
		if child+1 < len(q.entries) && q.entries[child+1].key.Before(q.entries[child].key) {
			child++
		}
		if !q.entries[child].key.Before(e.key) {
			break
		}
		q.put(i, q.entries[child])
		i = child
	}
	q.put(i, e)
}

func (q *Queue[K, T]) put(i int, e entry[K, T]) {
	q.entries[i] = e
	*e.item.Position() = Position(i + 1)
}
