package controllers

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/probe"
)

// TestRefusedServiceIsTriedAgain: time may fix what the API server refuses, such as a node port
// that is in use.
func TestRefusedServiceIsTriedAgain(t *testing.T) {
	env := newTestEnv(t)
	env.fault = func(n int) fault {
		if n > 1 { // the status
			return fault{}
		}
		return fault{err: apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, shop.Name, nil)}
	}
	env.spec(literalSpec)
	env.refresh()
	result, err := env.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: shop})
	if err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > 30*time.Second {
		t.Errorf("tried again after %v, error %v; want after 30 s, and no error", result.RequeueAfter, err)
	}
}

// TestContendedServiceIsTriedAgain: a Service that others write between each of our reads and
// writes is tried again. Its endpoints stay.
func TestContendedServiceIsTriedAgain(t *testing.T) {
	env := literalEnv(t)
	env.refuse = func(o client.Object) error {
		if _, ok := o.(*corev1.Service); ok {
			return apierrors.NewConflict(schema.GroupResource{Resource: "services"}, o.GetName(), nil)
		}
		return nil
	}
	env.spec(renamedPort)
	if _, err := env.reconcile(); err == nil {
		t.Error("it is not tried again")
	}
	env.expectCondition(v1alpha1.ConditionProgrammed, "False ApplyFailed")
	env.expectReady("http", "203.0.113.1", "203.0.113.2")
}

// TestRefusedServiceTypeKeepsEndpoints: a type that the Service can't be given takes no endpoint
// away.
func TestRefusedServiceTypeKeepsEndpoints(t *testing.T) {
	for name, spec := range map[string]string{
		"headless, and the port renamed": `{service: {type: Headless}, ` + renamedPort[1:],
		"headless":                       `{service: {type: Headless}}`,
		"an alias": `{service: {type: ExternalName}, healthCheck: null,
			targets: [{name: a, address: "", hostname: db.example.com}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			env := literalEnv(t)
			env.refuse = refuseServices
			env.spec(spec)
			env.settle()
			env.expectCondition(v1alpha1.ConditionProgrammed, "False ApplyFailed")
			env.expectReady("http", "203.0.113.1", "203.0.113.2")
		})
	}
}

// TestRefusedHeadlessTransitionIsUndone: a Service that may not become headless, or may no longer
// be headless, is not touched. If a dry run could not tell, it gets its old spec back, and the
// change is not tried again.
func TestRefusedHeadlessTransitionIsUndone(t *testing.T) {
	for _, c := range []struct {
		from, to string
		foreseen bool
	}{
		{"ClusterIP", "Headless", true},
		{"Headless", "NodePort", true},
		{"ClusterIP", "Headless", false},
		{"Headless", "NodePort", false},
	} {
		t.Run(fmt.Sprintf("%s to %s, foreseen %t", c.from, c.to, c.foreseen), func(t *testing.T) {
			env := newTestEnv(t)
			setVerdict(probe.Healthy, 1, 3)(env)
			env.spec(`{service: {type: ` + c.from + `}, ` + literalSpec[1:])
			env.settle()
			var before, after corev1.Service
			env.ok(env.live.Get(t.Context(), shop, &before))
			tries := 0
			env.refuse = func(o client.Object) error {
				s, ok := o.(*corev1.Service)
				if ok && (c.foreseen || s.UID != "") &&
					(c.to == "Headless" && plan.Headless(s) || s.Spec.Type == corev1.ServiceType(c.to)) {
					tries++
					return invalidError(o)
				}
				return nil
			}
			env.spec(`{service: {type: ` + c.to + `}}`)
			env.settle()
			env.expectCondition(v1alpha1.ConditionProgrammed, "False ApplyFailed")

			env.ok(env.live.Get(t.Context(), shop, &after))
			if diff := cmp.Diff(before.Spec, after.Spec); diff != "" {
				t.Errorf("the Service is not as it was:\n%s", diff)
			}
			if c.foreseen && after.ResourceVersion != before.ResourceVersion {
				t.Error("the Service was written")
			}

			tries = 0
			setVerdict(probe.Unhealthy, 1, 2)(env)
			env.settle()
			env.expectReady("http", "203.0.113.2")
			if !c.foreseen && tries > 0 {
				t.Error("the change was tried again")
			}

			env.refuse = refuseNothing
			env.spec(`{service: {labels: {team: shop}, type: ` + c.to + `}}`)
			env.settle()
			env.expectReady("http", "203.0.113.2")

			env.ok(env.live.Get(t.Context(), shop, &after))
			if after.UID != before.UID || plan.Headless(&after) != (c.to == "Headless") {
				t.Errorf("the Service has become %+v", after.Spec)
			}
		})
	}
}

// TestTerminatingNamespaceIsNoError: an object that can't be created because its namespace is being
// deleted is not tried again.
func TestTerminatingNamespaceIsNoError(t *testing.T) {
	env := newTestEnv(t)
	env.refuse = func(o client.Object) error {
		err := apierrors.NewForbidden(schema.GroupResource{}, o.GetName(), errors.New("the namespace is being terminated"))
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
		if _, ok := o.(*v1alpha1.ExternalBackend); ok {
			return nil
		}
		return err
	}
	env.spec(literalSpec)
	if _, err := env.reconcile(); err != nil {
		t.Error(err)
	}
	env.expectCondition(v1alpha1.ConditionProgrammed, "False ApplyFailed")
}

// TestRefusedSlicesAreTriedLessAndLessOften: while slices may not be created, one is tried at a
// time. Half a minute after they may, all exist.
func TestRefusedSlicesAreTriedLessAndLessOften(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTestEnv(t)
		setAnswer(1, 200)(env)
		setVerdict(probe.Healthy, 1, 200)(env)
		tries := 0
		env.refuse = func(o client.Object) error {
			if s, ok := o.(*discoveryv1.EndpointSlice); ok && s.UID == "" {
				tries++
				return forbiddenError(o)
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
		env.expectCondition(v1alpha1.ConditionProgrammed, "False ApplyFailed")

		env.refuse = refuseNothing
		env.settle()
		if n := len(env.endpoints()); n != 199 {
			t.Errorf("%d endpoints", n)
		}

		env.refuse = refuseNewSlices
		setAnswer(1, 220)(env)
		if result, err := env.reconcile(); err != nil || result.RequeueAfter > time.Second {
			t.Errorf("after a success a new refusal is tried again after %v, error %v", result.RequeueAfter, err)
		}
	})
}

// TestRefusedSliceStopsNoOther: a webhook that refuses some slices for their content does not stop
// the others from being created.
func TestRefusedSliceStopsNoOther(t *testing.T) {
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
				return forbiddenError(o)
			}
		}
		return nil
	}
	env.spec(poolSpec)
	for range 3 {
		_, _ = env.reconcile()
	}
	if n := len(env.endpoints()); n != 93 {
		t.Errorf("after three tries %d endpoints are published, want all 99 except for the six in two slices", n)
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
