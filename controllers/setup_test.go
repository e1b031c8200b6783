package controllers

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/probe"
)

// informers can be asked for, and for one kind given several handlers, from several goroutines.
type informers struct {
	mu sync.Mutex
	informertest.FakeInformers
}

func (i *informers) GetInformer(
	ctx context.Context,
	o client.Object,
	options ...cache.InformerGetOption,
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
	h toolscache.ResourceEventHandler,
	options toolscache.HandlerOptions,
) (toolscache.ResourceEventHandlerRegistration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Informer.AddEventHandlerWithOptions(h, options)
}

// watching runs env's controller over informers that the test feeds, until the test ends.
func watching(t *testing.T, env *testEnv) *informers {
	t.Helper()
	informers := &informers{FakeInformers: informertest.FakeInformers{Scheme: testScheme()}}
	mgr, err := ctrl.NewManager(&rest.Config{}, ctrl.Options{
		Scheme: testScheme(), Metrics: metricsserver.Options{BindAddress: "0"}, Controller: config.Controller{SkipNameValidation: new(true)},
		NewCache:       func(*rest.Config, cache.Options) (cache.Cache, error) { return informers, nil },
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return env.live.RESTMapper(), nil },
	})
	env.ok(err)
	env.ok(env.reconciler.addController(mgr, &healthQueue{}))
	stopped := make(chan error)
	go func() { stopped <- mgr.Start(t.Context()) }()
	t.Cleanup(func() { env.ok(<-stopped) })
	synctest.Wait()
	return informers
}

// TestPolicyIsCompiledApart: a burst of changes has policy compiled once, soon, and by none of
// those whom the probing engine asks: it dials by what is compiled.
func TestPolicyIsCompiledApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := literalEnv(t)
		r := env.reconciler
		var compiled, told atomic.Int32
		p := &policies{
			wake: make(chan struct{}, 1),
			client: interceptor.NewClient(cachedClient{env.live, env}, interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
					if _, ok := list.(*v1alpha1.ExternalBackendPolicyList); ok {
						compiled.Add(1)
					}
					return c.List(ctx, list, options...)
				},
			}),
		}
		r.policies = p
		informers := watching(t, env)
		p.enqueue = func(context.Context, func(netip.Addr) bool) { told.Add(1) }
		addr := netip.MustParseAddrPort("203.0.113.1:8080")
		state := r.states.of(shop)
		state.engines.setDial(map[netip.AddrPort]string{addr: ""})
		if err := r.PermitDial(shop, addr); err == nil || compiled.Load() > 0 {
			t.Errorf("before anybody has reconciled: %v, compiled %d times", err, compiled.Load())
		}
		if _, err := p.view(t.Context(), shop.Namespace); err != nil {
			t.Fatal(err)
		}
		nodes, err := informers.FakeInformerFor(t.Context(), &corev1.Node{})
		env.ok(err)
		for n, refused := range []bool{true, false} {
			p.mu.Lock()
			p.declared = nil
			if refused {
				p.declared = []netip.Prefix{netip.MustParsePrefix("203.0.113.1/32")}
			}
			p.mu.Unlock()
			for range 50 {
				nodes.Add(&corev1.Node{})
			}
			synctest.Wait()
			if err := r.PermitDial(shop, addr); (err == nil) != refused || int(compiled.Load()) != 1+n {
				t.Errorf("right after the change: %v, compiled %d times", err, compiled.Load())
			}
			time.Sleep(policyDelay)
			synctest.Wait()
			if err := r.PermitDial(shop, addr); (err != nil) != refused || int(compiled.Load()) != 2+n ||
				int(told.Load()) != 1+n {
				t.Errorf("soon after the change: %v, compiled %d times, told %d times", err, compiled.Load(), told.Load())
			}
		}
		p.mu.Lock() // as while policy is compiled
		defer p.mu.Unlock()
		if err := r.PermitDial(shop, addr); err != nil {
			t.Error(err)
		}
	})
}

// TestRulesMadeAnew: a policy, or a range of Services, that was deleted and made anew while the
// watch was interrupted is compiled, although its generation is what it was.
func TestRulesMadeAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTestEnv(t)
		env.reconciler.policies.wake = make(chan struct{}, 1)
		informers := watching(t, env)
		for _, kind := range []func() client.Object{
			func() client.Object { return &v1alpha1.ExternalBackendPolicy{} }, func() client.Object { return &networkingv1.ServiceCIDR{} },
		} {
			informer, err := informers.FakeInformerFor(t.Context(), kind())
			env.ok(err)
			for _, uid := range []types.UID{"first", "second"} {
				env.reconciler.policies.set = &policy.Set{}
				old, anew := kind(), kind()
				old.SetUID("first")
				old.SetGeneration(1)
				anew.SetUID(uid)
				anew.SetGeneration(1)
				informer.Update(old, anew)
				time.Sleep(policyDelay)
				synctest.Wait()
				if kept := env.reconciler.policies.set != nil; kept != (uid == "first") {
					t.Errorf("%T: after an update to the %s object the old rules hold: %t", old, uid, kept)
				}
			}
		}
		informer, err := informers.FakeInformerFor(t.Context(), &networkingv1.ServiceCIDR{})
		env.ok(err)
		single := &networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/16"}}}
		dual := single.DeepCopy()
		dual.Spec.CIDRs = append(dual.Spec.CIDRs, "fd00:10:96::/112")
		env.reconciler.policies.set = &policy.Set{}
		informer.Update(single, dual)
		time.Sleep(policyDelay)
		synctest.Wait()
		if env.reconciler.policies.set != nil {
			t.Error("a cluster that has become dual stack guards its new range of Services not")
		}
	})
}

