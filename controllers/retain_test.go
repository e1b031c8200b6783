package controllers

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/probe"
)

// The three ways in which an ExternalBackend can have a Service.
const (
	created   = "{ports"
	adopting  = "{service: {adoptionPolicy: IfSelectorless}, ports"
	attaching = "{serviceRef: {name: shop}, ports"
)

// having is literalSpec with a Service that it has in one of these ways.
func having(way string) string { return strings.Replace(literalSpec, "{ports", way, 1) }

// selectorless is a Service that nobody owns and that literalSpec fits.
func selectorless() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: shop.Name, Namespace: shop.Namespace, UID: "uid-of-service"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.7", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

// service is the Service as the API server has it; nil where there is none.
func (env *testEnv) service() *corev1.Service {
	env.t.Helper()
	var s corev1.Service
	if err := env.live.Get(env.t.Context(), shop, &s); err != nil {
		env.ok(client.IgnoreNotFound(err))
		return nil
	}
	return &s
}

// slices are all EndpointSlices, by name.
func (env *testEnv) slices() map[string]*discoveryv1.EndpointSlice {
	env.t.Helper()
	out := map[string]*discoveryv1.EndpointSlice{}
	for _, o := range env.objects() {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok {
			out[s.Name] = s
		}
	}
	return out
}

// owner says to whom an object belongs.
func owner(o client.Object) string {
	var texts []string
	for _, ref := range o.GetOwnerReferences() {
		text := ref.Kind
		if ref.Controller == nil || !*ref.Controller {
			text += ", not as its controller"
		}
		texts = append(texts, text)
	}
	return strings.Join(texts, "; ")
}

// sameEndpoints wants the slices to be those of before, with the same endpoints in each.
func (env *testEnv) sameEndpoints(when string, before map[string]*discoveryv1.EndpointSlice) {
	env.t.Helper()
	after := env.slices()
	if want, got := slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)); !slices.Equal(want, got) {
		env.t.Errorf("%s: the slices are %v, not %v", when, got, want)
	}
	for name, s := range before {
		if is := after[name]; is != nil && !equality.Semantic.DeepEqual(s.Endpoints, is.Endpoints) {
			env.t.Errorf("%s: the endpoints of slice %s were %s and are %s", when, name, plain(s), plain(is))
		}
	}
}

// plain is what a slice says of its endpoints.
func plain(s *discoveryv1.EndpointSlice) string {
	var texts []string
	for _, e := range s.Endpoints {
		texts = append(
			texts,
			fmt.Sprintf(
				"%s ready=%t serving=%t terminating=%t",
				e.Addresses[0],
				*e.Conditions.Ready,
				*e.Conditions.Serving,
				*e.Conditions.Terminating,
			),
		)
	}
	return strings.Join(texts, ", ")
}

// look reconciles one ExternalBackend once.
func (env *testEnv) look(name string) ctrl.Result {
	env.t.Helper()
	env.refresh()
	result, err := env.reconciler.Reconcile(
		env.t.Context(),
		ctrl.Request{NamespacedName: types.NamespacedName{Namespace: shop.Namespace, Name: name}},
	)
	env.ok(err)
	return result
}

