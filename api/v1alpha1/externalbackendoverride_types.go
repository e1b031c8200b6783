package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxOverrideAge is the longest time that an ExternalBackendOverride applies, from its creation.
const MaxOverrideAge = 7 * 24 * time.Hour

// ExternalBackendOverride pins a tier of an ExternalBackend, or sets the adminState of
// some of its targets, until a time. The spec of the ExternalBackend stays as it is.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=extbeo,categories=external-backend
// +kubebuilder:printcolumn:name="Backend",type=string,JSONPath=`.spec.externalBackendRef.name`
// +kubebuilder:printcolumn:name="Applied",type=string,JSONPath=`.status.conditions[?(@.type=="Applied")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Applied")].reason`
// +kubebuilder:printcolumn:name="Until",type=string,JSONPath=`.spec.expirationTime`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Tier",type=integer,priority=1,JSONPath=`.spec.pinnedTier`
type ExternalBackendOverride struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says what is overridden, and until when.
	// +required
	Spec ExternalBackendOverrideSpec `json:"spec"`

	// status tells whether it is applied. The default says that nobody has looked at it yet.
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status ExternalBackendOverrideStatus `json:"status,omitempty"`
}

// ExternalBackendOverrideList is a list of ExternalBackendOverrides.
//
// +kubebuilder:object:root=true
type ExternalBackendOverrideList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ExternalBackendOverride `json:"items"`
}

// ExternalBackendOverrideSpec says what is overridden, and until when.
//
// +kubebuilder:validation:XValidation:rule=`has(self.pinnedTier) || has(self.targets)`,message="wants pinnedTier, targets or both"
type ExternalBackendOverrideSpec struct {
	// externalBackendRef names the ExternalBackend, in the same namespace.
	// +required
	ExternalBackendRef ExternalBackendReference `json:"externalBackendRef"`

	// pinnedTier makes this tier active, whatever its health, 0 to 127, in place of
	// spec.failover.pinnedTier; absent: that one holds.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=127
	PinnedTier *int32 `json:"pinnedTier,omitempty"`

	// targets have an adminState of their own, 1 to 64; the others keep theirs.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Targets []TargetOverride `json:"targets,omitempty"`

	// expirationTime is when the override ends. It ends 7 days after its creation in any case, and
	// is deleted a day after it has ended.
	// +required
	ExpirationTime metav1.Time `json:"expirationTime"`

	// Unknown tells which fields of the spec this version does not know. It is not part of the API.
	Unknown []string `json:"-"`
}

// ExternalBackendReference names an ExternalBackend in the same namespace.
type ExternalBackendReference struct {
	// name is its name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// TargetOverride is the adminState of one target.
type TargetOverride struct {
	// name is the name of the target in spec.targets of the ExternalBackend.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// adminState is Active, Draining or Disabled, in place of the target's own.
	// +required
	AdminState AdminState `json:"adminState"`
}

// ExternalBackendOverrideStatus tells whether an override is applied.
type ExternalBackendOverrideStatus struct {
	// observedGeneration is the generation of the spec that this status is about; -1 before the
	// first look.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// conditions are Applied.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// EndTime returns when the override ends: at its expirationTime, 7 days after its creation at the
// latest.
func (o *ExternalBackendOverride) EndTime() time.Time {
	latest := o.CreationTimestamp.Add(MaxOverrideAge)
	if end := o.Spec.ExpirationTime.Time; end.Before(latest) {
		return end
	}
	return latest
}
