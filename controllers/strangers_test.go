package controllers

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/probe"
)

const literalSpec = `{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], targets: [{name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.2}], healthCheck: {tcpSocket: {}}}`

// literalEnv returns a testEnv in which literalSpec is published and healthy.
func literalEnv(t *testing.T) *testEnv {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(literalSpec)
	env.settle()
	return env
}

// backend is the ExternalBackend as the API server has it.
func (env *testEnv) backend() *v1alpha1.ExternalBackend {
	env.t.Helper()
	var b v1alpha1.ExternalBackend
	env.ok(env.live.Get(env.t.Context(), shop, &b))
	return &b
}

// condition is "Status Reason: message".
func (env *testEnv) condition(kind string) string {
	env.t.Helper()
	c := meta.FindStatusCondition(env.backend().Status.Conditions, kind)
	if c == nil {
		return ""
	}
	return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
}

func (env *testEnv) expect(kind, want string) {
	env.t.Helper()
	if got := env.condition(kind); !strings.HasPrefix(got, want) {
		env.t.Errorf("%s is %q, want %q", kind, got, want)
	}
}

// TestMadeAnew: an ExternalBackend that is made anew under the same name before anyone saw it go
// gets a status of its own, whole.
func TestMadeAnew(t *testing.T) {
	env := literalEnv(t)
	env.ok(env.live.Delete(t.Context(), env.backend()))
	env.spec(literalSpec)
	b := env.backend()
	b.UID = "uid-of-another-shop"
	env.ok(env.live.Delete(t.Context(), env.backend()))
	b.ResourceVersion = ""
	env.ok(env.live.Create(t.Context(), b))
	env.settle()
	env.expect(v1alpha1.ConditionAccepted, "True")
	env.expect(v1alpha1.ConditionProgrammed, `False ApplyFailed: Service "shop" belongs to an earlier ExternalBackend`)
	env.expect(v1alpha1.ConditionStalled, "")

	var s corev1.Service
	env.ok(env.live.Get(t.Context(), shop, &s))
	env.ok(env.live.Delete(t.Context(), &s)) // the garbage collector's work
	env.settle()
	env.expect(v1alpha1.ConditionReady, "True")

	old, anew := env.backend(), env.backend()
	anew.UID = "uid-of-a-third-shop"
	if !specChanged(event.UpdateEvent{ObjectOld: old, ObjectNew: anew}) ||
		specChanged(event.UpdateEvent{ObjectOld: old, ObjectNew: old}) {
		t.Error("an update that shows another object is not told from one of the same")
	}
}

// TestServiceOfOthers: behind a Service that has become someone else's nothing of ours stays.
func TestServiceOfOthers(t *testing.T) {
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
	env.expect(v1alpha1.ConditionProgrammed, "False ServiceConflict")
	if left := env.endpoints(); len(left) != 0 {
		t.Errorf("still behind it: %v", left)
	}
	env.ok(env.live.Get(t.Context(), shop, &s))
	if s.Spec.Selector["app"] != "shop" || len(s.OwnerReferences) != 0 || s.Spec.Ports[0].Name != "web" {
		t.Errorf("the label alone made it ours: %+v", s)
	}
}

// TestAdoptedAnew: a Service that survived the ExternalBackend which had adopted it can be adopted
// by another.
func TestAdoptedAnew(t *testing.T) {
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
	env.expect(
		v1alpha1.ConditionProgrammed,
		`False ServiceConflict: Service "shop" is there already and is not this ExternalBackend's: ExternalBackend "former" has adopted it`,
	)
	env.ok(env.live.Delete(t.Context(), former))
	env.settle()
	env.expect(v1alpha1.ConditionReady, "True")
}

// TestOtherManagers: slices that another manager of EndpointSlices keeps behind our Service have
// that as their controller, and are not ours to delete.
func TestOtherManagers(t *testing.T) {
	env := literalEnv(t)
	var s corev1.Service
	env.ok(env.live.Get(t.Context(), shop, &s))
	theirs := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "theirs", Namespace: shop.Namespace, Labels: map[string]string{
			discoveryv1.LabelServiceName: shop.Name, discoveryv1.LabelManagedBy: "endpointslice.mesh.example.com",
		}, OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(&s, corev1.SchemeGroupVersion.WithKind("Service"))}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"198.51.100.1"}}},
	}
	env.ok(env.live.Create(t.Context(), theirs))
	env.settle()
	env.expect(
		v1alpha1.ConditionProgrammed,
		`False ServiceConflict: Behind Service "shop" there are endpoints of others: EndpointSlice "theirs"`,
	)
	if n := len(env.endpoints()); n != 3 {
		t.Errorf("%d endpoints, want our two and theirs\n%s", n, env.state())
	}
}

