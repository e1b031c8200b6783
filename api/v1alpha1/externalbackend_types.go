package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// ExternalBackend publishes targets outside the cluster behind one Service.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:shortName=extbe,categories=external-backend
// +kubebuilder:printcolumn:name="Service",type=string,JSONPath=`.status.serviceName`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.endpoints.readyOfTotal`
// +kubebuilder:printcolumn:name="Healthy",type=string,JSONPath=`.status.conditions[?(@.type=="Healthy")].status`
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.status.serviceType`,priority=1
// +kubebuilder:printcolumn:name="Tier",type=integer,JSONPath=`.status.activeTier`,priority=1
// +kubebuilder:validation:XValidation:rule=`self.metadata.name.size() <= 63 && !self.metadata.name.contains('.') && self.metadata.name >= 'a'`,message="metadata.name must be a DNS label of at most 63 characters that begins with a letter"
// +kubebuilder:validation:XValidation:rule=`has(self.spec.serviceRef) || has(oldSelf.spec.serviceRef) || (has(self.spec.service) && has(self.spec.service.name) ? self.spec.service.name : self.metadata.name) == (has(oldSelf.spec.service) && has(oldSelf.spec.service.name) ? oldSelf.spec.service.name : oldSelf.metadata.name)`,message="the effective Service name is immutable",fieldPath=".spec.service.name"
type ExternalBackend struct {
	metav1.TypeMeta `json:",inline"`

	// metadata is the standard object metadata. The name is a DNS label of at
	// most 63 characters that begins with a letter.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// spec says what to publish, and how.
	// +required
	Spec ExternalBackendSpec `json:"spec"`

	// status tells what is published. Before the first one its observedGeneration is
	// -1, so that kstatus takes a new object for one in progress.
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status ExternalBackendStatus `json:"status,omitzero"`
}

// ExternalBackendList is a list of ExternalBackends.
//
// +kubebuilder:object:root=true
type ExternalBackendList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ExternalBackend `json:"items"`
}

// ExternalBackendSpec says what to publish, and how.
//
// +kubebuilder:validation:XValidation:rule=`!has(self.service) || !has(self.serviceRef)`,message="at most one of service and serviceRef may be set",fieldPath=".serviceRef"
// +kubebuilder:validation:XValidation:rule=`has(self.serviceRef) == has(oldSelf.serviceRef)`,message="an ExternalBackend can't change between service and serviceRef",fieldPath=".serviceRef"
// +kubebuilder:validation:XValidation:rule=`self.?service.type.orValue('ClusterIP') in ['NodePort', 'LoadBalancer'] || self.ports.all(p, !has(p.nodePort))`,message="nodePort may only be set with service.type NodePort or LoadBalancer",fieldPath=".ports"
// +kubebuilder:validation:XValidation:rule=`self.?service.type.orValue('ClusterIP') != 'ExternalName' || (has(self.targets) && self.targets.size() == 1 && has(self.targets[0].hostname))`,message="service.type ExternalName wants exactly one target, a hostname",fieldPath=".targets"
// +kubebuilder:validation:XValidation:rule=`self.?service.type.orValue('ClusterIP') != 'ExternalName' || !has(self.healthCheck)`,message="service.type ExternalName has no endpoints to check",fieldPath=".healthCheck"
// +kubebuilder:validation:XValidation:rule=`self.?dns.resolution.orValue('Resolve') != 'Passthrough' || has(self.serviceRef) || self.?service.type.orValue('ClusterIP') == 'Headless'`,message="Passthrough wants a Headless Service",fieldPath=".dns.resolution"
// +kubebuilder:validation:XValidation:rule=`self.?dns.resolution.orValue('Resolve') != 'Passthrough' || (has(self.targets) && self.targets.size() == 1 && has(self.targets[0].hostname))`,message="dns.resolution Passthrough wants exactly one target, a hostname",fieldPath=".targets"
// +kubebuilder:validation:XValidation:rule=`!('Local' in [self.?service.?internalTrafficPolicy.orValue('Cluster'), self.?service.?externalTrafficPolicy.orValue('Cluster')]) || !has(self.targets) || self.targets.all(t, has(t.nodeName))`,message="traffic policy Local wants nodeName on every target",fieldPath=".targets"
// +kubebuilder:validation:XValidation:rule=`[self.?healthCheck.?httpGet.?port.orValue(0)].all(port, type(port) == int || self.ports.exists(p, has(p.name) && p.name == port))`,message="must be a number or the name of a port in spec.ports",fieldPath=".healthCheck.httpGet.port"
// +kubebuilder:validation:XValidation:rule=`[self.?healthCheck.?tcpSocket.?port.orValue(0)].all(port, type(port) == int || self.ports.exists(p, has(p.name) && p.name == port))`,message="must be a number or the name of a port in spec.ports",fieldPath=".healthCheck.tcpSocket.port"
// +kubebuilder:validation:XValidation:rule=`[self.?healthCheck.?grpc.?port.orValue(0)].all(port, type(port) == int || self.ports.exists(p, has(p.name) && p.name == port))`,message="must be a number or the name of a port in spec.ports",fieldPath=".healthCheck.grpc.port"
// +kubebuilder:validation:XValidation:rule=`!has(self.healthCheck) || self.healthCheck.?httpGet.?port.hasValue() || self.healthCheck.?tcpSocket.?port.hasValue() || self.healthCheck.?grpc.?port.hasValue() || self.ports.exists(p, p.?protocol.orValue('TCP') == 'TCP')`,message="the check needs a port, as no port of spec.ports is TCP",fieldPath=".healthCheck"
type ExternalBackendSpec struct {
	// service describes the Service that is created, or adopted. At most one of
	// service and serviceRef may be set; absent without serviceRef, the Service
	// has the ExternalBackend's name and every default.
	// +optional
	Service *Service `json:"service,omitempty"`

	// serviceRef attaches the endpoints to a selector-less Service that someone
	// else owns. An object can't change from one to the other.
	// +optional
	ServiceRef *ServiceReference `json:"serviceRef,omitempty"`

	// ports are the Service's ports, 1 to 100, with distinct names.
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:XValidation:rule=`self.size() == 1 || self.all(p, has(p.name) && p.name.size() > 0)`,message="a port needs a name where it is not the only one"
	// +kubebuilder:validation:XValidation:rule=`self.all(p, !has(p.name) || self.exists_one(q, has(q.name) && q.name == p.name))`,message="no two ports may have the same name"
	// +kubebuilder:validation:XValidation:rule=`self.all(p, self.exists_one(q, q.port == p.port && (has(q.protocol) ? q.protocol : 'TCP') == (has(p.protocol) ? p.protocol : 'TCP')))`,message="no two ports may have the same port and protocol"
	// +kubebuilder:validation:XValidation:rule=`self.all(p, !has(p.nodePort) || self.exists_one(q, has(q.nodePort) && q.nodePort == p.nodePort && (has(q.protocol) ? q.protocol : 'TCP') == (has(p.protocol) ? p.protocol : 'TCP')))`,message="no two ports may have the same nodePort and protocol"
	Ports []Port `json:"ports"`

	// deletionPolicy says what becomes of the Service and its EndpointSlices when
	// the ExternalBackend is deleted: Delete (the default) deletes the Service that
	// was created for it, and its EndpointSlices; Retain leaves both as they are,
	// with the last health, for whoever comes back under this name. A Service that
	// was adopted, or that serviceRef names, is never deleted. Retain is in force
	// once status.observedGeneration has it.
	// +optional
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`

	// targets are the endpoints' sources, at most 1,024, with distinct names;
	// absent or empty, nothing is published.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=1024
	Targets []Target `json:"targets,omitempty"`

	// dns says how hostname and srvName are resolved; absent, by the manager's
	// resolv.conf with every default.
	// +optional
	DNS *DNS `json:"dns,omitempty"`

	// healthCheck probes the endpoints; absent, every endpoint is ready and serving.
	// +optional
	HealthCheck *HealthCheck `json:"healthCheck,omitempty"`

	// failover chooses the active tier among the targets' tiers; absent,
	// every default holds.
	// +optional
	Failover *Failover `json:"failover,omitempty"`

	// drainSeconds is how long an address that left the spec or its name's answer
	// stays published as terminating. 0 to 604800; default 0, it leaves at once.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	DrainSeconds *int32 `json:"drainSeconds,omitempty"`

	// Unknown tells which fields of the spec this version does not know. It is not part of the API.
	Unknown []string `json:"-"`
}

