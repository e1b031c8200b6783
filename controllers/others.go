package controllers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/writecache"
)

// The managers of EndpointSlices in kube-controller-manager, and the label with which its endpoints
// controller marks Endpoints.
const (
	managedByCore       = "endpointslice-controller.k8s.io"
	managedByMirroring  = "endpointslicemirroring-controller.k8s.io"
	labelEndpointsOwner = "endpoints.kubernetes.io/managed-by"
)

// others is what the other ExternalBackends on a Service publish, and what somebody else does.
type others struct {
	// siblings are the other ExternalBackends on the Service.
	siblings []plan.Sibling
	foreignPublishers
	// retainedUntil is when more slices of former siblings become replaceable; zero for never.
	retainedUntil time.Time
	// handover is what former siblings left, and what the replaceable foreign objects publish if we
	// adopt the Service. Without adoption these are remains of a selector that is gone, and may go
	// at once.
	handover []endpointslice.Endpoint
}

// foreignPublishers are what somebody else publishes behind the Service.
type foreignPublishers struct {
	// conflicting names what we may not remove.
	conflicting []string
	// replaceableSlices and replaceableEndpoints are what we may remove once our endpoints are
	// published. readOthers adds the slices of former siblings that are due.
	replaceableSlices    []*discoveryv1.EndpointSlice
	replaceableEndpoints *metav1.PartialObjectMetadata
	// mirroredSlices are deleted together with the Endpoints that they mirror.
	mirroredSlices []*discoveryv1.EndpointSlice
}

// readOthers reads what others publish behind the Service of b. own are the slices of b.
func (r *Reconciler) readOthers(
	ctx context.Context, b *v1alpha1.ExternalBackend, service *corev1.Service,
	own []*discoveryv1.EndpointSlice, state *planningState,
) (others, error) {
	var o others
	key := types.NamespacedName{Namespace: b.Namespace, Name: b.EffectiveServiceName()}
	behind, err := r.listSlices(ctx, key.Namespace, indexService, key.Name)
	if err != nil {
		return o, err
	}
	names := sliceNames(own)
	behind = slices.DeleteFunc(behind, func(s *discoveryv1.EndpointSlice) bool { return names[s.Name] })
	// The cache lists in no order, but a status must not change while nothing else does.
	slices.SortFunc(behind, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	var orphaned []*discoveryv1.EndpointSlice
	if o.siblings, orphaned, err = r.readSiblings(ctx, b, behind); err != nil {
		return o, err
	}
	endpoints, err := r.readEndpoints(ctx, key, state)
	if err != nil {
		return o, err
	}

	o.foreignPublishers = classifyForeign(b, service, behind, endpoints)
	retained := o.classifyOrphaned(orphaned)
	if adopts(b) {
		published, err := r.readHandover(ctx, key, &o.foreignPublishers)
		if err != nil {
			return o, err
		}
		o.handover = append(o.handover, published...)
	}

	due, next := state.takeOver(retained, r.now())
	o.replaceableSlices, o.retainedUntil = append(o.replaceableSlices, due...), next
	return o, nil
}

// readSiblings reads the ExternalBackends whose slices are behind the Service. It also returns the
// slices whose ExternalBackend is gone.
func (r *Reconciler) readSiblings(
	ctx context.Context, b *v1alpha1.ExternalBackend, behind []*discoveryv1.EndpointSlice,
) (out []plan.Sibling, orphaned []*discoveryv1.EndpointSlice, err error) {
	bySibling := map[string][]*discoveryv1.EndpointSlice{}
	for _, s := range behind {
		if managedByUs(s) {
			name := s.Labels[v1alpha1.LabelName]
			bySibling[name] = append(bySibling[name], s)
		}
	}

	for _, name := range slices.Sorted(maps.Keys(bySibling)) {
		theirs := bySibling[name]
		var sibling v1alpha1.ExternalBackend
		err := r.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: name}, &sibling)
		switch {
		case apierrors.IsNotFound(err), err == nil && isBeingCollected(&sibling):
			orphaned = append(orphaned, theirs...)
		case err != nil:
			return nil, nil, err
		default:
			published := endpointslice.Published(theirs).Endpoints()
			out = append(out, plan.Sibling{Name: name, Older: plan.IsOlder(&sibling, b), Endpoints: published})
		}
	}
	return out, orphaned, nil
}

// readEndpoints returns the metadata of the Endpoints of the Service; without a name where there
// are none.
func (r *Reconciler) readEndpoints(
	ctx context.Context, service types.NamespacedName, state *planningState,
) (*metav1.PartialObjectMetadata, error) {
	var endpoints metav1.PartialObjectMetadata
	endpoints.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Endpoints"))
	if err := r.Get(ctx, service, &endpoints); client.IgnoreNotFound(err) != nil {
		return nil, err
	}
	if writecache.Newer(state.markedEndpoints, endpoints.ResourceVersion) { // the cache does not show our mark yet
		metav1.SetMetaDataLabel(&endpoints.ObjectMeta, discoveryv1.LabelSkipMirror, "true")
	}
	return &endpoints, nil
}

