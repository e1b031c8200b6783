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
	"github.com/external-backend/operator/internal/translate"
)

// policyDelay is how long further changes of policies, Nodes and ServiceCIDRs are gathered after
// the first. A burst of them compiles policy, and reconciles each ExternalBackend, only once.
const policyDelay = 100 * time.Millisecond

// policies keeps the policy that is compiled from the ExternalBackendPolicies and the ranges of
// this cluster, as the cache shows them.
type policies struct {
	client  client.Reader
	options Options

	// wake has room for one value. It makes run compile policy.
	wake chan struct{}
	// enqueue enqueues the ExternalBackends with an affected address, which is one that policy
	// classifies differently now. It enqueues all of them if affected is nil.
	enqueue func(ctx context.Context, affected func(netip.Addr) bool)

	mu         sync.Mutex     // held while policy is compiled
	set        *policy.Set    // nil: has to be compiled
	sources    []policySource // what set was compiled from
	enqueueAll bool           // more than ranges has changed since run enqueued last
	views      sync.Map       // the namespaceView of each namespace, by name; read without mu
}

// policySource identifies an ExternalBackendPolicy as it was compiled.
type policySource struct {
	uid        types.UID
	generation int64
	// problems name the fields that can't be read.
	problems []string
}

// namespaceView is what one namespace may use, by one compilation.
type namespaceView struct {
	set  *policy.Set
	view *policy.View
}

// rulesChanged makes the next reconcile compile policy, and run enqueue all ExternalBackends soon.
func (p *policies) rulesChanged() {
	p.mu.Lock()
	p.set, p.enqueueAll = nil, true
	p.mu.Unlock()
	p.rangesChanged()
}

// rangesChanged makes run compile policy soon. Until then the ranges that are known apply: Nodes
// come and go all the time, and few ExternalBackends have addresses among theirs.
func (p *policies) rangesChanged() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// namespaceChanged makes the view of a namespace again, whose labels have changed.
func (p *policies) namespaceChanged(ctx context.Context, namespace string) {
	p.mu.Lock() // a view that is being made may not have seen the labels
	v, known := p.views.Load(namespace)
	if known {
		p.views.Store(namespace, namespaceView{view: v.(namespaceView).view})
	}
	p.mu.Unlock()
	if known {
		p.refresh(ctx, namespace)
	}
}

// run compiles policy after changes, until ctx ends. It does not leave that to the reconciles, so
// that the prober, which only reads what is compiled, follows the new policy before the last
// ExternalBackend has been reconciled.
func (p *policies) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		}

		select {
		case <-ctx.Done():
			return nil
		case <-time.After(policyDelay):
		}
		select {
		case <-p.wake: // the compilation that follows covers it
		default:
		}

		p.mu.Lock()
		before := p.set
		if p.enqueueAll {
			before = nil
		}
		p.set, p.enqueueAll = nil, false
		p.mu.Unlock()

		p.views.Range(func(namespace, _ any) bool {
			p.refresh(ctx, namespace.(string))
			return ctx.Err() == nil
		})
		p.enqueue(ctx, p.affectedSince(before))
	}
}

// affectedSince returns a function that reports whether policy classifies an address differently
// than before. It returns nil if anything else may have changed.
func (p *policies) affectedSince(before *policy.Set) func(netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.set
	if before == nil || now == nil {
		return nil
	}
	return func(a netip.Addr) bool { return !before.SameKinds(now, a) }
}

// refresh makes the view of a namespace again. If that fails the old one stays until somebody
// reconciles there.
func (p *policies) refresh(ctx context.Context, namespace string) {
	_, err := p.view(ctx, namespace)
	if apierrors.IsNotFound(err) {
		p.views.Delete(namespace)
	} else if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Can't compile policy anew", "namespace", namespace)
	}
}

// compiled returns what namespace may use by the last compilation, or nil if nobody has asked for
// it yet. It never blocks.
func (p *policies) compiled(namespace string) *policy.View {
	if v, ok := p.views.Load(namespace); ok {
		return v.(namespaceView).view
	}
	return nil
}

// view returns what namespace may use. It compiles policy if something has changed. All reads are
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
		return nil, err // its labels decide which policies select it
	}
	v := p.set.For(ns.Labels)
	p.views.Store(namespace, namespaceView{p.set, v})
	return v, nil
}

// compilation returns the compiled policies and, in the same order, what they were compiled from.
func (p *policies) compilation(ctx context.Context) (*policy.Set, []policySource, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set == nil {
		if err := p.compileLocked(ctx); err != nil {
			return nil, nil, err
		}
	}
	return p.set, p.sources, nil
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
		ClusterRanges: translate.ClusterRanges(p.options.ClusterCIDRs, nodes.Items, cidrs.Items),
		DefaultDeny:   p.options.DefaultDeny,
		ClusterDomain: p.options.ClusterDomain,
	})
	byPolicy := map[string][]string{}
	for _, problem := range problems {
		ctrl.LoggerFrom(ctx).Info("An entry of an ExternalBackendPolicy can't be read and allows nothing",
			"problem", problem.String())
		byPolicy[problem.Policy] = append(byPolicy[problem.Policy], problem.Field+": "+problem.Reason)
	}

	p.set, p.sources = set, make([]policySource, len(list.Items))
	for i := range list.Items {
		o := &list.Items[i]
		p.sources[i] = policySource{uid: o.UID, generation: o.Generation, problems: byPolicy[o.Name]}
	}
	return nil
}
