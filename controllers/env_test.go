package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// testEnv runs one reconciler with a fake API server that can refuse or lose any write, a cache
// that can lag behind it, fake engines, and a manager that can crash at any write. It is for what
// seldom happens. The real API server, garbage collector and engines have their tests elsewhere.
type testEnv struct {
	t      *testing.T
	what   string // the name of the case, for failures
	live   client.WithWatch
	cache  client.Client
	lag    bool // refresh the cache only when a reconcile writes nothing, or after every fifth
	writes int  // so far
	shown  int  // how many of them the cache shows
	// fault returns what happens to the write with this number, counted from 1.
	fault func(n int) fault
	dead  bool // the manager has crashed: nothing is written until restart
	// refuse is called before fault. A write that it refuses is not counted.
	refuse func(client.Object) error
	// stable are the addresses that must be published after every write.
	stable []netip.Addr

	reconciler *Reconciler
	resolver   *fakeResolver
	prober     *fakeProber
	events     ownEvents
}

// fault is what happens to a write. The zero fault lets it succeed.
type fault struct {
	err       error
	committed bool // the write takes place in spite of err, as before a timeout
	crash     bool // the manager crashes
}

var (
	uids     atomic.Int64
	errCrash = errors.New("crashed")
	shop     = types.NamespacedName{Namespace: "default", Name: "shop"}
)

// testScheme is small and built only once, because fake clients are built very often.
var testScheme = sync.OnceValue(func() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := errors.Join(
		corev1.AddToScheme(s), discoveryv1.AddToScheme(s), networkingv1.AddToScheme(s), v1alpha1.AddToScheme(s),
	); err != nil {
		panic(err)
	}
	return s
})

func newTestEnv(t *testing.T, objects ...client.Object) *testEnv {
	env := &testEnv{t: t, fault: func(int) fault { return fault{} }, refuse: refuseNothing}
	env.live = env.builder(objects).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			return env.write(o, func() error {
				if o.GetUID() == "" {
					o.SetUID(types.UID(fmt.Sprintf("uid-%d", uids.Add(1))))
				}
				defaultService(o)
				return c.Create(ctx, o, options...)
			})
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			return env.write(o, func() error { defaultService(o); return c.Update(ctx, o, options...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			return env.write(o, func() error { return c.Delete(ctx, o, options...) })
		},
		Patch: func(
			ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption,
		) error {
			return env.write(o, func() error { return c.Patch(ctx, o, p, options...) })
		},
		SubResourcePatch: func(
			ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
			options ...client.SubResourcePatchOption,
		) error {
			return env.write(o, func() error { return c.SubResource(sub).Patch(ctx, o, p, options...) })
		},
	}).Build()
	env.restart()
	return env
}

// refuseNothing refuses no write.
func refuseNothing(client.Object) error { return nil }

func (env *testEnv) builder(objects []client.Object) *fake.ClientBuilder {
	b := fake.NewClientBuilder().
		WithScheme(testScheme()).
		WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop.Namespace}}).
		WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.ExternalBackend{}, &v1alpha1.ExternalBackendOverride{})
	name := func(o client.Object) []string { return []string{o.GetName()} }
	b = b.WithIndex(&v1alpha1.ExternalBackend{}, metav1.ObjectNameField, name)
	for _, i := range indexes() {
		b = b.WithIndex(i.object, i.field, i.values)
	}
	return b
}

// defaultService sets the fields of a Service that the API server defaults.
func defaultService(o client.Object) {
	s, ok := o.(*corev1.Service)
	if !ok || s.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	if s.Spec.ClusterIP == "" {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.0.10", []string{"10.96.0.10"}
	}
	if len(s.Spec.IPFamilies) == 0 {
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	}
}

func (env *testEnv) write(o client.Object, do func() error) error {
	if env.dead {
		return errCrash
	}
	if err := env.refuse(o); err != nil {
		return err
	}
	env.writes++
	defer env.check()
	f := env.fault(env.writes)
	env.dead = f.crash
	if f.err == nil && !f.crash {
		return do()
	}
	if f.committed {
		if err := do(); err != nil {
			return err
		}
	}
	if f.crash {
		return errCrash
	}
	return f.err
}

// check fails if a stable address is not published.
func (env *testEnv) check() {
	if len(env.stable) == 0 {
		return
	}
	published := env.endpoints()
	for _, a := range env.stable {
		if _, ok := published[a]; !ok {
			env.t.Errorf("%s: %s is missing after write %d", env.what, a, env.writes)
			env.stable = nil // one report is enough
			return
		}
	}
}

// restart starts a new manager, which only knows what is in the cluster.
func (env *testEnv) restart() {
	env.dead = false
	if env.resolver == nil {
		env.resolver, env.prober = &fakeResolver{}, &fakeProber{}
	}
	env.resolver.seeds, env.prober.known = nil, nil
	env.reconciler = &Reconciler{
		Client:   cachedClient{env.live, env},
		Live:     env.live,
		Recorder: &env.events,
		Resolver: env.resolver,
		Prober:   env.prober,
		Metrics:  NewMetrics(prometheus.NewRegistry()),
		Options:  Options{MaxEndpointsPerSlice: 3, MaxEndpointsPerBackend: 1000, OrphanGrace: 10 * time.Minute},
		Started:  time.Now(),
		policies: &policies{client: cachedClient{env.live, env}},
		refusals: newRefusalStore(),
	}
	env.refresh()
}

