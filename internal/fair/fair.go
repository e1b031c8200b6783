// Package fair lets those who wait take turns.
package fair

import "slices"

// A Line is items that wait, each under a key. The keys take turns, and under one key what came
// first goes first, so that nobody waits for all that somebody else has put in line. All methods
// take constant time, amortized. The zero value is an empty line. It is not safe for concurrent
// use.
type Line[T any] struct {
	length int
	turns  queue[string] // the keys that wait, the next one first
	waits  map[string]*queue[T]
	spare  *queue[T] // one that is empty, for the next key
}

// Len is how many items wait.
func (l *Line[T]) Len() int { return l.length }

// Waiting is how many items wait under a key.
func (l *Line[T]) Waiting(key string) int {
	if q := l.waits[key]; q != nil {
		return q.len()
	}
	return 0
}

// Push puts an item in line.
func (l *Line[T]) Push(key string, item T) {
	q := l.waits[key]
	if q == nil {
		if q = l.spare; q == nil {
			q = &queue[T]{}
		}
		if l.spare = nil; l.waits == nil {
			l.waits = map[string]*queue[T]{}
		}
		l.waits[key] = q
		l.turns.push(key)
	}
	q.push(item)
	l.length++
}

// First returns the item whose turn it is; ok is false where nobody waits.
func (l *Line[T]) First() (item T, ok bool) {
	if l.length == 0 {
		return item, false
	}
	return l.waits[l.turns.first()].first(), true
}

// Pop takes the first item out of the line, in which there has to be one.
func (l *Line[T]) Pop() T {
	key := l.turns.pop()
	q := l.waits[key]
	item := q.pop()
	if q.len() > 0 {
		l.turns.push(key)
	} else {
		delete(l.waits, key)
		l.spare = q
	}
	l.length--
	return item
}

// queue is a first-in, first-out queue.
type queue[T any] struct {
	items []T
	head  int
}

func (q *queue[T]) len() int { return len(q.items) - q.head }

func (q *queue[T]) first() T { return q.items[q.head] }

func (q *queue[T]) push(item T) { q.items = append(q.items, item) }

func (q *queue[T]) pop() T {
	item := q.items[q.head]
	clear(q.items[q.head : q.head+1])
	q.head++
	if 2*q.head >= len(q.items) {
		q.items = slices.Delete(q.items, 0, q.head)
		q.head = 0
	}
	return item
}
