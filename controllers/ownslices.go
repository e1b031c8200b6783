package controllers

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
)

// slicesOf returns the slices with the labels of an ExternalBackend as the cache shows them, which
// nobody may change.
func (r *Reconciler) slicesOf(ctx context.Context, key types.NamespacedName) ([]*discoveryv1.EndpointSlice, error) {
	return r.listSlices(ctx, key.Namespace, indexBackend, key.Name)
}

func (r *Reconciler) listSlices(
	ctx context.Context, namespace, index, value string,
) ([]*discoveryv1.EndpointSlice, error) {
	var list discoveryv1.EndpointSliceList
	found := client.MatchingFields{index: value}
	if err := r.List(ctx, &list, client.InNamespace(namespace), found, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	out := make([]*discoveryv1.EndpointSlice, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out, nil
}

// readOwnSlices returns the slices of b as the cache shows them, which nobody may change: those
// with its labels, and those that it controls, itself or by its Service, whatever has happened to
// their labels. Other managers' slices, too, have the Service as their controller.
func (r *Reconciler) readOwnSlices(
	ctx context.Context, b *v1alpha1.ExternalBackend, service *corev1.Service,
) ([]*discoveryv1.EndpointSlice, error) {
	out, err := r.slicesOf(ctx, client.ObjectKeyFromObject(b))
	if err != nil {
		return nil, err
	}
	owners := []types.UID{b.UID}
	if service != nil && b.Spec.ServiceRef == nil && plan.Owns(b, service) {
		owners = append(owners, service.UID)
	}

	for _, uid := range owners {
		controlled, err := r.listSlices(ctx, b.Namespace, indexOwner, string(uid))
		if err != nil {
			return nil, err
		}
		known := sliceNames(out)
		for _, s := range controlled {
			if !known[s.Name] && (uid == b.UID || !plan.Adopted(b, service) || writtenFor(s, b.Name)) {
				out = append(out, s)
			}
		}
	}
	return out, nil
}

// sliceNames returns a set, because an ExternalBackend may have ten thousand slices.
func sliceNames(list []*discoveryv1.EndpointSlice) map[string]bool {
	names := make(map[string]bool, len(list))
	for _, s := range list {
		names[s.Name] = true
	}
	return names
}

// writtenFor reports whether s is a slice of ours that names no other ExternalBackend. Behind an
// adopted Service there may be slices of others, or of an earlier ExternalBackend.
func writtenFor(s *discoveryv1.EndpointSlice, backend string) bool {
	name := s.Labels[v1alpha1.LabelName]
	return ours(s) && (name == "" || name == backend)
}

// ours reports whether the slice has a mark of ours, so that it does not only have a name that we
// would choose.
func ours(s *discoveryv1.EndpointSlice) bool {
	return endpointslice.Annotated(s) || managedByUs(s)
}

func managedByUs(s *discoveryv1.EndpointSlice) bool {
	return s.Labels[discoveryv1.LabelManagedBy] == v1alpha1.ManagedBy
}

// ownerless reports whether the garbage collector will never delete s.
func ownerless(s *discoveryv1.EndpointSlice) bool { return len(s.OwnerReferences) == 0 }