// refresh makes the cache show the current objects.
func (env *testEnv) refresh() {
	if env.cache == nil || env.shown != env.writes {
		env.cache, env.shown = env.builder(env.objects()).Build(), env.writes
	}
}

// objects returns all objects that ExternalBackends are about, and the policies.
func (env *testEnv) objects() []client.Object {
	var objects []client.Object
	for _, list := range []client.ObjectList{
		&v1alpha1.ExternalBackendList{}, &v1alpha1.ExternalBackendPolicyList{}, &v1alpha1.ExternalBackendOverrideList{},
		&corev1.ServiceList{}, &discoveryv1.EndpointSliceList{}, &corev1.EndpointsList{},
	} {
		env.ok(env.live.List(env.t.Context(), list))
		env.ok(meta.EachListItem(list, func(o runtime.Object) error {
			objects = append(objects, o.(client.Object))
			return nil
		}))
	}
	return objects
}

func (env *testEnv) ok(err error) {
	env.t.Helper()
	if err != nil {
		env.t.Fatal(err)
	}
}

// settle reconciles until nothing is written any more. It restarts a manager that has crashed.
func (env *testEnv) settle() {
	env.t.Helper()
	var last error
	for i := range 100 {
		if !env.lag || i%5 == 4 {
			env.refresh()
		}
		before := env.writes
		_, err := env.reconciler.Reconcile(env.t.Context(), ctrl.Request{NamespacedName: shop})
		switch {
		case env.dead:
			env.restart()
		case err != nil:
			last = err
		case env.writes == before && env.shown == env.writes:
			return
		case env.writes == before:
			env.refresh()
		}
	}
	env.t.Fatalf("%s does not come to rest, last error: %v\n%s", env.what, last, env.state())
}

// spec merges text into the spec, or creates the ExternalBackend.
func (env *testEnv) spec(text string) {
	env.t.Helper()
	var b v1alpha1.ExternalBackend
	err := env.live.Get(env.t.Context(), shop, &b)
	b.ObjectMeta.Name, b.ObjectMeta.Namespace = shop.Name, shop.Namespace
	b.Generation++
	env.ok(yaml.UnmarshalStrict([]byte(text), &b.Spec))

	faults, writes := env.fault, env.writes
	env.fault = func(int) fault { return fault{} }
	defer func() { env.fault = faults }()
	if err != nil {
		b.UID = "uid-of-shop"
		env.ok(env.live.Create(env.t.Context(), &b))
	} else {
		env.ok(env.live.Update(env.t.Context(), &b))
	}
	env.writes, env.shown = writes, -1
}

// state returns the Service, the endpoints, and the status without times, for comparison. It fails
// if an endpoint is published twice.
func (env *testEnv) state() string {
	env.t.Helper()
	var out strings.Builder
	var s corev1.Service
	if err := env.live.Get(env.t.Context(), shop, &s); err == nil {
		fmt.Fprintf(&out, "Service %s %s %v %v selector=%v owner=%t\n", s.Spec.Type, s.Spec.ClusterIP,
			s.Spec.Ports, s.Labels, s.Spec.Selector, metav1.GetControllerOf(&s) != nil)
	}

	var list discoveryv1.EndpointSliceList
	env.ok(env.live.List(env.t.Context(), &list))
	var own []*discoveryv1.EndpointSlice
	total := 0
	for i := range list.Items {
		if s := &list.Items[i]; ours(s) {
			own = append(own, s)
			total += len(s.Endpoints)
		} else {
			fmt.Fprintf(&out, "foreign %s\n", s.Name)
		}
	}
	published := endpointslice.Published(own).Endpoints()
	if len(published) != total {
		env.t.Errorf("the slices hold %d endpoints, of which %d differ", total, len(published))
	}
	var lines []string
	for _, e := range published {
		lines = append(lines, fmt.Sprintf("%s %s %v ready=%t serving=%t terminating=%t",
			e.Target, e.Addr, e.Ports[0].Port, e.Ready, e.Serving, e.Terminating))
	}
	slices.Sort(lines)
	out.WriteString(strings.Join(lines, "\n") + "\n")

	var b v1alpha1.ExternalBackend
	if err := env.live.Get(env.t.Context(), shop, &b); err == nil {
		for _, c := range b.Status.Conditions {
			if c.Type == v1alpha1.ConditionHealthy {
				continue // after a restart the published health counts as a verdict
			}
			if c.Reason == v1alpha1.ReasonAllUnhealthy { // for the same reason
				c.Reason = v1alpha1.ReasonNoReadyEndpoints
			}
			fmt.Fprintf(&out, "%s=%s %s\n", c.Type, c.Status, c.Reason)
		}
	}
	return out.String()
}

// endpoints returns all published endpoints.
func (env *testEnv) endpoints() map[netip.Addr]endpointslice.Endpoint {
	var list discoveryv1.EndpointSliceList
	env.ok(env.live.List(env.t.Context(), &list))
	var all []*discoveryv1.EndpointSlice
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	out := map[netip.Addr]endpointslice.Endpoint{}
	for _, e := range endpointslice.Published(all).Endpoints() {
		out[e.Addr] = e
	}
	return out
}
