package integration

import (
	"context"
	"fmt"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// Objects that people write by hand. The first argument is the name of a Service.
const (
	serviceByHand = `
apiVersion: v1
kind: Service
metadata: {name: %s}
spec: {ports: [{name: web, port: 80}]}
`
	sliceByHand = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-by-hand, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: web, port: 8080}]
endpoints: [{addresses: [%[2]s]}]
`
	endpointsByHand = `
apiVersion: v1
kind: Endpoints
metadata: {name: %s}
subsets: [{addresses: [{ip: %s}], ports: [{name: web, port: 8080}]}]
`
)

// watchUntouched remembers these objects. The function that it returns fails the test if they have
// been written to since.
func watchUntouched(h *harness.Test, objects ...client.Object) (wantUntouched func()) {
	h.T.Helper()
	read := func(o client.Object) {
		h.T.Helper()
		if err := h.Client.Get(h.T.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			h.T.Fatalf("%T: %v", o, err)
		}
	}
	before := make([]client.Object, len(objects))
	for i, o := range objects {
		read(o)
		before[i] = o.DeepCopyObject().(client.Object)
	}
	return func() {
		h.T.Helper()
		for i, o := range objects {
			read(o)
			if diff := gocmp.Diff(before[i], o); diff != "" {
				h.T.Errorf("%T %s was written to, -before +after:\n%s", o, o.GetName(), diff)
			}
		}
	}
}

// named sets the namespace and the name of an object.
func named[O client.Object](h *harness.Test, o O, name string) O {
	o.SetNamespace(h.Namespace)
	o.SetName(name)
	return o
}

// wantNoneOfOurs fails the test if the operator has a slice behind the Service.
func wantNoneOfOurs(h *harness.Test, service string) {
	h.T.Helper()
	for _, s := range h.Slices(service) {
		if s.Labels[discoveryv1.LabelManagedBy] == v1alpha1.ManagedBy {
			h.T.Errorf("slice %s is behind %s", s.Name, service)
		}
	}
}

// A foreign Service under our name is left alone, of whatever kind it is. Once it is deleted, ours
// is created.
func TestForeignServiceIsLeftAlone(t *testing.T) {
	h := parallel(t)
	const service = "apiVersion: v1\nkind: Service\n"
	for _, tc := range []struct{ name, document string }{
		{"selectorless", serviceByHand},
		{"selector", service + "metadata: {name: %s}\nspec: {selector: {app: web}, ports: [{name: web, port: 80}]}"},
		{"alias", service + "metadata: {name: %s}\nspec: {type: ExternalName, externalName: example.com}"},
		{"our-label", service + "metadata: {name: %s, labels: {external-backend.io/name: other}}\n" +
			"spec: {ports: [{name: web, port: 80}]}"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			h.Apply(tc.document, tc.name)
			wantUntouched := watchUntouched(h, named(h, &corev1.Service{}, tc.name))
			h.ApplyBackend(tc.name, onePort)
			waitConflict(h, tc.name)
			waitMessage(h, tc.name, "Programmed", fmt.Sprintf("%q", tc.name))
			wantUntouched()
			wantNoneOfOurs(h, tc.name)

			remove(h, h.Service(tc.name))
			h.WaitReady(tc.name)
			h.WaitStates(tc.name, oneEndpoint)
			wantStalled(h, tc.name, "")
			if !metav1.IsControlledBy(h.Service(tc.name), h.Backend(tc.name)) {
				t.Error("the Service is not ours")
			}
		})
	}
}

// The deletion of an ExternalBackend in conflict leaves the foreign Service and its slice as they
// are.
func TestDeletionInConflictLeavesForeignObjects(t *testing.T) {
	h := parallel(t)
	h.Apply(serviceByHand, "web")
	h.Apply(sliceByHand, "web", "192.0.2.1")
	wantUntouched := watchUntouched(h, named(h, &corev1.Service{}, "web"),
		named(h, &discoveryv1.EndpointSlice{}, "web-by-hand"))
	h.ApplyBackend("web", onePort)
	waitConflict(h, "web")
	remove(h, h.Backend("web"))
	waitGone(h, &v1alpha1.ExternalBackend{}, "web")
	// The next object is reconciled after the deletion.
	h.ApplyBackend("next", onePort)
	h.WaitReady("next")
	wantUntouched()
}

// Foreign Endpoints or slices that exist before our Service are a conflict, and are left alone.
// Once they are deleted, the Service is created.
func TestForeignEndpointsUnderOurNameAreConflict(t *testing.T) {
	h := parallel(t)
	for _, tc := range []struct {
		name, document string
		object         client.Object
	}{
		{"slice", sliceByHand, named(h, &discoveryv1.EndpointSlice{}, "slice-by-hand")},
		{"endpoints", endpointsByHand, named(h, &corev1.Endpoints{}, "endpoints")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			h.Apply(tc.document, tc.name, "192.0.2.1")
			wantUntouched := watchUntouched(h, tc.object)
			h.ApplyBackend(tc.name, onePort)
			waitConflict(h, tc.name)
			waitMessage(h, tc.name, "Programmed", tc.object.GetName())
			wantUntouched()
			wantNoneOfOurs(h, tc.name)
			remove(h, tc.object)
			h.WaitReady(tc.name)
			h.WaitStates(tc.name, oneEndpoint)
			wantStalled(h, tc.name, "")
		})
	}
}

// Foreign endpoints that appear behind our Service are reported and left alone. Ours continue to
// follow health.
func TestForeignEndpointsBesideOursAreReported(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 1)
	for _, tc := range []struct {
		name, document string
		object         client.Object
	}{
		{"slice", sliceByHand, named(h, &discoveryv1.EndpointSlice{}, "slice-by-hand")},
		{"endpoints", endpointsByHand, named(h, &corev1.Endpoints{}, "endpoints")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			h.ApplyBackend(tc.name, "ports: [{name: web, port: 80}]\ntargets:\n%shealthCheck: %s", set.targets(),
				harness.HTTPCheck)
			h.WaitStates(tc.name, harness.All(harness.Healthy, set.at(0)))
			service := h.Service(tc.name)
			h.Apply(tc.document, tc.name, "192.0.2.1")
			wantUntouched := watchUntouched(h, tc.object)
			waitConflict(h, tc.name)
			set.servers[0].SetSick(true)
			h.WaitStates(tc.name, harness.All(harness.Unhealthy, set.at(0)))
			set.servers[0].SetSick(false)
			h.WaitStates(tc.name, harness.All(harness.Healthy, set.at(0)))
			wantUntouched()
			if now := h.Service(tc.name); now.UID != service.UID {
				t.Error("the Service was replaced")
			}
			remove(h, tc.object)
			h.WaitReady(tc.name)
			waitProgrammed(h, tc.name)
		})
	}
}

// Of two ExternalBackends that name one Service, the first one owns it. The second one gets it
// after the deletion of the first.
func TestServiceBelongsToFirstBackend(t *testing.T) {
	h := parallel(t)
	h.ApplyBackend("first", "service: {name: web}"+onePort)
	h.WaitReady("first")
	service := h.Service("web")
	h.ApplyBackend("second",
		"service: {name: web, adoptionPolicy: IfSelectorless}\nports: [{name: web, port: 80, targetPort: 8080}]\ntargets: [{name: a, address: 198.51.100.2}]")
	waitConflict(h, "second")
	waitMessage(h, "second", "Programmed", `ExternalBackend "first"`)
	h.WaitStates("web", oneEndpoint)
	if now := h.Service("web"); now.ResourceVersion != service.ResourceVersion {
		t.Errorf("the Service was written to: %+v", now)
	}
	h.WaitReady("first")

	remove(h, h.Backend("first"))
	h.WaitReady("second")
	h.WaitStates("web", harness.All(harness.Healthy, at("198.51.100.2:8080")))
	if !metav1.IsControlledBy(h.Service("web"), h.Backend("second")) {
		t.Error("the second ExternalBackend does not own the Service")
	}
}

// No spec can publish endpoints behind default/kubernetes.
func TestKubernetesServiceIsProtected(t *testing.T) {
	h := parallel(t)
	h = h.Sub(t)
	h.Namespace = metav1.NamespaceDefault
	wantUntouched := watchUntouched(h, named(h, &corev1.Service{}, "kubernetes"))
	for name, spec := range map[string]string{
		"by-ref":   "serviceRef: {name: kubernetes}\nports: [{name: https, port: 443}]\ntargets: [{name: a, address: 198.51.100.1}]",
		"by-name":  "service: {name: kubernetes}\nports: [{name: https, port: 443}]\ntargets: [{name: a, address: 198.51.100.1}]",
		"adopting": "service: {name: kubernetes, adoptionPolicy: IfSelectorless}\nports: [{name: https, port: 443}]\ntargets: [{name: a, address: 198.51.100.1}]",
	} {
		h.ApplyBackend(name, spec)
		t.Cleanup(func() {
			if err := h.Client.Delete(context.Background(), named(h, &v1alpha1.ExternalBackend{}, name)); err != nil {
				t.Error(err)
			}
		})
		waitConflict(h, name)
		waitMessage(h, name, "Programmed", "protected")
		wantNoneOfOurs(h, "kubernetes")
	}
	wantUntouched()
}

// No spec can publish endpoints behind a Service that --protected-services names.
func TestProtectedServicesAreLeftAlone(t *testing.T) {
	h := harness.New(t)
	h.StartManager("--protected-services=" + h.Namespace + "/web," + h.Namespace + "/vpn")
	h.Apply(serviceByHand, "web")
	wantUntouched := watchUntouched(h, named(h, &corev1.Service{}, "web"))
	h.ApplyBackend("by-ref", "serviceRef: {name: web}"+onePort)
	h.ApplyBackend("adopting", "service: {name: web, adoptionPolicy: IfSelectorless}"+onePort)
	h.ApplyBackend("creating", "service: {name: vpn}"+onePort)
	h.ApplyBackend("other", onePort)
	for _, name := range []string{"by-ref", "adopting", "creating"} {
		waitConflict(h, name)
		waitMessage(h, name, "Programmed", "protected")
	}
	h.WaitReady("other")
	wantUntouched()
	wantNoneOfOurs(h, "web")
	if err := h.Client.Get(t.Context(), h.Key("vpn"), &corev1.Service{}); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("Service vpn: %v", err)
	}
}
