package main

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

// ledger is what a watch has seen of the operator's slices.
type ledger struct {
	watch watch.Interface
	done  sync.WaitGroup

	mu        sync.Mutex
	slices    map[client.ObjectKey]map[netip.Addr]bool // serving
	endpoints int
	serving   int
	writes    map[watch.EventType]int
	flips     map[netip.Addr]time.Time // when an endpoint's serving was last seen to change
	news      chan struct{}            // closed and made anew with each event
	err       error
}

func watchSlices(ctx context.Context, c client.WithWatch) (*ledger, error) {
	w, err := c.Watch(ctx, &discoveryv1.EndpointSliceList{}, client.MatchingLabels{discoveryv1.LabelManagedBy: v1alpha1.ManagedBy})
	if err != nil {
		return nil, err
	}
	l := &ledger{watch: w, slices: map[client.ObjectKey]map[netip.Addr]bool{}, writes: map[watch.EventType]int{},
		flips: map[netip.Addr]time.Time{}, news: make(chan struct{})}
	l.done.Go(l.read)
	return l, nil
}

func (l *ledger) close() {
	l.watch.Stop()
	l.done.Wait()
}

func (l *ledger) read() {
	for event := range l.watch.ResultChan() {
		l.note(event, time.Now())
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.err = fmt.Errorf("the watch of slices has ended")
	close(l.news)
	l.news = make(chan struct{})
}

func (l *ledger) note(event watch.Event, at time.Time) {
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
		if was, known := before[addr]; known && was != serving {
			l.flips[addr] = at
		}
	}
	l.slices[key] = after
	close(l.news)
	l.news = make(chan struct{})
}

func trues(m map[netip.Addr]bool) (n int) {
	for _, is := range m {
		if is {
			n++
		}
	}
	return n
}

// await waits until the slices hold so many endpoints, of which so many serve, and says when that was seen.
func (l *ledger) await(ctx context.Context, endpoints, serving int) (time.Time, error) {
	var at time.Time
	err := l.until(ctx, func() bool { at = time.Now(); return l.endpoints == endpoints && l.serving >= serving })
	if err != nil {
		haveEndpoints, haveServing := l.size()
		err = fmt.Errorf("%w, with %d endpoints of %d, %d serving of %d", err, haveEndpoints, endpoints, haveServing, serving)
	}
	return at, err
}

// awaitFlip waits until an endpoint's serving has changed after since, and says when that was seen.
func (l *ledger) awaitFlip(ctx context.Context, target netip.Addr, since time.Time) (at time.Time, err error) {
	err = l.until(ctx, func() bool { at = l.flips[target]; return at.After(since) })
	return at, err
}

func (l *ledger) until(ctx context.Context, content func() bool) error {
	for {
		l.mu.Lock()
		is, news, err := content(), l.news, l.err
		l.mu.Unlock()
		switch {
		case is:
			return nil
		case err != nil:
			return err
		}
		select {
		case <-news:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// size is how many endpoints are published and serve.
func (l *ledger) size() (endpoints, serving int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.endpoints, l.serving
}

// count is how many events of each type were seen.
func (l *ledger) count() map[watch.EventType]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.writes)
}
