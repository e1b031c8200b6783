package controllers

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/probe"
)

// override creates an override of the ExternalBackend that lasts an hour.
func (env *testEnv) override(name, spec string) {
	env.t.Helper()
	o := &v1alpha1.ExternalBackendOverride{}
	o.Name, o.Namespace, o.Generation = name, shop.Namespace, 1
	o.CreationTimestamp = metav1.Now()
	env.ok(yaml.UnmarshalStrict([]byte(spec), &o.Spec))
	o.Spec.ExternalBackendRef.Name = shop.Name
	o.Spec.ExpirationTime = metav1.NewTime(time.Now().Add(time.Hour))
	o.Status.ObservedGeneration = -1
	env.ok(env.live.Create(env.t.Context(), o))
}

// expectApplied fails unless the condition Applied of an override is "Status Reason".
func (env *testEnv) expectApplied(name, want string) {
	env.t.Helper()
	o := &v1alpha1.ExternalBackendOverride{}
	env.ok(env.live.Get(env.t.Context(), client.ObjectKey{Namespace: shop.Namespace, Name: name}, o))
	c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionApplied)
	if c == nil || string(c.Status)+" "+c.Reason != want || o.Status.ObservedGeneration != o.Generation {
		env.t.Errorf("override %s has %+v of generation %d, want %s", name, c, o.Status.ObservedGeneration, want)
	}
}

// An override moves traffic, is named in status, in Ready's message and in events, and ends by
// itself. A day later it is deleted.
func TestOverrideIsAppliedUntilItsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTestEnv(t)
		setVerdict(probe.Healthy, 1, 3)(env)
		env.spec(tieredSpec)
		env.settle()
		env.expectReady("http", "203.0.113.1")
		env.events.take()

		env.override("night-shift", `{pinnedTier: 1}`)
		env.settle()
		env.expectReady("http", "203.0.113.2")
		env.expectApplied("night-shift", "True Applied")
		if got := env.backend().Status.Override; got != "night-shift" {
			t.Errorf("status.override is %q", got)
		}
		env.expectCondition(v1alpha1.ConditionReady, `True Ready: 1 of 2 endpoints are ready. Tier 1 is active. `+
			`pinnedTier of ExternalBackendOverride "night-shift" pins it. `+
			`ExternalBackendOverride "night-shift" is applied: pinnedTier 1.`)
		events := env.events.take()
		for _, want := range []string{
			`Normal Overridden ExternalBackendOverride "night-shift" is applied: pinnedTier 1.`,
			`Normal TierChanged Tier 1 is active in place of tier 0. pinnedTier of ExternalBackendOverride "night-shift" pins it.`,
		} {
			if !slices.Contains(events, want) {
				t.Errorf("the events %q lack %q", events, want)
			}
		}

		env.restart()
		writes := env.writes
		env.settle()
		if env.writes != writes {
			t.Errorf("%d writes after a restart", env.writes-writes)
		}

		result, err := env.reconcile()
		if env.ok(err); result.RequeueAfter <= 0 || result.RequeueAfter > time.Hour {
			t.Errorf("the next look is in %v, and the override ends in an hour", result.RequeueAfter)
		}
		time.Sleep(time.Hour)
		env.settle()
		env.expectReady("http", "203.0.113.1")
		env.expectApplied("night-shift", "False Expired")
		if got := env.backend().Status.Override; got != "" {
			t.Errorf("after its end, status.override is %q", got)
		}
		ended := `Normal OverrideEnded ExternalBackendOverride "night-shift" is no longer applied.`
		if got := env.events.take(); !slices.Contains(got, ended) {
			t.Errorf("the events %q lack %q", got, ended)
		}

		time.Sleep(24 * time.Hour)
		env.settle()
		for _, o := range env.objects() {
			if _, ok := o.(*v1alpha1.ExternalBackendOverride); ok {
				t.Errorf("%s is still there a day after its end", o.GetName())
			}
		}
	})
}

// An override sets the adminState of targets. A younger one waits until the older one is deleted.
func TestYoungerOverrideWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := literalEnv(t)
		env.override("first", `{targets: [{name: a, adminState: Disabled}]}`)
		time.Sleep(time.Second)
		env.override("second", `{targets: [{name: b, adminState: Disabled}]}`)
		env.settle()
		env.expectReady("http", "203.0.113.2")
		env.expectApplied("first", "True Applied")
		env.expectApplied("second", "False Superseded")

		o := &v1alpha1.ExternalBackendOverride{}
		o.Name, o.Namespace = "first", shop.Namespace
		env.ok(env.live.Delete(t.Context(), o))
		env.settle()
		env.expectReady("http", "203.0.113.1")
		env.expectApplied("second", "True Applied")
	})
}

// An override of an ExternalBackend that does not exist says so, and is applied once it does.
func TestOverrideWaitsForItsExternalBackend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTestEnv(t)
		setVerdict(probe.Healthy, 1, 3)(env)
		env.override("early", `{targets: [{name: a, adminState: Disabled}]}`)
		env.settle()
		env.expectApplied("early", "False BackendNotFound")

		env.spec(literalSpec)
		env.settle()
		env.expectApplied("early", "True Applied")
		env.expectReady("http", "203.0.113.2")
	})
}

// The status of many overrides is written in several reconciles, of which each writes a few.
func TestWritesToOverridesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := literalEnv(t)
		for i := range maxOverrideWrites + 5 {
			env.override("many-"+string(rune('a'+i)), `{pinnedTier: 0}`)
		}
		env.refresh()
		before := env.writes
		result, err := env.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: shop})
		if env.ok(err); result.RequeueAfter <= 0 || result.RequeueAfter > time.Second {
			t.Errorf("the rest is due in %v", result.RequeueAfter)
		}
		if n := env.writes - before; n > maxOverrideWrites+1 { // and the ExternalBackend's own status
			t.Errorf("%d writes in one reconcile", n)
		}
		env.settle()
		env.expectApplied("many-a", "True Applied")
	})
}
