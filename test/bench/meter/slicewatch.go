package meter

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
)

// SliceWatch watches the operator's slices and counts what it sees.
type SliceWatch struct {
	watch watch.Interface
	done  sync.WaitGroup

	mu        sync.Mutex
	slices    map[client.ObjectKey]map[netip.Addr]bool // whether each endpoint is serving
	endpoints int
	serving   int
	writes    map[watch.EventType]int
	flips     map[netip.Addr]time.Time // when the watch last saw a change of serving
	came      map[netip.Addr]time.Time // when the watch last saw an address appear in a slice
	changed   chan struct{}            // closed and replaced with each event
	err       error
}

// WatchSlices starts a watch. The caller closes it.
func WatchSlices(ctx context.Context, c client.WithWatch) (*SliceWatch, error) {
	w, err := c.Watch(ctx, &discoveryv1.EndpointSliceList{},
		client.MatchingLabels{discoveryv1.LabelManagedBy: v1alpha1.ManagedBy})
	if err != nil {
		return nil, err
	}
	l := &SliceWatch{watch: w, slices: map[client.ObjectKey]map[netip.Addr]bool{}, writes: map[watch.EventType]int{},
		flips: map[netip.Addr]time.Time{}, came: map[netip.Addr]time.Time{}, changed: make(chan struct{})}
	l.done.Go(l.read)
	return l, nil
}

// Close ends the watch.
func (l *SliceWatch) Close() {
	l.watch.Stop()
	l.done.Wait()
}

func (l *SliceWatch) read() {
	for event := range l.watch.ResultChan() {
		l.note(event, time.Now())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = fmt.Errorf("the watch of slices has ended")
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *SliceWatch) note(event watch.Event, at time.Time) {
	slice, ok := event.Object.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	key := client.ObjectKeyFromObject(slice)
	after := map[netip.Addr]bool{}
	if event.Type != watch.Deleted {
		for _, e := range slice.Endpoints {
			after[netip.MustParseAddr(e.Addresses[0])] = *e.Conditions.Serving
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes[event.Type]++
	before := l.slices[key]
	l.endpoints += len(after) - len(before)
	l.serving += trues(after) - trues(before)
	for addr, serving := range after {
		switch was, known := before[addr]; {
		case !known:
			l.came[addr] = at
		case was != serving:
			l.flips[addr] = at
		}
	}
	l.slices[key] = after
	close(l.changed)
	l.changed = make(chan struct{})
}

func trues(m map[netip.Addr]bool) (n int) {
	for _, is := range m {
		if is {
			n++
		}
	}
	return n
}

// Await waits until the slices have this many endpoints, of which at least so many serve, and
// returns when it saw that.
func (l *SliceWatch) Await(ctx context.Context, endpoints, serving int) (time.Time, error) {
	var at time.Time
	err := l.until(ctx, func() bool { at = time.Now(); return l.endpoints == endpoints && l.serving >= serving })
	if err != nil {
		haveEndpoints, haveServing := l.size()
		err = fmt.Errorf("%w, with %d endpoints of %d, %d serving of %d", err, haveEndpoints, endpoints, haveServing, serving)
	}
	return at, err
}

// AwaitFlip waits until an endpoint's serving has changed after since, and returns when it saw
// that.
func (l *SliceWatch) AwaitFlip(ctx context.Context, target netip.Addr, since time.Time) (at time.Time, err error) {
	err = l.until(ctx, func() bool { at = l.flips[target]; return at.After(since) })
	return at, err
}

// AwaitAddress waits until an address is published, and returns when it saw that.
func (l *SliceWatch) AwaitAddress(ctx context.Context, addr netip.Addr) (at time.Time, err error) {
	err = l.until(ctx, func() (is bool) { at, is = l.came[addr]; return is })
	return at, err
}

func (l *SliceWatch) until(ctx context.Context, condition func() bool) error {
	for {
		l.mu.Lock()
		is, changed, err := condition(), l.changed, l.err
		l.mu.Unlock()
		switch {
		case is:
			return nil
		case err != nil:
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// size returns how many endpoints are published, and how many serve.
func (l *SliceWatch) size() (endpoints, serving int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.endpoints, l.serving
}

// Count returns how many events of each type the watch has seen.
func (l *SliceWatch) Count() map[watch.EventType]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.writes)
}
