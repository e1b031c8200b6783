package integration

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// onePort is the ports and targets of an ExternalBackend for tests of its Service.
const onePort = "\nports: [{name: web, port: 80, targetPort: 8080}]\ntargets: [{name: a, address: 198.51.100.1}]"

var oneEndpoint = harness.All(harness.Healthy, at("198.51.100.1:8080"))

// Each service.type creates a Service of that type.
func TestEachServiceTypeIsCreated(t *testing.T) {
	h := parallel(t)
	for _, tc := range []struct {
		name, spec string
		kind       v1alpha1.ServiceType
		check      func(h *harness.Test, s *corev1.Service)
	}{
		{"defaults", onePort, "ClusterIP", func(h *harness.Test, s *corev1.Service) {
			if s.Spec.Type != corev1.ServiceTypeClusterIP || s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone {
				h.T.Errorf("the Service is %+v", s.Spec)
			}
		}},
		{"named", "service: {name: other}" + onePort, "ClusterIP", func(h *harness.Test, s *corev1.Service) {
			if name := h.Backend("named").Status.ServiceName; name != "other" || s.Name != "other" {
				h.T.Errorf("the Service is %q, in status %q", s.Name, name)
			}
		}},
		{"headless", "service: {type: Headless}" + onePort, "Headless", func(h *harness.Test, s *corev1.Service) {
			if s.Spec.Type != corev1.ServiceTypeClusterIP || s.Spec.ClusterIP != corev1.ClusterIPNone {
				h.T.Errorf("the Service is %+v", s.Spec)
			}
			slice := h.Slices("headless")[0]
			if _, ok := slice.Labels[corev1.IsHeadlessService]; !ok {
				h.T.Errorf("the slice's labels are %v", slice.Labels)
			}
			if e := slice.Endpoints[0]; e.Hostname == nil || *e.Hostname != "a" {
				h.T.Errorf("the endpoint is %v", e)
			}
		}},
		{"node-port",
			"service: {type: NodePort, externalTrafficPolicy: Cluster}\nports: [{name: web, port: 80, targetPort: 8080, nodePort: 30411}]\ntargets: [{name: a, address: 198.51.100.1}]",
			"NodePort", func(h *harness.Test, s *corev1.Service) {
				if s.Spec.Type != corev1.ServiceTypeNodePort || s.Spec.Ports[0].NodePort != 30411 {
					h.T.Errorf("the Service is %+v", s.Spec)
				}
			}},
		{"load-balancer",
			"service: {type: LoadBalancer, loadBalancerClass: example.com/lb, loadBalancerSourceRanges: [203.0.113.0/24]}" +
				onePort, "LoadBalancer",
			func(h *harness.Test, s *corev1.Service) {
				if s.Spec.Type != corev1.ServiceTypeLoadBalancer || *s.Spec.LoadBalancerClass != "example.com/lb" ||
					!slices.Equal(s.Spec.LoadBalancerSourceRanges, []string{"203.0.113.0/24"}) {
					h.T.Errorf("the Service is %+v", s.Spec)
				}
			}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			h.ApplyBackend(tc.name, tc.spec)
			b := h.WaitReady(tc.name)
			s := h.Service(b.Status.ServiceName)
			h.WaitStates(s.Name, oneEndpoint)
			if len(s.Spec.Selector) > 0 || len(s.Spec.Ports) != 1 {
				t.Errorf("the Service has selector %v and ports %v", s.Spec.Selector, s.Spec.Ports)
			}
			// The Service's targetPort is the port in spec.ports. Only the slice's port has an effect.
			if p := s.Spec.Ports[0]; p.Name != "web" || p.Port != 80 || p.TargetPort != intstr.FromInt32(80) ||
				p.Protocol != corev1.ProtocolTCP {
				t.Errorf("the Service's port is %+v", p)
			}
			if b.Status.ServiceType != tc.kind {
				t.Errorf("status.serviceType is %s", b.Status.ServiceType)
			}
			tc.check(h, s)
		})
	}
}

