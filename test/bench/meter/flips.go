package meter

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// flipRest is the least rest between two flips: more than what the operator coalesces within.
const flipRest = 400 * time.Millisecond

// Flippers are targets behind one listener that say "ok" to a check while they are well, and hang
// up when they are sick.
type Flippers struct {
	listener net.Listener
	done     sync.WaitGroup

	mu       sync.Mutex
	sick     map[netip.Addr]bool
	turn     func(netip.Addr) bool // whether this target is to fall sick; nil: none is
	turned   netip.Addr            // the target that fell sick last
	turnedAt time.Time             // when it began to give the answer that says so
	turning  chan struct{}         // closed once one has
}

// StartFlippers answers what comes to listener, at whatever address, until Close.
func StartFlippers(listener net.Listener) *Flippers {
	f := &Flippers{listener: listener, sick: map[netip.Addr]bool{}}
	f.done.Go(f.serve)
	return f
}

// Close closes the listener.
func (f *Flippers) Close() {
	f.listener.Close()
	f.done.Wait()
}

func (f *Flippers) serve() {
	for {
		conn, err := f.listener.Accept()
		if err != nil {
			return // closed
		}
		f.done.Go(func() {
			defer conn.Close()
			if f.answer(conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()) {
				_, _ = conn.Write([]byte("ok\n"))
			}
		})
	}
}

// answer decides what a target says to a check.
func (f *Flippers) answer(target netip.Addr) (well bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.turn != nil && f.turn(target) {
		f.turn = nil
		f.sick[target] = true
		f.turned, f.turnedAt = target, time.Now()
		close(f.turning)
	}
	return !f.sick[target]
}

// turnNext makes sick the next wanted target that is checked. The channel is closed when it was.
func (f *Flippers) turnNext(wanted func(netip.Addr) bool) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.turning = make(chan struct{})
	f.turn = func(a netip.Addr) bool { return !f.sick[a] && wanted(a) }
	return f.turning
}

func (f *Flippers) lastTurn() (netip.Addr, time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.turned, f.turnedAt
}

// Flip lets n wanted targets, one after the other, change their answer to a check, and measures
// from that answer to the moment when the ledger's watch has delivered the slice that says so: the
// probe's end, the verdict (a check whose failureThreshold is 1 wants no more), the plan, the
// acknowledged write, and the watch's own delay.
func (f *Flippers) Flip(ctx context.Context, ledger *Ledger, n int, wanted func(netip.Addr) bool) (Spread, error) {
	var took Spread
	for range n {
		select {
		case <-f.turnNext(wanted):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w, after %d flips", ctx.Err(), len(took))
		}
		target, since := f.lastTurn()
		at, err := ledger.AwaitFlip(ctx, target, since)
		if err != nil {
			return nil, fmt.Errorf("flip of %s: %w", target, err)
		}
		took = append(took, at.Sub(since))
		select {
		case <-time.After(flipRest):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return took, nil
}