// DeletionPolicy says what a deleted ExternalBackend leaves behind.
//
// +kubebuilder:validation:Enum=Delete;Retain
type DeletionPolicy string

const (
	// DeletionPolicyDelete deletes the Service that was created, and the EndpointSlices.
	DeletionPolicyDelete DeletionPolicy = "Delete"
	// DeletionPolicyRetain leaves the Service and the EndpointSlices as they are.
	DeletionPolicyRetain DeletionPolicy = "Retain"
)

// ServiceType is the kind of Service in front of the endpoints.
type ServiceType string

const (
	// ServiceTypeClusterIP gives the Service a cluster-internal virtual IP.
	ServiceTypeClusterIP ServiceType = "ClusterIP"
	// ServiceTypeHeadless gives it none: its DNS name resolves to the endpoints.
	ServiceTypeHeadless ServiceType = "Headless"
	// ServiceTypeNodePort adds a port on every node.
	ServiceTypeNodePort ServiceType = "NodePort"
	// ServiceTypeLoadBalancer adds a load balancer.
	ServiceTypeLoadBalancer ServiceType = "LoadBalancer"
	// ServiceTypeExternalName makes the Service a DNS alias, without endpoints.
	ServiceTypeExternalName ServiceType = "ExternalName"
)

// AdoptionPolicy says whether a Service that is already there may be taken over.
//
// +kubebuilder:validation:Enum=Never;IfSelectorless
type AdoptionPolicy string

const (
	// AdoptionPolicyNever leaves every foreign Service alone.
	AdoptionPolicyNever AdoptionPolicy = "Never"
	// AdoptionPolicyIfSelectorless takes over a Service that has neither selector
	// nor controller and whose type, primary family and ports match.
	AdoptionPolicyIfSelectorless AdoptionPolicy = "IfSelectorless"
)

// LabelValue is the value of a label: at most 63 characters.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$`
type LabelValue string

// AnnotationValue is the value of an annotation: at most 16,384 characters.
//
// +kubebuilder:validation:MaxLength=16384
type AnnotationValue string

