package controllers

import (
	"context"
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/resolve"
	"github.com/external-backend/operator/internal/translate"
)

func newRequest(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// listRequests returns a request for each ExternalBackend that the options select.
func (r *Reconciler) listRequests(ctx context.Context, options ...client.ListOption) []reconcile.Request {
	var list v1alpha1.ExternalBackendList
	if err := r.List(ctx, &list, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Can't list ExternalBackends from the cache")
		return nil
	}
	requests := make([]reconcile.Request, len(list.Items))
	for i := range list.Items {
		requests[i] = newRequest(list.Items[i].Namespace, list.Items[i].Name)
	}
	return requests
}

// requestsOnService returns the ExternalBackends that publish behind a Service.
func (r *Reconciler) requestsOnService(ctx context.Context, namespace, service string) []reconcile.Request {
	if service == "" {
		return nil
	}
	return r.listRequests(ctx, client.InNamespace(namespace), client.MatchingFields{indexService: service})
}

// requestsForEndpoints returns the ExternalBackends that an Endpoints object concerns: those on the
// Service of its name.
func (r *Reconciler) requestsForEndpoints(ctx context.Context, o client.Object) []reconcile.Request {
	return r.requestsOnService(ctx, o.GetNamespace(), o.GetName())
}

// requestsForService returns the ExternalBackends that a Service concerns: those on it, and those
// that are gone and have left slices without an owner behind it.
func (r *Reconciler) requestsForService(ctx context.Context, o client.Object) []reconcile.Request {
	requests := r.requestsOnService(ctx, o.GetNamespace(), o.GetName())
	list, err := r.listSlices(ctx, o.GetNamespace(), indexService, o.GetName())
	if err != nil {
		return requests // listing the ExternalBackends has logged that the cache can't be read
	}
	for _, s := range list {
		owner := newRequest(s.Namespace, s.Labels[v1alpha1.LabelName])
		if ownerless(s) && managedByUs(s) && owner.Name != "" && !slices.Contains(requests, owner) {
			requests = append(requests, owner)
		}
	}
	return requests
}

// requestsForSlice returns the ExternalBackends that a slice concerns: all on its Service, and the
// one that wrote it, even if that is gone.
func (r *Reconciler) requestsForSlice(ctx context.Context, o client.Object) []reconcile.Request {
	labels := o.GetLabels()
	requests := r.requestsOnService(ctx, o.GetNamespace(), labels[discoveryv1.LabelServiceName])
	if labels[discoveryv1.LabelManagedBy] == v1alpha1.ManagedBy && labels[v1alpha1.LabelName] != "" {
		requests = append(requests, newRequest(o.GetNamespace(), labels[v1alpha1.LabelName]))
	}
	return requests
}

// requestsForAddresses returns the ExternalBackends that have an affected address in their spec, an
// answer or a slice. It returns all of them if affected is nil.
func (r *Reconciler) requestsForAddresses(ctx context.Context, affected func(netip.Addr) bool) []reconcile.Request {
	all := r.listRequests(ctx)
	if affected == nil {
		return all
	}
	return slices.DeleteFunc(all, func(request reconcile.Request) bool {
		var b v1alpha1.ExternalBackend
		if err := r.Get(ctx, request.NamespacedName, &b); err != nil {
			return apierrors.IsNotFound(err)
		}
		own, err := r.slicesOf(ctx, request.NamespacedName)
		answers := r.Resolver.Snapshot(request.NamespacedName)
		return err == nil && !slices.ContainsFunc(addressesOf(&b, own, answers), affected)
	})
}

// addressesOf returns all addresses that policy decides on for b.
func addressesOf(
	b *v1alpha1.ExternalBackend, own []*discoveryv1.EndpointSlice, answers map[resolve.Question]resolve.Answer,
) []netip.Addr {
	var out []netip.Addr
	add := func(text string) {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a)
		}
	}

	for i := range b.Spec.Targets {
		add(b.Spec.Targets[i].Address)
	}
	if b.Spec.DNS != nil {
		for _, text := range b.Spec.DNS.Nameservers {
			if ns, err := translate.ParseNameserver(text, b.Spec.DNS.Transport); err == nil {
				out = append(out, ns.Addr())
			}
		}
	}
	for _, answer := range answers {
		for i := range answer.Addrs {
			out = append(out, answer.Addrs[i].IP)
		}
	}
	for _, s := range own {
		for i := range s.Endpoints {
			for _, text := range s.Endpoints[i].Addresses {
				add(text)
			}
		}
	}
	return out
}
