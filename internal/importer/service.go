package importer

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/external-backend/operator/api/v1alpha1"
)

// readService reads a Service with hand-written endpoints, which is to be adopted, or one of type
// ExternalName.
func readService(d *draft, u *unstructured.Unstructured, p *published) {
	var s corev1.Service
	if !d.read(u, &s) {
		return
	}
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		readExternalName(d, &s)
		return
	}
	if owner := metav1.GetControllerOf(&s); owner != nil {
		d.refuse("metadata.ownerReferences", "%s %s controls the Service, so it can't be adopted",
			clip(owner.Kind), clip(owner.Name))
	}
	d.refuseIf(len(s.Spec.Selector) > 0, "spec.selector", "a Service with a selector can't be adopted")
	d.refuseIf(s.Labels[v1alpha1.LabelName] != "", "metadata.labels", "the Service belongs to an ExternalBackend already")

	setService(d, &s)
	d.Refusals = append(d.Refusals, p.refusals...)
	if p.unreadable != "" {
		d.unreadable, d.Incomplete = true, p.unreadable+" can't be read"
		return
	}
	d.appProtocols = map[string]string{}
	for i := range s.Spec.Ports {
		d.appProtocols[keyOfPort(s.Spec.Ports[i].Name, s.Spec.Ports[i].Protocol)] = deref(s.Spec.Ports[i].AppProtocol)
	}
	found := collect(d, &s, p)
	addServicePorts(d, &s, found)
	addEndpoints(d, &s, found)
	d.observe()
	d.Next = adoptionSteps(s.Name, slices.ContainsFunc(d.spec.Targets, isActive))
}

// setService copies what adoption would otherwise set to a default.
func setService(d *draft, s *corev1.Service) {
	out := d.service()
	out.AdoptionPolicy = v1alpha1.AdoptionPolicyIfSelectorless
	switch s.Spec.Type {
	case "", corev1.ServiceTypeClusterIP:
		if s.Spec.ClusterIP == corev1.ClusterIPNone {
			out.Type = v1alpha1.ServiceTypeHeadless
		}
	case corev1.ServiceTypeNodePort:
		out.Type = v1alpha1.ServiceTypeNodePort
	case corev1.ServiceTypeLoadBalancer:
		out.Type = v1alpha1.ServiceTypeLoadBalancer
		out.LoadBalancerClass = s.Spec.LoadBalancerClass
		out.LoadBalancerSourceRanges = s.Spec.LoadBalancerSourceRanges
	default:
		d.refuse("spec.type", "%q is no type of a Service", clip(string(s.Spec.Type)))
	}
	setFamilies(out, &s.Spec)
	if s.Spec.SessionAffinity == corev1.ServiceAffinityClientIP {
		out.SessionAffinity = corev1.ServiceAffinityClientIP
		if c := s.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil {
			out.SessionAffinityTimeoutSeconds = c.ClientIP.TimeoutSeconds
		}
	}
	if p := s.Spec.InternalTrafficPolicy; p != nil && *p != corev1.ServiceInternalTrafficPolicyCluster {
		out.InternalTrafficPolicy = p
	}
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
		out.ExternalTrafficPolicy = s.Spec.ExternalTrafficPolicy
	}
	out.TrafficDistribution = s.Spec.TrafficDistribution
	out.PublishNotReadyAddresses = s.Spec.PublishNotReadyAddresses
}

// setFamilies copies the families unless they are those of nearly every Service.
func setFamilies(out *v1alpha1.Service, s *corev1.ServiceSpec) {
	usual := s.IPFamilyPolicy == nil || *s.IPFamilyPolicy == corev1.IPFamilyPolicySingleStack
	if !usual {
		out.IPFamilyPolicy = s.IPFamilyPolicy
	}
	if !usual || len(s.IPFamilies) > 0 && s.IPFamilies[0] != corev1.IPv4Protocol {
		out.IPFamilies = s.IPFamilies
	}
}

// addServicePorts adds the ports of the Service. The target port is that of most endpoints.
func addServicePorts(d *draft, s *corev1.Service, found []endpoint) {
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		port := v1alpha1.Port{
			Name: p.Name, Port: p.Port, Protocol: p.Protocol, AppProtocol: p.AppProtocol, NodePort: p.NodePort,
			TargetPort: commonPort(found, keyOfPort(p.Name, p.Protocol)),
		}
		if t := d.spec.Service.Type; t != v1alpha1.ServiceTypeNodePort && t != v1alpha1.ServiceTypeLoadBalancer {
			port.NodePort = 0
		}
		d.addPort(fmt.Sprintf("spec.ports[%d]", i), port)
	}
}