// Service describes the Service of an ExternalBackend. Fields that mirror
// ServiceSpec have its types and meanings, and where absent the API server chooses.
//
// +kubebuilder:validation:XValidation:rule=`!has(self.sessionAffinityTimeoutSeconds) || (has(self.sessionAffinity) && self.sessionAffinity == 'ClientIP')`,message="may only be set with sessionAffinity ClientIP",fieldPath=".sessionAffinityTimeoutSeconds"
// +kubebuilder:validation:XValidation:rule=`!has(self.externalTrafficPolicy) || self.?type.orValue('ClusterIP') in ['NodePort', 'LoadBalancer']`,message="may only be set with type NodePort or LoadBalancer",fieldPath=".externalTrafficPolicy"
// +kubebuilder:validation:XValidation:rule=`!has(self.loadBalancerClass) || self.?type.orValue('ClusterIP') == 'LoadBalancer'`,message="may only be set with type LoadBalancer",fieldPath=".loadBalancerClass"
// +kubebuilder:validation:XValidation:rule=`!has(self.loadBalancerSourceRanges) || self.?type.orValue('ClusterIP') == 'LoadBalancer'`,message="may only be set with type LoadBalancer",fieldPath=".loadBalancerSourceRanges"
// +kubebuilder:validation:XValidation:rule=`!has(self.ipFamilyPolicy) || self.?type.orValue('ClusterIP') != 'ExternalName'`,message="may not be set with type ExternalName",fieldPath=".ipFamilyPolicy"
// +kubebuilder:validation:XValidation:rule=`!has(self.ipFamilies) || self.?type.orValue('ClusterIP') != 'ExternalName'`,message="may not be set with type ExternalName",fieldPath=".ipFamilies"
// +kubebuilder:validation:XValidation:rule=`!has(self.ipFamilies) || self.ipFamilies.size() < 2 || !has(self.ipFamilyPolicy) || self.ipFamilyPolicy != 'SingleStack'`,message="ipFamilyPolicy SingleStack allows one family",fieldPath=".ipFamilies"
type Service struct {
	// name is the Service's name, a DNS label of at most 63 characters that begins
	// with a letter; default: the ExternalBackend's name. The effective name is
	// immutable.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`

	// type is ClusterIP (default), Headless, NodePort, LoadBalancer or ExternalName.
	// +optional
	// +kubebuilder:validation:Enum=ClusterIP;Headless;NodePort;LoadBalancer;ExternalName
	Type ServiceType `json:"type,omitempty"`

	// adoptionPolicy says whether a Service of that name that is already there may
	// be taken over: Never (default) or IfSelectorless.
	// +optional
	AdoptionPolicy AdoptionPolicy `json:"adoptionPolicy,omitempty"`

	// labels are set on the Service and its EndpointSlices; the ExternalBackend's
	// own are never copied. At most 64.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule=`self.all(k, !k.startsWith('external-backend.io/') && !(k in ['kubernetes.io/service-name', 'endpointslice.kubernetes.io/managed-by', 'service.kubernetes.io/headless']))`,message="the operator's own labels may not be set"
	Labels map[string]LabelValue `json:"labels,omitempty"`

	// annotations are set on the Service; the ExternalBackend's own are never
	// copied. At most 64.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule=`self.all(k, !k.startsWith('external-backend.io/'))`,message="the operator's own annotations may not be set"
	Annotations map[string]AnnotationValue `json:"annotations,omitempty"`

	// ipFamilyPolicy is SingleStack, PreferDualStack or RequireDualStack.
	// +optional
	// +kubebuilder:validation:Enum=SingleStack;PreferDualStack;RequireDualStack
	IPFamilyPolicy *corev1.IPFamilyPolicy `json:"ipFamilyPolicy,omitempty"`

	// ipFamilies are the Service's families, the primary one first: IPv4, IPv6 or both.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:Enum=IPv4;IPv6
	// +kubebuilder:validation:XValidation:rule=`self.size() < 2 || self[0] != self[1]`,message="the families must differ"
	IPFamilies []corev1.IPFamily `json:"ipFamilies,omitempty"`

	// sessionAffinity is None (default) or ClientIP.
	// +optional
	// +kubebuilder:validation:Enum=None;ClientIP
	SessionAffinity corev1.ServiceAffinity `json:"sessionAffinity,omitempty"`

	// sessionAffinityTimeoutSeconds is how long ClientIP affinity sticks, 1 to 86400; default
	// 10800; only with sessionAffinity ClientIP.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	SessionAffinityTimeoutSeconds *int32 `json:"sessionAffinityTimeoutSeconds,omitempty"`

	// internalTrafficPolicy is Cluster (default) or Local; Local wants nodeName on every target.
	// +optional
	// +kubebuilder:validation:Enum=Cluster;Local
	InternalTrafficPolicy *corev1.ServiceInternalTrafficPolicy `json:"internalTrafficPolicy,omitempty"`

	// externalTrafficPolicy is Cluster (default) or Local, only with type NodePort or
	// LoadBalancer; Local wants nodeName on every target.
	// +optional
	// +kubebuilder:validation:Enum=Cluster;Local
	ExternalTrafficPolicy corev1.ServiceExternalTrafficPolicy `json:"externalTrafficPolicy,omitempty"`

	// trafficDistribution is as in ServiceSpec, such as PreferSameZone, PreferSameNode or
	// PreferClose, which alone is known before Kubernetes 1.34. Endpoints get hints for these
	// three; absent: no hints.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	TrafficDistribution *string `json:"trafficDistribution,omitempty"`

	// publishNotReadyAddresses makes every endpoint ready, whatever its health;
	// default false.
	// +optional
	PublishNotReadyAddresses bool `json:"publishNotReadyAddresses,omitempty"`

	// loadBalancerClass is the class of the load balancer, only with type LoadBalancer.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	LoadBalancerClass *string `json:"loadBalancerClass,omitempty"`

	// loadBalancerSourceRanges are the client CIDRs that the load balancer lets
	// in, only with type LoadBalancer; at most 100.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule=`isCIDR(self) && cidr(self) == cidr(self).masked()`,message="must be a CIDR, such as 203.0.113.0/24, with no bit set beyond its prefix length"
	LoadBalancerSourceRanges []string `json:"loadBalancerSourceRanges,omitempty"`
}

