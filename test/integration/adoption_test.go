package integration

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/test/harness"
)

// adopting is the spec of an ExternalBackend that may adopt a Service.
const adopting = "service: {adoptionPolicy: IfSelectorless%s}\nports: [%s]\ntargets: [{name: a, address: 198.51.100.1}]"

// A Service that differs in a single respect is neither adopted nor written to.
func TestServiceThatDiffersIsNotAdopted(t *testing.T) {
	h := parallel(t)
	const good = "ipFamilyPolicy: SingleStack, ipFamilies: [IPv4], ports: [{name: web, port: 80}]"
	for _, tc := range []struct{ name, metadata, service, backend, ports string }{
		{"never", "", good, ", adoptionPolicy: Never", "{name: web, port: 80}"},
		{"selector", "", "selector: {app: web}, " + good, "", "{name: web, port: 80}"},
		{"controller", ", ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: owner, uid: %s, controller: true}]", good,
			"", "{name: web, port: 80}"},
		{"type", "", "type: NodePort, " + good, "", "{name: web, port: 80}"},
		{"headless", "", "clusterIP: None, " + good, "", "{name: web, port: 80}"},
		{"alias", "", "type: ExternalName, externalName: example.com, ports: [{name: web, port: 80}]", "",
			"{name: web, port: 80}"},
		{"family", "", "ipFamilyPolicy: SingleStack, ipFamilies: [IPv6], ports: [{name: web, port: 80}]",
			", ipFamilies: [IPv4]", "{name: web, port: 80}"},
		{"port-name", "", good, "", "{name: http, port: 80}"},
		{"port-number", "", good, "", "{name: web, port: 81}"},
		{"port-protocol", "", good, "", "{name: web, port: 80, protocol: UDP}"},
		{"port-missing", "", good, "", "{name: web, port: 80}, {name: more, port: 81}"},
		{"port-more", "", "ports: [{name: web, port: 80}, {name: more, port: 81}]", "", "{name: web, port: 80}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			if tc.name == "controller" {
				h.Apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: owner}")
				owner := named(h, &corev1.ConfigMap{}, "owner")
				if err := h.Client.Get(t.Context(), client.ObjectKeyFromObject(owner), owner); err != nil {
					t.Fatal(err)
				}
				tc.metadata = fmt.Sprintf(tc.metadata, owner.UID)
			}
			h.Apply("apiVersion: v1\nkind: Service\nmetadata: {name: " + tc.name + tc.metadata + "}\nspec: {" + tc.service + "}")
			h.Apply(sliceByHand, tc.name, "192.0.2.1")
			wantUntouched := watchUntouched(h, named(h, &corev1.Service{}, tc.name),
				named(h, &discoveryv1.EndpointSlice{}, tc.name+"-by-hand"))
			if tc.name == "never" {
				h.ApplyBackend(tc.name,
					"service: {adoptionPolicy: Never}\nports: [%s]\ntargets: [{name: a, address: 198.51.100.1}]",
					tc.ports)
			} else {
				h.ApplyBackend(tc.name, adopting, tc.backend, tc.ports)
			}
			waitConflict(h, tc.name)
			wantUntouched()
			wantNoneOfOurs(h, tc.name)
		})
	}
}

