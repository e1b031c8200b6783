package plan

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// Owner references alone implement deletionPolicy. The garbage collector acts on them, whether a
// manager runs or not.
//
//	                            Service belongs to   slices belong to
//	created, Delete             ExternalBackend      Service
//	created, Retain             nobody               Service
//	adopted, Delete             nobody               ExternalBackend
//	adopted, Retain             nobody               Service
//	serviceRef, Delete          its owner            ExternalBackend
//	serviceRef, Retain          its owner            Service, not as its controller
//
// In the last row others may attach to the Service, too, and the slices of all of them must not
// look like those of one controller.

var (
	kindBackend = v1alpha1.GroupVersion.WithKind("ExternalBackend")
	kindService = corev1.SchemeGroupVersion.WithKind("Service")
)

// Retains reports whether the Service and its slices outlive b.
func Retains(b *v1alpha1.ExternalBackend) bool {
	return b.Spec.EffectiveDeletionPolicy() == v1alpha1.DeletionPolicyRetain
}

// IsOlder reports whether a was created before b.
func IsOlder(a, b *v1alpha1.ExternalBackend) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// hasKnownPolicy reports whether this version can act on b's deletionPolicy.
func hasKnownPolicy(b *v1alpha1.ExternalBackend) bool { return validateDeletionPolicy(b) == nil }

// SliceOwner returns the owner reference of b's slices; nil if it is unknown, and they keep those
// that they have. service is the Service in front of them, or nil.
func SliceOwner(b *v1alpha1.ExternalBackend, service *corev1.Service) *metav1.OwnerReference {
	switch {
	case !hasKnownPolicy(b):
		return nil
	case !Retains(b) && (b.Spec.ServiceRef != nil || service == nil || !metav1.IsControlledBy(service, b)):
		return metav1.NewControllerRef(b, kindBackend)
	case service == nil:
		return nil
	case b.Spec.ServiceRef != nil:
		return &metav1.OwnerReference{
			APIVersion: kindService.GroupVersion().String(), Kind: kindService.Kind, Name: service.Name, UID: service.UID,
		}
	}
	return metav1.NewControllerRef(service, kindService)
}

// CorrectOwner returns live with the owner references that b's deletionPolicy requires. It returns
// nil if they are correct, and if live is not b's.
func CorrectOwner(b *v1alpha1.ExternalBackend, live *corev1.Service) *corev1.Service {
	if b.Spec.ServiceRef != nil || !hasKnownPolicy(b) || !Owns(b, live) {
		return nil
	}
	s := live.DeepCopy()
	setOwner(b, s, Adopted(b, live))
	if equality.Semantic.DeepEqual(s.OwnerReferences, live.OwnerReferences) {
		return nil
	}
	return s
}

// setOwner adds b to the owner references of the Service, or removes it.
func setOwner(b *v1alpha1.ExternalBackend, s *corev1.Service, adopted bool) {
	switch {
	case adopted:
	case Retains(b):
		toBackend := func(ref metav1.OwnerReference) bool { return ref.UID == b.UID }
		s.OwnerReferences = slices.DeleteFunc(s.OwnerReferences, toBackend)
	case metav1.GetControllerOf(s) == nil:
		s.OwnerReferences = append(s.OwnerReferences, *metav1.NewControllerRef(b, kindBackend))
	}
}
