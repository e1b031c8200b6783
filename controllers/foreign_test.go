package controllers

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/probe"
)

// TestForeignServiceGetsNoEndpoints: no endpoint of ours stays behind a Service that has become
// somebody else's.
func TestForeignServiceGetsNoEndpoints(t *testing.T) {
	env := literalEnv(t)
	if n := len(env.endpoints()); n != 2 {
		t.Fatalf("%d endpoints", n)
	}
	var s corev1.Service
	env.ok(env.live.Get(t.Context(), shop, &s))
	env.ok(env.live.Delete(t.Context(), &s))
	env.ok(env.live.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:      shop.Name,
			Namespace: shop.Namespace,
			UID:       "uid-of-theirs",
			Labels:    map[string]string{v1alpha1.LabelName: shop.Name},
		},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "shop"},
			Ports:    []corev1.ServicePort{{Name: "web", Port: 8000}},
		},
	}))
	env.settle()
	env.expectCondition(v1alpha1.ConditionProgrammed, "False ServiceConflict")
	if left := env.endpoints(); len(left) != 0 {
		t.Errorf("still behind it: %v", left)
	}

	env.ok(env.live.Get(t.Context(), shop, &s))
	if s.Spec.Selector["app"] != "shop" || len(s.OwnerReferences) != 0 || s.Spec.Ports[0].Name != "web" {
		t.Errorf("the label alone made it ours: %+v", s)
	}
}

// TestForeignServiceMissingFromTheCacheGetsNoEndpoints: a Service of somebody else that the cache
// does not show yet is found at the API server.
func TestForeignServiceMissingFromTheCacheGetsNoEndpoints(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(literalSpec)
	env.refresh()
	env.ok(env.live.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: shop.Name, Namespace: shop.Namespace},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
	}))
	_, err := env.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: shop})
	env.ok(err)
	env.settle()
	env.expectCondition(v1alpha1.ConditionProgrammed, "False ServiceConflict")
	if got := env.endpoints(); len(got) != 0 {
		t.Errorf("behind it: %v", got)
	}
}

// TestProtectedServiceLosesItsEndpoints: endpoints behind a Service that becomes protected are
// removed.
func TestProtectedServiceLosesItsEndpoints(t *testing.T) {
	env := literalEnv(t)
	env.reconciler.Options.Protected = map[types.NamespacedName]bool{shop: true}
	env.settle()
	env.expectCondition(v1alpha1.ConditionProgrammed, `False ServiceConflict: Service "shop" is protected.`)
	if left := env.endpoints(); len(left) != 0 {
		t.Errorf("still behind it: %v", left)
	}
}

// TestServiceWithoutOurMarksIsNotWritten: a Service that has lost our marks, and is nobody else's,
// is not written. Its endpoints follow the probes.
func TestServiceWithoutOurMarksIsNotWritten(t *testing.T) {
	env := literalEnv(t)
	var s corev1.Service
	env.ok(env.live.Get(t.Context(), shop, &s))
	s.Labels, s.OwnerReferences = nil, nil
	env.ok(env.live.Update(t.Context(), &s))
	setVerdict(probe.Unhealthy, 1, 2)(env)
	env.settle()
	env.expectCondition(v1alpha1.ConditionProgrammed, "False ServiceConflict")
	for a, e := range env.endpoints() {
		if want := a == netip.MustParseAddr("203.0.113.2"); e.Ready != want {
			t.Errorf("%s ready=%t", a, e.Ready)
		}
	}
	if len(env.endpoints()) != 2 {
		t.Errorf("%d endpoints", len(env.endpoints()))
	}
}

// TestServiceOfADeletedAdopterCanBeAdopted: another ExternalBackend can adopt a Service that
// outlived its adopter.
func TestServiceOfADeletedAdopterCanBeAdopted(t *testing.T) {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:      shop.Name,
			Namespace: shop.Namespace,
			UID:       "uid-of-service",
			Labels:    map[string]string{v1alpha1.LabelName: "former"},
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.7", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	former := &v1alpha1.ExternalBackend{
		ObjectMeta: metav1.ObjectMeta{Name: "former", Namespace: shop.Namespace, UID: "uid-of-former"},
	}
	former.Spec.Service = &v1alpha1.Service{Name: shop.Name}
	env := newTestEnv(t, service, former)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(strings.Replace(literalSpec, "{ports", "{service: {adoptionPolicy: IfSelectorless}, ports", 1))
	env.settle()
	env.expectCondition(v1alpha1.ConditionProgrammed, `False ServiceConflict: Service "shop" is there already `+
		`and is not this ExternalBackend's: ExternalBackend "former" has adopted it`)
	env.ok(env.live.Delete(t.Context(), former))
	env.settle()
	env.expectCondition(v1alpha1.ConditionReady, "True")
}

// TestForeignSlicesStayUntilTheServiceIsOurs: slices of others behind a Service are not deleted
// while the Service can't be adopted.
func TestForeignSlicesStayUntilTheServiceIsOurs(t *testing.T) {
	adoption := scenarios[len(scenarios)-1]
	env := newTestEnv(t, adoption.objects()...)
	env.refuse = refuseServices
	for _, step := range adoption.steps {
		step(env)
		env.settle()
	}
	env.expectCondition(v1alpha1.ConditionProgrammed, "False ApplyFailed")
	var s discoveryv1.EndpointSlice
	if err := env.live.Get(t.Context(), client.ObjectKey{Namespace: shop.Namespace, Name: "by-hand"}, &s); err != nil {
		t.Errorf("the slice of others: %v", err)
	}
}

