package controllers

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestOrphansAreDeletedAfterTheGrace: slices without an owner whose ExternalBackend and Service are
// gone stay for OrphanGrace.
func TestOrphansAreDeletedAfterTheGrace(t *testing.T) {
	const grace = 10 * time.Minute
	for _, tt := range []struct {
		name    string
		service bool
		owner   string
		age     time.Duration // when the manager starts
		up      time.Duration // of the manager
		left    bool
		looks   time.Duration // again after; 0: never
	}{
		{name: "restored, and the manager has been up for long", up: time.Hour, age: -time.Hour, left: true, looks: grace},
		{name: "restored a while ago", up: time.Hour, age: -time.Hour + 4*time.Minute, left: true, looks: 6 * time.Minute},
		{name: "old, and the manager has just started", age: time.Hour, left: true, looks: grace},
		{name: "old", age: time.Hour, up: grace},
		{name: "restored long enough ago", up: time.Hour, age: -time.Hour + grace},
		{name: "old, with the Service", age: time.Hour, up: time.Hour, service: true, left: true},
		{name: "old, with an owner", age: time.Hour, up: time.Hour, owner: "Service", left: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, slice := leftBy("former", shop.Name)
				slice.OwnerReferences = nil
				if tt.owner != "" {
					slice.OwnerReferences = []metav1.OwnerReference{
						{APIVersion: "v1", Kind: tt.owner, Name: shop.Name, UID: "uid-of-service"},
					}
				}
				started := time.Now()
				time.Sleep(tt.up)
				slice.CreationTimestamp = metav1.NewTime(started.Add(-tt.age))
				env := newTestEnv(t, slice)
				if tt.service {
					env = newTestEnv(t, slice, selectorlessService())
				}
				env.reconciler.Started, env.reconciler.Options.OrphanGrace = started, grace
				wait := env.reconcileNamed("former").RequeueAfter
				if wait != tt.looks {
					t.Errorf("looks again after %v, not %v", wait, tt.looks)
				}
				if left := len(env.slices()) > 0; left != tt.left {
					t.Errorf("still there: %t, want %t", left, tt.left)
				}
			})
		})
	}
}

// TestOrphansStayIfTheCacheIsBehind: the ExternalBackend or the Service may exist although the
// cache does not show it yet.
func TestOrphansStayIfTheCacheIsBehind(t *testing.T) {
	for _, arrives := range []client.Object{selectorlessService(), attachedBackend("former", shop.Name)} {
		_, slice := leftBy("former", shop.Name)
		slice.OwnerReferences = nil
		env := newTestEnv(t, slice)
		env.reconciler.Options.OrphanGrace = 0
		env.ok(env.live.Create(t.Context(), arrives))
		key := types.NamespacedName{Namespace: shop.Namespace, Name: "former"}
		_, err := env.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}) // on the cache of before
		env.ok(err)
		if len(env.slices()) == 0 {
			t.Errorf("deleted although there is a %T", arrives)
		}
	}
}

// TestServiceEnqueuesItsOrphans: an event of a Service enqueues the ExternalBackends that are gone
// and whose slices it keeps.
func TestServiceEnqueuesItsOrphans(t *testing.T) {
	service, slice := leftBy("former", shop.Name)
	slice.OwnerReferences = nil
	env := newTestEnv(t, service, slice)
	env.spec(specWith(attaching))
	env.refresh()
	got := env.reconciler.requestsForService(t.Context(), service)
	want := []ctrl.Request{newRequest(shop.Namespace, "shop"), newRequest(shop.Namespace, "former")}
	if !slices.Equal(got, want) {
		t.Errorf("enqueued are %v, want %v", got, want)
	}
}