// ServiceReference names a Service in the ExternalBackend's namespace.
type ServiceReference struct {
	// name is the Service's name; immutable.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	// +kubebuilder:validation:XValidation:rule=`self == oldSelf`,message="the effective Service name is immutable"
	Name string `json:"name"`
}

// Port is one port of the Service.
type Port struct {
	// name is the name of the Service port and of the slice port, a DNS label of at most 63
	// characters; absent or "" only where it is the sole port.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$`
	Name string `json:"name,omitempty"`

	// port is the Service port, 1 to 65535.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`

	// targetPort is the port of the targets, 1 to 65535; absent: port.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	TargetPort int32 `json:"targetPort,omitempty"`

	// protocol is TCP (default), UDP or SCTP.
	// +optional
	// +kubebuilder:validation:Enum=TCP;UDP;SCTP
	Protocol corev1.Protocol `json:"protocol,omitempty"`

	// appProtocol is the application protocol on the Service port and the slice port, a qualified
	// name; absent: none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=317
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$`
	AppProtocol *string `json:"appProtocol,omitempty"`

	// nodePort is the port on every node, 1 to 65535, only with type NodePort or LoadBalancer;
	// absent: the API server chooses.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	NodePort int32 `json:"nodePort,omitempty"`
}

// AdminState is what a user wants of a target.
//
// +kubebuilder:validation:Enum=Active;Draining;Disabled
type AdminState string

const (
	// AdminStateActive publishes the target by its health and tier.
	AdminStateActive AdminState = "Active"
	// AdminStateDraining publishes it as terminating: a last resort.
	AdminStateDraining AdminState = "Draining"
	// AdminStateDisabled neither publishes nor probes it.
	AdminStateDisabled AdminState = "Disabled"
)

// Target is one external server, by exactly one of address, hostname and srvName.
//
// +kubebuilder:validation:ExactlyOneOf=address;hostname;srvName
type Target struct {
	// name tells the target apart, a DNS label of at most 63 characters. In
	// headless Services it is also the endpoint's hostname.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`

	// address is a literal IPv4 or canonical IPv6 address; not a loopback,
	// link-local, multicast, broadcast, unspecified or IPv4-mapped one.
	// Exactly one of address, hostname and srvName must be set.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=45
	// +kubebuilder:validation:XValidation:rule=`isIP(self) && ip.isCanonical(self) && ip(self).isGlobalUnicast()`,message="must be an IPv4 or canonical IPv6 address, not a loopback, link-local, multicast, broadcast, unspecified or IPv4-mapped one"
	Address string `json:"address,omitempty"`

	// hostname is a lower-case FQDN (RFC 1123, two labels or more, no trailing
	// dot), looked up as A and AAAA as the Service's IP families need.
	// Exactly one of address, hostname and srvName must be set.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule=`self.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)+$')`,message="must be a lower-case FQDN of two labels or more without trailing dot, such as db.example.com"
	// +kubebuilder:validation:XValidation:rule=`!self.matches('\\.([0-9]+|0x[0-9a-f]*)$')`,message="must not have the form of an IP address"
	Hostname string `json:"hostname,omitempty"`

	// srvName is a lower-case FQDN, underscores allowed, looked up as SRV
	// (RFC 2782). A record's port replaces the target port of the first of
	// spec.ports; the ranks of the records' priorities add to tier.
	// Exactly one of address, hostname and srvName must be set.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule=`self.matches('^[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?(\\.[a-z0-9_]([-a-z0-9_]{0,61}[a-z0-9_])?)+$')`,message="must be a lower-case FQDN of two labels or more without trailing dot, such as _http._tcp.example.com"
	// +kubebuilder:validation:XValidation:rule=`!self.matches('\\.([0-9]+|0x[0-9a-f]*)$')`,message="must not have the form of an IP address"
	SRVName string `json:"srvName,omitempty"`

	// ports override the target port of ports of spec.ports, by name, for this
	// target. At most 100, with distinct names.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Ports []TargetPort `json:"ports,omitempty"`

	// zone is the endpoint's zone, a label value of at most 63 characters; absent: none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Zone string `json:"zone,omitempty"`

	// nodeName is the endpoint's node, a DNS subdomain of at most 253 characters; absent: none.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	NodeName string `json:"nodeName,omitempty"`

	// tier is 0 (default, first) to 127; a higher number is a standby tier.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=127
	Tier *int32 `json:"tier,omitempty"`

	// adminState is Active (default), Draining (terminating: a last resort) or Disabled
	// (neither published nor probed).
	// +optional
	AdminState AdminState `json:"adminState,omitempty"`
}

// TargetPort overrides the target port of one port of spec.ports.
type TargetPort struct {
	// name is the name of a port in spec.ports; absent, or the empty string, for the
	// unnamed one.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$`
	Name string `json:"name,omitempty"`

	// targetPort is the target's port, 1 to 65535.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	TargetPort int32 `json:"targetPort"`
}

// DNSResolution says who resolves the targets' names.
//
// +kubebuilder:validation:Enum=Resolve;Passthrough
type DNSResolution string

const (
	// DNSResolutionResolve lets the operator resolve names to addresses.
	DNSResolutionResolve DNSResolution = "Resolve"
	// DNSResolutionPassthrough publishes the name itself, in an EndpointSlice of
	// addressType FQDN.
	DNSResolutionPassthrough DNSResolution = "Passthrough"
)

// DNSTransport is how nameservers are asked.
//
// +kubebuilder:validation:Enum=UDP;TCP;TLS
type DNSTransport string

const (
	// DNSTransportUDP asks over UDP, and over TCP where an answer is truncated.
	DNSTransportUDP DNSTransport = "UDP"
	// DNSTransportTCP asks over TCP.
	DNSTransportTCP DNSTransport = "TCP"
	// DNSTransportTLS asks over TLS (RFC 7858).
	DNSTransportTLS DNSTransport = "TLS"
)

