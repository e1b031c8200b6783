package plan

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/external-backend/operator/api/v1alpha1"
)

// UnresolvableName is a name that never resolves (RFC 6761). It is the name of a Service between
// ClusterIP and Headless, and of an alias that may not be published.
const UnresolvableName = "nowhere.invalid"

// ServicePlan is the next write that brings a Service closer to its spec.
type ServicePlan struct {
	// Write is the Service to create (without UID) or to update; nil if it is as it should be. There
	// may be another write after it.
	Write *corev1.Service
	// Conflict says why b may not write the Service; "" if it may.
	Conflict string
	// SelectorRemoved, HeadlessChanged and Adopted report what the write does that the owner of the
	// Service should know.
	SelectorRemoved, HeadlessChanged, Adopted bool
}

// Service plans the next write of b's Service. live is the Service of that name, or nil.
// adopterGone reports whether the ExternalBackend that adopted it earlier is gone, or uses another
// Service now.
func Service(b *v1alpha1.ExternalBackend, live *corev1.Service, adopterGone bool) ServicePlan {
	if live == nil {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: b.EffectiveServiceName(), Namespace: b.Namespace}}
		setService(b, s, false)
		return ServicePlan{Write: s}
	}

	if conflict := ServiceConflict(b, live, adopterGone); conflict != "" {
		return ServicePlan{Conflict: conflict}
	}

	out := ServicePlan{Adopted: !Owns(b, live), SelectorRemoved: len(live.Spec.Selector) > 0}
	s := live.DeepCopy()
	setService(b, s, out.Adopted || Adopted(b, live))
	if changesHeadless(b, live) {
		makeAlias(&s.Spec, UnresolvableName)
		out.HeadlessChanged = true
	}
	if !equality.Semantic.DeepEqual(live, s) {
		out.Write = s
	}
	return out
}

// changesHeadless reports whether the Service gets a virtual IP, or loses it. The API server
// refuses that step, but accepts both steps through ExternalName, which keep the object.
func changesHeadless(b *v1alpha1.ExternalBackend, live *corev1.Service) bool {
	want := ServiceType(b)
	return live.Spec.Type != corev1.ServiceTypeExternalName && want != v1alpha1.ServiceTypeExternalName &&
		Headless(live) != (want == v1alpha1.ServiceTypeHeadless)
}

// setService sets everything that the spec says about the Service. If the spec says nothing, it
// sets the default of the API server where an earlier value would be wrong.
func setService(b *v1alpha1.ExternalBackend, s *corev1.Service, adopted bool) {
	want, out := service(b), &s.Spec
	setMetadata(b, s, adopted)
	out.Selector = nil
	serviceType := ServiceType(b)
	if serviceType == v1alpha1.ServiceTypeExternalName {
		makeAlias(out, b.Spec.Targets[0].Hostname)
		out.Ports = servicePorts(b, s)
		return
	}

	out.ExternalName = ""
	out.Type = corev1.ServiceType(serviceType)
	if serviceType == v1alpha1.ServiceTypeHeadless {
		out.Type = corev1.ServiceTypeClusterIP
		out.ClusterIP = corev1.ClusterIPNone
		out.ClusterIPs = []string{corev1.ClusterIPNone}
	}
	out.Ports = servicePorts(b, s)

	if want.IPFamilyPolicy != nil {
		out.IPFamilyPolicy = new(*want.IPFamilyPolicy)
	}
	if !extendsFamilies(out, want.IPFamilies) {
		out.IPFamilies = slices.Clone(want.IPFamilies)
	}
	setAffinity(want, out)
	out.InternalTrafficPolicy = new(want.EffectiveInternalTrafficPolicy())
	out.TrafficDistribution = want.TrafficDistribution
	out.PublishNotReadyAddresses = want.PublishNotReadyAddresses
	setExternalAccess(want, out, adopted)
}

// extendsFamilies reports whether the API server completed families to those of s: the spec of a
// dual-stack Service may have only the primary family.
func extendsFamilies(s *corev1.ServiceSpec, families []corev1.IPFamily) bool {
	if len(families) == 0 {
		return true
	}
	dualStack := s.IPFamilyPolicy != nil && *s.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack
	return dualStack && len(s.IPFamilies) > len(families) && slices.Equal(s.IPFamilies[:len(families)], families)
}

