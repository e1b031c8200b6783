package controllers

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
)

// serviceGrace is how long an ExternalBackend that arrives waits for the Service of the slices that
// it finds, so that a restore can bring the Service back with its ClusterIP.
const serviceGrace = 30 * time.Second

// ownerless reports whether the garbage collector will never delete s.
func ownerless(s *discoveryv1.EndpointSlice) bool { return len(s.OwnerReferences) == 0 }

// removeOrphans deletes slices of an ExternalBackend that is gone where nobody else ever will: they
// have no owner, there is no Service that they could stand behind, and a restore has had its time.
// It returns when to look again.
func (r *Reconciler) removeOrphans(ctx context.Context, key types.NamespacedName) (time.Time, error) {
	left, err := r.slicesOf(ctx, key)
	if err != nil {
		return time.Time{}, err
	}

	var next time.Time
	for _, s := range left {
		if !ownerless(s) {
			continue
		}
		if at := r.sinceStart(s.CreationTimestamp).Add(r.Options.OrphanGrace); at.After(r.now()) {
			next = earlier(next, at)
			continue
		}
		needed, err := r.needed(ctx, key, s)
		if err == nil && !needed {
			err = r.Delete(ctx, s, client.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion})
		}
		if client.IgnoreNotFound(err) != nil {
			return next, err
		}
	}
	return next, nil
}

// needed reports whether there is a Service that s stands behind, or by now the ExternalBackend of
// that key. Where the cache has neither, the API server is asked: caches follow one after the
// other.
func (r *Reconciler) needed(ctx context.Context, key types.NamespacedName, s *discoveryv1.EndpointSlice) (bool, error) {
	service := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}
	if service.Name != "" {
		for _, reader := range []client.Reader{r.Client, r.Live} {
			if err := reader.Get(ctx, service, &corev1.Service{}); !apierrors.IsNotFound(err) {
				return true, err
			}
		}
	}
	b, err := r.liveBackend(ctx, key)
	return b != nil, err
}

// sinceStart is the later of a creation and the manager's start: what happened in between nobody
// saw.
func (r *Reconciler) sinceStart(created metav1.Time) time.Time {
	if created.After(r.Started) {
		return created.Time
	}
	return r.Started
}

// liveBackend asks the API server itself, since the cache may be behind; nil where there is none,
// not even its kind.
func (r *Reconciler) liveBackend(ctx context.Context, key types.NamespacedName) (*v1alpha1.ExternalBackend, error) {
	var list v1alpha1.ExternalBackendList
	named := client.MatchingFields{metav1.ObjectNameField: key.Name}
	err := r.Live.List(ctx, &list, client.InNamespace(key.Namespace), named)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) || err == nil && len(list.Items) == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &list.Items[0], nil
}

// awaitsService returns until when b waits for its Service to be restored; zero where it does not:
// only an ExternalBackend that has just arrived does, whose slices are there without an owner.
func (r *Reconciler) awaitsService(b *v1alpha1.ExternalBackend, o *observation) time.Time {
	until := r.sinceStart(b.CreationTimestamp).Add(serviceGrace)
	arrived := !meta.IsStatusConditionTrue(o.status.Conditions, v1alpha1.ConditionProgrammed)
	missing := o.service == nil && b.Spec.ServiceRef == nil
	if arrived && missing && until.After(r.now()) && slices.ContainsFunc(o.slices, ownerless) {
		return until
	}
	return time.Time{}
}
