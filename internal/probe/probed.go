package probe

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/priorityqueue"
)

// owner is one check with its endpoints.
type owner struct {
	key       types.NamespacedName
	check     *Check
	handler   *handler // replaced when the check asks something else
	rules     rules
	suspended bool
	endpoints []Endpoint // of the last Sync
	probed    []*probed  // parallel to them
}

// probed is one endpoint that is probed, with its machine.
type probed struct {
	// Guarded by Engine.mu.
	Endpoint
	owner        *owner
	machine      machine
	evidence     evidence
	consultation *consultation // nil while nobody is asked about it
	gone         bool          // no longer wanted
	queued       bool          // in one of the loop's queues
	due          instant       // when its next probe is due; where it is queued, since when its probe is due

	position priorityqueue.Position // in Engine.due

	// The loop's own.
	slow         bool          // its last probe stayed unanswered for long
	lastDuration time.Duration // how long its last success took
	attempts     *attempt      // its probes in flight, the newest first

	// The network's own.
	kept   *conn // a connection that waits for the next probe
	closes uint8 // how many kept connections in a row the peer has closed
}

// Position implements priorityqueue.Item.
func (ep *probed) Position() *priorityqueue.Position { return &ep.position }

func (ep *probed) failureDomain() failureDomain {
	addr := ep.ID.Addr.Unmap().WithZone("")
	bits := 64
	if addr.Is4() {
		bits = 24
	}
	net, _ := addr.Prefix(bits) // an invalid address has the zero one
	return failureDomain{ep.owner.key, net}
}

func (ep *probed) offset() uint64 { return offsetOf(ep.owner.key, ep.ID) }

// attempt is one probe in flight.
type attempt struct {
	probed     *probed
	handler    *handler
	endpoint   Endpoint // as it was when the probe began
	keep       bool     // its connection may be kept
	since      instant  // a connection that was dialled earlier may not carry it
	generation uint32   // of the endpoint's machine, when the probe began
	outcome    outcome  // once the probe has ended

	started   instant
	deadline  instant
	preempted bool                   // another probe took its place, so it begins again
	givenUp   bool                   // the engine itself has ended it
	position  priorityqueue.Position // in loop.inFlight
	next      *attempt               // of the same endpoint, an older one

	slow         bool     // it holds a place of loop.slow
	older, newer *attempt // of those of its namespace that hold a place

	conn *conn // the network's own
}

// Position implements priorityqueue.Item.
func (a *attempt) Position() *priorityqueue.Position { return &a.position }

// isInFlight reports whether a has not ended.
func (a *attempt) isInFlight() bool { return a.position > 0 }

// change says in which respect a check differs from the one before.
type change uint8

const (
	nothing  change = iota
	pace            // when probes begin, or how many make a verdict
	question        // what is asked; earlier answers do not count
)

// replaceCheck gives o a check, and returns in which respect it differs from the one before.
func (o *owner) replaceCheck(check *Check) change {
	difference := nothing
	if rules := check.rules(); rules != o.rules || check.Suspended != o.suspended {
		o.rules, o.suspended = rules, check.Suspended
		difference = pace
	}
	if o.check == nil || !check.asksTheSame(o.check) {
		o.handler = newHandler(check)
		difference = question
	}
	o.check = check
	return difference
}

// has reports whether endpoints is the very slice of the last Sync.
func (o *owner) has(endpoints []Endpoint) bool {
	return len(endpoints) > 0 && len(endpoints) == len(o.endpoints) && &endpoints[0] == &o.endpoints[0]
}