// TestNodesComeAndGo: that a Node comes or goes has those ExternalBackends reconciled that have an
// address among its own, wherever it stands; a change of rules all.
func TestNodesComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		named := func(name string, change func(*v1alpha1.ExternalBackendSpec)) *v1alpha1.ExternalBackend {
			b := &v1alpha1.ExternalBackend{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: shop.Namespace}}
			change(&b.Spec)
			return b
		}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Name: "published-1", Namespace: shop.Namespace, Labels: map[string]string{
				discoveryv1.LabelManagedBy: v1alpha1.ManagedBy, v1alpha1.LabelName: "published",
			}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"198.51.100.7"}}},
		}
		env := newTestEnv(
			t,
			slice,
			named("literal", func(s *v1alpha1.ExternalBackendSpec) {
				s.Targets = []v1alpha1.Target{{Name: "a", Address: "198.51.100.7"}}
			}),
			named("embedded", func(s *v1alpha1.ExternalBackendSpec) {
				s.Targets = []v1alpha1.Target{{Name: "a", Address: "64:ff9b::c633:6407"}}
			}),
			named(
				"nameserver",
				func(s *v1alpha1.ExternalBackendSpec) { s.DNS = &v1alpha1.DNS{Nameservers: []string{"198.51.100.7:53"}} },
			),
			named("published", func(*v1alpha1.ExternalBackendSpec) {}),
			named("other", func(s *v1alpha1.ExternalBackendSpec) {
				s.Targets = []v1alpha1.Target{{Name: "a", Address: "203.0.113.7"}}
			}),
		)
		r := env.reconciler
		var nodes []corev1.Node
		r.policies.client = nodeReader{r.Client, &nodes}
		r.policies.wake = make(chan struct{}, 1)
		informers := watching(t, env)
		enqueue := r.policies.enqueue
		var woken []string
		r.policies.enqueue = func(ctx context.Context, affected func(netip.Addr) bool) {
			for _, request := range r.requestsForAddresses(ctx, affected) {
				woken = append(woken, request.Name)
			}
			enqueue(ctx, affected)
		}
		_, err := r.policies.view(t.Context(), shop.Namespace)
		env.ok(err)
		informer, err := informers.FakeInformerFor(t.Context(), &corev1.Node{})
		env.ok(err)
		node := func(address string) *corev1.Node {
			return &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: address},
				Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Address: address}}},
			}
		}
		expect := func(what string, want ...string) {
			time.Sleep(policyDelay)
			synctest.Wait()
			slices.Sort(woken)
			if !slices.Equal(woken, want) {
				t.Errorf("%s: reconciled are %v, want %v", what, woken, want)
			}
			woken = nil
		}
		theirs, ours := node("192.0.2.1"), node("198.51.100.7")
		nodes = []corev1.Node{*theirs}
		informer.Add(theirs)
		expect("a Node that concerns nobody")
		nodes = append(nodes, *ours)
		informer.Add(ours)
		expect("a Node at their address", "embedded", "literal", "nameserver", "published")
		nodes = nodes[:1]
		informer.Delete(ours)
		expect("the Node has gone", "embedded", "literal", "nameserver", "published")
		rules, err := informers.FakeInformerFor(t.Context(), &v1alpha1.ExternalBackendPolicy{})
		env.ok(err)
		informer.Delete(theirs)
		rules.Add(&v1alpha1.ExternalBackendPolicy{})
		_, err = r.policies.view(t.Context(), shop.Namespace) // compiled anew before all are told
		env.ok(err)
		expect("a policy", "embedded", "literal", "nameserver", "other", "published")
	})
}

// TestObjectDeletedBeforeAnyReconcileSawItIsBackAtOnce: somebody deletes the Service, or a slice,
// right after we created it. No reconcile runs between the two events, so that the cache never
// shows the object to one. It is created again when its deletion is seen, not a minute later.
func TestObjectDeletedBeforeAnyReconcileSawItIsBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTestEnv(t)
		setVerdict(probe.Healthy, 1, 3)(env)
		informers := watching(t, env)
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

// nodeReader reads Nodes from a list.
type nodeReader struct {
	client.Reader
	nodes *[]corev1.Node
}

func (n nodeReader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if l, ok := list.(*corev1.NodeList); ok {
		l.Items = slices.Clone(*n.nodes)
		return nil
	}
	return n.Reader.List(ctx, list, options...)
}
