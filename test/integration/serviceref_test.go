package integration

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// The Service that serviceRef names does not exist, is created, gets a selector and loses it, is
// deleted, and is created again. Each step is followed.
func TestReferencedServiceIsFollowedThroughItsLife(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 2)
	h.ApplyBackend("ext", "serviceRef: {name: web}\nports: [{name: web, port: 80}]\ntargets:\n%shealthCheck: %s",
		set.targets(), harness.HTTPCheck)
	h.WaitCondition("ext", "Programmed", metav1.ConditionFalse, "ServiceNotFound")
	h.WaitCondition("ext", "Ready", metav1.ConditionFalse, "ServiceNotFound")
	h.WaitEvent("ext", "ServiceNotFound")
	wantStalled(h, "ext", "")
	if n := len(h.Slices("web")); n > 0 {
		t.Errorf("there are %d slices behind a Service that does not exist", n)
	}
	if b := h.Backend("ext"); b.Status.ServiceName != "web" || b.Status.ServiceType != "" {
		t.Errorf("status is %+v", b.Status)
	}

	const service = "ipFamilyPolicy: SingleStack, ipFamilies: [IPv4], selector: {%s}, ports: [{name: web, port: 8}, {name: theirs, port: 9}]"
	healthy := harness.All(harness.Healthy, set.at(0), set.at(1))
	h.ApplyService("web", service, "")
	h.WaitStates("web", healthy)
	h.WaitReady("ext")
	waitProgrammed(h, "ext")

	h.ApplyService("web", service, "app: web")
	waitConflict(h, "ext")
	wantNoneOfOurs(h, "web")
	if s := h.Service("web"); len(s.Spec.Selector) != 1 {
		t.Errorf("the selector of someone else's Service is %v", s.Spec.Selector)
	}
	h.ApplyService("web", service, "")
	// The owner of the Service has to delete the objects that kube-controller-manager has created.
	for _, s := range h.Slices("web") {
		if s.Labels[discoveryv1.LabelManagedBy] == "endpointslice-controller.k8s.io" {
			remove(h, &s)
		}
	}
	var endpoints corev1.Endpoints
	if h.Client.Get(t.Context(), h.Key("web"), &endpoints) == nil {
		remove(h, &endpoints)
	}
	h.WaitStates("web", healthy)
	h.WaitReady("ext")

	before := takeSnapshot(h, "web", true)
	remove(h, h.Service("web"))
	h.WaitCondition("ext", "Programmed", metav1.ConditionFalse, "ServiceNotFound")
	h.WaitCondition("ext", "Ready", metav1.ConditionFalse, "ServiceNotFound")
	wantStalled(h, "ext", "")
	h.WaitStates("web", healthy)
	set.servers[1].SetSick(true)
	h.WaitStates("web", harness.States{set.at(0): harness.Healthy, set.at(1): harness.Unhealthy})
	set.servers[1].SetSick(false)
	h.WaitStates("web", healthy)
	// Changes of the spec are followed, too.
	h.ApplyBackend("ext", "serviceRef: {name: web}\nports: [{name: web, port: 80}]\ntargets:\n%shealthCheck: %s",
		set.target(0, ""), harness.HTTPCheck)
	h.WaitStates("web", harness.All(harness.Healthy, set.at(0)))

	h.ApplyService("web", service, "")
	h.ApplyBackend("ext", "serviceRef: {name: web}\nports: [{name: web, port: 80}]\ntargets:\n%shealthCheck: %s",
		set.targets(), harness.HTTPCheck)
	h.WaitReady("ext")
	h.WaitStates("web", healthy)
	// The slice of target a always had an endpoint, so it is still the same object.
	name := h.Endpoints("web")[0].Slice
	if is := takeSnapshot(h, "web", true).Slices[name]; is.UID != before.Slices[name].UID {
		t.Errorf("slice %s is %+v, not %+v", name, is, before.Slices[name])
	}
}