// Fields that mirror ServiceSpec are written to the Service, change with the spec, and are removed
// with it.
func TestServiceFieldsFollowSpec(t *testing.T) {
	h := parallel(t)
	h.ApplyBackend("web", `
service:
  sessionAffinity: ClientIP
  sessionAffinityTimeoutSeconds: 600
  publishNotReadyAddresses: true
  trafficDistribution: PreferSameZone
  labels: {team: shop}
  annotations: {example.com/note: hello}
`+onePort[1:])
	h.WaitReady("web")
	s := h.Service("web")
	if s.Spec.SessionAffinity != corev1.ServiceAffinityClientIP ||
		*s.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds != 600 ||
		!s.Spec.PublishNotReadyAddresses ||
		*s.Spec.TrafficDistribution != "PreferSameZone" ||
		s.Labels["team"] != "shop" ||
		s.Annotations["example.com/note"] != "hello" {
		t.Errorf("the Service is %+v", s)
	}
	h.ApplyBackend("web", "service: {sessionAffinity: ClientIP}"+onePort)
	h.WaitReady("web")
	if s := h.Service("web"); *s.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds != 10800 {
		t.Errorf("the default timeout is %d", *s.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds)
	}
	h.ApplyBackend("web", onePort)
	h.WaitReady("web")
	now := h.Service("web")
	if now.Spec.SessionAffinity != corev1.ServiceAffinityNone || now.Spec.PublishNotReadyAddresses ||
		now.Spec.TrafficDistribution != nil ||
		now.Labels["team"] != "" ||
		now.Annotations["example.com/note"] != "" {
		t.Errorf("the Service is %+v", now)
	}
	if now.UID != s.UID {
		t.Error("the Service was replaced")
	}
}

// There is a slice for each list of target ports. Port names are those of the Service, also "", and
// every protocol is supported.
func TestSlicesFollowTargetPorts(t *testing.T) {
	h := parallel(t)
	h.ApplyBackend("many", `
ports:
- {name: web, port: 80, targetPort: 8080, appProtocol: http}
- {name: dns, port: 53, protocol: UDP}
- {name: assoc, port: 53, targetPort: 5353, protocol: SCTP}
targets:
- {name: a, address: 198.51.100.1}
- {name: b, address: 198.51.100.2, ports: [{name: web, targetPort: 9090}]}
- {name: c, address: 198.51.100.3, ports: [{name: web, targetPort: 8080}]}
`)
	h.WaitReady("many")
	byAddr := map[string]discoveryv1.EndpointSlice{}
	for _, s := range h.Slices("many") {
		for _, e := range s.Endpoints {
			byAddr[e.Addresses[0]] = s
		}
	}
	port := func(name string, number int32, protocol corev1.Protocol, app *string) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: &name, Port: &number, Protocol: &protocol, AppProtocol: app}
	}
	for addr, web := range map[string]int32{"198.51.100.1": 8080, "198.51.100.2": 9090, "198.51.100.3": 8080} {
		want := []discoveryv1.EndpointPort{port("assoc", 5353, corev1.ProtocolSCTP, nil),
			port("dns", 53, corev1.ProtocolUDP, nil), port("web", web, corev1.ProtocolTCP, new("http"))}
		if diff := gocmp.Diff(want, byAddr[addr].Ports); diff != "" {
			t.Errorf("ports of %s, -want +got:\n%s", addr, diff)
		}
	}
	if byAddr["198.51.100.1"].Name != byAddr["198.51.100.3"].Name ||
		byAddr["198.51.100.1"].Name == byAddr["198.51.100.2"].Name {
		t.Error("slices do not have one list of ports each")
	}
	if p := h.Service("many").Spec.Ports; len(p) != 3 || p[1].Protocol != corev1.ProtocolUDP ||
		p[2].Protocol != corev1.ProtocolSCTP ||
		p[1].TargetPort.IntVal != 53 {
		t.Errorf("the Service's ports are %+v", p)
	}

	h.ApplyBackend("unnamed",
		"ports: [{name: \"\", port: 80}]\ntargets: [{name: a, address: 198.51.100.1, ports: [{name: \"\", targetPort: 81}]}]")
	h.WaitReady("unnamed")
	h.WaitStates("unnamed", harness.All(harness.Healthy, at("198.51.100.1:81")))
	if p := h.Slices("unnamed")[0].Ports[0]; p.Name == nil || *p.Name != "" {
		t.Errorf("the slice's port is %+v", p)
	}
	// One port is removed, one is added, one gets another name.
	h.ApplyBackend("many",
		"ports:\n- {name: http, port: 80, targetPort: 8080}\n- {name: more, port: 81}\ntargets: [{name: a, address: 198.51.100.1}]")
	h.WaitReady("many")
	h.Eventually("the new ports", func() error {
		all := h.Slices("many")
		want := []discoveryv1.EndpointPort{port("http", 8080, corev1.ProtocolTCP, nil),
			port("more", 81, corev1.ProtocolTCP, nil)}
		if len(all) != 1 {
			return fmt.Errorf("there are %d slices", len(all))
		}
		if diff := gocmp.Diff(want, all[0].Ports); diff != "" {
			return errors.New("-want +got:\n" + diff)
		}
		return nil
	})
}

