package controllers

import (
	"context"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

// isDeleted reports whether nothing is left to do for b, because it is being deleted or gone. If
// another finalizer blocks its deletion, existing slices are kept current, and nothing is created.
func (r *Reconciler) isDeleted(ctx context.Context, b *v1alpha1.ExternalBackend, o *observation) (bool, error) {
	if !b.DeletionTimestamp.IsZero() && len(o.slices) == 0 {
		return true, nil
	}
	if !o.lostOwner() {
		return false, nil
	}

	// The cache may not show the deletion of b yet.
	live, err := r.liveBackend(ctx, client.ObjectKeyFromObject(b))
	return err == nil && (live == nil || live.UID != b.UID || !live.DeletionTimestamp.IsZero()), err
}

// lostOwner reports whether something of ours has lost its owner, or the Service is gone. Somebody
// may have done that, or the garbage collector, for a user who deletes the ExternalBackend.
func (o *observation) lostOwner() bool {
	b, s, managed := o.backend, o.service, o.backend.Spec.ServiceRef == nil
	wasProgrammed := meta.IsStatusConditionTrue(o.status.Conditions, v1alpha1.ConditionProgrammed)
	if wasProgrammed && s == nil && managed {
		return true
	}
	if plan.Retains(b) { // what exists stays, however b is deleted
		return false
	}
	if s != nil && managed && metav1.GetControllerOf(s) == nil && plan.Owns(b, s) && !plan.Adopted(b, s) {
		return true
	}
	return slices.ContainsFunc(o.slices, func(s *discoveryv1.EndpointSlice) bool {
		return metav1.GetControllerOf(s) == nil
	})
}
