package plan

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/external-backend/operator/api/v1alpha1"
)

// AnnotationServiceKeys is the annotation on a Service that lists the labels and annotations of
// spec.service that were written, so that those that leave the spec leave the Service, and those
// that others added stay.
const AnnotationServiceKeys = "external-backend.io/service-keys"

// UnresolvableName is a name that never resolves (RFC 6761): that of a Service on its way from ClusterIP to
// Headless or back, and of an alias that may not be published.
const UnresolvableName = "nowhere.invalid"

// ServicePlan is the next write that brings a Service to its spec.
type ServicePlan struct {
	// Write is the Service to create (without UID) or to update; nil where it is as it should be.
	// After a write there may be another.
	Write *corev1.Service
	// Conflict says why the Service is not ours to write; "" where it is.
	Conflict string
	// SelectorRemoved and HeadlessChanged tell what the write does that its owner should hear of.
	SelectorRemoved, HeadlessChanged, Adopted bool
}

// AnnotationAdopted marks a Service that was adopted, and so survives its ExternalBackend.
const AnnotationAdopted = "external-backend.io/adopted"

// Owns tells whether s is b's to write: created by it, be it that someone has taken the owner away,
// or adopted. A label alone, which may have come with a copied manifest, makes no Service ours that
// chooses its endpoints itself.
func Owns(b *v1alpha1.ExternalBackend, s *corev1.Service) bool {
	if metav1.GetControllerOf(s) != nil {
		return metav1.IsControlledBy(s, b)
	}
	return s.Labels[v1alpha1.LabelName] == b.Name &&
		(len(s.Spec.Selector) == 0 || s.Annotations[AnnotationAdopted] != "" || s.Annotations[AnnotationServiceKeys] != "")
}

// BelongsToPredecessor tells whether s belongs to an earlier ExternalBackend of b's name, with which the
// garbage collector takes it.
func BelongsToPredecessor(b *v1alpha1.ExternalBackend, s *corev1.Service) bool {
	owner := metav1.GetControllerOf(s)
	return owner != nil && owner.APIVersion == v1alpha1.GroupVersion.String() && owner.Kind == "ExternalBackend" && owner.Name == b.Name && owner.UID != b.UID
}

// Adopted reports whether s is b's by adoption.
func Adopted(b *v1alpha1.ExternalBackend, s *corev1.Service) bool {
	return Owns(b, s) && s.Annotations[AnnotationAdopted] != ""
}

// Service plans the next write of b's Service, given the one of that name that is there, or nil.
// left: the ExternalBackend that once adopted it is gone, or has gone elsewhere.
func Service(b *v1alpha1.ExternalBackend, live *corev1.Service, left bool) ServicePlan {
	if live == nil {
		s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: ServiceName(b), Namespace: b.Namespace}}
		setService(b, s, false)
		return ServicePlan{Write: s}
	}
	var out ServicePlan
	if out.Conflict = ServiceConflict(b, live, left); out.Conflict != "" {
		return out
	}
	out.Adopted = !Owns(b, live)
	s := live.DeepCopy()
	setService(b, s, out.Adopted || Adopted(b, live))
	if crossesHeadless(b, live) {
		passThroughName(s, UnresolvableName)
		out.HeadlessChanged = true
	}
	out.SelectorRemoved = len(live.Spec.Selector) > 0
	if !equality.Semantic.DeepEqual(live, s) {
		out.Write = s
	}
	return out
}

// ServiceConflict says why b may neither write live nor take it over; "" where it may. The spec of b
// may be invalid.
func ServiceConflict(b *v1alpha1.ExternalBackend, live *corev1.Service, left bool) string {
	if Owns(b, live) {
		return ""
	}
	refuse := func(format string, args ...any) string {
		return fmt.Sprintf("Service %q is there already and is not this ExternalBackend's: %s.", live.Name, fmt.Sprintf(format, args...))
	}
	owner := metav1.GetControllerOf(live)
	switch {
	case owner != nil:
		return refuse("it belongs to %s %q", owner.Kind, owner.Name)
	case len(live.Spec.Selector) > 0 && b.Spec.Service.EffectiveAdoptionPolicy() != v1alpha1.AdoptionPolicyIfSelectorless:
		return refuse("it has a selector, so it can neither be adopted nor be attached to; choose another spec.service.name, or remove its selector")
	case b.Spec.Service.EffectiveAdoptionPolicy() != v1alpha1.AdoptionPolicyIfSelectorless:
		return refuse("choose another spec.service.name, attach to it by serviceRef, or take it over with spec.service.adoptionPolicy: IfSelectorless")
	case len(live.Spec.Selector) > 0:
		return refuse("it has a selector, so it can't be adopted")
	case live.Labels[v1alpha1.LabelName] != "" && live.Labels[v1alpha1.LabelName] != b.Name && !left:
		return refuse("ExternalBackend %q has adopted it", live.Labels[v1alpha1.LabelName])
	case liveType(live) != ServiceType(b):
		return refuse("it is of type %s, not %s, so it can't be adopted", liveType(live), ServiceType(b))
	case len(service(b).IPFamilies) > 0 && len(live.Spec.IPFamilies) > 0 && service(b).IPFamilies[0] != live.Spec.IPFamilies[0]:
		return refuse("its primary family is %s, not %s, so it can't be adopted", live.Spec.IPFamilies[0], service(b).IPFamilies[0])
	case !samePorts(b, live):
		return refuse("its ports are not those of spec.ports (name, port, protocol), so it can't be adopted")
	}
	return ""
}