// DNS says how the targets' names are resolved. All names are FQDNs; there are
// no search lists.
//
// +kubebuilder:validation:XValidation:rule=`!has(self.tls) || self.?transport.orValue('UDP') == 'TLS'`,message="may only be set with transport TLS",fieldPath=".tls"
type DNS struct {
	// resolution is Resolve (default) or Passthrough: an unprobed EndpointSlice of
	// addressType FQDN, only for Headless Services with one target, a hostname.
	// +optional
	Resolution DNSResolution `json:"resolution,omitempty"`

	// nameservers are asked instead of those of the manager's resolv.conf: "IP",
	// "IPv4:port" or "[IPv6]:port", 53 by default and 853 with transport TLS.
	// At most 8, no loopback ones.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=53
	// +kubebuilder:validation:items:XValidation:rule=`[isIP(self) ? self : self.matches('^([0-9.]+|\\[[0-9a-fA-F.]*:[0-9a-fA-F:.]*\\]):0*[1-9][0-9]{0,4}$') && int(self.substring(self.lastIndexOf(':') + 1)) <= 65535 ? self.substring(0, self.lastIndexOf(':')).replace('[', '').replace(']', '') : '-'].all(h, isIP(h) && (ip(h).isGlobalUnicast() || ip(h).isLinkLocalUnicast()))`,message="must be IP, IPv4:port or [IPv6]:port, not a loopback, multicast or unspecified address"
	Nameservers []string `json:"nameservers,omitempty"`

	// transport is UDP (default; TCP on truncation), TCP or TLS.
	// +optional
	Transport DNSTransport `json:"transport,omitempty"`

	// tls verifies the nameservers, only with transport TLS; absent, by the system
	// roots and the nameserver's address.
	// +optional
	TLS *DNSTLS `json:"tls,omitempty"`

	// minTTLSeconds is the least time an answer is kept, 1 to 604800; default 5.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	MinTTLSeconds int32 `json:"minTTLSeconds,omitempty"`

	// maxTTLSeconds is the longest time an answer is kept, 1 to 604800; default
	// 3600. Where it is less than minTTLSeconds it wins.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=604800
	MaxTTLSeconds int32 `json:"maxTTLSeconds,omitempty"`

	// staleSeconds is how long after its expiry the last good answer serves when
	// resolution fails (RFC 8767), 0 to 2592000; default 86400; 0: not at all.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2592000
	StaleSeconds *int32 `json:"staleSeconds,omitempty"`

	// removalDelaySeconds is how long an address that is absent from good answers
	// stays, for names that answer in rotation, 0 to 604800; default 0: it leaves
	// at once.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	RemovalDelaySeconds *int32 `json:"removalDelaySeconds,omitempty"`
}

// DNSTLS verifies nameservers asked over TLS.
type DNSTLS struct {
	// serverName is the name in the nameservers' certificates; absent: the
	// nameserver's address.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|[0-9A-Fa-f:.]+)$`
	ServerName string `json:"serverName,omitempty"`

	// caCertificateRefs name the CA certificates to trust, all of them together, 1 to 8; absent:
	// the system roots.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	CACertificateRefs []CACertificateReference `json:"caCertificateRefs,omitempty"`
}

// CACertificateKind is the kind of object that holds CA certificates.
//
// +kubebuilder:validation:Enum=ConfigMap;Secret
type CACertificateKind string

const (
	// CACertificateKindConfigMap reads the certificates from a ConfigMap.
	CACertificateKindConfigMap CACertificateKind = "ConfigMap"
	// CACertificateKindSecret reads them from a Secret.
	CACertificateKindSecret CACertificateKind = "Secret"
)

// CACertificateReference names CA certificates (PEM) in the ExternalBackend's
// namespace.
type CACertificateReference struct {
	// group is the API group of the object: "" (default), the core group.
	// +optional
	// +kubebuilder:validation:Enum=""
	Group string `json:"group,omitempty"`

	// kind is ConfigMap (default) or Secret.
	// +optional
	Kind CACertificateKind `json:"kind,omitempty"`

	// name is the object's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name"`

	// key is the key of the certificates in the object's data; default ca.crt.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[-._A-Za-z0-9]+$`
	Key string `json:"key,omitempty"`
}

// SecretReference names a Secret in the ExternalBackend's namespace.
type SecretReference struct {
	// name is the Secret's name.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Name string `json:"name"`
}

// HealthCheckMode says what verdicts do.
//
// +kubebuilder:validation:Enum=Enforce;Observe
type HealthCheckMode string

const (
	// HealthCheckModeEnforce lets verdicts decide the endpoints' conditions.
	HealthCheckModeEnforce HealthCheckMode = "Enforce"
	// HealthCheckModeObserve probes and reports, and changes no endpoint.
	HealthCheckModeObserve HealthCheckMode = "Observe"
)

// InitialState is how an endpoint counts before its first verdict.
//
// +kubebuilder:validation:Enum=NotReady;Ready
type InitialState string

const (
	// InitialStateNotReady keeps traffic away until the first verdict.
	InitialStateNotReady InitialState = "NotReady"
	// InitialStateReady lets traffic in until the first verdict.
	InitialStateReady InitialState = "Ready"
)

