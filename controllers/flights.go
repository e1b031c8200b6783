package controllers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// workers is how many reconciles run at once. They mostly wait for the API server, so there are
	// more of them than processors. But each may hold the plan of a large ExternalBackend in
	// memory.
	workers = 16
	// workerPatience is how long a reconcile may wait for the API server in all before its worker
	// starts another one. It is shorter when many wait already, so that many slow reconciles
	// together occupy the workers hardly longer than one does.
	workerPatience = 500 * time.Millisecond
	// maxDetached bounds how many reconciles wait without a worker. All others keep theirs.
	maxDetached = 128
)

// flights runs reconciles so that none occupies a worker while it waits for a slow API server, or
// for a webhook: no failover of another ExternalBackend has to wait for it. Such a reconcile is
// detached: it continues without a worker. When it ends, its key goes into the queue once more. A
// worker then returns its error, or reconciles anew: what changed meanwhile may be waiting in the
// queue under the same key.
type flights struct {
	// requeue puts a key into the queue.
	requeue func(types.NamespacedName)

	mu       sync.Mutex
	byKey    map[types.NamespacedName]*flight
	detached int
	stopping bool           // no more are detached
	running  sync.WaitGroup // the detached ones
}

// flight is one reconcile.
type flight struct {
	patience time.Duration
	waited   time.Duration // for the API server, before the request under way
	// impatient is closed when the flight has waited for longer than its patience.
	impatient     chan struct{}
	impatientOnce sync.Once
	done          chan struct{}

	result ctrl.Result // result and err are there when done is closed
	err    error

	// ended and detached are guarded by flights.mu.
	ended, detached bool
}

type flightKey struct{}

// awaiting counts the time until the caller calls over as waiting for the API server.
func awaiting(ctx context.Context) (over func()) {
	f, ok := ctx.Value(flightKey{}).(*flight)
	if !ok {
		return func() {}
	}
	start := time.Now()
	timer := time.AfterFunc(max(0, f.patience-f.waited), func() { f.impatientOnce.Do(func() { close(f.impatient) }) })
	return func() {
		timer.Stop()
		f.waited += time.Since(start)
	}
}

// run calls do, never twice at a time for one key, and returns its result. If that takes too long,
// it returns an empty result, and has the key requeued when do has ended.
func (f *flights) run(ctx context.Context, req ctrl.Request, do reconcile.Func) (ctrl.Result, error) {
	current, err := f.begin(req.NamespacedName)
	if current == nil {
		return ctrl.Result{}, err
	}
	go f.execute(ctx, req, current, do) // run or wait waits for it
	select {
	case <-current.done:
	case <-current.impatient:
		if f.detach(current) {
			return ctrl.Result{}, nil
		}
		<-current.done
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.byKey, req.NamespacedName)
	return current.result, current.err
}

// begin returns a new flight. It returns nil if there is one that has not ended, or that has ended
// with an error, which it returns.
func (f *flights) begin(key types.NamespacedName) (*flight, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if before := f.byKey[key]; before != nil && !before.ended {
		return nil, nil
	} else if before != nil && before.err != nil {
		delete(f.byKey, key)
		return nil, before.err
	}

	if f.byKey == nil {
		f.byKey = map[types.NamespacedName]*flight{}
	}
	current := &flight{
		patience:  workerPatience / time.Duration(1+f.detached/workers),
		impatient: make(chan struct{}), done: make(chan struct{}),
	}
	f.byKey[key] = current
	return current, nil
}

// detach reports whether the flight continues without its worker.
func (f *flights) detach(current *flight) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if current.ended || f.detached >= maxDetached || f.stopping {
		return false
	}
	current.detached = true
	f.detached++
	f.running.Add(1)
	return true
}

// execute calls do and ends the flight. The key of one that was detached is requeued.
func (f *flights) execute(ctx context.Context, req ctrl.Request, current *flight, do reconcile.Func) {
	defer func() {
		if reason := recover(); reason != nil { // as controller-runtime does for its workers
			for _, handle := range utilruntime.PanicHandlers {
				handle(ctx, reason)
			}
			current.err = fmt.Errorf("panic: %v [recovered]", reason)
		}
		if f.end(current) {
			f.requeue(req.NamespacedName)
		}
	}()
	current.result, current.err = do(context.WithValue(ctx, flightKey{}, current), req)
}

// end marks a flight as ended, and reports whether it was detached.
func (f *flights) end(current *flight) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	current.ended = true
	if current.detached {
		f.detached--
		f.running.Done()
	}
	close(current.done)
	return current.detached
}

// wait returns when ctx and all detached reconciles have ended.
func (f *flights) wait(ctx context.Context) error {
	<-ctx.Done()
	f.mu.Lock()
	f.stopping = true
	f.mu.Unlock()
	f.running.Wait()
	return nil
}