// TestRefusalIsTriedAgain: what the API server refuses may be mended by time, such as a node port
// in use.
func TestRefusalIsTriedAgain(t *testing.T) {
	env := newTestEnv(t)
	env.fault = func(n int) fault {
		if n > 1 { // the status
			return fault{}
		}
		return fault{err: apierrors.NewInvalid(schema.GroupKind{Kind: "Service"}, shop.Name, nil)}
	}
	env.spec(literalSpec)
	env.refresh()
	result, err := env.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: shop})
	if err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > 30*time.Second {
		t.Errorf("tried again after %v, error %v; want after 30 s, and no error", result.RequeueAfter, err)
	}
}

// TestRefusedWhileInvalid: a spec that can't be acted on keeps what it had, but for what policy
// refuses.
func TestRefusedWhileInvalid(t *testing.T) {
	env := literalEnv(t)
	env.spec(unknownPort)
	env.settle()
	env.expect(v1alpha1.ConditionAccepted, "False InvalidSpec")
	if n := len(env.endpoints()); n != 2 {
		t.Fatalf("%d endpoints of an invalid spec, want both as before", n)
	}
	env.reconciler.policies.declared = []netip.Prefix{netip.MustParsePrefix("203.0.113.1/32")}
	env.reconciler.policies.rulesChanged()
	env.settle()
	if _, ok := env.endpoints()[netip.MustParseAddr("203.0.113.2")]; !ok || len(env.endpoints()) != 1 {
		t.Errorf("published: %v", env.endpoints())
	}
	env.expect(v1alpha1.ConditionPermitted, `False TargetDenied: Refused by policy: target "a" (`)
	if strings.Contains(env.condition(v1alpha1.ConditionPermitted), "203.0.113") {
		t.Error("the message holds the refused address")
	}
	if got := env.backend().Status.Endpoints.ReadyOfTotal; got != "1/1" {
		t.Errorf("readyOfTotal %s", got)
	}
}

// unknownPort is literalSpec with something that the schema can't refuse.
var unknownPort = strings.Replace(
	literalSpec,
	"{name: a, address: 203.0.113.1}",
	"{name: a, address: 203.0.113.1, ports: [{name: nope, targetPort: 1}]}",
	1,
)

// TestLastValidSpecHolds: as long as a spec can't be acted on, the one before it is in force:
// health, names and policy go on, and nothing of the invalid one holds.
func TestLastValidSpecHolds(t *testing.T) {
	env := newTestEnv(t)
	setAnswer(1, 3)(env)
	setVerdict(probe.Healthy, 1, 9)(env)
	env.spec(poolSpec)
	env.settle()
	env.spec(strings.Replace(unknownPort, "tcpSocket: {}", "tcpSocket: {}, mode: Observe", 1))
	env.settle()
	env.expect(v1alpha1.ConditionAccepted, "False InvalidSpec")
	env.expect(v1alpha1.ConditionReady, "False InvalidSpec")
	env.expectReady("http", "203.0.113.1", "203.0.113.2")

	setAnswer(2, 5)(env)
	setVerdict(probe.Unhealthy, 3, 4)(env)
	env.settle()
	env.expectReady("http", "203.0.113.2", "203.0.113.4")
	env.expect(v1alpha1.ConditionHealthy, "False SomeUnhealthy: 2 of 3")
	b := env.backend()
	if s := b.Status; len(s.Targets) != 1 || s.Targets[0].Name != "pool" ||
		s.Targets[0].State != v1alpha1.TargetStateUnhealthy ||
		s.ObservedGeneration != b.Generation {
		t.Errorf("status: %+v", s)
	}
	if len(env.prober.order) != 3 {
		t.Errorf("probed: %v", env.prober.order)
	}

	env.spec(`{targets: [{name: a, address: 203.0.113.1, hostname: "", ports: null}], healthCheck: {mode: Enforce}}`)
	env.settle()
	env.expect(v1alpha1.ConditionReady, "True")
	env.expectReady("http", "203.0.113.1")
}

