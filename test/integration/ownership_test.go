package integration

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// dualStack is a spec with one slice for each family.
const dualStack = `
service:
  ipFamilyPolicy: RequireDualStack
  labels: {team: shop}
  annotations: {example.com/note: hello}
ports: [{name: web, port: 80, targetPort: 8080, appProtocol: http}]
targets:
- {name: a, address: 198.51.100.1, zone: z1}
- {name: b, address: 198.51.100.2}
- {name: c, address: "2001:db8::1"}
`

// The ExternalBackend owns the Service, and the Service owns the slices, by controller references
// and without finalizers.
func TestOwnersAreBackendServiceAndSlices(t *testing.T) {
	h := parallel(t)
	h.ApplyBackend("web", dualStack)
	h.WaitReady("web")
	b, service := h.Backend("web"), h.Service("web")
	want := metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "ExternalBackend", Name: "web", UID: b.UID,
		Controller: new(true), BlockOwnerDeletion: new(true),
	}
	if diff := gocmp.Diff([]metav1.OwnerReference{want}, service.OwnerReferences); diff != "" {
		t.Errorf("owners of the Service, -want +got:\n%s", diff)
	}
	want = metav1.OwnerReference{
		APIVersion: "v1", Kind: "Service", Name: "web", UID: service.UID,
		Controller: new(true), BlockOwnerDeletion: new(true),
	}
	sliceList := h.Slices("web")
	for _, s := range sliceList {
		if diff := gocmp.Diff([]metav1.OwnerReference{want}, s.OwnerReferences); diff != "" {
			t.Errorf("owners of slice %s, -want +got:\n%s", s.Name, diff)
		}
		labels := map[string]string{
			"kubernetes.io/service-name":             "web",
			"endpointslice.kubernetes.io/managed-by": "external-backend.io",
			"external-backend.io/name":               "web",
			"team":                                   "shop",
		}
		if diff := gocmp.Diff(labels, s.Labels); diff != "" {
			t.Errorf("labels of slice %s, -want +got:\n%s", s.Name, diff)
		}
	}
	if len(sliceList) != 2 {
		t.Errorf("there are %d slices, not one for each family", len(sliceList))
	}
	if len(b.Finalizers)+len(service.Finalizers) > 0 {
		t.Errorf("there are finalizers: %v, %v", b.Finalizers, service.Finalizers)
	}

	remove(h, b)
	waitGone(h, &corev1.Service{}, "web")
	waitNoSlices(h, "web")
}

// The deletion of an ExternalBackend with serviceRef deletes its slices and keeps the Service.
func TestDeletionKeepsReferencedService(t *testing.T) {
	h := parallel(t)
	h.ApplyService("web", "ports: [{name: web, port: 80}]")
	before := h.Service("web")
	h.ApplyBackend("ext",
		"serviceRef: {name: web}\nports: [{name: web, port: 80}]\ntargets: [{name: a, address: 198.51.100.1}]")
	b := h.WaitReady("ext")
	for _, s := range h.Slices("web") {
		if !metav1.IsControlledBy(&s, b) {
			t.Errorf("slice %s is owned by %v", s.Name, s.OwnerReferences)
		}
	}
	remove(h, b)
	waitNoSlices(h, "web")
	if after := h.Service("web"); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("the Service was written to: %v", after.ManagedFields)
	}
}

