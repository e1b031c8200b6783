package probe

import (
	"errors"
	"syscall"
	"time"
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
	// drop closes the connection that is kept for ep, if there is one.
	drop(ep *probed)
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
	hints  []*probed  // the peer has closed the kept connection
}

// dialOutcome returns the outcome of a probe that failed at once, because there was no socket or
// the connection could not begin. It is unknown where this host has no route (ENETUNREACH), or
// forbids the connection (EACCES: a prohibiting route, or a filter of system calls), because
// nothing was sent to the endpoint.
func dialOutcome(err error) outcome {
	if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.ENETUNREACH) {
		return outcome{}
	}
	return socketOutcome(err)
}