// A matching Service is adopted with its UID, addresses, ports and metadata, and survives the
// deletion of the ExternalBackend.
func TestAdoptedServiceKeepsItsIdentity(t *testing.T) {
	h := parallel(t)
	for _, tc := range []struct{ name, service, backend string }{
		{"cluster-ip", "ports: [{name: web, port: 80, targetPort: 1234}, {name: dns, port: 53, protocol: UDP}]", ""},
		{"node-port", "type: NodePort, ports: [{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}]",
			", type: NodePort"},
		{"headless", "clusterIP: None, ports: [{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}]",
			", type: Headless"},
		{"family",
			"ipFamilyPolicy: RequireDualStack, ipFamilies: [IPv6, IPv4], ports: [{name: dns, port: 53, protocol: UDP}, {name: web, port: 80}]", ", ipFamilies: [IPv6, IPv4]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			h.Apply(
				"apiVersion: v1\nkind: Service\nmetadata:\n  name: " + tc.name + "\n  labels: {theirs: \"yes\"}\n" +
					"  annotations: {example.com/theirs: \"yes\"}\nspec: {" + tc.service + "}")
			before := h.Service(tc.name)
			h.ApplyBackend(tc.name, adopting, tc.backend+", labels: {ours: \"yes\"}",
				"{name: web, port: 80, targetPort: 8080}, {name: dns, port: 53, protocol: UDP}")
			b := h.WaitReady(tc.name)
			waitProgrammed(h, tc.name)
			h.WaitEvent(tc.name, "Adopted")
			now := h.Service(tc.name)
			if now.UID != before.UID || !slices.Equal(now.Spec.ClusterIPs, before.Spec.ClusterIPs) ||
				nodePort(now, "web") != nodePort(before, "web") ||
				nodePort(now, "dns") != nodePort(before, "dns") {
				t.Errorf("the Service was %+v and is %+v", before.Spec, now.Spec)
			}
			if len(now.OwnerReferences) > 0 || now.Labels["theirs"] != "yes" || now.Labels["ours"] != "yes" ||
				now.Annotations["example.com/theirs"] != "yes" {
				t.Errorf("the Service's metadata are %+v", now.ObjectMeta)
			}
			for _, s := range h.Slices(tc.name) {
				if !metav1.IsControlledBy(&s, b) {
					t.Errorf("slice %s is owned by %v", s.Name, s.OwnerReferences)
				}
			}
			// The adopted Service is kept as planned, like any other.
			edit(h, now, func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "web"} })
			h.WaitEvent(tc.name, "SelectorRemoved")
			waitOnlyOurs(h, tc.name)

			remove(h, b)
			waitNoSlices(h, tc.name)
			if left := h.Service(tc.name); left.UID != before.UID || left.DeletionTimestamp != nil {
				t.Errorf("the Service has changed: %+v", left.ObjectMeta)
			}
		})
	}
}

func nodePort(s *corev1.Service, name string) int32 {
	for _, p := range s.Spec.Ports {
		if p.Name == name {
			return p.NodePort
		}
	}
	return -1
}

// A second ExternalBackend can't adopt a Service that another one has adopted.
func TestAdoptedServiceBelongsToOneBackend(t *testing.T) {
	h := parallel(t)
	h.Apply(serviceByHand, "web")
	h.ApplyBackend("first", adopting, ", name: web", "{name: web, port: 80, targetPort: 8080}")
	h.WaitReady("first")
	h.ApplyBackend("second", adopting, ", name: web", "{name: web, port: 80, targetPort: 9090}")
	waitConflict(h, "second")
	h.WaitStates("web", oneEndpoint)
	h.WaitReady("first")
}