// HealthCheck probes every endpoint, by exactly one of httpGet, tcpSocket and grpc.
//
// +kubebuilder:validation:ExactlyOneOf=httpGet;tcpSocket;grpc
// +kubebuilder:validation:XValidation:rule=`!has(self.tls) || self.?httpGet.scheme.orValue('HTTP') == 'HTTPS' || self.?tcpSocket.transport.orValue('Plaintext') == 'TLS' || self.?grpc.transport.orValue('Plaintext') == 'TLS'`,message="wants httpGet.scheme HTTPS, or transport TLS in tcpSocket or grpc",fieldPath=".tls"
type HealthCheck struct {
	// mode is Enforce (default) or Observe: probes and reports, but changes no
	// endpoint.
	// +optional
	Mode HealthCheckMode `json:"mode,omitempty"`

	// httpGet is healthy where the status of a GET is expected.
	// Exactly one of httpGet, tcpSocket and grpc must be set.
	// +optional
	HTTPGet *HTTPGet `json:"httpGet,omitempty"`

	// tcpSocket is healthy where a connection opens and the optional exchange of
	// text succeeds.
	// Exactly one of httpGet, tcpSocket and grpc must be set.
	// +optional
	TCPSocket *TCPSocket `json:"tcpSocket,omitempty"`

	// grpc is healthy where grpc.health.v1 says SERVING.
	// Exactly one of httpGet, tcpSocket and grpc must be set.
	// +optional
	GRPC *GRPC `json:"grpc,omitempty"`

	// tls says how the check speaks TLS, where httpGet.scheme is HTTPS or the transport of tcpSocket
	// or grpc is TLS; with plaintext it is refused. Absent, every default holds: the target's
	// certificate is verified by the system roots.
	// +optional
	TLS *TLS `json:"tls,omitempty"`

	// periodSeconds is the time between the starts of two probes of an endpoint, 1
	// to 3600; default 10.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`

	// timeoutSeconds is how long one probe may take, 1 to 3600; default 3.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3600
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`

	// successThreshold is how many consecutive successes make an endpoint healthy,
	// 1 to 100; default 1.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	SuccessThreshold int32 `json:"successThreshold,omitempty"`

	// failureThreshold is how many consecutive failures make an endpoint unhealthy,
	// 1 to 100; default 3.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	FailureThreshold int32 `json:"failureThreshold,omitempty"`

	// confirmPeriodMilliseconds is the time between the starts of two probes while
	// the verdict is in doubt, and until the first verdict, 100 to 60000; default
	// 1000.
	// +optional
	// +kubebuilder:validation:Minimum=100
	// +kubebuilder:validation:Maximum=60000
	ConfirmPeriodMilliseconds int32 `json:"confirmPeriodMilliseconds,omitempty"`

	// initialState is how a target never seen before counts until its first
	// verdict: NotReady (default) or Ready.
	// +optional
	InitialState InitialState `json:"initialState,omitempty"`
}

// HTTPGet is a GET whose status is judged. Redirects are not followed. Under server-side apply it
// has one owner: of an object that loses its last field a merge makes null in place of {}.
//
// +structType=atomic
type HTTPGet struct {
	// path is the request's path, with its query, at most 1,024 characters; default "/".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/[^\x00-\x20\x7F]*$`
	Path string `json:"path,omitempty"`

	// port is a number, 1 to 65535, or the name of a port in spec.ports; absent:
	// the first TCP port of the target.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`type(self) == int ? self >= 1 && self <= 65535 : self.size() <= 63 && self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')`,message="must be 1 to 65535 or the name of a port in spec.ports"
	Port *intstr.IntOrString `json:"port,omitempty"`

	// scheme is HTTP (default) or HTTPS.
	// +optional
	// +kubebuilder:validation:Enum=HTTP;HTTPS
	Scheme corev1.URIScheme `json:"scheme,omitempty"`

	// httpHeaders are added to the request, in order; names may repeat, but for Host. At most 32.
	// Host is a host name or address, with or without a port; default: the target's hostname, else
	// its address, with the port where it is not that of the scheme.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule=`self.filter(h, h.name.lowerAscii() == 'host').size() <= 1`,message="at most one Host header"
	HTTPHeaders []HTTPHeader `json:"httpHeaders,omitempty"`

	// expectedStatuses are the healthy statuses, each one status ("200") or a range
	// ("200-399") from 100 to 599, 1 to 32 of them; default ["200-399"].
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=7
	// +kubebuilder:validation:items:Pattern=`^[1-5][0-9]{2}(-[1-5][0-9]{2})?$`
	// +kubebuilder:validation:items:XValidation:rule=`self.size() < 7 || self.substring(0, 3) <= self.substring(4)`,message="the range must not end before it begins"
	ExpectedStatuses []string `json:"expectedStatuses,omitempty"`
}

// HTTPHeader is one header of a request.
type HTTPHeader struct {
	// name is the header's name, a token (RFC 9110) of at most 256 characters.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	// +kubebuilder:validation:Pattern="^[-!#$%&'*+.^_\x60|~0-9A-Za-z]+$"
	Name string `json:"name"`

	// value is the header's value, without control characters, at most 4,096
	// characters; it may be "".
	// +required
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^[^\x00-\x08\x0A-\x1F\x7F]*$`
	Value string `json:"value"`
}

// Transport says what a probe speaks on its connection.
//
// +kubebuilder:validation:Enum=Plaintext;TLS
type Transport string

const (
	// TransportPlaintext speaks without TLS.
	TransportPlaintext Transport = "Plaintext"
	// TransportTLS speaks over TLS.
	TransportTLS Transport = "TLS"
)

// TCPSocket is a connection and an optional exchange of text. Under server-side apply it has one
// owner, as httpGet.
//
// +structType=atomic
type TCPSocket struct {
	// port is a number, 1 to 65535, or the name of a port in spec.ports; absent:
	// the first TCP port of the target.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`type(self) == int ? self >= 1 && self <= 65535 : self.size() <= 63 && self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')`,message="must be 1 to 65535 or the name of a port in spec.ports"
	Port *intstr.IntOrString `json:"port,omitempty"`

	// transport is Plaintext (default) or TLS.
	// +optional
	Transport Transport `json:"transport,omitempty"`

	// send is written once the connection is open, at most 1,024 characters; absent: nothing.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Send string `json:"send,omitempty"`

	// expect is what the target's answer must contain, at most 1,024 characters; absent: no answer
	// is awaited.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	Expect string `json:"expect,omitempty"`
}

