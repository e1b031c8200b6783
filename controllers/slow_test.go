package controllers

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/probe"
)

// slowClient is a client of an API server that takes its time, or never answers, for writes of
// slices.
type slowClient struct {
	client.Client
	create, update time.Duration
}

func (s slowClient) wait(ctx context.Context, o client.Object, long time.Duration) error {
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

func (s slowClient) Create(ctx context.Context, o client.Object, options ...client.CreateOption) error {
	if err := s.wait(ctx, o, s.create); err != nil {
		return err
	}
	return s.Client.Create(ctx, o, options...)
}

func (s slowClient) Update(ctx context.Context, o client.Object, options ...client.UpdateOption) error {
	if err := s.wait(ctx, o, s.update); err != nil {
		return err
	}
	return s.Client.Update(ctx, o, options...)
}

// slowEnv returns a testEnv with such an API server.
func slowEnv(t *testing.T, s slowClient) *testEnv {
	env := newTestEnv(t)
	s.Client = env.reconciler.Client
	env.reconciler.Client = boundedClient{s, env.reconciler.mayWrite}
	env.reconciler.flights.requeue = func(types.NamespacedName) {}
	return env
}

// TestEachWriteHasItsOwnTimeout: a write that hangs takes no time from others. Of creations that
// nobody answers only one is tried.
func TestEachWriteHasItsOwnTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := slowEnv(t, slowClient{create: time.Hour})
		setAnswer(1, 100)(env)
		setVerdict(probe.Healthy, 1, 100)(env)
		env.spec(poolSpec)
		start := time.Now()
		if _, err := env.reconcileToEnd(); err == nil {
			t.Error("it is not tried again")
		}
		if took := time.Since(start); took != requestTimeout {
			t.Errorf("it took %v", took)
		}
		env.expectCondition(v1alpha1.ConditionProgrammed,
			"False ApplyFailed: EndpointSlices can't be written: the API server can't be reached")
	})
}

// TestSlowPlanGivesWayToANewerOne: a plan that takes long to write ends, and the next one sees what
// has changed since.
func TestSlowPlanGivesWayToANewerOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := slowEnv(t, slowClient{update: 10 * time.Second})
		setAnswer(1, 31)(env)
		setVerdict(probe.Healthy, 1, 31)(env)
		env.spec(poolSpec)
		_, err := env.reconcileToEnd()
		env.ok(err)
		setVerdict(probe.Unhealthy, 1, 31)(env)
		setVerdict(probe.Healthy, 30, 31)(env) // one stays healthy
		for n := 1; ; n++ {
			start := time.Now()
			result, err := env.reconcileToEnd()
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
			env.expectCondition(v1alpha1.ConditionProgrammed, "False ApplyFailed: EndpointSlices are still being written")
		}
		env.expectReady("http", "203.0.113.30")
	})
}
