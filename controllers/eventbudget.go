package controllers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// Each object gets at most maxEvents events per eventWindow. Events about single endpoints are
// admitted only while fewer than maxEndpointEvents of any kind have been, so that there is always
// room for more important ones. The rest is counted and summed up in one event. The log has a
// budget of the same size.
const (
	maxEvents         = 10
	maxEndpointEvents = 7
	eventWindow       = time.Minute
)

// eventBudget counts the events of one object in the current window.
type eventBudget struct {
	start    time.Time // of the window
	admitted int
	omitted  map[string]int // by reason
}

// summaryDue returns when the omitted events can be summed up; zero if there are none.
func (b *eventBudget) summaryDue() time.Time {
	if len(b.omitted) == 0 {
		return time.Time{}
	}
	return b.start.Add(eventWindow)
}

// admit returns the events that the budget has room for. If a window has ended, a summary of the
// events that it omitted comes first.
func (b *eventBudget) admit(events []pendingEvent, now time.Time) []pendingEvent {
	if now.Sub(b.start) >= eventWindow {
		if len(b.omitted) > 0 {
			events = append([]pendingEvent{b.summary()}, events...)
		}
		*b = eventBudget{start: now, omitted: map[string]int{}}
	}

	var out []pendingEvent
	for _, e := range events {
		if b.admitted >= maxEvents || e.perEndpoint && b.admitted >= maxEndpointEvents {
			b.omitted[e.reason]++
			continue
		}
		b.admitted++
		out = append(out, e)
	}
	return out
}

// summary counts the omitted events by reason.
func (b *eventBudget) summary() pendingEvent {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(b.omitted)) {
		parts = append(parts, fmt.Sprintf("%d %s", b.omitted[reason], reason))
	}
	return normalEvent(eventSummary, "Reconcile", "More events in the minute before: %s.", strings.Join(parts, ", "))
}