// setMetadata sets the owner, the labels and annotations of spec.service, and our own. It removes
// those that have left the spec.
func setMetadata(b *v1alpha1.ExternalBackend, s *corev1.Service, adopted bool) {
	spec := service(b)
	labels, annotations := plain(spec.Labels), plain(spec.Annotations)
	keys := serviceKeys{Labels: slices.Sorted(maps.Keys(labels)), Annotations: slices.Sorted(maps.Keys(annotations))}
	var before serviceKeys
	_ = json.Unmarshal([]byte(s.Annotations[AnnotationServiceKeys]), &before) // a broken list removes nothing

	labels[v1alpha1.LabelName] = b.Name
	if len(keys.Labels)+len(keys.Annotations) > 0 {
		text, _ := json.Marshal(keys) // strings never fail
		annotations[AnnotationServiceKeys] = string(text)
	}
	if adopted {
		annotations[AnnotationAdopted] = "true"
	}
	setOwner(b, s, adopted)
	s.Labels = merge(s.Labels, labels, before.Labels)
	s.Annotations = merge(s.Annotations, annotations, append(before.Annotations, AnnotationServiceKeys))
}

// serviceKeys is the content of AnnotationServiceKeys.
type serviceKeys struct {
	Labels      []string `json:"labels,omitempty"`
	Annotations []string `json:"annotations,omitempty"`
}

// merge returns live without the keys of before, and with want.
func merge(live, want map[string]string, before []string) map[string]string {
	out := make(map[string]string, len(live)+len(want))
	maps.Copy(out, live)
	for _, k := range before {
		delete(out, k)
	}
	maps.Copy(out, want)
	if len(out) == 0 {
		return nil
	}
	return out
}

// makeAlias turns s into an alias of name. It clears the fields that an alias can't have.
func makeAlias(s *corev1.ServiceSpec, name string) {
	s.Type = corev1.ServiceTypeExternalName
	s.ExternalName = name
	s.ClusterIP, s.ClusterIPs = "", nil
	s.IPFamilies, s.IPFamilyPolicy = nil, nil
	s.SessionAffinity, s.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	s.InternalTrafficPolicy, s.ExternalTrafficPolicy, s.TrafficDistribution = nil, "", nil
	s.AllocateLoadBalancerNodePorts, s.HealthCheckNodePort = nil, 0
	s.LoadBalancerClass, s.LoadBalancerSourceRanges = nil, nil
	s.PublishNotReadyAddresses = false
	for i := range s.Ports {
		s.Ports[i].NodePort = 0
	}
}

// servicePorts returns the ports of the spec. A port keeps the node port that the API server chose.
func servicePorts(b *v1alpha1.ExternalBackend, live *corev1.Service) []corev1.ServicePort {
	ports := make([]corev1.ServicePort, len(b.Spec.Ports))
	for i := range b.Spec.Ports {
		p := &b.Spec.Ports[i]
		ports[i] = corev1.ServicePort{
			Name: p.Name, Port: p.Port, Protocol: p.EffectiveProtocol(), TargetPort: intstr.FromInt32(p.Port),
			AppProtocol: p.AppProtocol, NodePort: p.NodePort,
		}
		if l := livePort(live, p); l != nil && p.NodePort == 0 && hasNodePorts(&live.Spec) {
			ports[i].NodePort = l.NodePort
		}
	}
	return ports
}

func hasNodePorts(s *corev1.ServiceSpec) bool {
	return s.Type == corev1.ServiceTypeNodePort || s.Type == corev1.ServiceTypeLoadBalancer
}

func setAffinity(spec *v1alpha1.Service, s *corev1.ServiceSpec) {
	s.SessionAffinity = spec.EffectiveSessionAffinity()
	s.SessionAffinityConfig = nil
	if s.SessionAffinity == corev1.ServiceAffinityClientIP {
		timeout := spec.EffectiveSessionAffinityTimeoutSeconds()
		s.SessionAffinityConfig = &corev1.SessionAffinityConfig{
			ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout},
		}
	}
}

// setExternalAccess sets the fields of Services that are reached from outside the cluster.
func setExternalAccess(spec *v1alpha1.Service, s *corev1.ServiceSpec, adopted bool) {
	s.ExternalTrafficPolicy = ""
	if hasNodePorts(s) {
		s.ExternalTrafficPolicy = spec.EffectiveExternalTrafficPolicy()
	}
	if s.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		s.HealthCheckNodePort = 0
	}
	if s.Type != corev1.ServiceTypeLoadBalancer {
		s.AllocateLoadBalancerNodePorts, s.LoadBalancerClass, s.LoadBalancerSourceRanges = nil, nil, nil
		return
	}
	// A spec without source ranges does not open an adopted Service to the world.
	if !adopted || len(spec.LoadBalancerSourceRanges) > 0 {
		s.LoadBalancerSourceRanges = slices.Clone(spec.LoadBalancerSourceRanges)
	}
	if spec.LoadBalancerClass != nil {
		s.LoadBalancerClass = new(*spec.LoadBalancerClass)
	}
}
