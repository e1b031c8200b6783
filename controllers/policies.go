package controllers

import (
	"context"
	"net/netip"
	"sync"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/policy"
)

// policies keeps the policy that is compiled from the ExternalBackendPolicies and the ranges of this cluster, as the cache shows them.
type policies struct {
	client client.Reader
	// declared, defaultDeny and clusterDomain are flags of the manager.
	declared      []netip.Prefix
	defaultDeny   bool
	clusterDomain string

	mu    sync.Mutex
	set   *policy.Set // nil: has to be compiled
	views map[string]*policy.View
}

// changed makes the next view be compiled anew.
func (p *policies) changed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.set, p.views = nil, nil
}

// namespaceChanged does so for the labels of one namespace.
func (p *policies) namespaceChanged(namespace string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.views, namespace)
}

// view returns what namespace may use. All reads are from the cache.
func (p *policies) view(ctx context.Context, namespace string) (*policy.View, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.set == nil {
		if err := p.compileLocked(ctx); err != nil {
			return nil, err
		}
	}
	if v := p.views[namespace]; v != nil {
		return v, nil
	}
	var ns corev1.Namespace
	if err := p.client.Get(ctx, types.NamespacedName{Name: namespace}, &ns); err != nil {
		return nil, err // without its labels nobody knows which policies select it
	}
	v := p.set.For(ns.Labels)
	p.views[namespace] = v
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
	p.set, p.views = set, map[string]*policy.View{}
	return nil
}

// clusterRanges are the Service, pod and node addresses of this cluster. What can't be read is no range.
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