// TestPermittedAgainWhileInvalid: what policy withdraws while the spec is invalid comes back when
// policy allows it again, and status tells both, whether or not the manager knows what was valid.
func TestPermittedAgainWhileInvalid(t *testing.T) {
	for _, restart := range []bool{false, true} {
		for _, refused := range [][]string{{"203.0.113.1"}, {"203.0.113.1", "203.0.113.2"}} {
			t.Run(fmt.Sprintf("restart %t, refused %s", restart, refused), func(t *testing.T) {
				env := newTestEnv(t)
				setVerdict(probe.Healthy, 1, 3)(env)
				env.spec(`{service: {labels: {team: shop}}, ` + literalSpec[1:])
				env.settle()
				healthy := env.backend().Status.Targets
				env.spec(`{service: {labels: {"example.com/": x}}}`)
				env.settle()
				if restart {
					env.restart()
					env.settle()
				}
				env.reconciler.policies.declared = nil
				for _, a := range refused {
					env.reconciler.policies.declared = append(env.reconciler.policies.declared, netip.MustParsePrefix(a+"/32"))
				}
				env.reconciler.policies.rulesChanged()
				env.settle()
				env.expect(v1alpha1.ConditionPermitted, `False TargetDenied: Refused by policy: target "a" (`)
				if n := len(env.endpoints()); n != 2-len(refused) {
					t.Errorf("%d endpoints", n)
				}
				for i, target := range env.backend().Status.Targets {
					if denied := target.State == v1alpha1.TargetStateDenied && target.Reason == v1alpha1.ReasonTargetDenied && target.Addresses == nil; denied != (i < len(refused)) {
						t.Errorf("target %+v", target)
					}
				}

				env.reconciler.policies.declared = nil
				env.reconciler.policies.rulesChanged()
				env.refuse = func(o client.Object) error {
					if _, ok := o.(*discoveryv1.EndpointSlice); ok {
						return apierrors.NewTooManyRequests("slow down", 1)
					}
					return nil
				}
				if _, err := env.reconcile(); err == nil {
					t.Error("it is not tried again")
				}
				env.refuse = nothing
				env.settle()
				env.expect(v1alpha1.ConditionAccepted, "False InvalidSpec")
				env.expect(v1alpha1.ConditionPermitted, "True Permitted")
				env.expectReady("http", "203.0.113.1", "203.0.113.2")
				if diff := cmp.Diff(healthy, env.backend().Status.Targets, cmpopts.IgnoreTypes(&metav1.Time{})); diff != "" {
					t.Errorf("targets (-before +after):\n%s", diff)
				}
				if got := env.backend().Status.Endpoints.ReadyOfTotal; got != "2/2" {
					t.Errorf("readyOfTotal %s", got)
				}
				for _, o := range env.objects() {
					if s, ok := o.(*discoveryv1.EndpointSlice); ok && s.Labels["team"] != "shop" {
						t.Errorf("labels %v", s.Labels)
					}
				}
			})
		}
	}
}

// TestRenamedWhileInvalid: a target that is renamed by a spec that can't be acted on keeps the
// addresses that only its name allows, until policy refuses that.
func TestRenamedWhileInvalid(t *testing.T) {
	env := newTestEnv(t)
	rules := func(hostnames ...string) {
		p := v1alpha1.ExternalBackendPolicy{
			Spec: v1alpha1.ExternalBackendPolicySpec{Allow: []v1alpha1.PolicyRule{{Hostnames: hostnames}}},
		}
		set, problems := policy.Compile(policy.Input{Policies: []v1alpha1.ExternalBackendPolicy{p}})
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		env.reconciler.policies.set = set
	}
	published := func(when string, want int) {
		t.Helper()
		env.settle()
		if n := len(env.endpoints()); n != want {
			t.Errorf("%s: %d endpoints, want %d", when, n, want)
		}
	}
	rules("*.example.com")
	setAnswer(1, 3)(env)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(poolSpec)
	published("valid", 2)
	const renamed = `{targets: [{name: renamed, hostname: pool.example.com, ports: [{name: nope, targetPort: 1}]}]}`
	env.spec(renamed)
	published("renamed", 2)
	env.expect(v1alpha1.ConditionAccepted, "False InvalidSpec")
	env.expect(v1alpha1.ConditionPermitted, "True")
	env.restart()
	rules("*.example.com")
	published("after a restart", 2)
	env.reconciler.policies.declared = []netip.Prefix{netip.MustParsePrefix("203.0.113.1/32")}
	env.reconciler.policies.rulesChanged()
	published("one of them refused whatever its name", 1)

	env.spec(`{targets: [{name: pool, hostname: pool.example.com, ports: null}]}`)
	rules("*.example.com")
	published("valid again", 2)
	env.spec(renamed)
	rules("*.example.org")
	published("a name that is not allowed any more", 0)
}

