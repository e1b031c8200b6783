package plan

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// AnnotationAdopted marks a Service that was adopted. It survives its ExternalBackend.
const AnnotationAdopted = "external-backend.io/adopted"

// AnnotationServiceKeys is the annotation on a Service that lists the keys of the labels and
// annotations that spec.service wrote. When one leaves the spec it leaves the Service, and those
// that others added stay.
const AnnotationServiceKeys = "external-backend.io/service-keys"

// Owns reports whether b may write s, because b created or adopted it. Somebody may have removed
// the owner reference of a Service that b created. The label alone is no proof if the Service has a
// selector: a copied manifest has the label, too.
func Owns(b *v1alpha1.ExternalBackend, s *corev1.Service) bool {
	if metav1.GetControllerOf(s) != nil {
		return metav1.IsControlledBy(s, b)
	}
	return s.Labels[v1alpha1.LabelName] == b.Name &&
		(len(s.Spec.Selector) == 0 || s.Annotations[AnnotationAdopted] != "" || s.Annotations[AnnotationServiceKeys] != "")
}

// Adopted reports whether b has adopted s.
func Adopted(b *v1alpha1.ExternalBackend, s *corev1.Service) bool {
	return Owns(b, s) && s.Annotations[AnnotationAdopted] != ""
}

// BelongsToPredecessor reports whether s belongs to a deleted ExternalBackend of b's name. The
// garbage collector deletes s.
func BelongsToPredecessor(b *v1alpha1.ExternalBackend, s *corev1.Service) bool {
	owner := metav1.GetControllerOf(s)
	return owner != nil && owner.APIVersion == v1alpha1.GroupVersion.String() && owner.Kind == "ExternalBackend" &&
		owner.Name == b.Name && owner.UID != b.UID
}

// ServiceConflict says why b may neither write live nor adopt it; "" if it may. The spec of b may
// be invalid. adopterGone reports whether the ExternalBackend that adopted live earlier is gone, or
// uses another Service now.
func ServiceConflict(b *v1alpha1.ExternalBackend, live *corev1.Service, adopterGone bool) string {
	if Owns(b, live) {
		return ""
	}

	refuse := func(format string, args ...any) string {
		return fmt.Sprintf("Service %q is there already and is not this ExternalBackend's: %s.",
			live.Name, fmt.Sprintf(format, args...))
	}
	owner := metav1.GetControllerOf(live)
	adopter := live.Labels[v1alpha1.LabelName]
	hasSelector := len(live.Spec.Selector) > 0
	mayAdopt := b.Spec.Service.EffectiveAdoptionPolicy() == v1alpha1.AdoptionPolicyIfSelectorless
	families := service(b).IPFamilies

	switch {
	case owner != nil:
		return refuse("it belongs to %s %q", owner.Kind, owner.Name)
	case hasSelector && !mayAdopt:
		return refuse("it has a selector, so it can neither be adopted nor be attached to; " +
			"choose another spec.service.name, or remove its selector")
	case !mayAdopt:
		return refuse("choose another spec.service.name, attach to it by serviceRef, " +
			"or take it over with spec.service.adoptionPolicy: IfSelectorless")
	case hasSelector:
		return refuse("it has a selector, so it can't be adopted")
	case adopter != "" && adopter != b.Name && !adopterGone:
		return refuse("ExternalBackend %q has adopted it", adopter)
	case liveType(live) != ServiceType(b):
		return refuse("it is of type %s, not %s, so it can't be adopted", liveType(live), ServiceType(b))
	case len(families) > 0 && len(live.Spec.IPFamilies) > 0 && families[0] != live.Spec.IPFamilies[0]:
		return refuse("its primary family is %s, not %s, so it can't be adopted", live.Spec.IPFamilies[0], families[0])
	case !hasPortsOfSpec(b, live):
		return refuse("its ports are not those of spec.ports (name, port, protocol), so it can't be adopted")
	}
	return ""
}

// hasPortsOfSpec reports whether live has exactly the ports of b's spec.
func hasPortsOfSpec(b *v1alpha1.ExternalBackend, live *corev1.Service) bool {
	differs := func(p v1alpha1.Port) bool {
		l := livePort(live, &p)
		return l == nil || l.Port != p.Port
	}
	return len(b.Spec.Ports) == len(live.Spec.Ports) && !slices.ContainsFunc(b.Spec.Ports, differs)
}