// Changes between headless and other types keep the Service and its slice, and are reported.
func TestTypeChangesKeepServiceAndSlices(t *testing.T) {
	h := parallel(t)
	h.ApplyBackend("web", "service: {type: ClusterIP}"+onePort)
	h.WaitReady("web")
	service, slice := h.Service("web"), h.Slices("web")[0]
	for _, kind := range []string{"Headless", "ClusterIP", "Headless", "NodePort",
		"Headless", "LoadBalancer", "Headless"} {
		h.ApplyBackend("web", "service: {type: "+kind+"}"+onePort)
		b := h.WaitReady("web")
		h.WaitStates("web", oneEndpoint)
		now := h.Service("web")
		if now.UID != service.UID || (now.Spec.ClusterIP == corev1.ClusterIPNone) != (kind == "Headless") ||
			now.Spec.ExternalName != "" ||
			string(b.Status.ServiceType) != kind {
			t.Errorf("%s: the Service is %+v, status says %s", kind, now, b.Status.ServiceType)
		}
		s := h.Slices("web")
		if len(s) != 1 || s[0].UID != slice.UID {
			t.Errorf("%s: the slice was replaced: %+v", kind, s)
		}
		if _, headless := s[0].Labels[corev1.IsHeadlessService]; headless != (kind == "Headless") ||
			(s[0].Endpoints[0].Hostname != nil) != (kind == "Headless") {
			t.Errorf("%s: the slice is %+v", kind, s[0])
		}
	}
	h.WaitEvent("web", "HeadlessChanged")
}

// The node port that the API server has chosen stays when other fields change.
func TestNodePortIsKept(t *testing.T) {
	h := parallel(t)
	const target = "\ntargets: [{name: a, address: 198.51.100.1}]"
	h.ApplyBackend("web", "service: {type: NodePort}\nports: [{name: web, port: 80}]"+target)
	h.WaitReady("web")
	number := h.Service("web").Spec.Ports[0].NodePort
	if number == 0 {
		t.Fatal("the Service has no node port")
	}
	for _, spec := range []string{
		"service: {type: NodePort}\nports: [{name: more, port: 81}, {name: web, port: 80}]" + target,
		"service: {type: LoadBalancer}\nports: [{name: web, port: 8080}]" + target,
		"service: {type: NodePort, sessionAffinity: ClientIP}\nports: [{name: web, port: 80}]" + target,
	} {
		h.ApplyBackend("web", spec)
		h.WaitReady("web")
		ports := h.Service("web").Spec.Ports
		if last := ports[len(ports)-1]; last.Name != "web" || last.NodePort != number {
			t.Errorf("with %s\nthe node port is not %d: %+v", spec, number, ports)
		}
	}
	h.ApplyBackend("web", "service: {type: ClusterIP}\nports: [{name: web, port: 80}]"+target)
	h.WaitReady("web")
	if p := h.Service("web").Spec.Ports[0]; p.NodePort != 0 {
		t.Errorf("a Service of type ClusterIP has node port %d", p.NodePort)
	}
}

// With trafficDistribution, every endpoint has its zone as a hint, ready or not. With
// PreferSameNode it also has its node.
func TestTrafficDistributionSetsHints(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 1)
	const spec = `
service: {%s ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80}]
targets:
- {name: a, address: %s, zone: z1, nodeName: n1, ports: [{name: web, targetPort: 8001}]}
- {name: b, address: 198.51.100.2, zone: z2, nodeName: n2, adminState: Draining, ports: [{name: web, targetPort: 8001}]}
- {name: c, address: 198.51.100.3, %s ports: [{name: web, targetPort: 8001}]}
healthCheck: %s
`
	wantHints := func(want map[string]string) {
		t.Helper()
		h.Eventually("the hints", func() error {
			got := map[string]string{}
			for _, s := range h.Slices("web") {
				for _, e := range s.Endpoints {
					text := ""
					if e.Hints != nil {
						text = fmt.Sprintf("%v %v", e.Hints.ForZones, e.Hints.ForNodes)
					}
					got[e.Addresses[0]] = text
				}
			}
			if diff := gocmp.Diff(want, got); diff != "" {
				return errors.New("-want +got:\n" + diff)
			}
			return nil
		})
	}
	a := set.V4.String()
	h.ApplyBackend("web", spec, "trafficDistribution: PreferSameZone,", a, "zone: z3,", harness.HTTPCheck)
	wantHints(map[string]string{a: "[{z1}] []", "198.51.100.2": "[{z2}] []", "198.51.100.3": "[{z3}] []"})
	h.WaitStates("web", harness.States{set.at(0): harness.Healthy, at("198.51.100.2:8001"): "terminating",
		at("198.51.100.3:8001"): harness.Unhealthy})
	wantHints(map[string]string{a: "[{z1}] []", "198.51.100.2": "[{z2}] []", "198.51.100.3": "[{z3}] []"})
	c := meta.FindStatusCondition(waitProgrammed(h, "web").Status.Conditions, "Programmed")
	if c.Message != "Service and EndpointSlices are as planned." {
		t.Errorf("the message is %q", c.Message)
	}

	h.ApplyBackend("web", spec, "trafficDistribution: PreferSameNode,", a, "zone: z3,", harness.HTTPCheck)
	wantHints(map[string]string{a: "[{z1}] [{n1}]", "198.51.100.2": "[{z2}] [{n2}]", "198.51.100.3": "[{z3}] []"})
	h.ApplyBackend("web", spec, "trafficDistribution: PreferClose,", a, "", harness.HTTPCheck)
	wantHints(map[string]string{a: "[{z1}] []", "198.51.100.2": "[{z2}] []", "198.51.100.3": ""})
	waitMessage(h, "web", "Programmed", "kube-proxy will ignore")
	h.ApplyBackend("web", spec, "", a, "", harness.HTTPCheck)
	wantHints(map[string]string{a: "", "198.51.100.2": "", "198.51.100.3": ""})
	for _, s := range h.Slices("web") {
		for _, e := range s.Endpoints {
			if e.Addresses[0] == a && (e.Zone == nil || *e.Zone != "z1" || e.NodeName == nil || *e.NodeName != "n1") {
				t.Errorf("the endpoint is %+v", e)
			}
		}
	}
}