// TestPassthroughNames: two backends whose long names begin alike publish each its own slice.
func TestPassthroughNames(t *testing.T) {
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
			env.refresh()
			if _, err := env.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Namespace: shop.Namespace, Name: name}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var services []string
	for _, o := range env.objects() {
		if o.GetObjectKind().GroupVersionKind().Kind == "EndpointSlice" ||
			strings.Contains(fmt.Sprintf("%T", o), "EndpointSlice") {
			services = append(services, o.GetLabels()["kubernetes.io/service-name"])
		}
	}
	slices.Sort(services)
	if want := []string{long + "one", long + "two"}; !slices.Equal(services, want) {
		t.Errorf("slices of %v, want of %v", services, want)
	}
}

// TestStatusEdited: what someone writes into the status is mended.
func TestStatusEdited(t *testing.T) {
	env := literalEnv(t)
	before, b := env.backend(), env.backend()
	b.Status.Conditions = nil
	env.ok(env.live.Status().Patch(t.Context(), b, client.MergeFrom(before)))
	after := env.backend()
	if after.Status.Conditions != nil {
		t.Fatal("the status can't be edited")
	}
	if !env.reconciler.statusEdited(event.UpdateEvent{ObjectOld: before, ObjectNew: after}) {
		t.Error("nobody hears of it")
	}
	env.settle()
	env.expect(v1alpha1.ConditionReady, "True")
	if last := env.backend(); env.reconciler.statusEdited(event.UpdateEvent{ObjectOld: after, ObjectNew: last}) {
		t.Error("the operator's own write counts as an edit")
	}
}

// TestNameTaken: an object of someone else's that has the name of our next slice is passed over.
func TestNameTaken(t *testing.T) {
	env := literalEnv(t)
	for _, o := range env.objects() {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok {
			env.ok(env.live.Delete(t.Context(), s))
			env.ok(env.live.Create(t.Context(), &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Name:      s.Name,
					Namespace: s.Namespace,
				}, AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{},
			}))
		}
	}
	env.restart()
	env.settle()
	if n := len(env.endpoints()); n != 2 {
		t.Errorf("%d endpoints are published\n%s", n, env.state())
	}
	env.expect(v1alpha1.ConditionReady, "True")
}

// TestRefusedName: a name that policy refuses is not even asked for.
func TestRefusedName(t *testing.T) {
	env := newTestEnv(t)
	env.reconciler.policies.defaultDeny = true
	env.spec(poolSpec)
	env.settle()
	if len(env.resolver.seeds) != 0 {
		t.Errorf("asked for: %v", env.resolver.seeds)
	}
	env.expect(v1alpha1.ConditionPermitted, `False TargetDenied: Refused by policy: target "pool" (`)
	if got := env.backend().Status.Targets[0].State; got != v1alpha1.TargetStateDenied {
		t.Errorf("state %s", got)
	}
	env.reconciler.policies.defaultDeny = false
	env.reconciler.policies.rulesChanged()
	setAnswer(1, 3)(env)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.settle()
	env.expect(v1alpha1.ConditionPermitted, "True")
	if n := len(env.endpoints()); n != 2 {
		t.Errorf("%d endpoints", n)
	}
}

