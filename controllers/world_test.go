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
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

// world is an API server that obeys a script, a cache that may lag behind it, engines that know
// what they are told, and a manager that may crash at any write. The real API server, garbage
// collector and engines have their tests elsewhere; this one is for what they do only once in a
// blue moon.
type world struct {
	t      *testing.T
	what   string // is being tested
	live   client.WithWatch
	cache  client.Client
	lag    bool // the cache is refreshed only between reconciles that came to rest
	writes int  // so far
	shown  int  // of these in the cache
	// fault is asked before each write with its number, from 1 on.
	fault func(n int) fault
	dead  bool // crashed: nothing is written until restart
	// refuse is asked before each write, too: what it refuses does not count as one.
	refuse func(client.Object) error
	// stable are the addresses that have to stand after every write.
	stable []netip.Addr

	reconciler *Reconciler
	resolver   *fakeResolver
	prober     *fakeProber
	events     ownEvents
}

// fault is what becomes of a write.
type fault struct {
	err error
	// committed: the write takes place all the same, such as before a timeout.
	committed bool
	// crash: the manager dies of it.
	crash bool
}

var (
	uids     atomic.Int64
	errCrash = errors.New("crashed")
	shop     = types.NamespacedName{Namespace: "default", Name: "shop"}
)

// testScheme is small and made once: the fake client is built very often.
var testScheme = sync.OnceValue(func() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := errors.Join(corev1.AddToScheme(s), discoveryv1.AddToScheme(s), networkingv1.AddToScheme(s), v1alpha1.AddToScheme(s)); err != nil {
		panic(err)
	}
	return s
})

func newWorld(t *testing.T, objects ...client.Object) *world {
	w := &world{t: t, fault: func(int) fault { return fault{} }, refuse: nothing}
	w.live = w.builder(objects).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			return w.write(o, func() error {
				if o.GetUID() == "" {
					o.SetUID(types.UID(fmt.Sprintf("uid-%d", uids.Add(1))))
				}
				defaultService(o)
				return c.Create(ctx, o, options...)
			})
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.UpdateOption) error {
			return w.write(o, func() error { defaultService(o); return c.Update(ctx, o, options...) })
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			return w.write(o, func() error { return c.Delete(ctx, o, options...) })
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption) error {
			return w.write(o, func() error { return c.Patch(ctx, o, p, options...) })
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch, options ...client.SubResourcePatchOption) error {
			return w.write(o, func() error { return c.SubResource(sub).Patch(ctx, o, p, options...) })
		},
	}).Build()
	w.restart()
	return w
}

// nothing is refused.
func nothing(client.Object) error { return nil }

func (w *world) builder(objects []client.Object) *fake.ClientBuilder {
	b := fake.NewClientBuilder().
		WithScheme(testScheme()).
		WithObjects(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop.Namespace}}).
		WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.ExternalBackend{})
	b = b.WithIndex(
		&v1alpha1.ExternalBackend{},
		metav1.ObjectNameField,
		func(o client.Object) []string { return []string{o.GetName()} },
	)
	for _, i := range indexes() {
		b = b.WithIndex(i.object, i.field, i.values)
	}
	return b
}

