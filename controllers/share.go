package controllers

import (
	"context"
	"maps"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/fleet"
)

// Fleet says what this replica works for. It is *fleet.Replica.
type Fleet interface {
	Share() *fleet.Share
	// MayWrite returns an error while others may take over what this replica has.
	MayWrite() error
}

// ownsBackend reports whether this replica works for an ExternalBackend. Those on one Service have
// the same replica, because they are planned together.
func (r *Reconciler) ownsBackend(b *v1alpha1.ExternalBackend) bool {
	return r.owns(types.NamespacedName{Namespace: b.Namespace, Name: b.EffectiveServiceName()})
}

// owns reports whether this replica works for a Service, or for an ExternalBackend that is gone.
func (r *Reconciler) owns(key types.NamespacedName) bool {
	return r.Fleet == nil || r.Fleet.Share().Owns(key)
}

// works reports whether this replica works. elected is closed once it is the leader, or at the
// start if there is no election.
func (r *Reconciler) works(elected <-chan struct{}) bool {
	if r.Fleet != nil {
		return r.Fleet.Share().Works()
	}
	select {
	case <-elected:
		return true
	default:
		return false
	}
}

// term returns the number of the time in which what this replica remembers is valid.
func (r *Reconciler) term() int {
	if r.Fleet == nil {
		return 0
	}
	return r.Fleet.Share().Term()
}

// mayWrite returns an error if this replica must not write now.
func (r *Reconciler) mayWrite() error {
	if r.Fleet == nil {
		return nil
	}
	return r.Fleet.MayWrite()
}

// shareChanged returns what is to be reconciled when the share of this replica has changed: what it
// has gained or lost, and with all also what it keeps.
func (r *Reconciler) shareChanged(ctx context.Context, all bool) []reconcile.Request {
	var list v1alpha1.ExternalBackendList
	if err := r.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Can't list the ExternalBackends that this replica works for")
		return nil
	}
	var requests []reconcile.Request
	exists := make(map[types.NamespacedName]bool, len(list.Items))
	for i := range list.Items {
		b := &list.Items[i]
		key := client.ObjectKeyFromObject(b)
		exists[key] = true
		state, owned := r.states.peek(key), r.ownsBackend(b)
		if owned != (state != nil) || owned && (all || state.term != r.term()) {
			requests = append(requests, reconcile.Request{NamespacedName: key})
		}
	}
	return append(requests, r.ownedRemains(ctx, exists)...)
}

// ownedRemains returns the ExternalBackends of this replica's share that are gone and have left
// slices or overrides.
func (r *Reconciler) ownedRemains(ctx context.Context, exists map[types.NamespacedName]bool) []reconcile.Request {
	remains := map[reconcile.Request]bool{}
	add := func(namespace, name string) {
		request := newRequest(namespace, name)
		if name != "" && !exists[request.NamespacedName] && r.owns(request.NamespacedName) {
			remains[request] = true
		}
	}
	var left discoveryv1.EndpointSliceList
	var overrides v1alpha1.ExternalBackendOverrideList
	for _, list := range []client.ObjectList{&left, &overrides} {
		if err := r.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Can't list what ExternalBackends have left that are gone")
		}
	}
	for i := range left.Items {
		if s := &left.Items[i]; managedByUs(s) {
			add(s.Namespace, s.Labels[v1alpha1.LabelName])
		}
	}
	for i := range overrides.Items {
		add(overrides.Items[i].Namespace, overrides.Items[i].Spec.ExternalBackendRef.Name)
	}
	return slices.Collect(maps.Keys(remains))
}
