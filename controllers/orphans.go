package controllers

import (
	"context"
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

// removeOrphans deletes those slices of an ExternalBackend that is gone which nobody else will ever
// delete: they have no owner, their Service does not exist, and the time for a restore is over. It
// returns when to look again.
func (r *Reconciler) removeOrphans(ctx context.Context, key types.NamespacedName) (time.Time, error) {
	list, err := r.slicesOf(ctx, key)
	if err != nil {
		return time.Time{}, err
	}

	var next time.Time
	for _, s := range list {
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

// needed reports whether the Service of s exists, or by now the ExternalBackend of that key. What
// the cache does not have it looks for at the API server: one kind's cache may be behind another's.
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

// sinceStart returns the later of a creation and the manager's start, since nobody has watched the
// object before that.
func (r *Reconciler) sinceStart(created metav1.Time) time.Time {
	if created.After(r.Started) {
		return created.Time
	}
	return r.Started
}

// liveBackend reads an ExternalBackend from the API server, because the cache may be behind. It
// returns nil if there is none, or if the kind itself is gone.
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
