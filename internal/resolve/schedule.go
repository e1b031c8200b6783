package resolve

import (
	"container/heap"
	"time"
)

// timer is a place in the schedule: of a record's next lookup, or of a question's next change by
// time. The owner of the timer is one of record and question.
type timer struct {
	at       time.Time
	place    int // in the heap, from 1; 0 = not in it
	record   *record
	question *question
}

// schedule is a heap of timers, the earliest first.
type schedule []*timer

func (s schedule) Len() int           { return len(s) }
func (s schedule) Less(i, j int) bool { return s[i].at.Before(s[j].at) }
func (s schedule) Swap(i, j int) {
	s[i], s[j] = s[j], s[i]
	s[i].place, s[j].place = i+1, j+1
}

// Push is for container/heap alone.
func (s *schedule) Push(x any) {
	t := x.(*timer)
	t.place = len(*s) + 1
	*s = append(*s, t)
}

// Pop is for container/heap alone.
func (s *schedule) Pop() any {
	last := len(*s) - 1
	t := (*s)[last]
	(*s)[last] = nil
	*s = (*s)[:last]
	t.place = 0
	return t
}

// set moves the timer to a time; zero takes it out.
func (s *schedule) set(t *timer, at time.Time) {
	switch {
	case at.IsZero():
		if t.place > 0 {
			heap.Remove(s, t.place-1)
		}
	case t.place == 0:
		t.at = at
		heap.Push(s, t)
	case !t.at.Equal(at):
		t.at = at
		heap.Fix(s, t.place-1)
	}
}

// due takes the earliest timer out if its time has come.
func (s *schedule) due(now time.Time) *timer {
	if len(*s) == 0 || (*s)[0].at.After(now) {
		return nil
	}
	return heap.Pop(s).(*timer)
}
