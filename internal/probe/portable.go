//go:build !linux || portable

package probe

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
)

// dialer is the network for systems without epoll. Each probe has a goroutine and a connection of
// its own. It keeps no connections.
type dialer struct {
	wakeup chan struct{}
	group  sync.WaitGroup

	mu     sync.Mutex
	events events
}

// conn is a probe in flight.
type conn struct {
	cancel context.CancelFunc
	ended  chan struct{}
	result outcome // once it has ended
}

// fileLimit returns how many files this process may have open. The engine uses half of them.
func fileLimit() int { return 8192 }

func newNetwork(int, logr.Logger) (network, error) {
	return &dialer{wakeup: make(chan struct{}, 1)}, nil
}

func (d *dialer) wake() {
	select {
	case d.wakeup <- struct{}{}:
	default:
	}
}

func (d *dialer) start(a *attempt) {
	ctx, cancel := context.WithCancel(context.Background())
	c := &conn{cancel: cancel, ended: make(chan struct{})}
	a.conn = c
	d.group.Go(func() {
		defer cancel()
		c.result = converse(ctx, a.handler, a.endpoint, nil)
		close(c.ended)
		d.mu.Lock()
		defer d.mu.Unlock()
		if ctx.Err() == nil {
			a.outcome = c.result
			d.events.ended = append(d.events.ended, a)
			d.wake()
		}
	})
}

func (d *dialer) expire(a *attempt) outcome {
	d.cancel(a)
	<-a.conn.ended
	if a.conn.result.result == unknown {
		return failed(ReasonTimeout)
	}
	return a.conn.result
}

func (d *dialer) cancel(a *attempt) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a.conn.cancel()
	d.events.ended = slices.DeleteFunc(d.events.ended, func(ended *attempt) bool { return ended == a })
}

func (d *dialer) drop(*probed) {}

func (d *dialer) wait(timeout time.Duration) events {
	var over <-chan time.Time
	if timeout >= 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		over = timer.C
	}
	select {
	case <-d.wakeup:
	case <-over:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	happened := d.events
	d.events = events{}
	return happened
}

func (d *dialer) close() { d.group.Wait() }