// GRPC is a call of grpc.health.v1.Health/Check. Under server-side apply it has one owner, as
// httpGet.
//
// +structType=atomic
type GRPC struct {
	// port is a number, 1 to 65535, or the name of a port in spec.ports; absent:
	// the first TCP port of the target.
	// +optional
	// +kubebuilder:validation:XValidation:rule=`type(self) == int ? self >= 1 && self <= 65535 : self.size() <= 63 && self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')`,message="must be 1 to 65535 or the name of a port in spec.ports"
	Port *intstr.IntOrString `json:"port,omitempty"`

	// service is the service asked about, at most 256 characters; absent: the server as a whole.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Service string `json:"service,omitempty"`

	// transport is Plaintext (default) or TLS.
	// +optional
	Transport Transport `json:"transport,omitempty"`
}

// TLSVerification says whether the target's certificate is verified.
//
// +kubebuilder:validation:Enum=Full;None
type TLSVerification string

const (
	// TLSVerificationFull verifies chain and name.
	TLSVerificationFull TLSVerification = "Full"
	// TLSVerificationNone verifies nothing.
	TLSVerificationNone TLSVerification = "None"
)

// TLS says how probes speak TLS.
type TLS struct {
	// serverName is the SNI and the name in the target's certificate; absent: the name in the Host
	// header of httpGet, else the target's hostname, else its address.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|[0-9A-Fa-f:.]+)$`
	ServerName string `json:"serverName,omitempty"`

	// caCertificateRefs name the CA certificates to trust, all of them together, 1 to 8; absent:
	// the system roots.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	CACertificateRefs []CACertificateReference `json:"caCertificateRefs,omitempty"`

	// clientCertificateRef names a Secret of type kubernetes.io/tls whose
	// certificate is shown to the target; absent: none is.
	// +optional
	ClientCertificateRef *SecretReference `json:"clientCertificateRef,omitempty"`

	// verification is Full (default) or None.
	// +optional
	Verification TLSVerification `json:"verification,omitempty"`
}

// FailbackMode says how a better tier becomes active again.
//
// +kubebuilder:validation:Enum=Automatic;Manual
type FailbackMode string

const (
	// FailbackAutomatic returns to a better tier once failbackDelaySeconds is over.
	FailbackAutomatic FailbackMode = "Automatic"
	// FailbackManual lets only a dead active tier or a pin move it.
	FailbackManual FailbackMode = "Manual"
)

// NoTierPolicy says which endpoints are ready where no tier qualifies.
//
// +kubebuilder:validation:Enum=HealthyEndpoints;AllEndpoints
type NoTierPolicy string

const (
	// NoTierHealthyEndpoints makes the healthy endpoints of every tier ready.
	NoTierHealthyEndpoints NoTierPolicy = "HealthyEndpoints"
	// NoTierAllEndpoints makes every endpoint of Active targets ready: it fails open.
	NoTierAllEndpoints NoTierPolicy = "AllEndpoints"
)

// Failover chooses the active tier.
type Failover struct {
	// minHealthyPercent is the healthy share a tier needs to be active, 1 to 100;
	// default 1. The active tier is the lowest tier that has it.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	MinHealthyPercent int32 `json:"minHealthyPercent,omitempty"`

	// whenNoTierQualifies says which endpoints are ready where no tier has minHealthyPercent:
	// HealthyEndpoints (default), the healthy ones of every tier, or AllEndpoints, every endpoint
	// of Active targets (fail open).
	// +optional
	WhenNoTierQualifies NoTierPolicy `json:"whenNoTierQualifies,omitempty"`

	// failbackDelaySeconds is how long a better tier must stay healthy before it is
	// active again, 0 to 604800; default 60; 0: at once.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=604800
	FailbackDelaySeconds *int32 `json:"failbackDelaySeconds,omitempty"`

	// failback is Automatic (default) or Manual: only a dead active tier or
	// pinnedTier moves it.
	// +optional
	Failback FailbackMode `json:"failback,omitempty"`

	// pinnedTier makes this tier active, whatever its health, 0 to 127; absent:
	// none is pinned.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=127
	PinnedTier *int32 `json:"pinnedTier,omitempty"`
}

