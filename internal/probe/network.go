package probe

import (
	"time"

	"github.com/external-backend/operator/internal/priorityqueue"
)

// network runs probes. The loop's goroutine alone calls its methods, except wake.
type network interface {
	// start begins a probe. wait returns its end, once, unless the probe is expired or cancelled
	// before.
	start(a *attempt)
	// expire ends a probe whose time is over, and judges it.
	expire(a *attempt) outcome
	// cancel ends a probe.
	cancel(a *attempt)
	// drop closes the connection that is kept for t, if there is one.
	drop(t *target)
	// wait returns when something has happened, when wake was called, or after d. Where d is negative
	// there is no such limit. The result is valid until the next call.
	wait(d time.Duration) events
	// wake makes wait return, now or when it is called next. It never blocks.
	wake()
	// close frees everything, and returns once all goroutines have ended. The loop has cancelled and
	// dropped everything before.
	close()
}

// events are what wait returns.
type events struct {
	ended  []*attempt // with their outcomes
	redial []*attempt // to be started again: the kept connection was closed before it took the probe
	hints  []*target  // the peer has closed the kept connection
}

// attempt is one probe in flight.
type attempt struct {
	target     *target
	handler    *handler
	endpoint   Endpoint // as it was when the probe began
	keep       bool     // its connection may be kept
	since      instant  // a connection that was dialled earlier may not carry it
	generation uint32   // of the target's machine, when the probe began
	outcome    outcome  // once the probe has ended

	started   instant
	deadline  instant
	preempted bool                   // another probe took its place, so it begins again
	givenUp   bool                   // the engine itself has ended it
	position  priorityqueue.Position // in loop.inFlight
	next      *attempt               // of the same target, an older one

	slow         bool     // it holds a place of loop.slow
	older, newer *attempt // of those of its namespace that hold a place

	conn *conn // the network's own
}

// Position implements priorityqueue.Item.
func (a *attempt) Position() *priorityqueue.Position { return &a.position }

// isInFlight reports whether a has not ended.
func (a *attempt) isInFlight() bool { return a.position > 0 }