// classifyForeign separates what we may remove from what we may not. If the Service is ours, we may
// remove what kube-controller-manager left of a selector that is gone. If b adopts the Service, we
// may remove what nobody controls. Mirrored slices are deleted with their Endpoints.
func classifyForeign(
	b *v1alpha1.ExternalBackend, service *corev1.Service,
	behind []*discoveryv1.EndpointSlice, endpoints *metav1.PartialObjectMetadata,
) foreignPublishers {
	var out foreignPublishers
	owned := b.Spec.ServiceRef == nil && service != nil && plan.Owns(b, service)
	mirrors := endpoints.Name != "" && endpoints.Labels[discoveryv1.LabelSkipMirror] != "true"
	replaceable := mirrors && (adopts(b) || owned && endpoints.Labels[labelEndpointsOwner] != "")
	switch {
	case replaceable:
		out.replaceableEndpoints = endpoints
	case mirrors:
		out.conflicting = append(out.conflicting, fmt.Sprintf("Endpoints %q", endpoints.Name))
	}

	for _, s := range behind {
		manager := s.Labels[discoveryv1.LabelManagedBy]
		switch {
		case managedByUs(s):
		case manager == managedByMirroring && (replaceable || !mirrors):
			out.mirroredSlices = append(out.mirroredSlices, s)
		case manager == managedByCore && (owned || adopts(b)), adopts(b) && metav1.GetControllerOf(s) == nil:
			out.replaceableSlices = append(out.replaceableSlices, s)
		default:
			out.conflicting = append(out.conflicting, fmt.Sprintf("EndpointSlice %q", s.Name))
		}
	}
	return out
}

// adopts reports whether b may take over what others publish behind its Service.
func adopts(b *v1alpha1.ExternalBackend) bool {
	return b.Spec.Service != nil && b.Spec.Service.AdoptionPolicy == v1alpha1.AdoptionPolicyIfSelectorless
}

// classifyOrphaned decides about slices whose ExternalBackend is gone. Those without an owner wait
// for it to come back, as in a restore: nobody touches them, and their addresses stay claimed. All
// others are taken over: those that the garbage collector is about to delete with the
// ExternalBackend, and those that were retained with the Service. It returns the retained ones;
// they are taken over after retainedGrace.
func (o *others) classifyOrphaned(orphaned []*discoveryv1.EndpointSlice) (retained []*discoveryv1.EndpointSlice) {
	for _, s := range orphaned {
		published := endpointslice.Published([]*discoveryv1.EndpointSlice{s}).Endpoints()
		if ownerless(s) {
			name := s.Labels[v1alpha1.LabelName]
			o.siblings = append(o.siblings, plan.Sibling{Name: name, Older: true, Endpoints: published})
			continue
		}
		o.handover = append(o.handover, published...)
		if owner := metav1.GetControllerOf(s); owner == nil || owner.Kind != "ExternalBackend" {
			retained = append(retained, s)
		}
	}
	return retained
}

// readHandover reads the endpoints of foreign objects that may be removed. The cache does not keep
// them.
func (r *Reconciler) readHandover(
	ctx context.Context, service types.NamespacedName, o *foreignPublishers,
) ([]endpointslice.Endpoint, error) {
	var full []*discoveryv1.EndpointSlice
	for _, s := range slices.Concat(o.replaceableSlices, o.mirroredSlices) {
		var live discoveryv1.EndpointSlice
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(s), &live); err == nil {
			full = append(full, &live)
		} else if !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	published := endpointslice.Published(full).Endpoints()
	if o.replaceableEndpoints == nil {
		return published, nil
	}

	var endpoints corev1.Endpoints //nolint:staticcheck // existing ones must be taken over
	if err := r.Live.Get(ctx, service, &endpoints); err != nil {
		return published, client.IgnoreNotFound(err)
	}
	return slices.Concat(published, plan.ReadEndpoints(&endpoints)), nil
}

// message names what others publish behind the Service and we may not remove; "" where
// there is nothing.
func (f *foreignPublishers) message(service string) string {
	if len(f.conflicting) == 0 {
		return ""
	}
	return fmt.Sprintf("Behind Service %q there are endpoints of others: %s.", service, plan.FirstFew(f.conflicting, 3))
}

// retainedGrace is how long slices that were retained with their Service wait for their
// ExternalBackend before a sibling takes them over. Whoever deletes or applies several at once does
// so in some order.
const retainedGrace = 10 * time.Second

// takeOver returns the retained slices whose ExternalBackend has been gone for retainedGrace, and
// when there will be more.
func (s *planningState) takeOver(
	retained []*discoveryv1.EndpointSlice, now time.Time,
) (due []*discoveryv1.EndpointSlice, next time.Time) {
	goneSince := make(map[string]time.Time)
	for _, slice := range retained {
		name := slice.Labels[v1alpha1.LabelName]
		goneSince[name] = now
		if since, ok := s.goneSince[name]; ok {
			goneSince[name] = since
		}
		if at := goneSince[name].Add(retainedGrace); at.After(now) {
			next = earlier(next, at)
		} else {
			due = append(due, slice)
		}
	}
	s.goneSince = goneSince
	return due, next
}

// isBeingCollected reports whether the garbage collector is deleting b: it deletes or releases what
// b owns, and then removes its finalizer.
func isBeingCollected(b *v1alpha1.ExternalBackend) bool {
	return !b.DeletionTimestamp.IsZero() && (slices.Contains(b.Finalizers, metav1.FinalizerDeleteDependents) ||
		slices.Contains(b.Finalizers, metav1.FinalizerOrphanDependents))
}
