package resolve

import (
	"time"

	"github.com/external-backend/operator/internal/priorityqueue"
)

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
