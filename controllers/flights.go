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
	// more of them than processors; but each may hold the plan of a large ExternalBackend in
	// memory.
	workers = 16
	// patience is how long a reconcile may wait for the API server in all before its worker turns
	// to another one. It is shorter the more of them wait already, so that many slow ones together
	// hold the workers hardly longer than one does.
	patience = 500 * time.Millisecond
	// maxDetached bounds how many reconciles wait without a worker. Those beyond keep theirs.
	maxDetached = 128
)

// flights runs reconciles so that none holds a worker while a slow API server, or a webhook in it,
// lets it wait: a failover elsewhere is not to stand behind it. Such a reconcile goes on by itself.
// When it ends its key comes into the queue once more, to have its result taken.
type flights struct {
	// requeue has a key reconciled soon.
	requeue func(types.NamespacedName)

	mu       sync.Mutex
	byKey    map[types.NamespacedName]*flight
	detached int
	idle     chan struct{} // closed when the last detached one ends; nil as long as nobody waits for that
}

// flight is one reconcile.
type flight struct {
	patience time.Duration
	waited   time.Duration // for the API server, before the request under way
	late     chan struct{} // closed when it has waited for longer than its patience
	lateOnce sync.Once
	done     chan struct{}

	result ctrl.Result // result and err are there when done is closed
	err    error

	// landed, detached and again are guarded by flights.mu. again: the key came up meanwhile.
	landed, detached, again bool
}

type flightKey struct{}

// awaiting counts the time from now until the returned function is called as waiting for the API
// server.
func awaiting(ctx context.Context) (over func()) {
	f, ok := ctx.Value(flightKey{}).(*flight)
	if !ok {
		return func() {}
	}
	start := time.Now()
	timer := time.AfterFunc(max(0, f.patience-f.waited), func() { f.lateOnce.Do(func() { close(f.late) }) })
	return func() {
		timer.Stop()
		f.waited += time.Since(start)
	}
}

// run calls do, which never runs twice at a time for one key, and returns what came of it, or
// nothing yet where that takes too long.
func (f *flights) run(ctx context.Context, req ctrl.Request, do reconcile.Func) (ctrl.Result, error) {
	current, result, err := f.begin(req.NamespacedName)
	if current == nil {
		return result, err
	}
	go f.fly(ctx, req, current, do) // its worker waits for it, or wait does
	select {
	case <-current.done:
	case <-current.late:
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

// begin returns a new flight, or nil and what to say where there is one already: its result, where
// it has landed and nothing came up since it began.
func (f *flights) begin(key types.NamespacedName) (*flight, ctrl.Result, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if before := f.byKey[key]; before != nil && !before.landed {
		before.again = true
		return nil, ctrl.Result{}, nil
	} else if before != nil && !before.again {
		delete(f.byKey, key)
		return nil, before.result, before.err
	}
	if f.byKey == nil {
		f.byKey = map[types.NamespacedName]*flight{}
	}
	current := &flight{
		patience: patience / time.Duration(1+f.detached/workers), late: make(chan struct{}), done: make(chan struct{}),
	}
	f.byKey[key] = current
	return current, ctrl.Result{}, nil
}

// detach reports whether the flight goes on without its worker.
func (f *flights) detach(current *flight) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if current.landed || f.detached >= maxDetached || f.idle != nil {
		return false
	}
	current.detached = true
	f.detached++
	return true
}

func (f *flights) fly(ctx context.Context, req ctrl.Request, current *flight, do reconcile.Func) {
	defer func() {
		if reason := recover(); reason != nil { // as controller-runtime does where it can
			for _, handle := range utilruntime.PanicHandlers {
				handle(ctx, reason)
			}
			current.err = fmt.Errorf("panic: %v [recovered]", reason)
		}
		f.mu.Lock()
		current.landed = true
		detached := current.detached
		if detached {
			f.detached--
			f.closeIdle()
		}
		f.mu.Unlock()
		close(current.done)
		if detached {
			f.requeue(req.NamespacedName)
		}
	}()
	current.result, current.err = do(context.WithValue(ctx, flightKey{}, current), req)
}

// wait returns when ctx has ended, and all reconciles without a worker with it.
func (f *flights) wait(ctx context.Context) error {
	<-ctx.Done()
	f.mu.Lock()
	f.idle = make(chan struct{})
	f.closeIdle()
	f.mu.Unlock()
	<-f.idle
	return nil
}

// closeIdle is called with mu held.
func (f *flights) closeIdle() {
	if f.idle != nil && f.detached == 0 {
		close(f.idle)
	}
}