func liveType(s *corev1.Service) v1alpha1.ServiceType {
	if Headless(s) {
		return v1alpha1.ServiceTypeHeadless
	}
	return v1alpha1.ServiceType(cmp.Or(s.Spec.Type, corev1.ServiceTypeClusterIP))
}

// Headless tells whether s has no virtual IP, so that its name resolves to its endpoints.
func Headless(s *corev1.Service) bool { return s.Spec.ClusterIP == corev1.ClusterIPNone }

func samePorts(b *v1alpha1.ExternalBackend, live *corev1.Service) bool {
	if len(b.Spec.Ports) != len(live.Spec.Ports) {
		return false
	}
	for i := range b.Spec.Ports {
		p := &b.Spec.Ports[i]
		if l := livePort(live, p); l == nil || l.Port != p.Port {
			return false
		}
	}
	return true
}

// livePort is the port of s with p's name and protocol, or nil.
func livePort(s *corev1.Service, p *v1alpha1.Port) *corev1.ServicePort {
	for i := range s.Spec.Ports {
		l := &s.Spec.Ports[i]
		if l.Name == p.Name && cmp.Or(l.Protocol, corev1.ProtocolTCP) == p.EffectiveProtocol() {
			return l
		}
	}
	return nil
}

// ServesPort tells whether s has a port of p's name and protocol.
func ServesPort(s *corev1.Service, p *v1alpha1.Port) bool { return livePort(s, p) != nil }

// completes: of a dual-stack Service a spec may name the primary family alone, and the API server
// adds the other one.
func completes(s *corev1.Service, families []corev1.IPFamily) bool {
	if len(families) == 0 {
		return true
	}
	dual := s.Spec.IPFamilyPolicy != nil && *s.Spec.IPFamilyPolicy != corev1.IPFamilyPolicySingleStack
	return dual && len(s.Spec.IPFamilies) > len(families) && slices.Equal(s.Spec.IPFamilies[:len(families)], families)
}

// GainsPorts tells whether next has ports, by name and protocol, that live lacks, and both stand
// for endpoints.
func GainsPorts(live, next *corev1.Service) bool {
	if live.Spec.Type == corev1.ServiceTypeExternalName || next.Spec.Type == corev1.ServiceTypeExternalName {
		return false
	}
	return lacksPort(live, next)
}

// crossesHeadless: the API server refuses the step from a virtual IP to none, or back, but takes
// both through ExternalName, which keeps the object.
func crossesHeadless(b *v1alpha1.ExternalBackend, live *corev1.Service) bool {
	want := ServiceType(b)
	return live.Spec.Type != corev1.ServiceTypeExternalName && want != v1alpha1.ServiceTypeExternalName &&
		Headless(live) != (want == v1alpha1.ServiceTypeHeadless)
}

// setService sets all that spec says of the Service, and the defaults of the API server where it
// says nothing and one that is there would not do.
func setService(b *v1alpha1.ExternalBackend, s *corev1.Service, adopted bool) {
	spec := service(b)
	setMeta(b, s, adopted)
	s.Spec.Selector = nil
	if ServiceType(b) == v1alpha1.ServiceTypeExternalName {
		passThroughName(s, b.Spec.Targets[0].Hostname)
		s.Spec.Ports = servicePorts(b, s)
		return
	}
	s.Spec.ExternalName = ""
	s.Spec.Type = corev1.ServiceType(ServiceType(b))
	if ServiceType(b) == v1alpha1.ServiceTypeHeadless {
		s.Spec.Type = corev1.ServiceTypeClusterIP
		s.Spec.ClusterIP = corev1.ClusterIPNone
		s.Spec.ClusterIPs = []string{corev1.ClusterIPNone}
	}
	s.Spec.Ports = servicePorts(b, s)
	if spec.IPFamilyPolicy != nil {
		s.Spec.IPFamilyPolicy = new(*spec.IPFamilyPolicy)
	}
	if !completes(s, spec.IPFamilies) {
		s.Spec.IPFamilies = slices.Clone(spec.IPFamilies)
	}
	setAffinity(spec, s)
	s.Spec.InternalTrafficPolicy = new(spec.EffectiveInternalTrafficPolicy())
	s.Spec.TrafficDistribution = spec.TrafficDistribution
	s.Spec.PublishNotReadyAddresses = spec.PublishNotReadyAddresses
	setExternal(spec, s, adopted)
}

