package meter

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// flipRest is the minimum time between two flips. It is longer than the operator's coalescing
// window.
const flipRest = 400 * time.Millisecond

// Flippers are targets behind one listener. A healthy one answers "ok" to a check, a sick one
// closes the connection.
type Flippers struct {
	listener net.Listener
	done     sync.WaitGroup

	mu         sync.Mutex
	sick       map[netip.Addr]bool
	shouldFlip func(netip.Addr) bool // reports whether this target shall become sick; nil: none
	flipped    netip.Addr            // the target that became sick last
	flippedAt  time.Time             // when it first answered so
	flipDone   chan struct{}         // closed once a target has become sick
}

// StartFlippers answers all connections to listener, at any address, until Close.
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

// answer decides how a target answers a check.
func (f *Flippers) answer(target netip.Addr) (healthy bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.shouldFlip != nil && f.shouldFlip(target) {
		f.shouldFlip = nil
		f.sick[target] = true
		f.flipped, f.flippedAt = target, time.Now()
		close(f.flipDone)
	}
	return !f.sick[target]
}

// flipNext makes the next wanted target that is checked sick. The channel is closed when that
// happened.
func (f *Flippers) flipNext(wanted func(netip.Addr) bool) <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flipDone = make(chan struct{})
	f.shouldFlip = func(a netip.Addr) bool { return !f.sick[a] && wanted(a) }
	return f.flipDone
}

func (f *Flippers) lastFlip() (netip.Addr, time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.flipped, f.flippedAt
}

// Flip makes n wanted targets sick, one after the other. It measures the time from the first
// failing answer until the watch has delivered the changed slice: the end of the probe, the verdict
// (if failureThreshold is 1), the plan, the write, and the delay of the watch.
func (f *Flippers) Flip(
	ctx context.Context, published *SliceWatch, n int, wanted func(netip.Addr) bool,
) (Spread, error) {
	var took Spread
	for range n {
		select {
		case <-f.flipNext(wanted):
		case <-ctx.Done():
			return nil, fmt.Errorf("%w, after %d flips", ctx.Err(), len(took))
		}
		target, since := f.lastFlip()
		at, err := published.AwaitFlip(ctx, target, since)
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