// A port that the Service does not have by name and protocol is left out, and only this port.
func TestMismatchedPortIsLeftOut(t *testing.T) {
	h := parallel(t)
	const service = "ports: [{name: web, port: 80}, {name: theirs, port: 81}, {name: dgram, port: 82, protocol: %s}%s]"
	h.ApplyService("web", service, "TCP", "")
	h.ApplyBackend("ext", `
serviceRef: {name: web}
ports: [{name: web, port: 8080}, {name: more, port: 8081}, {name: dgram, port: 8082, protocol: UDP}]
targets: [{name: a, address: 198.51.100.1}]
`)
	h.WaitCondition("ext", "Programmed", metav1.ConditionFalse, "PortMismatch")
	h.WaitCondition("ext", "Ready", metav1.ConditionFalse, "PortMismatch")
	wantStalled(h, "ext", "") // Stalled comes after two minutes
	waitMessage(h, "ext", "Programmed", "more", "dgram", "UDP")
	h.WaitEvent("ext", "PortMismatch")
	h.WaitStates("web", oneEndpoint)
	ports := func() (text string) {
		for _, p := range h.Slices("web")[0].Ports {
			text += fmt.Sprintf("%s:%d/%s ", *p.Name, *p.Port, *p.Protocol)
		}
		return text
	}
	if got := ports(); got != "web:8080/TCP " {
		t.Errorf("the slice's ports are %s", got)
	}
	h.ApplyService("web", service, "UDP", ", {name: more, port: 83}")
	h.WaitReady("ext")
	wantStalled(h, "ext", "")
	if got := ports(); got != "dgram:8082/UDP more:8081/TCP web:8080/TCP " {
		t.Errorf("the slice's ports are %s", got)
	}
}

// Several ExternalBackends publish behind one Service, but no ip:port twice. The older one
// publishes a shared address.
func TestOlderSiblingOwnsSharedAddress(t *testing.T) {
	h := parallel(t)
	h.ApplyService("web", "ports: [{name: web, port: 80}]")
	const spec = "serviceRef: {name: web}\nports: [{name: web, port: 8080}]\ntargets: [{name: shared, address: 198.51.100.1}, {name: own, address: %s}]"
	a, b, c := at("198.51.100.1:8080"), at("198.51.100.2:8080"), at("198.51.100.3:8080")
	// Between two objects of the same second, the name would decide.
	h.ApplyBackend("b-older", spec, "198.51.100.2")
	h.WaitReady("b-older")
	first := h.Backend("b-older")
	h.Eventually("a second to pass", func() error {
		h.ApplyBackend("tick", "ports: [{name: web, port: 80}]")
		tick := h.Backend("tick")
		if !first.CreationTimestamp.Before(&tick.CreationTimestamp) {
			remove(h, tick)
			return fmt.Errorf("the clock says %v", tick.CreationTimestamp)
		}
		return nil
	})
	h.ApplyBackend("a-younger", spec, "198.51.100.3")
	h.WaitReady("a-younger")
	waitTarget(h, "a-younger", "shared", "Unprobed", "DuplicateAddress")
	waitTarget(h, "b-older", "shared", "Unprobed", "")
	h.WaitStates("web", harness.All(harness.Healthy, a, b, c))
	owners := map[string]string{}
	for _, s := range h.Slices("web") {
		for _, e := range s.Endpoints {
			owners[e.Addresses[0]] += s.Labels["external-backend.io/name"]
		}
	}
	if owners["198.51.100.1"] != "b-older" || owners["198.51.100.2"] != "b-older" ||
		owners["198.51.100.3"] != "a-younger" {
		t.Errorf("the endpoints are %v", owners)
	}

	// Until the garbage collector has deleted the slices of the older one, both may publish the
	// address.
	remove(h, h.Backend("b-older"))
	h.Eventually("the slices of the older ExternalBackend to go", func() error {
		for _, s := range h.Slices("web") {
			if s.Labels[v1alpha1.LabelName] == "b-older" {
				return fmt.Errorf("there is %s", s.Name)
			}
		}
		return nil
	})
	h.WaitStates("web", harness.All(harness.Healthy, a, c))
	waitTarget(h, "a-younger", "shared", "Unprobed", "")
	h.WaitReady("a-younger")
}

