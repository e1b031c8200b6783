package controllers

import (
	"context"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

// maxRetry is the longest time between two tries after an error. The controller never gives up, and
// uses an API server that is back within seconds.
const maxRetry = 5 * time.Second

// addController adds a controller that watches everything that a reconcile reads.
func (r *Reconciler) addController(mgr ctrl.Manager, engineNews *engineQueue) error {
	r.policies.enqueue = func(ctx context.Context, affected func(netip.Addr) bool) {
		engineNews.add(r.requestsForAddresses(ctx, affected))
	}
	if err := mgr.Add(leaderRunnable(r.policies.run)); err != nil {
		return err
	}

	endpoints := &metav1.PartialObjectMetadata{}
	endpoints.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Endpoints"))
	namespaceLabelsChanged := func(ctx context.Context, o client.Object) []reconcile.Request {
		r.policies.namespaceChanged(ctx, o.GetName())
		r.refusals.notify()
		return r.listRequests(ctx, client.InNamespace(o.GetName()))
	}
	onUpdate := func(changed func(event.UpdateEvent) bool) predicate.Predicate {
		return predicate.Funcs{UpdateFunc: changed}
	}
	rules, ranges := policyHandler(r.policies.rulesChanged), policyHandler(r.policies.rangesChanged)

	return ctrl.NewControllerManagedBy(mgr).
		Named("externalbackend").
		For(&v1alpha1.ExternalBackend{},
			builder.WithPredicates(predicate.Or(onUpdate(specChanged), onUpdate(r.statusEdited)))).
		Watches(&v1alpha1.ExternalBackend{}, r.siblingHandler()).
		Watches(&v1alpha1.ExternalBackendOverride{}, handler.EnqueueRequestsFromMapFunc(requestForOverride)).
		Watches(&corev1.Service{}, r.overlayHandler(r.requestsForService)).
		Watches(endpoints, handler.EnqueueRequestsFromMapFunc(r.requestsForEndpoints), builder.OnlyMetadata).
		Watches(&discoveryv1.EndpointSlice{}, r.overlayHandler(r.requestsForSlice)).
		Watches(&v1alpha1.ExternalBackendPolicy{}, rules, builder.WithPredicates(onUpdate(specChanged))).
		Watches(&v1alpha1.ExternalBackendPolicy{}, policyHandler(r.refusals.notify)).
		Watches(&v1alpha1.ExternalBackend{}, policyHandler(r.refusals.notify),
			builder.WithPredicates(onUpdate(refusalsReported))).
		Watches(&corev1.Node{}, ranges, builder.WithPredicates(onUpdate(nodeRangesChanged))).
		Watches(&networkingv1.ServiceCIDR{}, ranges, builder.WithPredicates(onUpdate(serviceRangesChanged))).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(namespaceLabelsChanged),
			builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WatchesRawSource(source.Func(engineNews.start)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter: workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](
				50*time.Millisecond, maxRetry),
		}).
		Complete(r)
}

// overlayHandler handles the events of a kind that we write: it enqueues the ExternalBackends that
// an object concerns. Before that it records a deletion in their overlays.
func (r *Reconciler) overlayHandler(requests handler.MapFunc) handler.EventHandler {
	return deletionHandler{handler.EnqueueRequestsFromMapFunc(requests), func(ctx context.Context, deleted client.Object) {
		for _, request := range requests(ctx, deleted) {
			if state := r.states.peek(request.NamespacedName); state != nil {
				state.writes.DeletionSeen(deleted)
			}
		}
	}}
}

// deletionHandler calls deletionSeen before it handles the deletion of an object.
type deletionHandler struct {
	handler.EventHandler
	deletionSeen func(context.Context, client.Object)
}

func (h deletionHandler) Delete(ctx context.Context, e event.DeleteEvent, queue workQueue) {
	h.deletionSeen(ctx, e.Object)
	h.EventHandler.Delete(ctx, e, queue)
}

// policyHandler handles the events of objects that policy is compiled from. Objects that exist at
// the start are no change: the first view is compiled from all of them.
func policyHandler(changed func()) handler.EventHandler {
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ workQueue) {
			if !e.IsInInitialList {
				changed()
			}
		},
		UpdateFunc: func(context.Context, event.UpdateEvent, workQueue) { changed() },
		DeleteFunc: func(context.Context, event.DeleteEvent, workQueue) { changed() },
	}
}

// siblingHandler enqueues the other ExternalBackends on a Service when one is created, begins to be
// deleted or is gone. A sibling takes over what a deleted one published, without waiting for the
// garbage collector, which may still be faster. At the start all are reconciled anyway.
func (r *Reconciler) siblingHandler() handler.EventHandler {
	enqueue := func(ctx context.Context, queue workQueue, o client.Object) {
		service := o.(*v1alpha1.ExternalBackend).EffectiveServiceName()
		for _, sibling := range r.requestsOnService(ctx, o.GetNamespace(), service) {
			if sibling.Name != o.GetName() {
				addUrgent(queue, sibling, 0)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, queue workQueue) {
			if !e.IsInInitialList {
				enqueue(ctx, queue, e.Object)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, queue workQueue) {
			before, after := e.ObjectOld, e.ObjectNew
			if before.GetUID() != after.GetUID() ||
				before.GetDeletionTimestamp().IsZero() != after.GetDeletionTimestamp().IsZero() {
				enqueue(ctx, queue, before) // one with another UID may have been on another Service
				enqueue(ctx, queue, after)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, queue workQueue) { enqueue(ctx, queue, e.Object) },
	}
}

// specChanged reports whether a spec was edited, or the object was deleted and created again. A
// watch that was interrupted shows the latter as one update, from generation 1 to generation 1.
func specChanged(e event.UpdateEvent) bool {
	return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || e.ObjectOld.GetUID() != e.ObjectNew.GetUID()
}

// statusEdited reports whether somebody else changed the status that we wrote last.
func (r *Reconciler) statusEdited(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*v1alpha1.ExternalBackend), e.ObjectNew.(*v1alpha1.ExternalBackend)
	if equality.Semantic.DeepEqual(before.Status, after.Status) {
		return false
	}
	state := r.states.peek(client.ObjectKeyFromObject(after))
	return state == nil || state.reported.writtenVersion() != after.ResourceVersion
}

// refusalsReported reports whether a status says something else about what policy refuses. Another
// replica may have written it.
func refusalsReported(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*v1alpha1.ExternalBackend), e.ObjectNew.(*v1alpha1.ExternalBackend)
	return plan.RefusalsOf(&before.Status) != plan.RefusalsOf(&after.Status)
}

// serviceRangesChanged reports whether a ServiceCIDR has other ranges, as when a cluster becomes
// dual-stack. ServiceCIDRs have no generation.
func serviceRangesChanged(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*networkingv1.ServiceCIDR), e.ObjectNew.(*networkingv1.ServiceCIDR)
	return !slices.Equal(before.Spec.CIDRs, after.Spec.CIDRs) || before.UID != after.UID
}

// nodeRangesChanged reports whether a Node has other addresses or ranges. The cache holds nothing
// else of a Node.
func nodeRangesChanged(e event.UpdateEvent) bool {
	before, after := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
	return !equality.Semantic.DeepEqual(before.Spec, after.Spec) ||
		!equality.Semantic.DeepEqual(before.Status, after.Status)
}
