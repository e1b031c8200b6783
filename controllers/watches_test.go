package controllers

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/event"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/probe"
)

// informers can be asked for, and for one kind given several handlers, from several goroutines.
type informers struct {
	mu sync.Mutex
	informertest.FakeInformers
}

func (i *informers) GetInformer(
	ctx context.Context, o client.Object, options ...cache.InformerGetOption,
) (cache.Informer, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	informer, err := i.FakeInformers.GetInformer(ctx, o, options...)
	return sharedInformer{informer, &i.mu}, err
}

type sharedInformer struct {
	cache.Informer
	mu *sync.Mutex
}

func (s sharedInformer) AddEventHandlerWithOptions(
	h toolscache.ResourceEventHandler, options toolscache.HandlerOptions,
) (toolscache.ResourceEventHandlerRegistration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Informer.AddEventHandlerWithOptions(h, options)
}

// runController runs the controller of env over informers that the test feeds, until the test ends.
func runController(t *testing.T, env *testEnv) *informers {
	t.Helper()
	informers := &informers{FakeInformers: informertest.FakeInformers{Scheme: testScheme()}}
	mgr, err := ctrl.NewManager(&rest.Config{}, ctrl.Options{
		Scheme: testScheme(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller:     config.Controller{SkipNameValidation: new(true)},
		NewCache:       func(*rest.Config, cache.Options) (cache.Cache, error) { return informers, nil },
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return env.live.RESTMapper(), nil },
	})
	env.ok(err)
	env.ok(env.reconciler.addController(mgr, &engineQueue{}))
	stopped := make(chan error)
	go func() { stopped <- mgr.Start(t.Context()) }()
	t.Cleanup(func() { env.ok(<-stopped) })
	synctest.Wait()
	return informers
}

// TestObjectDeletedBeforeTheCacheShowedItIsBackAtOnce: somebody deletes the Service, or a slice,
// right after we created it. No reconcile runs between the two events, so that none finds the
// object in the cache. It is created again when its deletion is seen, not a minute later.
func TestObjectDeletedBeforeTheCacheShowedItIsBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTestEnv(t)
		setVerdict(probe.Healthy, 1, 3)(env)
		informers := runController(t, env)
		env.spec(literalSpec)
		_, err := env.reconcile()
		env.ok(err)

		created := []client.Object{env.service()}
		for _, s := range env.slices() {
			created = append(created, s)
		}
		for _, o := range created {
			env.ok(env.live.Delete(t.Context(), o))
		}
		env.refresh()
		for _, o := range created {
			informer, err := informers.FakeInformerFor(t.Context(), o)
			env.ok(err)
			informer.Delete(o)
		}
		_, err = env.reconcile()
		env.ok(err)

		if s := env.service(); s == nil || s.UID == created[0].GetUID() {
			t.Errorf("the Service is %v", s)
		}
		if n := len(env.slices()); n != len(created)-1 {
			t.Errorf("there are %d slices, want %d", n, len(created)-1)
		}
	})
}

// TestEditedStatusIsRestored: a status that somebody edits is written again.
func TestEditedStatusIsRestored(t *testing.T) {
	env := literalEnv(t)
	before, b := env.backend(), env.backend()
	b.Status.Conditions = nil
	env.ok(env.live.Status().Patch(t.Context(), b, client.MergeFrom(before)))
	after := env.backend()
	if after.Status.Conditions != nil {
		t.Fatal("the status can't be edited")
	}
	if !env.reconciler.statusEdited(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
		t.Error("the edit is not noticed")
	}
	env.settle()
	env.expectCondition(v1alpha1.ConditionReady, "True")
	if last := env.backend(); env.reconciler.statusEdited(event.UpdateEvent{ObjectOld: after, ObjectNew: last}) {
		t.Error("the operator's own write counts as an edit")
	}
}
