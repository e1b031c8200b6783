package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ExternalBackendPolicy says which targets the ExternalBackends of the selected
// namespaces may name. As with NetworkPolicy, a namespace that no policy selects
// may name any target that is not forbidden, and one that is selected only what
// some rule of some policy allows.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=extbepol,categories=external-backend
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Namespaces",type=integer,JSONPath=`.status.selectedNamespaces`
// +kubebuilder:printcolumn:name="Backends",type=integer,JSONPath=`.status.selectedExternalBackends`
// +kubebuilder:printcolumn:name="Refused",type=integer,JSONPath=`.status.refusedExternalBackends`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ExternalBackendPolicy struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says what is allowed, and where.
	// +required
	Spec ExternalBackendPolicySpec `json:"spec"`

	// status tells what the policy selects and refuses. Before the first one its observedGeneration
	// is -1, so that kstatus takes a new object for one in progress.
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status ExternalBackendPolicyStatus `json:"status,omitzero"`
}

// ExternalBackendPolicyList is a list of ExternalBackendPolicies.
//
// +kubebuilder:object:root=true
type ExternalBackendPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ExternalBackendPolicy `json:"items"`
}

// PolicyMode says what a refusal does.
//
// +kubebuilder:validation:Enum=Enforce;Audit
type PolicyMode string

const (
	// PolicyModeEnforce refuses.
	PolicyModeEnforce PolicyMode = "Enforce"
	// PolicyModeAudit only reports.
	PolicyModeAudit PolicyMode = "Audit"
)

// ExternalBackendPolicySpec says what is allowed, and where.
type ExternalBackendPolicySpec struct {
	// mode is Enforce (default) or Audit: only report what would be refused.
	// +optional
	Mode PolicyMode `json:"mode,omitempty"`

	// namespaceSelector selects the namespaces; {} selects every one.
	// +required
	// +kubebuilder:validation:XValidation:rule=`!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && e.values.size() > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || e.values.size() == 0))`,message="matchExpressions: In and NotIn want values, Exists and DoesNotExist none"
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`

	// allow are the rules, 1 to 100; a target is allowed where any rule allows it. Absent, no target
	// is allowed.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Allow []PolicyRule `json:"allow,omitempty"`

	// allowNameservers are those that spec.dns.nameservers may name: "IP" (with any port),
	// "IPv4:port" or "[IPv6]:port", 1 to 100. Absent, none may be named.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=53
	// +kubebuilder:validation:items:XValidation:rule=`[isIP(self) ? self : self.matches('^([0-9.]+|\\[[0-9a-fA-F.]*:[0-9a-fA-F:.]*\\]):0*[1-9][0-9]{0,4}$') && int(self.substring(self.lastIndexOf(':') + 1)) <= 65535 ? self.substring(0, self.lastIndexOf(':')).replace('[', '').replace(']', '') : '-'].all(h, isIP(h))`,message="must be IP, IPv4:port or [IPv6]:port"
	AllowNameservers []string `json:"allowNameservers,omitempty"`

	// Unknown tells which fields of the spec this version does not know. It is not part of the API.
	Unknown []string `json:"-"`
}

// AnyTarget has no fields.
type AnyTarget struct{}

// PolicyRule allows the targets that fit all of its cidrs, hostnames and ports. A rule has cidrs,
// hostnames or both, or anyTarget in their place.
//
// +kubebuilder:validation:XValidation:rule=`has(self.anyTarget) != (has(self.cidrs) || has(self.hostnames))`,message="wants cidrs, hostnames or both, or anyTarget in their place"
type PolicyRule struct {
	// anyTarget as {} allows every target that is neither forbidden nor guarded, in place of
	// cidrs and hostnames.
	// +optional
	AnyTarget *AnyTarget `json:"anyTarget,omitempty"`

	// cidrs are checked for literal addresses and for every resolved one; 1 to 100, without bits
	// beyond the prefix length. Absent beside hostnames: whatever these resolve to that is neither
	// forbidden nor guarded.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule=`isCIDR(self) && cidr(self) == cidr(self).masked()`,message="must be a CIDR, such as 203.0.113.0/24, with no bit set beyond its prefix length"
	CIDRs []string `json:"cidrs,omitempty"`

	// hostnames are checked for names as written in spec, srvName included; a
	// leading "*." stands for one or more labels. 1 to 100. Absent beside cidrs: every name, and
	// literal addresses.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^(\*|[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?)(\.[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?)+$`
	Hostnames []string `json:"hostnames,omitempty"`

	// ports are checked for target and probe ports, 1 to 100; absent: all.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	Ports []PolicyPort `json:"ports,omitempty"`

	// Unknown tells which fields of the rule this version does not know; such a rule allows nothing.
	// It is not part of the API.
	Unknown []string `json:"-"`
}

// PolicyPort allows a port, or a range of ports, of one protocol.
//
// +kubebuilder:validation:XValidation:rule=`!has(self.endPort) || self.endPort >= self.port`,message="must not be less than port",fieldPath=".endPort"
type PolicyPort struct {
	// protocol is TCP (default), UDP or SCTP.
	// +optional
	// +kubebuilder:validation:Enum=TCP;UDP;SCTP
	Protocol corev1.Protocol `json:"protocol,omitempty"`

	// port is the only or the first port, 1 to 65535.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`

	// endPort is the last port of the range, port to 65535; absent: port alone.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	EndPort int32 `json:"endPort,omitempty"`
}

// ExternalBackendPolicyStatus tells what a policy selects and refuses. It is written when it has
// changed, at most once in 10 seconds.
type ExternalBackendPolicyStatus struct {
	// observedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// selectedNamespaces is how many namespaces the policy selects; absent before they are counted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SelectedNamespaces *int32 `json:"selectedNamespaces,omitempty"`

	// selectedExternalBackends is how many ExternalBackends these namespaces have; absent before they
	// are counted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	SelectedExternalBackends *int32 `json:"selectedExternalBackends,omitempty"`

	// refusedExternalBackends is how many of these name something that the policies of this mode,
	// together, refuse (Enforce) or would refuse (Audit); absent before they are counted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RefusedExternalBackends *int32 `json:"refusedExternalBackends,omitempty"`

	// conditions are Accepted and, only where the spec has something that the manager can't read,
	// Stalled.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
