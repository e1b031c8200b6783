package controllers

import (
	"context"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/policy"
)

// policyPause is how long further changes of policies, Nodes and ServiceCIDRs are awaited after
// one, so that a burst of them has policy compiled, and every ExternalBackend reconciled, once.
const policyPause = 100 * time.Millisecond

// policies keeps the policy that is compiled from the ExternalBackendPolicies and the ranges of
// this cluster, as the cache shows them.
type policies struct {
	client client.Reader
	// declared, defaultDeny and clusterDomain are flags of the manager.
	declared      []netip.Prefix
	defaultDeny   bool
	clusterDomain string

	changes chan struct{} // holds one where something has changed; nil: nobody runs
	// tell has every ExternalBackend reconciled, or where differs is given those with an address of
	// which it reports that policy takes it for something else now.
	tell func(ctx context.Context, differs func(netip.Addr) bool)

	mu    sync.Mutex  // held while policy is compiled
	set   *policy.Set // nil: has to be compiled
	rules bool        // more has changed than ranges, and not everyone has been told
	views sync.Map    // what each namespace may use, a namespaceView by name; read without mu
}

// namespaceView is what one namespace may use by one compilation.
type namespaceView struct {
	set  *policy.Set
	view *policy.View
}

// changed makes the next view be compiled anew, and tells everyone soon.
func (p *policies) changed() {
	p.mu.Lock()
	p.set, p.rules = nil, true
	p.mu.Unlock()
	p.signal()
}

// signal has run compile policy soon. Until then all go by the ranges that they know: Nodes come
// and go all the time, and few ExternalBackends have addresses among theirs.
func (p *policies) signal() {
	select {
	case p.changes <- struct{}{}:
	default:
	}
}

// namespaceChanged renews the view of a namespace whose labels have changed.
func (p *policies) namespaceChanged(ctx context.Context, namespace string) {
	p.mu.Lock() // a view that is being made may not have seen the labels
	v, known := p.views.Load(namespace)
	if known {
		p.views.Store(namespace, namespaceView{view: v.(namespaceView).view})
	}
	p.mu.Unlock()
	if known {
		p.renew(ctx, namespace)
	}
}

// run compiles policy after changes, until ctx ends. So the probing engine, which only ever reads
// what is compiled, goes by the new policy before the last ExternalBackend has been reconciled by
// it.
func (p *policies) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.changes:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(policyPause):
		}
		select {
		case <-p.changes: // what is compiled now has seen it
		default:
		}
		p.mu.Lock()
		before := p.set
		if p.rules {
			before = nil
		}
		p.set, p.rules = nil, false
		p.mu.Unlock()
		p.views.Range(func(namespace, _ any) bool {
			p.renew(ctx, namespace.(string))
			return ctx.Err() == nil
		})
		p.tell(ctx, p.differs(before))
	}
}

// differs returns what tells which addresses are of another kind than before; nil where more may
// have changed.
func (p *policies) differs(before *policy.Set) func(netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.set
	if before == nil || now == nil {
		return nil
	}
	return func(a netip.Addr) bool { return !before.SameKinds(now, a) }
}

// renew makes the view of a namespace anew. Where that fails the old one holds until somebody
// reconciles there.
func (p *policies) renew(ctx context.Context, namespace string) {
	_, err := p.view(ctx, namespace)
	if apierrors.IsNotFound(err) {
		p.views.Delete(namespace)
	} else if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Can't compile policy anew", "namespace", namespace)
	}
}

// compiled returns what namespace may use by the last compilation, nil where nobody has asked for
// it yet. It never blocks.
func (p *policies) compiled(namespace string) *policy.View {
	if v, ok := p.views.Load(namespace); ok {
		return v.(namespaceView).view
	}
	return nil
}

// view returns what namespace may use, compiled anew where something has changed. All reads are
// from the cache.
func (p *policies) view(ctx context.Context, namespace string) (*policy.View, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set == nil {
		if err := p.compileLocked(ctx); err != nil {
			return nil, err
		}
	}
	if v, ok := p.views.Load(namespace); ok && v.(namespaceView).set == p.set {
		return v.(namespaceView).view, nil
	}
	var ns corev1.Namespace
	if err := p.client.Get(ctx, types.NamespacedName{Name: namespace}, &ns); err != nil {
		return nil, err // without its labels nobody knows which policies select it
	}
	v := p.set.For(ns.Labels)
	p.views.Store(namespace, namespaceView{p.set, v})
	return v, nil
}

func (p *policies) compileLocked(ctx context.Context) error {
	var list v1alpha1.ExternalBackendPolicyList
	var nodes corev1.NodeList
	var cidrs networkingv1.ServiceCIDRList
	for _, l := range []client.ObjectList{&list, &nodes, &cidrs} {
		if err := p.client.List(ctx, l, client.UnsafeDisableDeepCopy); err != nil {
			return err
		}
	}
	set, problems := policy.Compile(policy.Input{
		Policies:      list.Items,
		ClusterRanges: clusterRanges(p.declared, nodes.Items, cidrs.Items),
		DefaultDeny:   p.defaultDeny,
		ClusterDomain: p.clusterDomain,
	})
	for _, problem := range problems {
		ctrl.LoggerFrom(ctx).Info("An entry of an ExternalBackendPolicy can't be read and allows nothing", "problem", problem.String())
	}
	p.set = set
	return nil
}

// clusterRanges are the Service, pod and node addresses of this cluster. What can't be read is no
// range.
func clusterRanges(declared []netip.Prefix, nodes []corev1.Node, cidrs []networkingv1.ServiceCIDR) policy.ClusterRanges {
	out := policy.ClusterRanges{Declared: declared}
	discover := func(texts ...string) {
		for _, text := range texts {
			if p, err := netip.ParsePrefix(text); err == nil {
				out.Discovered = append(out.Discovered, p)
			}
		}
	}
	for i := range cidrs {
		discover(cidrs[i].Spec.CIDRs...)
	}
	for i := range nodes {
		discover(nodes[i].Spec.PodCIDR)
		discover(nodes[i].Spec.PodCIDRs...)
		for _, a := range nodes[i].Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil {
				out.NodeAddresses = append(out.NodeAddresses, ip)
			}
		}
	}
	return out
}