// commonPort returns the number that most endpoints have for a port. Of equals it returns the
// lowest, and 0 if none has the port.
func commonPort(found []endpoint, key string) int32 {
	count := map[int32]int{}
	for i := range found {
		if n := found[i].ports[key]; n != 0 {
			count[n]++
		}
	}
	var best int32
	for n, c := range count {
		if best == 0 || cmp.Or(cmp.Compare(count[best], c), cmp.Compare(n, best)) < 0 {
			best = n
		}
	}
	return best
}

// keyOfPort tells the ports of a Service apart, as kube-proxy does.
func keyOfPort(name string, protocol corev1.Protocol) string {
	return name + "/" + string(cmp.Or(protocol, corev1.ProtocolTCP))
}

// addEndpoints adds a target for each endpoint.
func addEndpoints(d *draft, s *corev1.Service, found []endpoint) {
	local := d.spec.Service.InternalTrafficPolicy != nil || d.spec.Service.ExternalTrafficPolicy != ""
	for i := range found {
		e := &found[i]
		t := v1alpha1.Target{Zone: e.zone, NodeName: e.node, AdminState: e.adminState}
		for _, p := range d.spec.Ports {
			want := cmp.Or(p.TargetPort, p.Port)
			if n := e.ports[keyOfPort(p.Name, p.EffectiveProtocol())]; n != 0 && n != want {
				t.Ports = append(t.Ports, v1alpha1.TargetPort{Name: p.Name, TargetPort: n})
			}
		}
		if local && e.node == "" {
			e.refuse(d, ".nodeName", "traffic policy Local wants the node of every target")
		}
		if d.spec.Service.Type == v1alpha1.ServiceTypeHeadless && e.hostname != "" && d.names[e.hostname] {
			e.refuse(d, ".hostname", "another endpoint has this host name, and the names of targets differ")
		}
		if d.spec.Service.PublishNotReadyAddresses && e.adminState == v1alpha1.AdminStateDraining {
			e.refuse(d, ".conditions", "with publishNotReadyAddresses every endpoint of an ExternalBackend is ready")
		}
		d.addTarget(e.field+".addresses[0]", e.hostname, e.addr.String(), t)
	}
	noteEndpoints(d, s, found)
}

// noteEndpoints says what becomes of endpoints that are no plain targets.
func noteEndpoints(d *draft, s *corev1.Service, found []endpoint) {
	if len(found) == 0 {
		d.note("There are no endpoints behind Service %q.", clip(s.Name))
	}
	if d.spec.Service.Type == v1alpha1.ServiceTypeHeadless &&
		slices.ContainsFunc(found, func(e endpoint) bool { return e.hostname == "" }) {
		d.note("Each endpoint of a headless Service gets the name of its target as host name, so DNS gets more names.")
	}
	if len(found) > 0 && !slices.ContainsFunc(d.spec.Targets, isActive) {
		d.note("No endpoint is ready as it is written. So the ExternalBackend is not Ready, and what is written by " +
			"hand may stay until one is.")
	}
	if slices.ContainsFunc(found, func(e endpoint) bool { return e.adminState == v1alpha1.AdminStateDisabled }) {
		d.note("Endpoints that are neither ready nor serving become targets with adminState Disabled. They get no " +
			"requests now, and get none then. Remove adminState from those that a check may decide about.")
	}
}

func isActive(t v1alpha1.Target) bool { return t.EffectiveAdminState() == v1alpha1.AdminStateActive }

// adoptionSteps are the steps after the import of a Service. Without an active target the
// ExternalBackend does not become Ready.
func adoptionSteps(service string, becomesReady bool) []string {
	steps := []string{
		"If a tool writes the endpoints, suspend it, and remove them from its manifests.",
		"$ kubectl apply -f FILE",
	}
	if becomesReady {
		steps = append(steps, "$ kubectl wait extbe/{NAME} -n {NAMESPACE} --for=condition=Ready")
	}
	return append(steps,
		"$ kubectl get endpointslices -n {NAMESPACE} -l kubernetes.io/service-name="+service,
		stepLetCheckDecide,
		"If Git or a chart is to keep the Service, go on with serviceRef: docs/migration.md.",
	)
}