// Whatever others change in our objects is reverted. An object that was not deleted stays the same
// object.
func TestChangesByOthersAreReverted(t *testing.T) {
	h := parallel(t)
	h.ApplyBackend("web", dualStack)
	h.WaitReady("web")
	inService := func(change func(*corev1.Service)) func(*harness.Test) {
		return func(h *harness.Test) { edit(h, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"}}, change) }
	}
	inSlices := func(change func(*discoveryv1.EndpointSlice)) func(*harness.Test) {
		return func(h *harness.Test) {
			for _, s := range h.Slices("web") {
				edit(h, &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: s.Name}}, change)
			}
		}
	}
	// These slices are replaced: endpoints with other ports belong into another slice, and a slice
	// without our labels and annotations may belong to others.
	replaced := []string{"slices: ports", "slices: no ports", "slices: nothing of ours in the metadata"}
	for _, tc := range []struct {
		name   string
		change func(*harness.Test)
	}{
		{"service: ports", inService(func(s *corev1.Service) { s.Spec.Ports[0].Port = 81 })},
		{"service: a port more", inService(func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "more", Port: 90})
		})},
		{"service: target port", inService(func(s *corev1.Service) { s.Spec.Ports[0].TargetPort.IntVal = 99 })},
		{"service: app protocol", inService(func(s *corev1.Service) { s.Spec.Ports[0].AppProtocol = nil })},
		{"service: type", inService(func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort })},
		{"service: affinity", inService(func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })},
		{"service: not ready addresses", inService(func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true })},
		{"service: internal traffic policy", inService(func(s *corev1.Service) {
			s.Spec.InternalTrafficPolicy = new(corev1.ServiceInternalTrafficPolicyLocal)
		})},
		{"service: traffic distribution", inService(func(s *corev1.Service) {
			s.Spec.TrafficDistribution = new(corev1.ServiceTrafficDistributionPreferSameZone)
		})},
		{"service: its labels", inService(func(s *corev1.Service) { s.Labels = nil })},
		{"service: values of its labels",
			inService(func(s *corev1.Service) { s.Labels["team"], s.Labels[v1alpha1.LabelName] = "other", "other" })},
		{"service: its annotations", inService(func(s *corev1.Service) { s.Annotations = nil })},
		{"service: its owner", inService(func(s *corev1.Service) { s.OwnerReferences = nil })},
		{"slices: conditions", inSlices(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Ready = new(false) })},
		{"slices: no conditions",
			inSlices(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions = discoveryv1.EndpointConditions{} })},
		{"slices: an endpoint more", inSlices(func(s *discoveryv1.EndpointSlice) {
			e := *s.Endpoints[0].DeepCopy()
			e.Addresses = []string{"198.51.100.99"}
			if s.AddressType == discoveryv1.AddressTypeIPv6 {
				e.Addresses = []string{"2001:db8::99"}
			}
			s.Endpoints = append(s.Endpoints, e)
		})},
		{"slices: no endpoints", inSlices(func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil })},
		{"slices: zones", inSlices(func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Zone = new("elsewhere") })},
		{"slices: a target reference", inSlices(func(s *discoveryv1.EndpointSlice) {
			s.Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "some"}
		})},
		{"slices: ports", inSlices(func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = new(int32(1)) })},
		{"slices: no ports", inSlices(func(s *discoveryv1.EndpointSlice) { s.Ports = nil })},
		{"slices: labels of spec.service", inSlices(func(s *discoveryv1.EndpointSlice) { s.Labels["team"] = "other" })},
		{"slices: the Service's name",
			inSlices(func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelServiceName] = "other" })},
		{"slices: the manager's name",
			inSlices(func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelManagedBy] = "somebody" })},
		{"slices: the backend's name",
			inSlices(func(s *discoveryv1.EndpointSlice) { s.Labels[v1alpha1.LabelName] = "other" })},
		{"slices: no labels", inSlices(func(s *discoveryv1.EndpointSlice) { s.Labels = nil })},
		{"slices: our annotation", inSlices(func(s *discoveryv1.EndpointSlice) { s.Annotations = nil })},
		{"slices: a broken annotation",
			inSlices(func(s *discoveryv1.EndpointSlice) { s.Annotations["external-backend.io/endpoints"] = "{broken" })},
		{"slices: no owner", inSlices(func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil })},
		{"slices: nothing of ours in the metadata",
			inSlices(func(s *discoveryv1.EndpointSlice) { s.Labels, s.Annotations = nil, nil })},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			same := !slices.Contains(replaced, tc.name)
			before := takeSnapshot(h, "web", same)
			tc.change(h)
			waitSnapshot(h, "web", before, same)
		})
	}
}