// TestMarksLost: a Service that has lost our marks, and is nobody else's, is no longer written;
// what stands behind it goes on following the probes.
func TestMarksLost(t *testing.T) {
	env := literalEnv(t)
	var s corev1.Service
	env.ok(env.live.Get(t.Context(), shop, &s))
	s.Labels, s.OwnerReferences = nil, nil
	env.ok(env.live.Update(t.Context(), &s))
	setVerdict(probe.Unhealthy, 1, 2)(env)
	env.settle()
	env.expect(v1alpha1.ConditionProgrammed, "False ServiceConflict")
	for a, e := range env.endpoints() {
		if want := a == netip.MustParseAddr("203.0.113.2"); e.Ready != want {
			t.Errorf("%s ready=%t", a, e.Ready)
		}
	}
	if len(env.endpoints()) != 2 {
		t.Errorf("%d endpoints", len(env.endpoints()))
	}
}

// TestPortRenamed: whatever name the Service has for its port, at every moment there are slices
// with that name for all endpoints.
func TestPortRenamed(t *testing.T) {
	env := literalEnv(t)
	look := func(when string) {
		var s corev1.Service
		env.ok(env.live.Get(t.Context(), shop, &s))
		of := map[string]int{}
		for _, o := range env.objects() {
			if slice, ok := o.(*discoveryv1.EndpointSlice); ok {
				of[*slice.Ports[0].Name] += len(slice.Endpoints)
			}
		}
		if name := s.Spec.Ports[0].Name; of[name] != 2 {
			t.Errorf("%s: the Service's port is %q, and there are endpoints %v", when, name, of)
		}
	}
	env.fault = func(n int) fault { look(fmt.Sprintf("before write %d", n)); return fault{} }
	env.spec(`{ports: [{name: web, port: 80, targetPort: 8080, protocol: TCP}]}`)
	env.settle()
	look("at the end")
	if got := env.backend().Spec.Ports[0].Name; got != "web" {
		t.Fatal(got)
	}
	env.expect(v1alpha1.ConditionReady, "True")
}

// TestOrphaned: who deletes an ExternalBackend and wants to keep its Service keeps it, however late
// the manager hears of the deletion.
func TestOrphaned(t *testing.T) {
	env := literalEnv(t)
	strip := func() { // as the garbage collector does
		var s corev1.Service
		env.ok(env.live.Get(t.Context(), shop, &s))
		s.OwnerReferences = nil
		env.ok(env.live.Update(t.Context(), &s))
	}
	owned := func() bool {
		var s corev1.Service
		env.ok(env.live.Get(t.Context(), shop, &s))
		return metav1.GetControllerOf(&s) != nil
	}
	strip()
	env.settle()
	if !owned() {
		t.Error("a lost owner is not given back")
	}

	b := env.backend()
	b.Finalizers = []string{"orphan"}
	env.ok(env.live.Update(t.Context(), b))
	env.settle() // the cache has seen that, and what follows it has not
	before := env.cache
	strip()
	env.refresh()
	showsService := env.cache
	env.ok(env.live.Delete(t.Context(), env.backend()))
	env.cache, env.shown = showsService, env.writes
	if _, err := env.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: shop}); err != nil {
		t.Error(err)
	}
	if before == showsService {
		t.Fatal("the cache shows nothing new")
	}
	if owned() {
		t.Error("the Service is owned again, and goes with its ExternalBackend")
	}
}

// TestProtectedLater: what stands behind a Service that comes under protection goes.
func TestProtectedLater(t *testing.T) {
	env := literalEnv(t)
	env.reconciler.Options.Protected = map[types.NamespacedName]bool{shop: true}
	env.settle()
	env.expect(v1alpha1.ConditionProgrammed, `False ServiceConflict: Service "shop" is protected.`)
	if left := env.endpoints(); len(left) != 0 {
		t.Errorf("still behind it: %v", left)
	}
}

