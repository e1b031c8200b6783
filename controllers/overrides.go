package controllers

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

const (
	// keepEndedOverride is how long an override is kept after its end, so that people find it.
	keepEndedOverride = 24 * time.Hour

	// maxOverrideWrites bounds the writes to overrides in one reconcile. The next one does the rest.
	maxOverrideWrites = 20
)

// readOverrides returns the overrides that name an ExternalBackend.
func (r *Reconciler) readOverrides(
	ctx context.Context, key types.NamespacedName,
) ([]v1alpha1.ExternalBackendOverride, error) {
	var list v1alpha1.ExternalBackendOverrideList
	err := r.List(ctx, &list, client.InNamespace(key.Namespace), client.MatchingFields{indexBackend: key.Name},
		client.UnsafeDisableDeepCopy)
	return list.Items, err
}

// requestForOverride returns the ExternalBackend that an override names.
func requestForOverride(_ context.Context, o client.Object) []reconcile.Request {
	spec := &o.(*v1alpha1.ExternalBackendOverride).Spec
	return []reconcile.Request{newRequest(o.GetNamespace(), spec.ExternalBackendRef.Name)}
}

// reportAbsence reports to the overrides of an ExternalBackend that it does not exist. It returns
// when to look again; zero for never.
func (r *Reconciler) reportAbsence(ctx context.Context, key types.NamespacedName) (time.Time, error) {
	overrides, err := r.readOverrides(ctx, key)
	if err != nil {
		return time.Time{}, err
	}
	return r.reportOverrides(ctx, overrides, plan.Override(nil, false, overrides, r.now()))
}

// reportOverrides writes into the status of each override what has become of it, and deletes those
// that ended a day ago. It returns when time alone changes something; zero for never.
func (r *Reconciler) reportOverrides(
	ctx context.Context, overrides []v1alpha1.ExternalBackendOverride, decided plan.Overridden,
) (time.Time, error) {
	next, writes := decided.Next, 0
	for i := range overrides {
		o := &overrides[i]
		status := plan.OverrideStatus(o, decided.Outcomes[i], r.now())
		due := o.EndTime().Add(keepEndedOverride)
		ended := !due.After(r.now())
		if !ended {
			next = earlier(next, due)
		}
		if !ended && equality.Semantic.DeepEqual(o.Status, status) {
			continue
		}

		if writes++; writes > maxOverrideWrites {
			return r.now(), nil
		}
		if err := r.writeOverride(ctx, o, status, ended); err != nil {
			return time.Time{}, err
		}
	}
	return next, nil
}

// writeOverride deletes an override that has ended, and patches the status of any other. If the
// cache is behind, an event brings the next look.
func (r *Reconciler) writeOverride(
	ctx context.Context, o *v1alpha1.ExternalBackendOverride, status v1alpha1.ExternalBackendOverrideStatus, ended bool,
) error {
	var err error
	if ended {
		err = r.Delete(ctx, o, client.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion})
	} else {
		changed := o.DeepCopy()
		changed.Status = status
		err = r.Status().Patch(ctx, changed, client.MergeFromWithOptions(o, client.MergeFromWithOptimisticLock{}))
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// overrideEvents report that another override is applied than before, or none any more.
func overrideEvents(before string, applied plan.AppliedOverride) []pendingEvent {
	if before == applied.Name {
		return nil
	}
	var out []pendingEvent
	if before != "" {
		out = append(out, normalEvent(eventOverrideEnded, "Override",
			"ExternalBackendOverride %q is no longer applied.", before).about("ExternalBackendOverride{%s}", before))
	}
	if applied.Name != "" {
		out = append(out, normalEvent(eventOverridden, "Override",
			"ExternalBackendOverride %q is applied: %s.", applied.Name, applied.Effect).
			about("ExternalBackendOverride{%s}", applied.Name))
	}
	return out
}