// Our objects are created again under the same names when others delete them.
func TestDeletedObjectsAreCreatedAgain(t *testing.T) {
	h := parallel(t)
	h.ApplyBackend("web", dualStack)
	h.WaitReady("web")
	names := func(p snapshot) []string { return slices.Sorted(maps.Keys(p.Slices)) }
	before, endpoints := takeSnapshot(h, "web", true), h.Endpoints("web")
	deleteService := func(h *harness.Test, options ...client.DeleteOption) []types.UID {
		service := h.Service("web")
		remove(h, service, options...)
		return []types.UID{service.UID}
	}
	for _, tc := range []struct {
		name   string
		delete func(h *harness.Test) []types.UID // returns the UIDs of the deleted objects
	}{
		{"a slice", func(h *harness.Test) []types.UID {
			slice := h.Slices("web")[0]
			remove(h, &slice)
			return []types.UID{slice.UID}
		}},
		{"all slices", func(h *harness.Test) (gone []types.UID) {
			for _, slice := range h.Slices("web") {
				gone = append(gone, slice.UID)
			}
			all, ours := &discoveryv1.EndpointSlice{}, client.InNamespace(h.Namespace)
			if err := h.Client.DeleteAllOf(h.T.Context(), all, ours); err != nil {
				h.T.Fatal(err)
			}
			return gone
		}},
		{"the Service", func(h *harness.Test) []types.UID { return deleteService(h) }},
		{"the Service alone", func(h *harness.Test) []types.UID {
			return deleteService(h, client.PropagationPolicy(metav1.DeletePropagationOrphan))
		}},
		{"the Service in the foreground", func(h *harness.Test) []types.UID {
			return deleteService(h, client.PropagationPolicy(metav1.DeletePropagationForeground))
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			gone := tc.delete(h)
			h.Eventually("all objects to be created again", func() error {
				now := takeSnapshot(h, "web", true)
				if diff := gocmp.Diff(names(before), names(now)); diff != "" {
					return errors.New("slices, -want +got:\n" + diff)
				}
				if diff := gocmp.Diff(before.Service.Labels, now.Service.Labels); diff != "" || len(now.Service.Owners) != 1 ||
					slices.Contains(gone, types.UID(now.Service.UID)) {
					return fmt.Errorf("the Service is %+v", now.Service)
				}
				for name, s := range now.Slices {
					if len(s.Owners) != 1 || string(s.Owners[0].UID) != now.Service.UID || slices.Contains(gone, types.UID(s.UID)) {
						return fmt.Errorf("slice %s is %s and has owners %v", name, s.UID, s.Owners)
					}
				}
				if diff := gocmp.Diff(endpoints, h.Endpoints("web"), gocmp.Comparer(sameEndpoint)); diff != "" {
					return errors.New("endpoints, -want +got:\n" + diff)
				}
				return nil
			})
		})
	}
}

func sameEndpoint(a, b harness.Endpoint) bool { return a == b }