// ExternalBackendStatus tells what is published.
type ExternalBackendStatus struct {
	// observedGeneration is the generation of the spec that this status is about.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// serviceName is the effective name of the Service.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	ServiceName string `json:"serviceName,omitempty"`

	// serviceType is the type of the Service: ClusterIP, Headless, NodePort, LoadBalancer or
	// ExternalName. With serviceRef it is that of the Service named, Headless where its clusterIP
	// is None; absent where that Service does not exist.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ServiceType ServiceType `json:"serviceType,omitempty"`

	// endpoints counts the published endpoints.
	// +optional
	Endpoints *EndpointCounts `json:"endpoints,omitempty"`

	// activeTier is the active tier; absent where no tier qualifies.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=127
	ActiveTier *int32 `json:"activeTier,omitempty"`

	// override is the name of the ExternalBackendOverride that is applied; absent where none is.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Override string `json:"override,omitempty"`

	// targets are the targets, worst first, at most 64.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Targets []TargetStatus `json:"targets,omitempty"`

	// omittedTargets is how many targets are not in targets.
	// +optional
	// +kubebuilder:validation:Minimum=0
	OmittedTargets int32 `json:"omittedTargets,omitempty"`

	// conditions are Ready, Accepted, ResolvedRefs, Permitted, NamesResolved,
	// Programmed, Healthy and, only where nothing gets better by itself, Stalled.
	// +optional
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// EndpointCounts counts the published endpoints.
type EndpointCounts struct {
	// total is how many endpoints are published.
	// +required
	// +kubebuilder:validation:Minimum=0
	Total int32 `json:"total"`

	// ready is how many of them are ready.
	// +required
	// +kubebuilder:validation:Minimum=0
	Ready int32 `json:"ready"`

	// healthy is how many of them are healthy; one that is not probed counts as such.
	// +required
	// +kubebuilder:validation:Minimum=0
	Healthy int32 `json:"healthy"`

	// unhealthy is how many of them are probed and unhealthy.
	// +required
	// +kubebuilder:validation:Minimum=0
	Unhealthy int32 `json:"unhealthy"`

	// readyOfTotal is "ready/total", for people.
	// +required
	// +kubebuilder:validation:MaxLength=24
	ReadyOfTotal string `json:"readyOfTotal"`
}

// TargetState is what has become of a target. The set is open: a later version may
// know more states.
type TargetState string

const (
	// TargetStateHealthy: every probed endpoint of the target is healthy. If it has a reason, some of
	// its addresses are left out, or the last good answer of its name serves.
	TargetStateHealthy TargetState = "Healthy"
	// TargetStateUnhealthy: an endpoint of the target is unhealthy. The reason says what the last
	// probe saw.
	TargetStateUnhealthy TargetState = "Unhealthy"
	// TargetStateUnknown: there is no verdict yet, or none of the target's addresses is published
	// (TargetReasonDuplicateAddress, TargetReasonFamilyNotServed, TargetReasonTruncated).
	TargetStateUnknown TargetState = "Unknown"
	// TargetStateUnprobed: there is no healthCheck.
	TargetStateUnprobed TargetState = "Unprobed"
	// TargetStateDraining: adminState is Draining.
	TargetStateDraining TargetState = "Draining"
	// TargetStateDisabled: adminState is Disabled.
	TargetStateDisabled TargetState = "Disabled"
	// TargetStateDenied: policy refuses the target, and it is not published.
	TargetStateDenied TargetState = "Denied"
	// TargetStateUnresolved: the target's name has no address (TargetReasonNameNotFound,
	// ReasonResolutionFailed, ReasonPending).
	TargetStateUnresolved TargetState = "Unresolved"
)

// TargetHealth is the worst verdict on a target's endpoints. The set is open.
type TargetHealth string

const (
	// TargetHealthHealthy: every endpoint is healthy.
	TargetHealthHealthy TargetHealth = "Healthy"
	// TargetHealthUnhealthy: an endpoint is unhealthy.
	TargetHealthUnhealthy TargetHealth = "Unhealthy"
	// TargetHealthUnknown: an endpoint has no verdict yet, and none is unhealthy.
	TargetHealthUnknown TargetHealth = "Unknown"
	// TargetHealthUnprobed: the endpoints are not probed.
	TargetHealthUnprobed TargetHealth = "Unprobed"
)

// TargetStatus tells what has become of one target.
type TargetStatus struct {
	// name is the target's name in spec.targets.
	// +required
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// state is Healthy, Unhealthy, Unknown (no verdict yet), Unprobed (no
	// healthCheck), Draining, Disabled, Denied or Unresolved; later versions may
	// know more.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	State TargetState `json:"state"`

	// health is the worst verdict on the target's endpoints, draining ones too:
	// Healthy, Unhealthy, Unknown or Unprobed; absent where it has no endpoint.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Health TargetHealth `json:"health,omitempty"`

	// tier is the target's tier. An SRV record of a worse priority is in a later one.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=127
	Tier int32 `json:"tier"`

	// endpoints counts the target's published endpoints.
	// +required
	Endpoints TargetEndpointCounts `json:"endpoints"`

	// addresses are the first of the target's addresses, at most 8; refused ones are
	// not listed.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MaxLength=253
	Addresses []string `json:"addresses,omitempty"`

	// reason is a fixed word that tells what is wrong with the target; absent where
	// nothing is. For an unhealthy one it is ConnectionRefused, ConnectionReset,
	// Timeout, Unreachable, TLSUnknownAuthority, TLSNameMismatch,
	// TLSCertificateExpired, TLSClientCertificateRequired, TLSVerificationFailed,
	// TLSHandshakeFailed, UnexpectedStatus, UnexpectedResponse or GRPCNotServing;
	// else ResolutionFailed, NameNotFound, ServingStale, TargetDenied,
	// DuplicateAddress, FamilyNotServed, Truncated or Pending. Later versions may
	// know more.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Reason string `json:"reason,omitempty"`

	// message says of reason what was seen, what was expected and where; absent
	// where all is well. At most 256 characters.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Message string `json:"message,omitempty"`

	// lastTransitionTime is when state changed last; absent where nobody knows.
	// +optional
	LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
}

// TargetEndpointCounts counts the published endpoints of one target.
type TargetEndpointCounts struct {
	// total is how many endpoints of the target are published.
	// +required
	// +kubebuilder:validation:Minimum=0
	Total int32 `json:"total"`

	// ready is how many of them get traffic: a standby is Healthy with 0.
	// +required
	// +kubebuilder:validation:Minimum=0
	Ready int32 `json:"ready"`
}