// eventReasons are the reasons of the events of a recorder.
type eventReasons []string

func (r *eventReasons) Eventf(_, _ runtime.Object, _, reason, _, _ string, _ ...any) {
	*r = append(*r, reason)
}

// TestForeignEndpointsAreMarkedOnce: Endpoints that are taken over are marked and reported once,
// however long the cache takes to show the mark.
func TestForeignEndpointsAreMarkedOnce(t *testing.T) {
	service := scenarios[len(scenarios)-1].objects()[0]
	endpoints := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: shop.Name, Namespace: shop.Namespace, UID: "uid-of-endpoints"},
		Subsets: []corev1.EndpointSubset{ //nolint:staticcheck // existing ones must be taken over
			{Addresses: []corev1.EndpointAddress{{IP: "203.0.113.1"}}, Ports: []corev1.EndpointPort{{Name: "http", Port: 8080}}},
		},
	}
	env := newTestEnv(t, service, endpoints)
	reported := &eventReasons{}
	env.reconciler.Recorder = reported
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(strings.Replace(literalSpec, "{ports", "{service: {adoptionPolicy: IfSelectorless}, ports", 1))
	env.refresh()
	for range 4 { // the cache shows none of the writes
		_, err := env.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: shop})
		env.ok(err)
	}
	n := 0
	for _, reason := range *reported {
		if reason == eventForeignRemoved {
			n++
		}
	}
	if n != 1 {
		t.Errorf("reported %d times: %v", n, *reported)
	}
	env.settle()
	env.ok(env.live.Get(t.Context(), shop, endpoints))
	if endpoints.Labels[discoveryv1.LabelSkipMirror] != "true" {
		t.Error("the Endpoints are not marked")
	}
}

// TestSlicesOfOtherManagersAreKept: another manager of EndpointSlices makes our Service the
// controller of its slices. They are not ours to delete.
func TestSlicesOfOtherManagersAreKept(t *testing.T) {
	env := literalEnv(t)
	var s corev1.Service
	env.ok(env.live.Get(t.Context(), shop, &s))
	owner := metav1.NewControllerRef(&s, corev1.SchemeGroupVersion.WithKind("Service"))
	theirs := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: "theirs", Namespace: shop.Namespace, OwnerReferences: []metav1.OwnerReference{*owner},
			Labels: map[string]string{
				discoveryv1.LabelServiceName: shop.Name, discoveryv1.LabelManagedBy: "endpointslice.mesh.example.com",
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"198.51.100.1"}}},
	}
	env.ok(env.live.Create(t.Context(), theirs))
	env.settle()
	env.expectCondition(v1alpha1.ConditionProgrammed,
		`False ServiceConflict: Behind Service "shop" there are endpoints of others: EndpointSlice "theirs"`)
	if n := len(env.endpoints()); n != 3 {
		t.Errorf("%d endpoints, want our two and theirs\n%s", n, env.state())
	}
}

// TestTakenSliceNameIsSkipped: if somebody else's object has the name of our next slice, another
// name is used.
func TestTakenSliceNameIsSkipped(t *testing.T) {
	env := literalEnv(t)
	for _, o := range env.objects() {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok {
			env.ok(env.live.Delete(t.Context(), s))
			env.ok(env.live.Create(t.Context(), &discoveryv1.EndpointSlice{
				ObjectMeta:  metav1.ObjectMeta{Name: s.Name, Namespace: s.Namespace},
				AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{},
			}))
		}
	}
	env.restart()
	env.settle()
	if n := len(env.endpoints()); n != 2 {
		t.Errorf("%d endpoints are published\n%s", n, env.state())
	}
	env.expectCondition(v1alpha1.ConditionReady, "True")
}

// TestPassthroughSlicesHaveDistinctNames: two ExternalBackends whose long names begin alike each
// publish a slice.
func TestPassthroughSlicesHaveDistinctNames(t *testing.T) {
	env := newTestEnv(t)
	long := "a-very-long-name-for-a-backend-in-production-"
	for _, name := range []string{long + "one", long + "two"} {
		b := &v1alpha1.ExternalBackend{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: shop.Namespace, UID: types.UID(name), Generation: 1},
		}
		b.Spec = v1alpha1.ExternalBackendSpec{
			Service: &v1alpha1.Service{Type: v1alpha1.ServiceTypeHeadless},
			DNS:     &v1alpha1.DNS{Resolution: v1alpha1.DNSResolutionPassthrough},
			Ports:   []v1alpha1.Port{{Name: "smtp", Port: 25, Protocol: corev1.ProtocolTCP}},
			Targets: []v1alpha1.Target{{Name: "t", Hostname: "smtp.example.com"}},
		}
		env.ok(env.live.Create(t.Context(), b))
		env.writes++
		for range 3 {
			env.reconcileNamed(name)
		}
	}
	var services []string
	for _, s := range env.slices() {
		services = append(services, s.Labels[discoveryv1.LabelServiceName])
	}
	slices.Sort(services)
	if want := []string{long + "one", long + "two"}; !slices.Equal(services, want) {
		t.Errorf("slices of %v, want of %v", services, want)
	}
}
