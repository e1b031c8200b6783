// Package v1alpha1 holds the API of the External Backend Operator, group external-backend.io: the
// types, their schema as markers, the words that status, labels and annotations use, and the values
// of absent fields.
//
// The schema gives no field of a spec a default, so that a spec is stored as it was written. The
// methods in defaults.go return the value that applies.
//
// +kubebuilder:object:generate=true
// +kubebuilder:ac:generate=true
// +kubebuilder:ac:output:package="applyconfiguration"
// +groupName=external-backend.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// GroupVersion is the group and version of every kind in this package.
	GroupVersion = schema.GroupVersion{Group: "external-backend.io", Version: "v1alpha1"}

	// SchemeGroupVersion is GroupVersion under the name that generated code uses.
	SchemeGroupVersion = GroupVersion

	// SchemeBuilder collects what AddToScheme registers.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme registers the kinds of this package with a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&ExternalBackend{}, &ExternalBackendList{},
		&ExternalBackendPolicy{}, &ExternalBackendPolicyList{},
		&ExternalBackendOverride{}, &ExternalBackendOverrideList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