// Traffic policies Local, and the nodes of the targets, are published.
func TestLocalTrafficPoliciesReachService(t *testing.T) {
	h := parallel(t)
	h.ApplyBackend("web", `
service: {type: NodePort, internalTrafficPolicy: Local, externalTrafficPolicy: Local}
ports: [{name: web, port: 80, targetPort: 8080}]
targets: [{name: a, address: 198.51.100.1, nodeName: n1}]
`)
	h.WaitReady("web")
	s := h.Service("web")
	if *s.Spec.InternalTrafficPolicy != corev1.ServiceInternalTrafficPolicyLocal ||
		s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		t.Errorf("the Service is %+v", s.Spec)
	}
	if e := h.Slices("web")[0].Endpoints[0]; e.NodeName == nil || *e.NodeName != "n1" {
		t.Errorf("the endpoint is %+v", e)
	}
	h.ApplyBackend("web", "service: {type: NodePort}"+onePort)
	h.WaitReady("web")
	if s := h.Service("web"); *s.Spec.InternalTrafficPolicy != corev1.ServiceInternalTrafficPolicyCluster ||
		s.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyCluster {
		t.Errorf("the Service is %+v", s.Spec)
	}
}

// A slice has at most --max-endpoints-per-slice endpoints. Endpoints beyond
// --max-endpoints-per-backend are reported and not published.
func TestEndpointBoundsHold(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager("--max-endpoints-per-slice=3", "--max-endpoints-per-backend=10")
	targets := func(from, to int) (text string) {
		for i := from; i <= to; i++ {
			text += fmt.Sprintf("\n- {name: t%02d, address: 198.51.100.%[1]d}", i)
		}
		return text
	}
	count := func() (endpoints int) {
		for _, s := range h.Slices("web") {
			if len(s.Endpoints) > 3 {
				t.Errorf("a slice has %d endpoints", len(s.Endpoints))
			}
			endpoints += len(s.Endpoints)
		}
		return endpoints
	}
	h.ApplyBackend("web", "ports: [{name: web, port: 80}]\ntargets:"+targets(1, 10))
	h.WaitReady("web")
	if n, slices := count(), len(h.Slices("web")); n != 10 || slices != 4 {
		t.Errorf("%d endpoints are in %d slices", n, slices)
	}
	// Published endpoints come first. The others are reported as truncated.
	h.ApplyBackend("web", "ports: [{name: web, port: 80}]\ntargets:"+targets(20, 21)+targets(1, 10))
	waitTarget(h, "web", "t20", "Unprobed", "Truncated")
	waitTarget(h, "web", "t21", "Unprobed", "Truncated")
	h.WaitReady("web")
	before := takeSnapshot(h, "web", true)
	if n := count(); n != 10 {
		t.Errorf("%d endpoints are published", n)
	}
	m.Stop()
	h.StartManager() // the default is 100 in a slice
	h.Eventually("all endpoints in few slices", func() error {
		if n := len(h.Endpoints("web")); n != 12 {
			return fmt.Errorf("there are %d endpoints", n)
		}
		return nil
	})
	if after := takeSnapshot(h, "web", true); after.Service.UID != before.Service.UID {
		t.Error("the Service was replaced")
	}
	remove(h, h.Backend("web"), client.PropagationPolicy(metav1.DeletePropagationBackground))
	waitNoSlices(h, "web")
}
