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
// +kubebuilder:resource:scope=Cluster,shortName=extbepol,categories=external-backend
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ExternalBackendPolicy struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says what is allowed, and where.
	// +required
	Spec ExternalBackendPolicySpec `json:"spec"`
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
	// +kubebuilder:default=Enforce
	Mode PolicyMode `json:"mode,omitempty"`

	// namespaceSelector selects the namespaces; {} selects every one.
	// +required
	// +kubebuilder:validation:XValidation:rule=`!has(self.matchExpressions) || self.matchExpressions.all(e, e.operator in ['In', 'NotIn'] ? has(e.values) && e.values.size() > 0 : e.operator in ['Exists', 'DoesNotExist'] && (!has(e.values) || e.values.size() == 0))`,message="matchExpressions: In and NotIn want values, Exists and DoesNotExist none"
	NamespaceSelector metav1.LabelSelector `json:"namespaceSelector"`

	// allow are the rules, at most 100; a target is allowed where any rule allows
	// it. Absent or empty, nothing is allowed.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Allow []PolicyRule `json:"allow,omitempty"`
}

// PolicyRule allows the targets that fit all of its cidrs, hostnames and ports;
// of these three, what is absent or empty fits every target. A rule with
// nameservers alone allows no target.
type PolicyRule struct {
	// cidrs are checked for literal addresses and for every resolved one; at most 100.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule=`isCIDR(self)`,message="must be a CIDR"
	CIDRs []string `json:"cidrs,omitempty"`

	// hostnames are checked for names as written in spec, srvName included; a
	// leading "*." stands for one or more labels. At most 100.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:Pattern=`^(\*|[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?)(\.[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?)+$`
	Hostnames []string `json:"hostnames,omitempty"`

	// ports are checked for target and probe ports; absent: all. At most 100.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Ports []PolicyPort `json:"ports,omitempty"`

	// nameservers are those that spec.dns.nameservers may name: "IP" (with any
	// port), "IPv4:port" or "[IPv6]:port", at most 100.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=53
	// +kubebuilder:validation:items:XValidation:rule=`[isIP(self) ? self : self.matches('^([0-9.]+|\\[[0-9a-fA-F.]*:[0-9a-fA-F:.]*\\]):0*[1-9][0-9]{0,4}$') && int(self.substring(self.lastIndexOf(':') + 1)) <= 65535 ? self.substring(0, self.lastIndexOf(':')).replace('[', '').replace(']', '') : '-'].all(h, isIP(h))`,message="must be IP, IPv4:port or [IPv6]:port"
	Nameservers []string `json:"nameservers,omitempty"`
}

// PolicyPort allows a port, or a range of ports, of one protocol.
//
// +kubebuilder:validation:XValidation:rule=`!has(self.endPort) || (has(self.port) && self.endPort >= self.port)`,message="wants port, and must not be less than it",fieldPath=".endPort"
type PolicyPort struct {
	// protocol is TCP (default), UDP or SCTP.
	// +optional
	// +kubebuilder:default=TCP
	// +kubebuilder:validation:Enum=TCP;UDP;SCTP
	Protocol corev1.Protocol `json:"protocol,omitempty"`

	// port is the only or the first port, 1 to 65535; absent: every port of the
	// protocol.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`

	// endPort is the last port of the range, port to 65535, only with port; absent:
	// port alone.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	EndPort int32 `json:"endPort,omitempty"`
}