// defaultService plays the API server's part.
func defaultService(o client.Object) {
	s, ok := o.(*corev1.Service)
	if !ok {
		return
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	if s.Spec.ClusterIP == "" {
		s.Spec.ClusterIP, s.Spec.ClusterIPs = "10.96.0.10", []string{"10.96.0.10"}
	}
	if len(s.Spec.IPFamilies) == 0 {
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
	}
}

func (w *world) write(o client.Object, do func() error) error {
	if w.dead {
		return errCrash
	}
	if err := w.refuse(o); err != nil {
		return err
	}
	w.writes++
	defer w.check()
	f := w.fault(w.writes)
	w.dead = f.crash
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

// check looks for endpoints that went missing between two writes.
func (w *world) check() {
	if len(w.stable) == 0 {
		return
	}
	standing := w.endpoints()
	for _, a := range w.stable {
		if _, ok := standing[a]; !ok {
			w.t.Errorf("%s: %s is missing after write %d", w.what, a, w.writes)
			w.stable = nil // said once
			return
		}
	}
}

// restart begins a new manager, which knows only what the cluster says.
func (w *world) restart() {
	w.dead = false
	if w.resolver == nil {
		w.resolver, w.prober = &fakeResolver{}, &fakeProber{}
	}
	w.resolver.seeds, w.prober.known = nil, nil
	w.reconciler = &Reconciler{
		Client: cachedClient{
			w.live,
			w,
		}, Live: w.live, Recorder: &w.events, Resolver: w.resolver, Prober: w.prober, Metrics: NewMetrics(prometheus.NewRegistry()),
		Options: Options{
			MaxEndpointsPerSlice:   3,
			MaxEndpointsPerBackend: 1000,
			OrphanGrace:            10 * time.Minute,
		}, Started: time.Now(),
		policies: &policies{client: cachedClient{w.live, w}},
	}
	w.refresh()
}

// refresh makes the cache show what is.
func (w *world) refresh() {
	if w.cache == nil || w.shown != w.writes {
		w.cache, w.shown = w.builder(w.objects()).Build(), w.writes
	}
}

// objects are all that there are.
func (w *world) objects() []client.Object {
	var objects []client.Object
	for _, list := range []client.ObjectList{
		&v1alpha1.ExternalBackendList{}, &corev1.ServiceList{}, &discoveryv1.EndpointSliceList{},
		&corev1.EndpointsList{},
	} {
		w.ok(w.live.List(w.t.Context(), list))
		w.ok(
			meta.EachListItem(list, func(o runtime.Object) error { objects = append(objects, o.(client.Object)); return nil }),
		)
	}
	return objects
}

func (w *world) ok(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// settle reconciles until nothing is written any more. A crashed manager is followed by a new one.
func (w *world) settle() {
	w.t.Helper()
	var last error
	for i := range 100 {
		if !w.lag || i%5 == 4 {
			w.refresh()
		}
		before := w.writes
		_, err := w.reconciler.Reconcile(w.t.Context(), ctrl.Request{NamespacedName: shop})
		switch {
		case w.dead:
			w.restart()
		case err != nil:
			last = err
		case w.writes == before && w.shown == w.writes:
			return
		case w.writes == before:
			w.refresh()
		}
	}
	w.t.Fatalf("%s does not come to rest, last error: %v\n%s", w.what, last, w.state())
}

// spec merges into the spec, or creates the ExternalBackend.
func (w *world) spec(text string) {
	w.t.Helper()
	var b v1alpha1.ExternalBackend
	err := w.live.Get(w.t.Context(), shop, &b)
	b.ObjectMeta.Name, b.ObjectMeta.Namespace = shop.Name, shop.Namespace
	b.Generation++
	w.ok(yaml.UnmarshalStrict([]byte(text), &b.Spec))
	alive := w.fault
	w.fault = func(int) fault { return fault{} }
	defer func() { w.fault = alive }()
	writes := w.writes
	if err != nil {
		b.UID = "uid-of-shop"
		w.ok(w.live.Create(w.t.Context(), &b))
	} else {
		w.ok(w.live.Update(w.t.Context(), &b))
	}
	w.writes, w.shown = writes, -1
}

// state is what stands, for comparison: the Service, the endpoints, and status without times. Every
// endpoint must stand once.
func (w *world) state() string {
	w.t.Helper()
	var out strings.Builder
	var s corev1.Service
	if err := w.live.Get(w.t.Context(), shop, &s); err == nil {
		fmt.Fprintf(
			&out,
			"Service %s %s %v %v selector=%v owner=%t\n",
			s.Spec.Type,
			s.Spec.ClusterIP,
			s.Spec.Ports,
			s.Labels,
			s.Spec.Selector,
			metav1.GetControllerOf(&s) != nil,
		)
	}
	var list discoveryv1.EndpointSliceList
	w.ok(w.live.List(w.t.Context(), &list))
	var stand []*discoveryv1.EndpointSlice
	total := 0
	for i := range list.Items {
		if s := &list.Items[i]; ours(s) {
			stand = append(stand, s)
			total += len(s.Endpoints)
		} else {
			fmt.Fprintf(&out, "foreign %s\n", s.Name)
		}
	}
	published := endpointslice.Published(stand).Endpoints()
	if len(published) != total {
		w.t.Errorf("%d endpoints stand in the slices, of which %d differ", total, len(published))
	}
	var lines []string
	for _, e := range published {
		lines = append(
			lines,
			fmt.Sprintf(
				"%s %s %v ready=%t serving=%t terminating=%t",
				e.Target,
				e.Addr,
				e.Ports[0].Port,
				e.Ready,
				e.Serving,
				e.Terminating,
			),
		)
	}
	slices.Sort(lines)
	out.WriteString(strings.Join(lines, "\n") + "\n")
	var b v1alpha1.ExternalBackend
	if err := w.live.Get(w.t.Context(), shop, &b); err == nil {
		for _, c := range b.Status.Conditions {
			if c.Type == v1alpha1.ConditionHealthy {
				continue // after a restart what was published counts as a verdict
			}
			if c.Reason == v1alpha1.ReasonAllUnhealthy { // for the same reason
				c.Reason = v1alpha1.ReasonNoReadyEndpoints
			}
			fmt.Fprintf(&out, "%s=%s %s\n", c.Type, c.Status, c.Reason)
		}
	}
	return out.String()
}

// endpoints are all that are published.
func (w *world) endpoints() map[netip.Addr]endpointslice.Endpoint {
	var list discoveryv1.EndpointSliceList
	w.ok(w.live.List(w.t.Context(), &list))
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

// cachedClient reads from the cache and writes to the API server, as a manager's does.
type cachedClient struct {
	client.WithWatch
	world *world
}

func (c cachedClient) Get(
	ctx context.Context,
	key client.ObjectKey,
	o client.Object,
	options ...client.GetOption,
) error {
	return c.world.cache.Get(ctx, key, o, options...)
}

func (c cachedClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return c.world.cache.List(ctx, list, options...)
}

// fakeResolver knows what the test says, and like the real one takes seeds over until it does.
type fakeResolver struct {
	known map[string]resolve.Answer
	seeds map[resolve.Question]resolve.Answer
}

func (f *fakeResolver) Sync(_ types.NamespacedName, _ resolve.Config, names []resolve.Wanted) {
	before := f.seeds
	f.seeds = map[resolve.Question]resolve.Answer{}
	for _, n := range names {
		a, ok := before[n.Question]
		if !ok {
			a = resolve.Answer{Status: resolve.Pending, Addrs: n.Seed}
		}
		if known, ok := f.known[n.Name]; ok {
			a = known
		}
		f.seeds[n.Question] = a
	}
}
func (f *fakeResolver) Snapshot(types.NamespacedName) map[resolve.Question]resolve.Answer {
	return f.seeds
}
func (f *fakeResolver) Forget(types.NamespacedName) { f.seeds = nil }

// fakeProber knows what the test says of an address, and like the real one takes seeds over until
// it does.
type fakeProber struct {
	verdicts map[netip.Addr]probe.Verdict
	known    map[probe.ID]probe.State
	order    []probe.ID
	check    *probe.Check
	blind    bool // none of them answers, and it takes itself for blind
}

func (f *fakeProber) Sync(_ types.NamespacedName, check *probe.Check, endpoints []probe.Endpoint) {
	f.check = check
	before := f.known
	f.known, f.order = map[probe.ID]probe.State{}, nil
	for _, e := range endpoints {
		state, ok := before[e.ID]
		if !ok {
			state.Verdict = e.Seed
		}
		if v, ok := f.verdicts[e.ID.Addr]; ok {
			state = probe.State{Verdict: v, Probed: true}
		}
		f.known[e.ID] = state
		f.order = append(f.order, e.ID)
	}
}
func (f *fakeProber) States(types.NamespacedName) []probe.State {
	out := make([]probe.State, len(f.order))
	for i, id := range f.order {
		out[i] = f.known[id]
		out[i].Blind = f.blind
	}
	return out
}
func (f *fakeProber) Forget(types.NamespacedName) { f.known, f.order = nil, nil }

// ownEvents are the events of the one ExternalBackend since they were taken last, each as "Type
// Reason text".
type ownEvents []string

func (r *ownEvents) Eventf(_, _ runtime.Object, kind, reason, _, format string, args ...any) {
	*r = append(*r, fmt.Sprintf("%s %s "+format, append([]any{kind, reason}, args...)...))
}

// take returns the events since the last call.
func (r *ownEvents) take() []string {
	out := *r
	*r = nil
	return out
}
