package controllers

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/probe"
)

// TestReusedNameGetsFreshStatus: an ExternalBackend that is created again under the same name,
// before any reconcile saw it gone, gets a status of its own.
func TestReusedNameGetsFreshStatus(t *testing.T) {
	env := literalEnv(t)
	env.ok(env.live.Delete(t.Context(), env.backend()))
	env.spec(literalSpec)
	b := env.backend()
	b.UID = "uid-of-another-shop"
	env.ok(env.live.Delete(t.Context(), env.backend()))
	b.ResourceVersion = ""
	env.ok(env.live.Create(t.Context(), b))
	env.settle()
	env.expectCondition(v1alpha1.ConditionAccepted, "True")
	env.expectCondition(v1alpha1.ConditionProgrammed,
		`False ApplyFailed: Service "shop" belongs to an earlier ExternalBackend`)
	env.expectCondition(v1alpha1.ConditionStalled, "")

	var s corev1.Service
	env.ok(env.live.Get(t.Context(), shop, &s))
	env.ok(env.live.Delete(t.Context(), &s)) // the garbage collector's work
	env.settle()
	env.expectCondition(v1alpha1.ConditionReady, "True")

	old, anew := env.backend(), env.backend()
	anew.UID = "uid-of-a-third-shop"
	if !specChanged(event.UpdateEvent{ObjectOld: old, ObjectNew: anew}) ||
		specChanged(event.UpdateEvent{ObjectOld: old, ObjectNew: old}) {
		t.Error("specChanged does not compare the UIDs of the two objects")
	}
}

// TestBackendHeldByAFinalizerIsKeptCurrent: the endpoints of an ExternalBackend that is being
// deleted, and that a finalizer holds, stay current. What the garbage collector deletes is not
// created again.
func TestBackendHeldByAFinalizerIsKeptCurrent(t *testing.T) {
	for _, propagation := range []string{"", metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents} {
		t.Run(propagation, func(t *testing.T) {
			env := literalEnv(t)
			b := env.backend()
			b.Finalizers = []string{"example.com/hold"}
			if propagation != "" {
				b.Finalizers = append(b.Finalizers, propagation)
			}
			env.ok(env.live.Update(t.Context(), b))
			env.ok(env.live.Delete(t.Context(), b))
			setVerdict(probe.Unhealthy, 1, 2)(env)
			env.settle()
			if propagation == "" {
				env.expectReady("http", "203.0.113.2")
				return
			}
			env.expectReady("http", "203.0.113.1", "203.0.113.2")

			for _, o := range env.objects() { // as the garbage collector does
				switch _, ok := o.(*v1alpha1.ExternalBackend); {
				case ok:
					o.SetFinalizers([]string{"example.com/hold"})
					env.ok(env.live.Update(t.Context(), o))
				case propagation == metav1.FinalizerOrphanDependents:
					o.SetOwnerReferences(nil)
					env.ok(env.live.Update(t.Context(), o))
				default:
					env.ok(env.live.Delete(t.Context(), o))
				}
			}
			before := env.state()
			env.settle()
			if after := env.state(); after != before {
				t.Errorf("%s became %s", before, after)
			}
		})
	}

	env := literalEnv(t)
	b := env.backend()
	b.Finalizers = []string{"example.com/hold"}
	env.ok(env.live.Update(t.Context(), b))
	env.ok(env.live.Delete(t.Context(), b))
	var s corev1.Service
	env.ok(env.live.Get(t.Context(), shop, &s))
	env.ok(env.live.Delete(t.Context(), &s))
	env.settle()
	if err := env.live.Get(t.Context(), shop, &s); !apierrors.IsNotFound(err) {
		t.Errorf("the Service that somebody deleted after it: %v", err)
	}
}