// setMeta sets owner, labels and annotations of spec.service and our own, and removes those that
// have left it.
func setMeta(b *v1alpha1.ExternalBackend, s *corev1.Service, adopted bool) {
	spec := service(b)
	labels, annotations := plain(spec.Labels), plain(spec.Annotations)
	wrote := serviceKeys{Labels: slices.Sorted(maps.Keys(labels)), Annotations: slices.Sorted(maps.Keys(annotations))}
	var before serviceKeys
	// A list that someone broke names nothing to remove.
	_ = json.Unmarshal([]byte(s.Annotations[AnnotationServiceKeys]), &before)
	labels[v1alpha1.LabelName] = b.Name
	if len(wrote.Labels)+len(wrote.Annotations) > 0 {
		text, _ := json.Marshal(wrote) // strings alone can't fail
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

func plain[V ~string](m map[string]V) map[string]string {
	out := make(map[string]string, len(m)+1)
	for k, v := range m {
		out[k] = string(v)
	}
	return out
}

// merge returns live less the keys of before, with want on top.
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

// passThroughName turns s into an alias of name, without all that an alias can't have.
func passThroughName(s *corev1.Service, name string) {
	s.Spec.Type = corev1.ServiceTypeExternalName
	s.Spec.ExternalName = name
	s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil
	s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = nil, nil
	s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = corev1.ServiceAffinityNone, nil
	s.Spec.InternalTrafficPolicy, s.Spec.ExternalTrafficPolicy, s.Spec.TrafficDistribution = nil, "", nil
	s.Spec.AllocateLoadBalancerNodePorts, s.Spec.HealthCheckNodePort = nil, 0
	s.Spec.LoadBalancerClass, s.Spec.LoadBalancerSourceRanges = nil, nil
	s.Spec.PublishNotReadyAddresses = false
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = 0
	}
}

// servicePorts are the ports of spec. A node port that the API server chose stays with its port.
func servicePorts(b *v1alpha1.ExternalBackend, live *corev1.Service) []corev1.ServicePort {
	ports := make([]corev1.ServicePort, len(b.Spec.Ports))
	for i := range b.Spec.Ports {
		p := &b.Spec.Ports[i]
		ports[i] = corev1.ServicePort{
			Name:        p.Name,
			Port:        p.Port,
			Protocol:    p.EffectiveProtocol(),
			TargetPort:  intstr.FromInt32(p.Port),
			AppProtocol: p.AppProtocol,
			NodePort:    p.NodePort,
		}
		if l := livePort(live, p); l != nil && p.NodePort == 0 && hasNodePorts(live) {
			ports[i].NodePort = l.NodePort
		}
	}
	return ports
}

func hasNodePorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort || s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

func setAffinity(spec *v1alpha1.Service, s *corev1.Service) {
	s.Spec.SessionAffinity = spec.EffectiveSessionAffinity()
	s.Spec.SessionAffinityConfig = nil
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		timeout := spec.EffectiveSessionAffinityTimeoutSeconds()
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &timeout}}
	}
}

// setExternal sets what only a Service that is reached from outside the cluster has.
func setExternal(spec *v1alpha1.Service, s *corev1.Service, adopted bool) {
	s.Spec.ExternalTrafficPolicy = ""
	if hasNodePorts(s) {
		s.Spec.ExternalTrafficPolicy = spec.EffectiveExternalTrafficPolicy()
	}
	if s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		s.Spec.HealthCheckNodePort = 0
	}
	if s.Spec.Type != corev1.ServiceTypeLoadBalancer {
		s.Spec.AllocateLoadBalancerNodePorts, s.Spec.LoadBalancerClass, s.Spec.LoadBalancerSourceRanges = nil, nil, nil
		return
	}
	// an adopted one is not opened to the world by a spec that says nothing of it
	if !adopted || len(spec.LoadBalancerSourceRanges) > 0 {
		s.Spec.LoadBalancerSourceRanges = slices.Clone(spec.LoadBalancerSourceRanges)
	}
	if spec.LoadBalancerClass != nil {
		s.Spec.LoadBalancerClass = new(*spec.LoadBalancerClass)
	}
}