// TestDeletionPolicyDecidesOwners also changes the policy to and fro: that writes metadata alone,
// and no endpoint moves.
func TestDeletionPolicyDecidesOwners(t *testing.T) {
	const retain, remove = "{deletionPolicy: Retain}", "{deletionPolicy: Delete}"
	for _, tt := range []struct {
		way                            string
		serviceDelete, sliceDelete     string
		serviceRetained, sliceRetained string
		serviceWrites, writesToASlice  int // by a change of the policy
	}{
		{created, "ExternalBackend", "Service", "", "Service", 1, 0},
		{adopting, "", "ExternalBackend", "", "Service", 0, 1},
		{attaching, "", "ExternalBackend", "", "Service, not as its controller", 0, 1},
	} {
		var objects []client.Object
		if tt.way != created {
			objects = append(objects, selectorless())
		}
		env := newTestEnv(t, objects...)
		setVerdict(probe.Healthy, 1, 9)(env)
		env.spec(having(tt.way))
		// Seven endpoints, three to a slice; then two light slices are left, which a plan would
		// fold if it could.
		env.spec(
			`{targets: [{name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.2}, {name: c, address: 203.0.113.3}, {name: d, address: 203.0.113.4}, {name: e, address: 203.0.113.5}, {name: f, address: 203.0.113.6}, {name: g, address: 203.0.113.7}]}`,
		)
		env.settle()
		env.spec(
			`{targets: [{name: a, address: 203.0.113.1}, {name: d, address: 203.0.113.4}, {name: e, address: 203.0.113.5}, {name: f, address: 203.0.113.6}, {name: g, address: 203.0.113.7}]}`,
		)
		env.settle()
		before := env.slices()
		if len(before) != 3 {
			t.Fatalf("%s: there are %d slices", tt.way, len(before))
		}
		for a := range env.endpoints() {
			env.stable = append(env.stable, a)
		}
		want := func(when, service, slice string, writes int) {
			t.Helper()
			env.what = fmt.Sprintf("%s, %s", tt.way, when)
			was := env.writes
			env.settle()
			if got := owner(env.service()); got != service {
				t.Errorf("%s: the Service belongs to %q, not %q", env.what, got, service)
			}
			for name, s := range env.slices() {
				if got := owner(s); got != slice {
					t.Errorf("%s: slice %s belongs to %q, not %q", env.what, name, got, slice)
				}
			}
			env.sameEndpoints(env.what, before)
			if got := env.writes - was; got != writes {
				t.Errorf("%s: %d writes, not %d", env.what, got, writes)
			}
		}
		const status = 1
		change := tt.serviceWrites + tt.writesToASlice*len(before) + status
		want("at first", tt.serviceDelete, tt.sliceDelete, 0)
		env.spec(retain)
		want("Retain", tt.serviceRetained, tt.sliceRetained, change)
		env.restart()
		want("Retain, after a restart", tt.serviceRetained, tt.sliceRetained, 0)
		env.spec(remove)
		want("Delete", tt.serviceDelete, tt.sliceDelete, change)
	}
}

// TestRetainHoldsForAnInvalidSpec: who uninstalls must be able to rely on observedGeneration.
func TestRetainHoldsForAnInvalidSpec(t *testing.T) {
	const invalid = `{deletionPolicy: Retain, targets: [{name: a, address: 203.0.113.1, ports: [{name: nope, targetPort: 1}]}]}`
	for way, wants := range map[string][2]string{created: {"", "Service"}, attaching: {"", "Service, not as its controller"}} {
		env := newTestEnv(t)
		if way == attaching {
			env = newTestEnv(t, selectorless())
		}
		setVerdict(probe.Healthy, 1, 3)(env)
		env.spec(having(way))
		env.settle()
		before := env.slices()
		env.spec(invalid)
		env.settle()
		env.expect(v1alpha1.ConditionAccepted, "False InvalidSpec")
		if got := owner(env.service()); got != wants[0] {
			t.Errorf("%s: the Service belongs to %q", way, got)
		}
		for name, s := range env.slices() {
			if got := owner(s); got != wants[1] {
				t.Errorf("%s: slice %s belongs to %q", way, name, got)
			}
		}
		env.sameEndpoints(way, before)
	}

	env := literalEnv(t)
	env.spec("{deletionPolicy: Archive}") // as a newer version may know it
	env.settle()
	env.expect(v1alpha1.ConditionAccepted, "False InvalidSpec: spec.deletionPolicy")
	if got := owner(env.service()); got != "ExternalBackend" {
		t.Errorf("for a policy that nobody knows the Service was given to %q", got)
	}
}

// TestRetainIsNotHeldUpByARefusedService: the owner is written apart from what the API server
// refuses.
func TestRetainIsNotHeldUpByARefusedService(t *testing.T) {
	env := literalEnv(t)
	env.refuse = func(o client.Object) error {
		if s, ok := o.(*corev1.Service); ok && s.Spec.Ports[0].Port != 80 {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, shop.Name, nil)
		}
		return nil
	}
	env.spec("{deletionPolicy: Retain, ports: [{name: http, port: 81, targetPort: 8080, protocol: TCP}]}")
	env.settle()
	env.expect(v1alpha1.ConditionProgrammed, "False ApplyFailed")
	if got := owner(env.service()); got != "" {
		t.Errorf("the Service still belongs to %q", got)
	}
}

// TestServiceThatWentWithItsBackend: a Service and an ExternalBackend that are deleted together
// stay gone, although the cache shows the one deletion before the other.
func TestServiceThatWentWithItsBackend(t *testing.T) {
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
			t.Errorf("%s: made anew for an ExternalBackend that is gone:\n%s", policy, env.state())
		}
	}
}
