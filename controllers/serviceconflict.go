package controllers

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

// findServiceConflict returns what keeps the ExternalBackend from its Service, and the reason for
// users.
func (r *reconciliation) findServiceConflict() (serviceConflict, string) {
	why := r.conflictMessage()
	switch {
	case why == "":
		return noConflict, ""
	case r.service != nil && plan.BelongsToPredecessor(r.backend, r.service):
		return predecessorsService, fmt.Sprintf("Service %q belongs to an earlier ExternalBackend of this name and goes "+
			"with it; then it is made anew.", r.service.Name)
	case r.protected(r.backend), r.attachesToSelector(), r.ownedByAnother():
		return unusableService, why
	default:
		return otherConflict, why
	}
}

// conflictMessage says why nothing may be published behind the Service; "" where it may.
func (r *reconciliation) conflictMessage() string {
	b, name := r.backend, r.backend.EffectiveServiceName()
	switch {
	case r.protected(b):
		return fmt.Sprintf("Service %q is protected.", name)
	case r.service == nil && !r.managesService():
		return ""
	case r.attachesToSelector():
		return fmt.Sprintf("Service %q in namespace %q has a selector: Kubernetes chooses its endpoints. "+
			"Remove the selector, or name another Service in spec.serviceRef.", name, b.Namespace)
	case !r.managesService() && r.service.Spec.Type == corev1.ServiceTypeExternalName:
		return fmt.Sprintf("Service %q in namespace %q is of type ExternalName, which has no endpoints.", name, b.Namespace)
	case r.managesService() && r.service != nil:
		if why := plan.ServiceConflict(b, r.service, r.observed.previousAdopterGone); why != "" {
			return why
		}
	}
	return r.observed.foreignPublishers.message(name)
}

// attachesToSelector reports whether the Service that serviceRef names chooses its endpoints
// itself.
func (r *reconciliation) attachesToSelector() bool {
	return !r.managesService() && r.service != nil && len(r.service.Spec.Selector) > 0
}

// ownedByAnother reports whether the Service has become somebody else's, whose endpoints must not
// mix with ours. A Service that has only lost our marks is not.
func (r *reconciliation) ownedByAnother() bool {
	if r.service == nil || !r.managesService() || plan.Owns(r.backend, r.service) {
		return false
	}
	if len(r.service.Spec.Selector) > 0 || metav1.GetControllerOf(r.service) != nil {
		return true
	}
	return slices.ContainsFunc(r.slices, func(s *discoveryv1.EndpointSlice) bool {
		owner := metav1.GetControllerOf(s)
		return owner != nil && owner.Kind == "Service" && owner.UID != r.service.UID
	})
}

var kubernetesService = types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}

// protected reports whether nothing may be published behind the Service of b.
func (r *Reconciler) protected(b *v1alpha1.ExternalBackend) bool {
	key := types.NamespacedName{Namespace: b.Namespace, Name: b.EffectiveServiceName()}
	return r.Options.Protected[key] || key == kubernetesService
}