// TestUnreadAnnotation: after a restart that finds annotations it can't read nothing leaves, and no
// condition changes, before names and verdicts are known.
func TestUnreadAnnotation(t *testing.T) {
	const spec = `{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], healthCheck: {tcpSocket: {}},
		targets: [{name: pool, hostname: pool.example.com, tier: 1}, {name: fixed, address: 203.0.113.200}]}`
	for _, text := range []string{"", "v2:pool*2~0000", "v1:pool^1*2~0000"} {
		t.Run(text, func(t *testing.T) {
			env := newTestEnv(t)
			setAnswer(1, 3)(env)
			setVerdict(probe.Healthy, 1, 3)(env)
			setVerdict(probe.Unhealthy, 200, 201)(env)
			env.spec(spec)
			env.settle()
			want := conditionsByAddress(env.endpoints())
			for _, o := range env.objects() {
				if s, ok := o.(*discoveryv1.EndpointSlice); ok {
					s.Annotations["external-backend.io/endpoints"] = text
					env.ok(env.live.Update(t.Context(), s))
				}
			}
			known, verdicts := env.resolver.known, env.prober.verdicts
			expect := func(when string) {
				env.settle()
				if got := conditionsByAddress(env.endpoints()); !maps.Equal(want, got) {
					t.Errorf("%s: %v, before the restart it was %v", when, got, want)
				}
			}

			env.resolver.known, env.prober.verdicts = nil, nil
			env.restart()
			expect("nothing is known")
			env.resolver.known = known
			expect("the name has its answer")
			env.prober.verdicts = verdicts
			expect("the verdicts are there")
			for _, e := range env.endpoints() {
				if e.Target == "" {
					t.Errorf("%s is of no target in the end", e.Addr)
				}
			}
		})
	}
}

func conditionsByAddress(endpoints map[netip.Addr]endpointslice.Endpoint) map[netip.Addr][3]bool {
	out := map[netip.Addr][3]bool{}
	for addr, e := range endpoints {
		out[addr] = [3]bool{e.Ready, e.Serving, e.Terminating}
	}
	return out
}

// theirService is a Service that someone else made, for serviceRef.
func theirService() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "theirs", Namespace: shop.Namespace, UID: "uid-of-theirs"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.9", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

// TestLeavingGivesWay: an address that drains at one ExternalBackend on a Service is free for
// another one, older or younger.
func TestLeavingGivesWay(t *testing.T) {
	spec := strings.Replace(literalSpec, "{ports", "{serviceRef: {name: theirs}, drainSeconds: 600, ports", 1)
	service := theirService()
	sibling := func(name string, drainUntil time.Time) []client.Object {
		b := &v1alpha1.ExternalBackend{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: shop.Namespace, UID: "uid-of-sibling"},
		}
		b.Spec.ServiceRef = &v1alpha1.ServiceReference{Name: "theirs"}
		leaving := !drainUntil.IsZero()
		e := endpointslice.Endpoint{
			Target: "theirs", Addr: netip.MustParseAddr("203.0.113.1"), Ports: []endpointslice.Port{{Name: "http", Port: 8080, Protocol: corev1.ProtocolTCP}},
			Ready: !leaving, Serving: true, Healthy: true, Terminating: leaving, DrainUntil: drainUntil,
		}
		_, changes := endpointslice.Plan(endpointslice.Template{
			Namespace: shop.Namespace, Service: "theirs", Backend: name, Max: 100, Owner: metav1.NewControllerRef(b, v1alpha1.GroupVersion.WithKind("ExternalBackend")),
		}, []endpointslice.Endpoint{e}, nil)
		slice := changes.Create[0]
		slice.UID = "uid-of-sibling-1"
		return []client.Object{b, slice}
	}

	t.Run("ours takes an older one's", func(t *testing.T) {
		env := newTestEnv(t, append(sibling("bar", time.Now().Add(10*time.Minute)), service.DeepCopy())...)
		setVerdict(probe.Healthy, 1, 3)(env)
		env.spec(spec)
		env.settle()
		if n := env.backend().Status.Endpoints.Ready; n != 2 {
			t.Errorf("%d of 2 healthy targets are ready while an older ExternalBackend lets one of them go", n)
		}
	})
	t.Run("a younger one takes ours", func(t *testing.T) {
		env := newTestEnv(t, service.DeepCopy())
		setVerdict(probe.Healthy, 1, 3)(env)
		env.spec(spec)
		env.settle()
		env.spec(strings.Replace(spec, "{name: a, address: 203.0.113.1}, ", "", 1))
		env.settle()
		draining := env.endpoints()[netip.MustParseAddr("203.0.113.1")]
		if !draining.Terminating {
			t.Fatalf("what has left spec is published as %+v", draining)
		}
		for _, o := range sibling("zoo", time.Time{}) {
			env.ok(env.live.Create(t.Context(), o))
		}
		env.settle()
		env.state() // wants every address to stand once
	})
}

