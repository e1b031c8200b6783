package controllers

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/probe"
)

// TestBurstOfChangesCompilesPolicyOnce: it is compiled soon, and not by the prober, which dials by
// the last compilation.
func TestBurstOfChangesCompilesPolicyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := literalEnv(t)
		r := env.reconciler
		var compiled, enqueued atomic.Int32
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
		informers := runController(t, env)
		p.enqueue = func(context.Context, func(netip.Addr) bool) { enqueued.Add(1) }
		addr := netip.MustParseAddrPort("203.0.113.1:8080")
		state := r.states.of(shop)
		state.engines.dial.Store(&map[netip.AddrPort]string{addr: ""})
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
			p.options.ClusterCIDRs = nil
			if refused {
				p.options.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("203.0.113.1/32")}
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
				int(enqueued.Load()) != 1+n {
				t.Errorf("soon after the change: %v, compiled %d times, enqueued %d times", err, compiled.Load(), enqueued.Load())
			}
		}
		p.mu.Lock() // as while policy is compiled
		defer p.mu.Unlock()
		if err := r.PermitDial(shop, addr); err != nil {
			t.Error(err)
		}
	})
}

// TestRecreatedPolicyIsCompiled: a policy, or a ServiceCIDR, that was deleted and created again
// while the watch was interrupted is compiled, although its generation is the same.
func TestRecreatedPolicyIsCompiled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newTestEnv(t)
		env.reconciler.policies.wake = make(chan struct{}, 1)
		informers := runController(t, env)
		for _, kind := range []func() client.Object{
			func() client.Object { return &v1alpha1.ExternalBackendPolicy{} },
			func() client.Object { return &networkingv1.ServiceCIDR{} },
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

// TestNodeEnqueuesBackendsWithItsAddresses: a Node that comes or goes enqueues the ExternalBackends
// that use one of its addresses. A change of rules enqueues all.
func TestNodeEnqueuesBackendsWithItsAddresses(t *testing.T) {
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
		env := newTestEnv(t, slice,
			named("literal", func(s *v1alpha1.ExternalBackendSpec) {
				s.Targets = []v1alpha1.Target{{Name: "a", Address: "198.51.100.7"}}
			}),
			named("embedded", func(s *v1alpha1.ExternalBackendSpec) {
				s.Targets = []v1alpha1.Target{{Name: "a", Address: "64:ff9b::c633:6407"}}
			}),
			named("nameserver", func(s *v1alpha1.ExternalBackendSpec) {
				s.DNS = &v1alpha1.DNS{Nameservers: []string{"198.51.100.7:53"}}
			}),
			named("published", func(*v1alpha1.ExternalBackendSpec) {}),
			named("other", func(s *v1alpha1.ExternalBackendSpec) {
				s.Targets = []v1alpha1.Target{{Name: "a", Address: "203.0.113.7"}}
			}),
		)
		r := env.reconciler
		var nodes []corev1.Node
		r.policies.client = nodeReader{r.Client, &nodes}
		r.policies.wake = make(chan struct{}, 1)
		informers := runController(t, env)
		enqueue := r.policies.enqueue
		var enqueued []string
		r.policies.enqueue = func(ctx context.Context, affected func(netip.Addr) bool) {
			for _, request := range r.requestsForAddresses(ctx, affected) {
				enqueued = append(enqueued, request.Name)
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
			slices.Sort(enqueued)
			if !slices.Equal(enqueued, want) {
				t.Errorf("%s: enqueued are %v, want %v", what, enqueued, want)
			}

			enqueued = nil
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
		_, err = r.policies.view(t.Context(), shop.Namespace) // compiles before all are enqueued
		env.ok(err)
		expect("a policy", "embedded", "literal", "nameserver", "other", "published")
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

// TestRefusedNameIsNotResolved: no DNS query is sent for a name that policy refuses.
func TestRefusedNameIsNotResolved(t *testing.T) {
	env := newTestEnv(t)
	env.reconciler.policies.options.DefaultDeny = true
	env.spec(poolSpec)
	env.settle()
	if len(env.resolver.seeds) != 0 {
		t.Errorf("asked for: %v", env.resolver.seeds)
	}
	env.expectCondition(v1alpha1.ConditionPermitted, `False TargetDenied: Refused by policy: target "pool" (`)
	if got := env.backend().Status.Targets[0].State; got != v1alpha1.TargetStateDenied {
		t.Errorf("state %s", got)
	}

	env.reconciler.policies.options.DefaultDeny = false
	env.reconciler.policies.rulesChanged()
	setAnswer(1, 3)(env)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.settle()
	env.expectCondition(v1alpha1.ConditionPermitted, "True")
	if n := len(env.endpoints()); n != 2 {
		t.Errorf("%d endpoints", n)
	}
}
