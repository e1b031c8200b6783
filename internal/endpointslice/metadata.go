package endpointslice

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/external-backend/operator/api/v1alpha1"
)

// annotationLabels lists the keys of spec.service.labels that a slice carries, so that they can be
// removed again.
const annotationLabels = "external-backend.io/labels"

// metadata is the part of a slice's metadata that is ours. All else belongs to others and stays.
type metadata struct {
	labels map[string]string
	// extra is the value of annotationLabels; "" without labels.
	extra    string
	headless bool
	owner    *metav1.OwnerReference
}

// reservedLabels are those that spec.service.labels can't set.
var reservedLabels = []string{
	discoveryv1.LabelServiceName, discoveryv1.LabelManagedBy, v1alpha1.LabelName, corev1.IsHeadlessService,
}

func newMetadata(t *Template) metadata {
	m := metadata{headless: t.Headless, owner: t.Owner, labels: map[string]string{}}
	maps.Copy(m.labels, t.Labels)
	for _, key := range reservedLabels {
		delete(m.labels, key)
	}
	m.extra = strings.Join(slices.Sorted(maps.Keys(m.labels)), ",")
	m.labels[discoveryv1.LabelServiceName] = t.Service
	m.labels[discoveryv1.LabelManagedBy] = v1alpha1.ManagedBy
	m.labels[v1alpha1.LabelName] = t.Backend
	if t.Headless {
		m.labels[corev1.IsHeadlessService] = ""
	}
	return m
}

// matches reports whether our part of meta is as it should be. endpoints is the value of
// annotationEndpoints.
func (m *metadata) matches(meta *metav1.ObjectMeta, endpoints []byte) bool {
	for key, value := range m.labels {
		if have, ok := meta.Labels[key]; !ok || have != value {
			return false
		}
	}
	if _, ok := meta.Labels[corev1.IsHeadlessService]; ok != m.headless {
		return false
	}
	extra, ok := meta.Annotations[annotationLabels]
	return ok == (m.extra != "") && extra == m.extra &&
		meta.Annotations[annotationEndpoints] == string(endpoints) && m.hasOwner(meta.OwnerReferences)
}

// hasOwner reports whether our owner is among refs, once, and no other reference conflicts with it.
func (m *metadata) hasOwner(refs []metav1.OwnerReference) bool {
	if m.owner == nil {
		return true
	}
	found := false
	for i := range refs {
		if m.conflicts(&refs[i]) {
			if found || !sameOwner(&refs[i], m.owner) {
				return false
			}
			found = true
		}
	}
	return found
}

// conflicts reports whether ref is our owner's reference or can't be next to it. A slice has at
// most one controller, and belongs to its Service or to its ExternalBackend, never to both.
func (m *metadata) conflicts(ref *metav1.OwnerReference) bool {
	return ref.UID == m.owner.UID || valueOr(ref.Controller, false) ||
		isKind(ref, corev1.SchemeGroupVersion, "Service") || isKind(ref, v1alpha1.GroupVersion, "ExternalBackend")
}

// isKind reports whether ref names an object of that kind.
func isKind(ref *metav1.OwnerReference, version schema.GroupVersion, kind string) bool {
	return ref.Kind == kind && ref.APIVersion == version.String()
}

// OwnedBy reports whether all slices of list carry owner as Template.Owner asks for.
func OwnedBy(list []*discoveryv1.EndpointSlice, owner *metav1.OwnerReference) bool {
	m := metadata{owner: owner}
	return !slices.ContainsFunc(list, func(s *discoveryv1.EndpointSlice) bool { return !m.hasOwner(s.OwnerReferences) })
}

// sameOwner reports whether a and b are the same reference.
func sameOwner(a, b *metav1.OwnerReference) bool {
	return a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Name == b.Name && a.UID == b.UID &&
		valueOr(a.Controller, false) == valueOr(b.Controller, false) &&
		valueOr(a.BlockOwnerDeletion, false) == valueOr(b.BlockOwnerDeletion, false)
}

// OwnLabels are the labels that a slice has from spec.service.labels.
func OwnLabels(s *discoveryv1.EndpointSlice) map[string]string {
	own := map[string]string{}
	for key := range strings.SplitSeq(s.Annotations[annotationLabels], ",") {
		if value, ok := s.Labels[key]; ok {
			own[key] = value
		}
	}
	return own
}

// applyTo sets our part of meta.
func (m *metadata) applyTo(meta *metav1.ObjectMeta, endpoints []byte) {
	if meta.Labels == nil {
		meta.Labels = make(map[string]string, len(m.labels))
	}
	for key := range strings.SplitSeq(meta.Annotations[annotationLabels], ",") {
		delete(meta.Labels, key)
	}
	delete(meta.Labels, corev1.IsHeadlessService)
	maps.Copy(meta.Labels, m.labels)

	if meta.Annotations == nil {
		meta.Annotations = map[string]string{}
	}
	delete(meta.Annotations, annotationLabels)
	if m.extra != "" {
		meta.Annotations[annotationLabels] = m.extra
	}
	meta.Annotations[annotationEndpoints] = string(endpoints)
	if m.owner != nil && !m.hasOwner(meta.OwnerReferences) {
		conflicts := func(ref metav1.OwnerReference) bool { return m.conflicts(&ref) }
		meta.OwnerReferences = append(slices.DeleteFunc(meta.OwnerReferences, conflicts), *m.owner.DeepCopy())
	}
}