// TestPassedOn: an address that passes from one ExternalBackend on a Service to another stays as
// well as it was until a probe says otherwise.
func TestPassedOn(t *testing.T) {
	const attached = `{serviceRef: {name: theirs}, ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], targets: [{name: a, address: 203.0.113.1}], healthCheck: {tcpSocket: {}}}`
	service := theirService()
	ready := func(is bool) discoveryv1.EndpointConditions {
		return discoveryv1.EndpointConditions{Ready: new(is), Serving: new(is), Terminating: new(false)}
	}
	for _, tt := range []struct {
		sibling string // the older one is that whose name comes first
		well    bool
	}{{"zoo", true}, {"zoo", false}, {"bar", true}, {"bar", false}} {
		well := tt.well
		sibling := &v1alpha1.ExternalBackend{
			ObjectMeta: metav1.ObjectMeta{Name: tt.sibling, Namespace: shop.Namespace, UID: "uid-of-sibling"},
		}
		sibling.Spec.ServiceRef = &v1alpha1.ServiceReference{Name: "theirs"}
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name:      "sibling-1",
				Namespace: shop.Namespace,
				UID:       "uid-of-sibling-1",
				Labels: map[string]string{
					discoveryv1.LabelServiceName: "theirs", discoveryv1.LabelManagedBy: v1alpha1.ManagedBy, v1alpha1.LabelName: tt.sibling,
				},
				OwnerReferences: []metav1.OwnerReference{
					*metav1.NewControllerRef(sibling, v1alpha1.GroupVersion.WithKind("ExternalBackend")),
				},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{
				{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)},
			},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"203.0.113.1"}, Conditions: ready(well)}},
		}
		env := newTestEnv(t, service.DeepCopy(), sibling, slice)
		env.spec(attached)
		env.settle()
		if n := len(env.endpoints()); n != 1 {
			t.Fatalf("%d endpoints", n)
		}
		own := func() *discoveryv1.EndpointSlice {
			for _, o := range env.objects() {
				if s, ok := o.(*discoveryv1.EndpointSlice); ok && s.Labels[v1alpha1.LabelName] == shop.Name {
					return s
				}
			}
			return nil
		}
		env.ok(env.live.Delete(t.Context(), slice))
		env.refresh()
		env.settle()
		if s := own(); s == nil || *s.Endpoints[0].Conditions.Ready != well {
			t.Errorf("an address that was ready=%t with %s is published as %v", well, tt.sibling, s)
		}
	}
}

// reasons records the reasons of events.
type reasons []string

func (r *reasons) Eventf(_, _ runtime.Object, _, reason, _, _ string, _ ...any) {
	*r = append(*r, reason)
}

// TestEndpointsMarkedOnce: Endpoints that are taken over are marked, and told of, once, however
// long the cache takes to show the mark.
func TestEndpointsMarkedOnce(t *testing.T) {
	service := stories[len(stories)-1].objects()[0]
	endpoints := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Name: shop.Name, Namespace: shop.Namespace, UID: "uid-of-endpoints"},
		Subsets: []corev1.EndpointSubset{
			{Addresses: []corev1.EndpointAddress{{IP: "203.0.113.1"}}, Ports: []corev1.EndpointPort{{Name: "http", Port: 8080}}},
		}, //nolint:staticcheck // as above
	}
	env := newTestEnv(t, service, endpoints)
	told := &reasons{}
	env.reconciler.Recorder = told
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(strings.Replace(literalSpec, "{ports", "{service: {adoptionPolicy: IfSelectorless}, ports", 1))
	env.refresh()
	for range 4 { // the cache shows nothing of what is written
		if _, err := env.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: shop}); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for _, reason := range *told {
		if reason == eventForeignRemoved {
			n++
		}
	}
	if n != 1 {
		t.Errorf("told %d times: %v", n, *told)
	}
	env.settle()
	env.ok(env.live.Get(t.Context(), shop, endpoints))
	if endpoints.Labels[discoveryv1.LabelSkipMirror] != "true" {
		t.Error("the Endpoints are not marked")
	}
}