// The handover of a shared address has three steps: our slice publishes it with the conditions that
// it has, the foreign object stops, and our verdict applies.
func TestHandoverPublishesForeignConditionsFirst(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 2)
	set.servers[1].SetSick(true)
	for _, tc := range []struct {
		name, document, event string
		stopped               func() error
	}{
		{"slice", `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: slice-by-hand, labels: {kubernetes.io/service-name: slice}}
addressType: IPv4
ports: [{name: web, port: 8002}]
endpoints: [{addresses: [%s]}]
`, `EndpointSlice "slice-by-hand"`, nil},
		{"endpoints", `
apiVersion: v1
kind: Endpoints
metadata: {name: endpoints}
subsets: [{addresses: [{ip: %s}], ports: [{name: web, port: 8002}]}]
`, `Endpoints "endpoints"`, func() error {
			var e corev1.Endpoints
			err := h.Client.Get(t.Context(), h.Key("endpoints"), &e)
			if err == nil && (e.Labels[discoveryv1.LabelSkipMirror] != "true" || len(e.Subsets) != 1) {
				err = fmt.Errorf("the Endpoints are %+v", e)
			}
			return err
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			h.ApplyService(tc.name, "ipFamilyPolicy: SingleStack, ipFamilies: [IPv4], ports: [{name: web, port: 80}]")
			h.Apply(tc.document, set.V4)
			h.Eventually("the foreign slice", func() error {
				if len(h.Slices(tc.name)) == 0 {
					return errors.New("there is none")
				}
				return nil
			})
			history := recordSlices(h, tc.name)
			h.ApplyBackend(tc.name,
				"service: {adoptionPolicy: IfSelectorless}\nports: [{name: web, port: 80}]\ntargets:\n%shealthCheck: %s",
				set.targets(), harness.HTTPCheck)
			h.WaitStates(tc.name, harness.States{set.at(0): harness.Healthy, set.at(1): harness.Unhealthy})
			waitOnlyOurs(h, tc.name)
			waitProgrammed(h, tc.name)
			h.WaitReady(tc.name)
			b := set.V4.String()
			h.Eventually("all states to be recorded", func() error {
				all := history.all()
				if !slices.Contains(all, "DELETED theirs "+b+":true,true,false") ||
					!slices.Contains(all, "MODIFIED ours "+b+":false,false,false") {
					return fmt.Errorf("there is %q", all)
				}
				return nil
			})
			// Target a is new. Target b fails its checks, but the foreign object says that it is ready.
			published := history.index(h, "ADDED ours "+b+":true,true,false")
			stopped := history.index(h, "DELETED theirs "+b+":true,true,false")
			verdict := history.index(h, "MODIFIED ours "+b+":false,false,false")
			if published > stopped || stopped > verdict {
				t.Errorf("the states are %q", history.all())
			}
			h.Eventually("the event", func() error {
				events := h.Events(tc.name)
				if !slices.ContainsFunc(events, func(e string) bool { return strings.Contains(e, tc.event) }) {
					return fmt.Errorf("there are %q", events)
				}
				return nil
			})
			if tc.stopped != nil {
				h.Eventually("the foreign object to stop, and to stay", tc.stopped)
			}
		})
	}
}

// Without a shared address, the foreign endpoints stay until one of ours is ready.
func TestHandoverWaitsForReadyEndpoint(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 1)
	set.servers[0].SetSick(true)
	h.ApplyService("web", "ipFamilyPolicy: SingleStack, ipFamilies: [IPv4], ports: [{name: web, port: 80}]")
	h.Apply(sliceByHand, "web", "192.0.2.1")
	wantUntouched := watchUntouched(h, named(h, &discoveryv1.EndpointSlice{}, "web-by-hand"))
	h.ApplyBackend("web",
		"service: {adoptionPolicy: IfSelectorless}\nports: [{name: web, port: 80}]\ntargets:\n%shealthCheck: %s",
		set.targets(), harness.HTTPCheck)
	h.WaitStates("web", harness.All(harness.Unhealthy, set.at(0)))
	waitTarget(h, "web", "a", "Unhealthy", "UnexpectedStatus")
	wantUntouched()
	set.servers[0].SetSick(false)
	h.WaitStates("web", harness.All(harness.Healthy, set.at(0)))
	waitOnlyOurs(h, "web")
	h.WaitReady("web")
}

// A slice that has a controller is left alone, and the Service is in conflict.
func TestControlledSliceIsNotTakenOver(t *testing.T) {
	h := parallel(t)
	h.Apply(serviceByHand, "web")
	h.Apply("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: owner}")
	owner := named(h, &corev1.ConfigMap{}, "owner")
	if err := h.Client.Get(t.Context(), client.ObjectKeyFromObject(owner), owner); err != nil {
		t.Fatal(err)
	}
	h.Apply(sliceByHand, "web", "192.0.2.1")
	edit(h, named(h, &discoveryv1.EndpointSlice{}, "web-by-hand"), func(s *discoveryv1.EndpointSlice) {
		s.OwnerReferences = []metav1.OwnerReference{
			*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	})
	wantUntouched := watchUntouched(h, named(h, &discoveryv1.EndpointSlice{}, "web-by-hand"))
	h.ApplyBackend("web", adopting, "", "{name: web, port: 80, targetPort: 8080}")
	waitConflict(h, "web")
	wantUntouched()
	wantNoneOfOurs(h, "web")
}
