// Package fairqueue provides a queue in which keys take turns.
//
// Both engines queue their work in it under the namespace that the work is for, so that no
// namespace waits for all the work of another one. Slow probes are the exception: see slowpool.go
// in internal/probe.
package fairqueue

import "slices"

// A Queue holds items, each under a key. Pop takes one item from each key in turn, and the items of
// one key in the order of their Push. All methods take constant time, amortized. The zero value is
// an empty queue. A Queue is not safe for concurrent use.
type Queue[T any] struct {
	length int
	turns  fifo[string] // the keys that have items, the next one first
	items  map[string]*fifo[T]
}

// Len returns the number of items.
func (q *Queue[T]) Len() int { return q.length }

// LenOf returns the number of items under key.
func (q *Queue[T]) LenOf(key string) int {
	if items := q.items[key]; items != nil {
		return items.len()
	}
	return 0
}

// Push adds an item under key.
func (q *Queue[T]) Push(key string, item T) {
	items := q.items[key]
	if items == nil {
		items = &fifo[T]{}
		if q.items == nil {
			q.items = map[string]*fifo[T]{}
		}
		q.items[key] = items
		q.turns.push(key)
	}
	items.push(item)
	q.length++
}

// First returns the item that Pop would take. It reports false where the queue is empty.
func (q *Queue[T]) First() (item T, ok bool) {
	if q.length == 0 {
		return item, false
	}
	return q.items[q.turns.first()].first(), true
}

// Pop removes and returns the first item. The queue must not be empty.
func (q *Queue[T]) Pop() T {
	key := q.turns.pop()
	items := q.items[key]
	item := items.pop()
	if items.len() > 0 {
		q.turns.push(key)
	} else {
		delete(q.items, key)
	}
	q.length--
	return item
}

// fifo is a first-in, first-out queue.
type fifo[T any] struct {
	items []T
	head  int
}

func (f *fifo[T]) len() int { return len(f.items) - f.head }

func (f *fifo[T]) first() T { return f.items[f.head] }

func (f *fifo[T]) push(item T) { f.items = append(f.items, item) }

func (f *fifo[T]) pop() T {
	item := f.items[f.head]
	clear(f.items[f.head : f.head+1])
	f.head++
	if 2*f.head >= len(f.items) {
		f.items = slices.Delete(f.items, 0, f.head)
		f.head = 0
	}
	return item
}