// Labels, annotations and finalizers that others add to our objects survive our writes. Labels and
// annotations of spec.service leave with it. Those of the ExternalBackend are not copied.
func TestMetadataOfOthersStays(t *testing.T) {
	h := parallel(t)
	spec := func(labels, annotations, targets string) string {
		return fmt.Sprintf(
			"service: {labels: {%s}, annotations: {%s}, ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}\nports: [{name: web, port: 80}]\ntargets: [%s]",
			labels,
			annotations,
			targets,
		)
	}
	const a, ab = "{name: a, address: 198.51.100.1}", "{name: a, address: 198.51.100.1}, {name: b, address: 198.51.100.2}"
	h.ApplyBackend("web", spec("team: shop, tier: db", "example.com/note: hello, example.com/more: x", a))
	h.WaitReady("web")
	edit(h, h.Backend("web"), func(b *v1alpha1.ExternalBackend) {
		b.Labels = map[string]string{"on-the-backend": "yes"}
		b.Annotations = map[string]string{"example.com/on-the-backend": "yes"}
	})
	mark := func(o client.Object) {
		metav1.SetMetaDataLabel(o.(metav1.ObjectMetaAccessor).GetObjectMeta().(*metav1.ObjectMeta),
			"example.com/theirs", "yes")
		o.SetAnnotations(with(o.GetAnnotations(), "example.com/theirs", "yes"))
		o.SetFinalizers([]string{"example.com/theirs"})
	}
	service, slice := h.Service("web"), h.Slices("web")[0]
	edit(h, service, func(s *corev1.Service) { mark(s) })
	edit(h, &slice, func(s *discoveryv1.EndpointSlice) { mark(s) })
	free := func() {
		edit(h, &corev1.Service{ObjectMeta: service.ObjectMeta}, func(s *corev1.Service) { s.Finalizers = nil })
		edit(h, &discoveryv1.EndpointSlice{ObjectMeta: slice.ObjectMeta},
			func(s *discoveryv1.EndpointSlice) { s.Finalizers = nil })
	}

	h.ApplyBackend("web", spec("team: shop", "example.com/note: changed", ab))
	h.WaitStates("web", harness.All(harness.Healthy, at("198.51.100.1:80"), at("198.51.100.2:80")))
	waitProgrammed(h, "web")
	h.Eventually("labels and annotations", func() error {
		now := takeSnapshot(h, "web", true)
		serviceLabels := map[string]string{"team": "shop", "example.com/theirs": "yes", v1alpha1.LabelName: "web"}
		if diff := gocmp.Diff(serviceLabels, now.Service.Labels); diff != "" {
			return errors.New("labels of the Service, -want +got:\n" + diff)
		}
		notes := maps.Clone(now.Service.Annotations)
		maps.DeleteFunc(notes, func(key, _ string) bool { return key == "external-backend.io/service-keys" })
		wantNotes := map[string]string{"example.com/note": "changed", "example.com/theirs": "yes"}
		if diff := gocmp.Diff(wantNotes, notes); diff != "" {
			return errors.New("annotations of the Service, -want +got:\n" + diff)
		}
		is, ok := now.Slices[slice.Name]
		if !ok || is.UID != string(slice.UID) || now.Service.UID != string(service.UID) {
			return fmt.Errorf("the slice or the Service was replaced: %+v", now)
		}
		if is.Labels["example.com/theirs"] != "yes" || is.Annotations["example.com/theirs"] != "yes" ||
			is.Labels["tier"] != "" ||
			is.Labels["on-the-backend"] != "" {
			return fmt.Errorf("the slice is %+v", is)
		}
		return nil
	})
	if s := h.Service("web"); !slices.Equal(s.Finalizers, []string{"example.com/theirs"}) {
		t.Errorf("the Service's finalizers are %v", s.Finalizers)
	}
	if s := h.Slices("web")[0]; !slices.Equal(s.Finalizers, []string{"example.com/theirs"}) {
		t.Errorf("the slice's finalizers are %v", s.Finalizers)
	}

	// A finalizer of others blocks the deletion of Service and slice, but not of the ExternalBackend.
	remove(h, h.Backend("web"))
	waitGone(h, &v1alpha1.ExternalBackend{}, "web")
	free()
	waitGone(h, &corev1.Service{}, "web")
	waitNoSlices(h, "web")
}

// with returns a copy of m with one more entry.
func with(m map[string]string, key, value string) map[string]string {
	out := maps.Clone(m)
	if out == nil {
		out = map[string]string{}
	}
	out[key] = value
	return out
}

// A selector that others set on our Service is removed, and so are the objects that the core
// controllers created for it.
func TestSelectorIsRemoved(t *testing.T) {
	h := parallel(t)
	h.ApplyBackend("web", dualStack)
	h.WaitReady("web")
	before := takeSnapshot(h, "web", true)
	edit(h, h.Service("web"), func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "web"} })
	h.WaitEvent("web", "SelectorRemoved")
	waitSnapshot(h, "web", before, true)
	waitProgrammed(h, "web")
}

// The same happens if the selector was set while no manager ran, so that kube-controller-manager
// has finished its work.
func TestSelectorSetWithoutManagerIsRemoved(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager()
	h.ApplyBackend("web", dualStack)
	h.WaitReady("web")
	before := takeSnapshot(h, "web", true)
	m.Stop()
	edit(h, h.Service("web"), func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "web"} })
	h.Eventually("the core controllers to create their objects", func() error {
		if n := len(h.Slices("web")); n < 3 {
			return fmt.Errorf("there are %d slices", n)
		}
		return h.Client.Get(t.Context(), h.Key("web"), &corev1.Endpoints{})
	})
	h.StartManager()
	h.WaitEvent("web", "SelectorRemoved")
	waitSnapshot(h, "web", before, true)
	waitProgrammed(h, "web")
	h.WaitReady("web")
}
