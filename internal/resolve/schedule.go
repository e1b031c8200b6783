package resolve

import (
	"container/heap"
	"time"
)

// timer is an item of the schedule: a record's next lookup, or a question's next change by time.
// Exactly one of record and question is set.
type timer struct {
	at       time.Time
	position int // in the heap, from 1; 0 = not in it
	record   *record
	question *question
}

// schedule is a heap of timers, the earliest first.
type schedule []*timer

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].at.Before(s[j].at) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].position, s[j].position = i+1, j+1
}

// Push is for container/heap alone.
func (s *schedule) Push(x any) {
	t := x.(*timer)
	t.position = len(*s) + 1
	*s = append(*s, t)
}

// Pop is for container/heap alone.
func (s *schedule) Pop() any {
	last := len(*s) - 1
	t := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	t.position = 0
	return t
}

// set moves the timer to a time; zero removes it.
func (s *schedule) set(t *timer, at time.Time) {
	switch {
	case at.IsZero():
		if t.position > 0 {
			heap.Remove(s, t.position-1)
		}
	case t.position == 0:
		t.at = at
		heap.Push(s, t)
	case !t.at.Equal(at):
		t.at = at
		heap.Fix(s, t.position-1)
	}
}

// popDue removes and returns the earliest timer if its time has come, else it returns nil.
func (s *schedule) popDue(now time.Time) *timer {
	if len(*s) == 0 || (*s)[0].at.After(now) {
		return nil
	}
	return heap.Pop(s).(*timer)
}
