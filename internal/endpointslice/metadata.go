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

// annotationLabels lists the keys of spec.service.labels that we put on a slice, so that they can
// be taken off again.
const annotationLabels = "external-backend.io/labels"

// metadata is our share of a slice's metadata; all else is other people's and stays.
type metadata struct {
	labels map[string]string
	// extra is the value of annotationLabels, "" where there are none.
	extra    string
	headless bool
	owner    *metav1.OwnerReference
}

func newMetadata(t *Template) metadata {
	m := metadata{headless: t.Headless, owner: t.Owner, labels: map[string]string{}}
	for key, value := range t.Labels {
		if !reservedLabel(key) {
			m.labels[key] = value
		}
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

// reservedLabel reports whether a label of a slice is ours to set, whatever spec.service.labels
// says.
func reservedLabel(key string) bool {
	switch key {
	case discoveryv1.LabelServiceName, discoveryv1.LabelManagedBy, v1alpha1.LabelName, corev1.IsHeadlessService:
		return true
	}
	return false
}

// in reports whether meta holds our share as it should be; endpoints is the value of
// annotationEndpoints.
func (m *metadata) in(meta *metav1.ObjectMeta, endpoints []byte) bool {
	for key, value := range m.labels {
		if have, ok := meta.Labels[key]; !ok || have != value {
			return false
		}
	}
	if _, ok := meta.Labels[corev1.IsHeadlessService]; ok != m.headless {
		return false
	}
	extra, ok := meta.Annotations[annotationLabels]
	return ok == (m.extra != "") && extra == m.extra && meta.Annotations[annotationEndpoints] == string(endpoints) && m.owned(meta.OwnerReferences)
}

// owned reports whether our owner is among refs, and nobody in its place.
func (m *metadata) owned(refs []metav1.OwnerReference) bool {
	if m.owner == nil {
		return true
	}
	found := false
	for i := range refs {
		if m.disputes(&refs[i]) {
			if found || !sameOwner(&refs[i], m.owner) {
				return false
			}
			found = true
		}
	}
	return found
}

// disputes reports whether ref stands where our owner's reference belongs: a slice has one
// controller at most, and belongs to its Service or its ExternalBackend, never to both.
func (m *metadata) disputes(ref *metav1.OwnerReference) bool {
	return ref.UID == m.owner.UID || isTrue(ref.Controller) || isKind(ref, corev1.SchemeGroupVersion, "Service") ||
		isKind(ref, v1alpha1.GroupVersion, "ExternalBackend")
}

// isKind reports whether ref names an object of that kind.
func isKind(ref *metav1.OwnerReference, version schema.GroupVersion, kind string) bool {
	return ref.Kind == kind && ref.APIVersion == version.String()
}

// OwnedBy reports whether all slices of list carry owner as Template.Owner asks for.
func OwnedBy(list []*discoveryv1.EndpointSlice, owner *metav1.OwnerReference) bool {
	m := metadata{owner: owner}
	return !slices.ContainsFunc(list, func(s *discoveryv1.EndpointSlice) bool { return !m.owned(s.OwnerReferences) })
}

func sameOwner(a, b *metav1.OwnerReference) bool {
	return a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Name == b.Name && a.UID == b.UID &&
		isTrue(a.Controller) == isTrue(b.Controller) && isTrue(a.BlockOwnerDeletion) == isTrue(b.BlockOwnerDeletion)
}

func isTrue(b *bool) bool { return b != nil && *b }

// orTrue: consumers take a condition that is not set for true.
func orTrue(b *bool) bool { return b == nil || *b }

// OwnLabels are the labels from spec.service.labels that a slice bears.
func OwnLabels(s *discoveryv1.EndpointSlice) map[string]string {
	own := map[string]string{}
	for key := range strings.SplitSeq(s.Annotations[annotationLabels], ",") {
		if value, ok := s.Labels[key]; ok {
			own[key] = value
		}
	}
	return own
}

// enforce sets our share of meta, which must be ours to change.
func (m *metadata) enforce(meta *metav1.ObjectMeta, endpoints []byte) {
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
	if m.owner != nil && !m.owned(meta.OwnerReferences) {
		meta.OwnerReferences = append(slices.DeleteFunc(meta.OwnerReferences, func(ref metav1.OwnerReference) bool { return m.disputes(&ref) }), *m.owner.DeepCopy())
	}
}
