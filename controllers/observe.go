package controllers

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/writecache"
)

// observation is what the cluster says about one ExternalBackend. Once read it does not change.
type observation struct {
	// backend is the ExternalBackend with the spec that is in force: the last valid one, if invalid
	// says what is wrong with its own.
	backend *v1alpha1.ExternalBackend
	invalid string
	// specKnown reports whether the spec of backend is valid. After a restart the last valid one is
	// not known.
	specKnown bool
	// overrides are those that name the ExternalBackend. The spec of backend is subject to the one
	// that overridden says is applied.
	overrides  []v1alpha1.ExternalBackendOverride
	overridden plan.Overridden
	// status is the one that was written last.
	status v1alpha1.ExternalBackendStatus
	view   *policy.View

	// service is the Service of that name, whoever owns it; nil where there is none.
	service *corev1.Service
	// previousAdopterGone reports whether the ExternalBackend whose label the Service has is gone,
	// or has moved to another Service.
	previousAdopterGone bool
	// slices are ours.
	slices []*discoveryv1.EndpointSlice

	others
}

// observe reads all that a reconcile of b goes by, from the cache and from our own writes.
func (r *Reconciler) observe(
	ctx context.Context, b *v1alpha1.ExternalBackend, state *backendState,
) (*observation, error) {
	o := &observation{status: latestStatus(b, &state.reported)}
	err := r.readBackend(ctx, b, state, o)
	if err != nil {
		return nil, err
	}
	b = o.backend
	if o.service != nil {
		state.planning.publishNotReady = o.service.Spec.PublishNotReadyAddresses
	}

	if o.previousAdopterGone, err = r.previousAdopterGone(ctx, b, o.service); err != nil {
		return nil, err
	}
	cached, err := r.readOwnSlices(ctx, b, o.service)
	if err != nil {
		return nil, err
	}
	o.slices = state.writes.Slices(cached, r.now())

	if o.others, err = r.readOthers(ctx, b, o.service, o.slices, &state.planning); err != nil {
		return nil, err
	}
	o.view, err = r.policies.view(ctx, b.Namespace)
	return o, err
}

// readBackend finds the spec of b that is in force, and reads the Service that it names.
func (r *Reconciler) readBackend(
	ctx context.Context, b *v1alpha1.ExternalBackend, state *backendState, o *observation,
) error {
	var err error
	if o.service, err = r.readService(ctx, b, state); err != nil {
		return err
	}
	o.invalid = plan.Validate(b, o.service)
	o.backend = state.planning.inForce(b, o.invalid == "")
	if o.specKnown = o.invalid == "" || state.planning.valid != nil; !o.specKnown {
		if o.backend, err = r.attachedToSlices(ctx, b); err != nil {
			return err
		}
	}

	if o.overrides, err = r.readOverrides(ctx, client.ObjectKeyFromObject(b)); err != nil {
		return err
	}
	o.overridden = plan.Override(o.backend, o.specKnown, o.overrides, r.now())
	o.backend = o.overridden.Backend

	if o.backend.EffectiveServiceName() != b.EffectiveServiceName() { // an invalid spec names another Service
		o.service, err = r.readService(ctx, o.backend, state)
	}
	return err
}

// attachedToSlices returns b as it is acted on while no valid spec is known: with the Service that
// its slices are behind. An invalid spec does not move them to another one, and does not change
// their owner, which is the Service only where b manages it.
func (r *Reconciler) attachedToSlices(
	ctx context.Context, b *v1alpha1.ExternalBackend,
) (*v1alpha1.ExternalBackend, error) {
	published, err := r.slicesOf(ctx, client.ObjectKeyFromObject(b))
	if err != nil || len(published) == 0 {
		return b, err
	}
	name := published[0].Labels[discoveryv1.LabelServiceName]
	if name == "" || name == b.EffectiveServiceName() {
		return b, nil
	}

	attached := *b
	if owner := metav1.GetControllerOf(published[0]); owner != nil && owner.Kind == "Service" {
		attached.Spec.Service, attached.Spec.ServiceRef = &v1alpha1.Service{Name: name}, nil
	} else {
		attached.Spec.Service, attached.Spec.ServiceRef = nil, &v1alpha1.ServiceReference{Name: name}
	}
	return &attached, nil
}

// latestStatus returns the status of b, or the one that we wrote, if the cache does not show that
// yet.
func latestStatus(b *v1alpha1.ExternalBackend, reported *reportState) v1alpha1.ExternalBackendStatus {
	if reported.status != nil && writecache.Newer(reported.writtenVersion(), b.ResourceVersion) {
		return *reported.status
	}
	return b.Status
}

// readService returns the Service of b, or nil.
func (r *Reconciler) readService(
	ctx context.Context, b *v1alpha1.ExternalBackend, state *backendState,
) (*corev1.Service, error) {
	cached, name := &corev1.Service{}, b.EffectiveServiceName()
	err := r.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: name}, cached)
	if apierrors.IsNotFound(err) {
		cached = nil
	} else if err != nil {
		return nil, err
	}
	return state.writes.Service(name, cached, r.now()), nil
}

// previousAdopterGone reports whether the Service has the label of another ExternalBackend that has
// nothing to do with it any more.
func (r *Reconciler) previousAdopterGone(
	ctx context.Context, b *v1alpha1.ExternalBackend, service *corev1.Service,
) (bool, error) {
	if service == nil {
		return false, nil
	}
	name := service.Labels[v1alpha1.LabelName]
	if name == "" || name == b.Name {
		return false, nil
	}
	var adopter v1alpha1.ExternalBackend
	if err := r.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: name}, &adopter); err != nil {
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
	return isBeingCollected(&adopter) || adopter.Spec.ServiceRef != nil ||
		adopter.EffectiveServiceName() != service.Name, nil
}
