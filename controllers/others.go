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
	foreign
	// retainedUntil is when more slices of former siblings become removable; zero for never.
	retainedUntil time.Time
	// handover is what the foreign objects that may be removed publish, and what former siblings
	// left.
	handover []endpointslice.Endpoint
}

// foreign is what somebody else publishes behind the Service.
type foreign struct {
	// conflicting names what we may not remove.
	conflicting []string
	// removableSlices and removableEndpoints are what we may remove once our endpoints are
	// published.
	removableSlices    []*discoveryv1.EndpointSlice
	removableEndpoints *metav1.PartialObjectMetadata
	// mirroredSlices are deleted together with the Endpoints that they mirror.
	mirroredSlices []*discoveryv1.EndpointSlice
}

// readOthers reads what others publish behind the Service of b. own are the slices of b.
func (r *Reconciler) readOthers(
	ctx context.Context, b *v1alpha1.ExternalBackend, service *corev1.Service,
	own []*discoveryv1.EndpointSlice, state *planningState,
) (others, error) {
	var o others
	key := types.NamespacedName{Namespace: b.Namespace, Name: plan.ServiceName(b)}
	behind, err := r.listSlices(ctx, key.Namespace, indexService, key.Name)
	if err != nil {
		return o, err
	}
	names := sliceNames(own)
	behind = slices.DeleteFunc(behind, func(s *discoveryv1.EndpointSlice) bool { return names[s.Name] })
	// The cache lists in no order, but a status must not change while nothing else does.
	slices.SortFunc(behind, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	var abandoned []*discoveryv1.EndpointSlice
	if o.siblings, abandoned, err = r.readSiblings(ctx, b, behind); err != nil {
		return o, err
	}
	endpoints, err := r.readEndpoints(ctx, key, state)
	if err != nil {
		return o, err
	}

	o.foreign = classifyForeign(b, service, behind, endpoints)
	retained := o.classifyAbandoned(abandoned)
	removable := len(o.removableSlices)+len(o.mirroredSlices) > 0 || o.removableEndpoints != nil
	if adopts(b) && removable {
		published, err := r.readHandover(ctx, key, &o.foreign)
		if err != nil {
			return o, err
		}
		o.handover = append(o.handover, published...)
	}

	due, next := state.takeOver(retained, r.now())
	o.removableSlices, o.retainedUntil = append(o.removableSlices, due...), next
	return o, nil
}

// readSiblings reads the ExternalBackends whose slices are behind the Service. It also returns the
// slices whose ExternalBackend is gone.
func (r *Reconciler) readSiblings(
	ctx context.Context, b *v1alpha1.ExternalBackend, behind []*discoveryv1.EndpointSlice,
) (out []plan.Sibling, abandoned []*discoveryv1.EndpointSlice, err error) {
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
		case apierrors.IsNotFound(err), err == nil && collected(&sibling):
			abandoned = append(abandoned, theirs...)
		case err != nil:
			return nil, nil, err
		default:
			published := endpointslice.Published(theirs).Endpoints()
			out = append(out, plan.Sibling{Name: name, Older: isOlder(&sibling, b), Endpoints: published})
		}
	}
	return out, abandoned, nil
}

// isOlder reports whether a was created before b.
func isOlder(a, b *v1alpha1.ExternalBackend) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
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
) foreign {
	var out foreign
	owned := b.Spec.ServiceRef == nil && service != nil && plan.Owns(b, service)
	mirrors := endpoints.Name != "" && endpoints.Labels[discoveryv1.LabelSkipMirror] != "true"
	removable := mirrors && (adopts(b) || owned && endpoints.Labels[labelEndpointsOwner] != "")
	switch {
	case removable:
		out.removableEndpoints = endpoints
	case mirrors:
		out.conflicting = append(out.conflicting, fmt.Sprintf("Endpoints %q", endpoints.Name))
	}

	for _, s := range behind {
		manager := s.Labels[discoveryv1.LabelManagedBy]
		switch {
		case managedByUs(s):
		case manager == managedByMirroring && (removable || !mirrors):
			out.mirroredSlices = append(out.mirroredSlices, s)
		case manager == managedByCore && (owned || adopts(b)), adopts(b) && metav1.GetControllerOf(s) == nil:
			out.removableSlices = append(out.removableSlices, s)
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

// classifyAbandoned decides about slices whose ExternalBackend is gone. Those without an owner wait
// for it to come back, as in a restore: nobody touches them, and their addresses stay claimed. All
// others are taken over: those that the garbage collector is about to delete with the
// ExternalBackend, and, in time, those that were retained with the Service, which it returns.
func (o *others) classifyAbandoned(abandoned []*discoveryv1.EndpointSlice) (retained []*discoveryv1.EndpointSlice) {
	for _, s := range abandoned {
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
	ctx context.Context, service types.NamespacedName, o *foreign,
) ([]endpointslice.Endpoint, error) {
	var full []*discoveryv1.EndpointSlice
	for _, s := range slices.Concat(o.removableSlices, o.mirroredSlices) {
		var live discoveryv1.EndpointSlice
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(s), &live); err == nil {
			full = append(full, &live)
		} else if !apierrors.IsNotFound(err) {
			return nil, err
		}
	}
	published := endpointslice.Published(full).Endpoints()
	if o.removableEndpoints == nil {
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
func (o *foreign) message(service string) string {
	if len(o.conflicting) == 0 {
		return ""
	}
	text := fmt.Sprintf("Behind Service %q there are endpoints of others: %s",
		service, strings.Join(o.conflicting[:min(len(o.conflicting), 3)], ", "))
	if more := len(o.conflicting) - 3; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + "."
}

// keptGrace is how long slices that were retained with their Service wait for their ExternalBackend
// before a sibling takes them over. Whoever deletes or applies several at once does so in some
// order.
const keptGrace = 10 * time.Second

// takeOver returns the retained slices whose ExternalBackend has been gone for keptGrace, and when
// there will be more.
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
		if at := goneSince[name].Add(keptGrace); at.After(now) {
			next = earlier(next, at)
		} else {
			due = append(due, slice)
		}
	}
	s.goneSince = goneSince
	return due, next
}

// collected reports whether the garbage collector is deleting b: it deletes or releases what b
// owns, and then removes its finalizer.
func collected(b *v1alpha1.ExternalBackend) bool {
	return !b.DeletionTimestamp.IsZero() && slices.ContainsFunc(b.Finalizers, func(f string) bool {
		return f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
	})
}
