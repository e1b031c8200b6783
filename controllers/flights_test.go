package controllers

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
)

// TestSlowWebhookDelaysNoFailoverElsewhere: a failover is fast, however many other ExternalBackends
// wait for a slow webhook.
func TestSlowWebhookDelaysNoFailoverElsewhere(t *testing.T) {
	for _, slow := range []int{4, workers, 100, maxDetached} {
		synctest.Test(t, func(t *testing.T) {
			keys := make(chan string, 1000)
			ended := make(chan time.Duration, 1)
			var f flights
			f.requeue = func(key types.NamespacedName) { keys <- key.Name }
			start := time.Now()
			webhook := func(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
				if req.Name == "failover" {
					ended <- time.Since(start)
					return ctrl.Result{}, nil
				}
				return ctrl.Result{}, withTimeout(ctx, func(ctx context.Context) error {
					select {
					case <-ctx.Done():
					case <-time.After(30 * time.Second):
					}
					return ctx.Err()
				})
			}
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			all.Go(func() { _ = f.wait(ctx) })
			for range workers {
				all.Go(func() {
					for {
						select {
						case <-ctx.Done():
							return
						case name := <-keys:
							_, _ = f.run(ctx, ctrl.Request{NamespacedName: types.NamespacedName{Name: name}}, webhook)
						}
					}
				})
			}
			for i := range slow {
				keys <- fmt.Sprint("slow-", i)
			}
			keys <- "failover"
			if took := <-ended; took > 2*time.Second {
				t.Errorf("behind %d slow ones the failover waited for %v", slow, took)
			} else {
				t.Logf("behind %d slow ones the failover waited for %v", slow, took)
			}
			cancel()
			all.Wait()
		})
	}
}

// TestDetachedReconcileHandsItsResultOver: a reconcile that goes on without its worker returns its
// error to the next one of its key. Without an error the next one runs anew, because the queue does
// not tell a key that has changed since from one whose reconcile has ended. It never runs twice at
// a time.
func TestDetachedReconcileHandsItsResultOver(t *testing.T) {
	failure := errors.New("failed")
	for _, tt := range []struct {
		name   string
		again  bool
		panics bool
		runs   int
		err    string
	}{
		{"fails", false, false, 1, "failed"},
		{"fails, and comes up meanwhile", true, false, 1, "failed"},
		{"succeeds", false, false, 2, ""},
		{"succeeds, and comes up meanwhile", true, false, 2, ""},
		{"panics", false, true, 1, "panic: ouch [recovered]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				requeued, runs := 0, 0
				f := flights{requeue: func(types.NamespacedName) { requeued++ }}
				req := ctrl.Request{NamespacedName: shop}
				do := func(ctx context.Context, _ ctrl.Request) (ctrl.Result, error) {
					if runs++; runs > 1 {
						return ctrl.Result{}, nil
					}
					over := awaiting(ctx)
					time.Sleep(time.Minute)
					over()
					if tt.panics {
						panic("ouch")
					}
					if tt.err == "" {
						return ctrl.Result{}, nil
					}
					return ctrl.Result{}, failure
				}
				start := time.Now()
				if _, err := f.run(t.Context(), req, do); err != nil || time.Since(start) != workerPatience {
					t.Errorf("returned after %v, error %v", time.Since(start), err)
				}
				if tt.again {
					if _, err := f.run(t.Context(), req, do); err != nil || runs != 1 || time.Since(start) != workerPatience {
						t.Errorf("while it goes on: run %d times, error %v", runs, err)
					}
				}

				time.Sleep(time.Minute)
				synctest.Wait()
				if requeued != 1 {
					t.Errorf("queued %d times", requeued)
				}

				_, err := f.run(t.Context(), req, do)
				if got := fmt.Sprint(err); tt.err != "" && got != tt.err || tt.err == "" && err != nil || runs != tt.runs {
					t.Errorf("run %d times, error %v", runs, err)
				}
				if len(f.byKey) > 0 || f.detached != 0 {
					t.Errorf("left are %v, %d", f.byKey, f.detached)
				}
			})
		})
	}
}
