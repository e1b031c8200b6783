package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/probe"
)

// forbidden is how a quota or a webhook refuses.
func forbidden(o client.Object) error {
	return apierrors.NewForbidden(
		schema.GroupResource{Resource: "endpointslices"},
		o.GetName(),
		errors.New("denied the request"),
	)
}

// TestDeniedSlices: where slices may not be created one is tried, and that less and less often;
// within half a minute after they may they are there.
func TestDeniedSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTestEnv(t)
		setAnswer(1, 200)(env)
		setVerdict(probe.Healthy, 1, 200)(env)
		tries := 0
		env.refuse = func(o client.Object) error {
			if s, ok := o.(*discoveryv1.EndpointSlice); ok && s.UID == "" {
				tries++
				return forbidden(o)
			}
			return nil
		}
		env.spec(poolSpec)
		var pauses []time.Duration
		for range 9 {
			tries = 0
			result, err := env.reconcile()
			if tries != 1 || err != nil {
				t.Errorf("%d slices tried, error %v", tries, err)
			}
			pauses = append(pauses, result.RequeueAfter/time.Second)
			time.Sleep(result.RequeueAfter)
		}
		if want := []time.Duration{1, 2, 4, 3, 16, 30, 30, 30, 30}; !slices.Equal(pauses, want) { // 3: a status is due
			t.Errorf("tried again after %d s, want %d", pauses, want)
		}
		env.expect(v1alpha1.ConditionProgrammed, "False ApplyFailed")
		env.refuse = nothing
		env.settle()
		if n := len(env.endpoints()); n != 199 {
			t.Errorf("%d endpoints", n)
		}
		env.refuse = newSlices
		setAnswer(1, 220)(env)
		if result, err := env.reconcile(); err != nil || result.RequeueAfter > time.Second {
			t.Errorf("after a success a new refusal is tried again after %v, error %v", result.RequeueAfter, err)
		}
	})
}

// TestSomeSlicesDenied: a webhook that refuses some slices for what is in them keeps none of the
// others from being created.
func TestSomeSlicesDenied(t *testing.T) {
	env := newTestEnv(t)
	setAnswer(1, 100)(env)
	setVerdict(probe.Healthy, 1, 100)(env)
	var tried []string
	env.refuse = func(o client.Object) error {
		s, ok := o.(*discoveryv1.EndpointSlice)
		if !ok || s.UID != "" {
			return nil
		}
		for _, e := range s.Endpoints {
			if a := e.Addresses[0]; a == "203.0.113.1" || a == "203.0.113.50" {
				tried = append(tried, a)
				return forbidden(o)
			}
		}
		return nil
	}
	env.spec(poolSpec)
	for range 3 {
		_, _ = env.reconcile()
	}
	if n := len(env.endpoints()); n != 93 {
		t.Errorf("after three tries %d endpoints stand, want all 99 but the six in two slices", n)
	}
	tried = nil
	for range 4 {
		_, _ = env.reconcile()
	}
	slices.Sort(tried)
	if want := []string{"203.0.113.1", "203.0.113.1", "203.0.113.50", "203.0.113.50"}; !slices.Equal(tried, want) {
		t.Errorf("tried are %v, want both in turn", tried)
	}
}

// slow is an API server that takes its time, or never answers, for writes of some kind.
type slow struct {
	client.Client
	create, update time.Duration
}

func (s slow) wait(ctx context.Context, o client.Object, long time.Duration) error {
	if _, ok := o.(*discoveryv1.EndpointSlice); !ok || long == 0 {
		return nil
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(long):
		return nil
	}
}

func (s slow) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	if err := s.wait(ctx, o, s.create); err != nil {
		return err
	}
	return s.Client.Create(ctx, o, options...)
}

func (s slow) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	if err := s.wait(ctx, o, s.update); err != nil {
		return err
	}
	return s.Client.Update(ctx, o, options...)
}

// slowEnv returns a testEnv with such an API server.
func slowEnv(t *testing.T, s slow) *testEnv {
	env := newTestEnv(t)
	s.Client = env.reconciler.Client
	env.reconciler.Client = timeoutClient{s}
	env.reconciler.flights.requeue = func(types.NamespacedName) {}
	return env
}

// through is one reconcile, waited for to the end.
func (env *testEnv) through() (ctrl.Result, error) {
	env.refresh()
	return env.reconciler.reconcile(env.t.Context(), ctrl.Request{NamespacedName: shop})
}

// TestHungWrites: writes that hang take no time from others: each has its own, and of creations
// that nobody answers one is tried.
func TestHungWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := slowEnv(t, slow{create: time.Hour})
		setAnswer(1, 100)(env)
		setVerdict(probe.Healthy, 1, 100)(env)
		env.spec(poolSpec)
		start := time.Now()
		if _, err := env.through(); err == nil {
			t.Error("it is not tried again")
		}
		if took := time.Since(start); took != requestTimeout {
			t.Errorf("it took %v", took)
		}
		env.expect(
			v1alpha1.ConditionProgrammed,
			"False ApplyFailed: EndpointSlices can't be written: the API server can't be reached",
		)
	})
}

// TestSlowUpdates: a plan that takes long to write gives way to a new one, which sees what has come
// up since.
func TestSlowUpdates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := slowEnv(t, slow{update: 10 * time.Second})
		setAnswer(1, 31)(env)
		setVerdict(probe.Healthy, 1, 31)(env)
		env.spec(poolSpec)
		_, err := env.through()
		env.ok(err)
		setVerdict(probe.Unhealthy, 1, 31)(env)
		setVerdict(probe.Healthy, 30, 31)(env) // so that no other endpoint has to stand in
		for n := 1; ; n++ {
			start := time.Now()
			result, err := env.through()
			env.ok(err)
			took := time.Since(start)
			if took > writesTimeout+10*time.Second {
				t.Fatalf("a reconcile took %v", took)
			}
			if result.RequeueAfter != time.Millisecond {
				break
			}
			if took < writesTimeout || n > 10 {
				t.Fatalf("reconcile %d gave up after %v", n, took)
			}
			env.expect(v1alpha1.ConditionProgrammed, "False ApplyFailed: EndpointSlices are still being written")
		}
		env.expectReady("http", "203.0.113.30")
	})
}

// TestSlowHoldNobody: however many ExternalBackends wait for a slow webhook, a failover elsewhere
// is not held by them.
func TestSlowHoldNobody(t *testing.T) {
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

// TestFlightLands: what came of a reconcile that went on without its worker is returned to the next
// one of its key; it never runs twice at a time, and runs once more where its key came up
// meanwhile.
func TestFlightLands(t *testing.T) {
	failure := errors.New("failed")
	for _, tt := range []struct {
		name   string
		again  bool
		panics bool
		runs   int
		err    string
	}{
		{"untouched", false, false, 1, "failed"},
		{"came up meanwhile", true, false, 2, ""},
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
					return ctrl.Result{}, failure
				}
				start := time.Now()
				if _, err := f.run(t.Context(), req, do); err != nil || time.Since(start) != patience {
					t.Errorf("returned after %v, error %v", time.Since(start), err)
				}
				if tt.again {
					if _, err := f.run(t.Context(), req, do); err != nil || runs != 1 || time.Since(start) != patience {
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