// TestOrphanedServiceIsNotOwnedAgain: a Service that loses its owner gets it back, unless its
// ExternalBackend is being deleted, even if the cache does not show that yet.
func TestOrphanedServiceIsNotOwnedAgain(t *testing.T) {
	env := literalEnv(t)
	strip := func() { // as the garbage collector does
		var s corev1.Service
		env.ok(env.live.Get(t.Context(), shop, &s))
		s.OwnerReferences = nil
		env.ok(env.live.Update(t.Context(), &s))
	}
	owned := func() bool {
		var s corev1.Service
		env.ok(env.live.Get(t.Context(), shop, &s))
		return metav1.GetControllerOf(&s) != nil
	}
	strip()
	env.settle()
	if !owned() {
		t.Error("a lost owner is not given back")
	}

	b := env.backend()
	b.Finalizers = []string{"orphan"}
	env.ok(env.live.Update(t.Context(), b))
	env.settle() // the cache has seen that, and what follows it has not
	before := env.cache
	strip()
	env.refresh()
	showsService := env.cache
	env.ok(env.live.Delete(t.Context(), env.backend()))
	env.cache, env.shown = showsService, env.writes
	if _, err := env.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: shop}); err != nil {
		t.Error(err)
	}
	if before == showsService {
		t.Fatal("the cache shows nothing new")
	}
	if owned() {
		t.Error("the Service is owned again, so that it is deleted with its ExternalBackend")
	}
}

// TestCascadeOrphanKeepsServiceAndEndpoints: kubectl delete --cascade=orphan keeps both, at
// whatever point the manager reconciles.
func TestCascadeOrphanKeepsServiceAndEndpoints(t *testing.T) {
	for _, way := range []string{created, adopting, attaching} {
		env := newTestEnv(t)
		if way != created {
			env = newTestEnv(t, selectorlessService())
		}
		setVerdict(probe.Healthy, 1, 3)(env)
		env.spec(specWith(way))
		env.settle()
		before, uid := env.slices(), env.backend().UID
		// The garbage collector takes the references to the ExternalBackend off, then lets it go.
		b := env.backend()
		b.Finalizers = []string{metav1.FinalizerOrphanDependents}
		env.ok(env.live.Update(t.Context(), b))
		env.ok(env.live.Delete(t.Context(), b))
		ofBackend := func(ref metav1.OwnerReference) bool { return ref.UID == uid }
		for _, o := range env.objects() {
			if o.SetOwnerReferences(slices.DeleteFunc(o.GetOwnerReferences(), ofBackend)); o.GetName() != shop.Name ||
				o.GetUID() != uid {
				env.ok(env.live.Update(t.Context(), o))
				env.reconcileNamed(shop.Name)
			}
		}
		b = env.backend()
		b.Finalizers = nil
		env.ok(env.live.Update(t.Context(), b))
		env.reconcileNamed(shop.Name)
		env.restart()
		env.reconcileNamed(shop.Name)
		env.expectSameEndpoints(way, before)
		if s := env.service(); s == nil || ownersOf(s) != "" {
			t.Errorf("%s: the Service is %v", way, s)
		}
	}
}

// TestServiceDeletedWithItsBackendStaysGone: both are deleted, and the cache shows the deletion of
// the Service first.
func TestServiceDeletedWithItsBackendStaysGone(t *testing.T) {
	for _, policy := range []string{"Delete", "Retain"} {
		env := literalEnv(t)
		env.spec("{deletionPolicy: " + policy + "}")
		env.settle()
		for _, s := range env.slices() {
			env.ok(env.live.Delete(t.Context(), s))
		}
		env.ok(env.live.Delete(t.Context(), env.service()))
		env.refresh()
		behind := env.cache
		env.ok(env.live.Delete(t.Context(), env.backend()))
		env.cache, env.shown = behind, env.writes
		_, err := env.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: shop})
		env.ok(err)
		if env.service() != nil || len(env.slices()) > 0 {
			t.Errorf("%s: created again for an ExternalBackend that is gone:\n%s", policy, env.state())
		}
	}
}
