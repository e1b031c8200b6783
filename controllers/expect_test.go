package controllers

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// reconcile reconciles shop once, with a fresh cache.
func (env *testEnv) reconcile() (ctrl.Result, error) {
	env.refresh()
	return env.reconciler.Reconcile(env.t.Context(), ctrl.Request{NamespacedName: shop})
}

// reconcileToEnd does the same without leaving a slow reconcile to go on by itself.
func (env *testEnv) reconcileToEnd() (ctrl.Result, error) {
	env.refresh()
	return env.reconciler.reconcile(env.t.Context(), ctrl.Request{NamespacedName: shop})
}

// reconcileNamed reconciles the ExternalBackend of that name once, with a fresh cache.
func (env *testEnv) reconcileNamed(name string) ctrl.Result {
	env.t.Helper()
	env.refresh()
	result, err := env.reconciler.Reconcile(env.t.Context(), newRequest(shop.Namespace, name))
	env.ok(err)
	return result
}

// backend returns the ExternalBackend from the API server.
func (env *testEnv) backend() *v1alpha1.ExternalBackend {
	env.t.Helper()
	var b v1alpha1.ExternalBackend
	env.ok(env.live.Get(env.t.Context(), shop, &b))
	return &b
}

// service returns the Service from the API server, or nil.
func (env *testEnv) service() *corev1.Service {
	env.t.Helper()
	var s corev1.Service
	if err := env.live.Get(env.t.Context(), shop, &s); err != nil {
		env.ok(client.IgnoreNotFound(err))
		return nil
	}
	return &s
}

// slices returns all EndpointSlices by name.
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

// condition returns a condition of the ExternalBackend as "Status Reason: message".
func (env *testEnv) condition(kind string) string {
	env.t.Helper()
	c := meta.FindStatusCondition(env.backend().Status.Conditions, kind)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

// expectCondition fails unless the condition begins with want.
func (env *testEnv) expectCondition(kind, want string) {
	env.t.Helper()
	if got := env.condition(kind); !strings.HasPrefix(got, want) {
		env.t.Errorf("%s is %q, want %q", kind, got, want)
	}
}

// ready returns the addresses that are ready behind ports of this name, and how often each is.
func (env *testEnv) ready(port string) map[string]int {
	out := map[string]int{}
	for _, o := range env.objects() {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok && *s.Ports[0].Name == port {
			for _, e := range s.Endpoints {
				if *e.Conditions.Ready {
					out[e.Addresses[0]]++
				}
			}
		}
	}
	return out
}

// expectReady fails unless exactly these addresses are ready behind ports of this name, each once.
func (env *testEnv) expectReady(port string, want ...string) {
	env.t.Helper()
	got := env.ready(port)
	if len(got) != len(want) {
		env.t.Errorf("ready behind port %q: %v, want %v", port, got, want)
	}
	for _, a := range want {
		if got[a] != 1 {
			env.t.Errorf("ready behind port %q: %v, want %s once", port, got, a)
		}
	}
}

// expectReadyAt fails unless exactly 203.0.113.from to to-1 are ready behind ports of this name,
// number and protocol.
func (env *testEnv) expectReadyAt(port, at string, from, to int) {
	env.t.Helper()
	var want, got []string
	for _, a := range addresses(from, to) {
		want = append(want, a.IP.String())
	}
	for _, o := range env.objects() {
		s, ok := o.(*discoveryv1.EndpointSlice)
		if !ok || len(s.Endpoints) == 0 || *s.Ports[0].Name != port ||
			fmt.Sprintf("%d/%s", *s.Ports[0].Port, *s.Ports[0].Protocol) != at {
			continue
		}
		for _, e := range s.Endpoints {
			if *e.Conditions.Ready {
				got = append(got, e.Addresses[0])
			}
		}
	}
	slices.SortFunc(got, compareAddresses)
	if diff := cmp.Diff(want, got); diff != "" {
		env.t.Errorf("ready behind port %q at %s (-want +got):\n%s", port, at, diff)
	}
}

func compareAddresses(a, b string) int { return netip.MustParseAddr(a).Compare(netip.MustParseAddr(b)) }

// expectSameEndpoints fails unless the slices are those of before, each with the same endpoints.
func (env *testEnv) expectSameEndpoints(when string, before map[string]*discoveryv1.EndpointSlice) {
	env.t.Helper()
	after := env.slices()
	if want, got := slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)); !slices.Equal(want, got) {
		env.t.Errorf("%s: the slices are %v, not %v", when, got, want)
	}
	for name, s := range before {
		if is := after[name]; is != nil && !equality.Semantic.DeepEqual(s.Endpoints, is.Endpoints) {
			env.t.Errorf("%s: the endpoints of slice %s were %s and are %s", when, name, formatEndpoints(s), formatEndpoints(is))
		}
	}
}

// formatEndpoints formats the endpoints of a slice with their conditions.
func formatEndpoints(s *discoveryv1.EndpointSlice) string {
	var texts []string
	for _, e := range s.Endpoints {
		texts = append(texts, fmt.Sprintf("%s ready=%t serving=%t terminating=%t",
			e.Addresses[0], *e.Conditions.Ready, *e.Conditions.Serving, *e.Conditions.Terminating))
	}
	return strings.Join(texts, ", ")
}

// ownersOf lists the kinds of the owners of an object.
func ownersOf(o client.Object) string {
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

// conditionsByAddress returns ready, serving and terminating of each endpoint.
func conditionsByAddress(endpoints map[netip.Addr]endpointslice.Endpoint) map[netip.Addr][3]bool {
	out := map[netip.Addr][3]bool{}
	for addr, e := range endpoints {
		out[addr] = [3]bool{e.Ready, e.Serving, e.Terminating}
	}
	return out
}