// Families, headlessness, trafficDistribution and publishNotReadyAddresses are read from the
// referenced Service, and followed.
func TestReferencedServiceTraitsAreFollowed(t *testing.T) {
	h := parallel(t)
	const service = "%s, ports: [{name: web, port: 80}]"
	h.ApplyService("web", service, "ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]")
	const spec = `
serviceRef: {name: %s}
ports: [{name: web, port: 8080}]
targets: [{name: a, address: 198.51.100.1, zone: z1}, {name: b, address: "2001:db8::1", zone: z2}]
healthCheck: {tcpSocket: {}, ` + harness.FastPace + `}
`
	a, b := at("198.51.100.1:8080"), at("[2001:db8::1]:8080")
	h.ApplyBackend("ext", spec, "web")
	h.WaitStates("web", harness.All(harness.Unhealthy, a)) // nothing answers
	waitTarget(h, "ext", "b", "Unknown", "FamilyNotServed")
	h.ApplyService("web", service,
		"ipFamilyPolicy: RequireDualStack, publishNotReadyAddresses: true, trafficDistribution: PreferSameZone")
	h.WaitStates("web", harness.All(harness.NotReadyToo, a, b)) // ready without health
	for _, s := range h.Slices("web") {
		if e := s.Endpoints[0]; e.Hints == nil || len(e.Hints.ForZones) != 1 || e.Hints.ForZones[0].Name != *e.Zone ||
			e.Hostname != nil {
			t.Errorf("the endpoint is %+v", e)
		}
	}
	h.ApplyService("web", service, "ipFamilyPolicy: RequireDualStack")
	h.WaitStates("web", harness.All(harness.Unhealthy, a, b))
	for _, s := range h.Slices("web") {
		if e := s.Endpoints[0]; e.Hints != nil {
			t.Errorf("the endpoint is %+v", e)
		}
	}

	h.ApplyService("headless", service, "clusterIP: None")
	h.ApplyBackend("other", spec, "headless")
	h.WaitStates("headless", harness.All(harness.Unhealthy, a, b))
	for _, s := range h.Slices("headless") {
		if _, ok := s.Labels[corev1.IsHeadlessService]; !ok || s.Endpoints[0].Hostname == nil {
			t.Errorf("the slice is %+v", s)
		}
	}
}

// A referenced Service of type ExternalName gets no slices.
func TestReferencedExternalNameGetsNoSlices(t *testing.T) {
	h := parallel(t)
	h.ApplyService("web", "type: ExternalName, externalName: example.com")
	wantUntouched := watchUntouched(h, named(h, &corev1.Service{}, "web"))
	h.ApplyBackend("ext", "serviceRef: {name: web}"+onePort)
	h.WaitCondition("ext", "Programmed", metav1.ConditionFalse, "")
	wantNoneOfOurs(h, "web")
	wantUntouched()
}

// If the referenced Service has a traffic policy Local, every target needs a nodeName. Without it
// the spec is invalid, and everything that is published stays.
func TestLocalTrafficPolicyNeedsNodeNames(t *testing.T) {
	h := parallel(t)
	const service = "internalTrafficPolicy: %s, ports: [{name: web, port: 80}]"
	h.ApplyService("web", service, "Cluster")
	h.ApplyBackend("ext", "serviceRef: {name: web}"+onePort)
	h.WaitReady("ext")
	before := takeSnapshot(h, "web", true)
	h.ApplyService("web", service, "Local")
	h.WaitCondition("ext", "Accepted", metav1.ConditionFalse, "InvalidSpec")
	waitMessage(h, "ext", "Accepted", "spec.targets[0].nodeName")
	h.WaitCondition("ext", "Ready", metav1.ConditionFalse, "InvalidSpec")
	wantStalled(h, "ext", "InvalidSpec")
	h.WaitEvent("ext", "InvalidSpec")
	before.Service = takeSnapshot(h, "web", true).Service
	waitSnapshot(h, "web", before, true)
	h.ApplyService("web", service, "Cluster")
	h.WaitReady("ext")
	wantStalled(h, "ext", "")
}
