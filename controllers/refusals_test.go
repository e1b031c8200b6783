package controllers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/google/go-cmp/cmp"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

// invalid is how the API server refuses what will not become right by itself.
func invalid(o client.Object) error {
	return apierrors.NewInvalid(schema.GroupKind{Kind: "X"}, o.GetName(), nil)
}

// services refuses every write of a Service.
func services(o client.Object) error {
	if _, ok := o.(*corev1.Service); ok {
		return invalid(o)
	}
	return nil
}

// newSlices refuses every slice that is to be created, as a quota does.
func newSlices(o client.Object) error {
	if s, ok := o.(*discoveryv1.EndpointSlice); ok && s.UID == "" {
		return apierrors.NewForbidden(schema.GroupResource{}, s.Name, errors.New("exceeded quota"))
	}
	return nil
}

// ready are the addresses that are ready behind a port of this name, each with how often.
func (env *testEnv) ready(port string) map[string]int {
	out := map[string]int{}
	for _, o := range env.objects() {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok && *s.Ports[0].Name == port {
			for _, e := range s.Endpoints {
				if *e.Conditions.Ready {
					out[e.Addresses[0]]++
				}
			}
		}
	}
	return out
}

func (env *testEnv) expectReady(port string, want ...string) {
	env.t.Helper()
	got := env.ready(port)
	if len(got) != len(want) {
		env.t.Errorf("ready behind port %q: %v, want %v", port, got, want)
	}
	for _, a := range want {
		if got[a] != 1 {
			env.t.Errorf("ready behind port %q: %v, want %s once", port, got, a)
		}
	}
}

// reconcile is one pass over a fresh cache.
func (env *testEnv) reconcile() (ctrl.Result, error) {
	env.refresh()
	return env.reconciler.Reconcile(env.t.Context(), ctrl.Request{NamespacedName: shop})
}

const renamed = `{ports: [{name: web, port: 80, targetPort: 8080, protocol: TCP}]}`

// TestRenameRefused: as long as a Service can't be given its new port, the slices behind the old
// one go on and stay true.
func TestRenameRefused(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 4)(env)
	env.spec(literalSpec)
	env.settle()
	env.refuse = services
	env.spec(renamed)
	env.settle()
	env.expect(v1alpha1.ConditionProgrammed, "False ApplyFailed")
	env.expectReady("http", "203.0.113.1", "203.0.113.2")

	setVerdict(probe.Unhealthy, 1, 2)(env)
	env.settle()
	env.expectReady("http", "203.0.113.2")

	env.spec(`{targets: [{name: a, address: 203.0.113.1}]}`)
	setVerdict(probe.Healthy, 1, 2)(env)
	env.settle()
	env.restart() // what is known of the delay is read back
	env.settle()
	env.expectReady("http", "203.0.113.1")

	env.refuse = nothing
	env.settle()
	env.expect(v1alpha1.ConditionReady, "True")
	env.expectReady("http")
	env.expectReady("web", "203.0.113.1")
}

// TestServiceKeepsOldPorts: as long as a Service can't be given other ports, for whatever reason,
// its own ports are served: addresses come and go behind them as names and spec say.
func TestServiceKeepsOldPorts(t *testing.T) {
	loseMarks := func(env *testEnv) {
		var s corev1.Service
		env.ok(env.live.Get(env.t.Context(), shop, &s))
		s.Labels, s.OwnerReferences = nil, nil
		env.ok(env.live.Update(env.t.Context(), &s))
	}
	obstruct := func(env *testEnv) {
		env.ok(env.live.Create(env.t.Context(), &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Name:      "theirs",
				Namespace: shop.Namespace,
				Labels: map[string]string{
					discoveryv1.LabelServiceName: shop.Name,
					discoveryv1.LabelManagedBy:   "mesh.example.com",
				},
			},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: new("theirs")}}, Endpoints: []discoveryv1.Endpoint{},
		}))
	}
	refuse := func(env *testEnv) { env.refuse = services }
	for _, c := range []struct {
		name   string
		hinder func(*testEnv)
		spec   string
		reason string
	}{
		{"refused, renamed", refuse, `{ports: [{name: web, port: 80, targetPort: 8080, protocol: TCP}]}`, "ApplyFailed"},
		{"refused, replaced", refuse, `{ports: [{name: web, port: 81, targetPort: 8081, protocol: TCP}]}`, "ApplyFailed"},
		{"refused, another protocol", refuse, `{ports: [{name: http, port: 80, targetPort: 8080, protocol: UDP}], healthCheck: {tcpSocket: {port: 8080}}}`, "ApplyFailed"},
		{"marks lost, renamed", loseMarks, `{ports: [{name: web, port: 80, targetPort: 8080, protocol: TCP}]}`, "ServiceConflict"},
		{"marks lost, replaced", loseMarks, `{ports: [{name: web, port: 81, targetPort: 8081, protocol: TCP}]}`, "ServiceConflict"},
		{"behind it slices of others, renamed", obstruct, `{ports: [{name: web, port: 80, targetPort: 8080, protocol: TCP}]}`, "ServiceConflict"},
	} {
		for _, restart := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restart %t", c.name, restart), func(t *testing.T) {
				env := newTestEnv(t)
				setVerdict(probe.Healthy, 1, 30)(env)
				setAnswer(1, 4)(env)
				env.spec(poolSpec)
				env.settle()
				c.hinder(env)
				env.spec(c.spec)
				env.settle()
				env.expect(v1alpha1.ConditionProgrammed, "False "+c.reason)
				env.expectReadyAt("http", "8080/TCP", 1, 4)

				if restart {
					env.restart()
				}
				setAnswer(3, 12)(env)
				env.settle()
				env.expectReadyAt("http", "8080/TCP", 3, 12)

				setAnswer(20, 24)(env)
				setVerdict(probe.Unhealthy, 20, 21)(env)
				env.settle()
				env.expectReadyAt("http", "8080/TCP", 21, 24)
			})
		}
	}
}

// expectReadyAt wants 203.0.113.from to to-1 ready behind a port of this name, all at this number
// and protocol.
func (env *testEnv) expectReadyAt(port, at string, from, to int) {
	env.t.Helper()
	var want, got []string
	for _, a := range addresses(from, to) {
		want = append(want, a.IP.String())
	}
	for _, o := range env.objects() {
		s, ok := o.(*discoveryv1.EndpointSlice)
		if !ok || len(s.Endpoints) == 0 || *s.Ports[0].Name != port ||
			fmt.Sprintf("%d/%s", *s.Ports[0].Port, *s.Ports[0].Protocol) != at {
			continue
		}
		for _, e := range s.Endpoints {
			if *e.Conditions.Ready {
				got = append(got, e.Addresses[0])
			}
		}
	}
	slices.SortFunc(got, compareAddresses)
	if diff := cmp.Diff(want, got); diff != "" {
		env.t.Errorf("ready behind port %q at %s (-want +got):\n%s", port, at, diff)
	}
}

func compareAddresses(a, b string) int { return netip.MustParseAddr(a).Compare(netip.MustParseAddr(b)) }

// TestRenameRefusedWithOverrides: a target that is added while a port can't be renamed stands
// behind the old name where spec says that it is to stand behind the new one, and so does a port of
// SRV.
func TestRenameRefusedWithOverrides(t *testing.T) {
	env := literalEnv(t)
	env.refuse = services
	setVerdict(probe.Healthy, 1, 9)(env)
	env.resolver.known = map[string]resolve.Answer{
		"_web._tcp.example.com": {
			Status: resolve.Current,
			Addrs:  []resolve.Addr{{IP: netip.MustParseAddr("203.0.113.4"), Port: 7000}},
		},
	}
	env.spec(`{ports: [{name: web, port: 80, targetPort: 8080, protocol: TCP}], targets: [
		{name: a, address: 203.0.113.1}, {name: c, address: 203.0.113.3, ports: [{name: web, targetPort: 6432}]}, {name: d, srvName: _web._tcp.example.com}]}`)
	env.settle()
	for _, port := range []string{"http", "web"} {
		env.expectReady(port, "203.0.113.1", "203.0.113.3", "203.0.113.4")
	}
	got := map[string]int32{}
	for _, o := range env.objects() {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok && *s.Ports[0].Name == "http" {
			for _, e := range s.Endpoints {
				got[e.Addresses[0]] = *s.Ports[0].Port
			}
		}
	}
	if diff := cmp.Diff(map[string]int32{"203.0.113.1": 8080, "203.0.113.3": 6432, "203.0.113.4": 7000}, got); diff != "" {
		t.Errorf("behind the old port (-want +got):\n%s", diff)
	}
	env.refuse = nothing
	env.settle()
	env.expect(v1alpha1.ConditionReady, "True")
	env.expectReady("http")
	env.expectReady("web", "203.0.113.1", "203.0.113.3", "203.0.113.4")
}

// TestPortRemovedRefused: a port that can't be taken from the Service is served, unless policy
// comes to refuse where it leads.
func TestPortRemovedRefused(t *testing.T) {
	env := newTestEnv(t)
	setAnswer(1, 3)(env)
	setVerdict(probe.Healthy, 1, 9)(env)
	env.spec(`{ports: [{name: admin, port: 81, targetPort: 8081, protocol: TCP}, ` + poolSpec[len(`{ports: [`):])
	env.settle()
	env.refuse = services
	before := env.writes
	env.spec(poolSpec)
	env.settle()
	if n := env.writes - before; n != 1 {
		t.Errorf("%d writes beside the status", n-1)
	}
	setAnswer(2, 4)(env)
	env.settle()
	env.expectReady("admin", "203.0.113.2", "203.0.113.3")

	ports := v1alpha1.ExternalBackendPolicy{
		Spec: v1alpha1.ExternalBackendPolicySpec{
			Allow: []v1alpha1.PolicyRule{{AnyTarget: &v1alpha1.AnyTarget{}, Ports: []v1alpha1.PolicyPort{{Port: 8080}}}},
		},
	}
	env.reconciler.policies.set, _ = policy.Compile(policy.Input{Policies: []v1alpha1.ExternalBackendPolicy{ports}})
	env.settle()
	env.expectReady("admin")
	env.expectReady("http", "203.0.113.2", "203.0.113.3")
	env.expect(v1alpha1.ConditionPermitted, "True")
}

// TestRenameWithoutSlices: where the slices for a new port can't be created, the Service keeps the
// port that has some.
func TestRenameWithoutSlices(t *testing.T) {
	env := literalEnv(t)
	env.refuse = newSlices
	env.spec(renamed)
	for range 3 {
		if result, err := env.reconcile(); err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > refusedRetry {
			t.Errorf("it is tried again after %v, error %v", result.RequeueAfter, err)
		}
	}
	var s corev1.Service
	env.ok(env.live.Get(t.Context(), shop, &s))
	if got := s.Spec.Ports[0].Name; got != "http" {
		t.Errorf("the Service has port %q, and no endpoints", got)
	}
	env.expectReady("http", "203.0.113.1", "203.0.113.2")
}

// TestContended: a Service that others write between each reading and writing is tried again, and
// what stood goes on.
func TestContended(t *testing.T) {
	env := literalEnv(t)
	env.refuse = func(o client.Object) error {
		if _, ok := o.(*corev1.Service); ok {
			return apierrors.NewConflict(schema.GroupResource{Resource: "services"}, o.GetName(), nil)
		}
		return nil
	}
	env.spec(renamed)
	if _, err := env.reconcile(); err == nil {
		t.Error("it is not tried again")
	}
	env.expect(v1alpha1.ConditionProgrammed, "False ApplyFailed")
	env.expectReady("http", "203.0.113.1", "203.0.113.2")
}

// TestUnseenService: a Service of someone else's that the cache has not shown yet gets no endpoints
// of ours.
func TestUnseenService(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(literalSpec)
	env.refresh()
	env.ok(env.live.Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name:      shop.Name,
			Namespace: shop.Namespace,
		}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
	}))
	_, err := env.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: shop})
	env.ok(err)
	env.settle()
	env.expect(v1alpha1.ConditionProgrammed, "False ServiceConflict")
	if got := env.endpoints(); len(got) != 0 {
		t.Errorf("behind it: %v", got)
	}
}

// TestTierHandsOver: at each moment a tier is ready, though its endpoints are in another slice than
// those of the tier that it takes over from or hands over to; and where one can't be made ready the
// other one stays.
func TestTierHandsOver(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	const spec = `{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], healthCheck: {tcpSocket: {}}, failover: {pinnedTier: %},
		targets: [{name: a, address: 203.0.113.1, ports: [{name: http, targetPort: 6432}]}, {name: b, address: 203.0.113.2, tier: 1}]}`
	pin := func(to string) { env.spec(strings.Replace(spec, "%", to, 1)) }
	pin("0")
	env.settle()
	env.expectReady("http", "203.0.113.1")
	env.fault = func(n int) fault {
		if len(env.ready("http")) == 0 {
			t.Errorf("before write %d nothing is ready", n)
		}
		return fault{}
	}
	for to, want := range map[string]string{"1": "203.0.113.2", "0": "203.0.113.1"} {
		pin(to)
		env.settle()
		env.expectReady("http", want)
	}
	pin("0")
	env.settle()
	env.refuse = func(o client.Object) error {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok && s.Endpoints[0].Addresses[0] == "203.0.113.2" {
			return apierrors.NewTooManyRequests("slow down", 1)
		}
		return nil
	}
	pin("1")
	for range 3 {
		if _, err := env.reconcile(); err == nil {
			t.Error("it is not tried again")
		}
	}
	env.expectReady("http", "203.0.113.1")

	env.fault = func(int) fault { return fault{} }
	setVerdict(probe.Unhealthy, 1, 2)(env) // which no failure may delay
	_, _ = env.reconcile()
	env.expectReady("http")
}

// TestDeadWhileOthersFail: that one slice can't be written keeps nothing dead, and nothing refused,
// in service in another.
func TestDeadWhileOthersFail(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 5)(env)
	env.spec(
		`{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], healthCheck: {tcpSocket: {}}, failover: {minHealthyPercent: 60}, targets: [
		{name: a, address: 203.0.113.1, ports: [{name: http, targetPort: 6432}]}, {name: c, address: 203.0.113.3, ports: [{name: http, targetPort: 6432}]},
		{name: d, address: 203.0.113.4, ports: [{name: http, targetPort: 6432}]}, {name: b, address: 203.0.113.2, tier: 1}]}`,
	)
	env.settle()
	env.refuse = func(o client.Object) error {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok && s.Endpoints[0].Addresses[0] == "203.0.113.2" {
			return apierrors.NewTooManyRequests("slow down", 1)
		}
		return nil
	}
	setVerdict(probe.Unhealthy, 1, 2)(env)
	setVerdict(probe.Unhealthy, 4, 5)(env)
	for range 3 {
		if _, err := env.reconcile(); err == nil {
			t.Error("it is not tried again")
		}
	}
	env.expectReady("http", "203.0.113.3")
	env.reconciler.policies.declared = []netip.Prefix{netip.MustParsePrefix("203.0.113.4/32")}
	env.reconciler.policies.rulesChanged()
	_, _ = env.reconcile()
	if _, ok := env.endpoints()[netip.MustParseAddr("203.0.113.4")]; ok {
		t.Error("what policy refuses stays")
	}
	env.refuse = nothing
	env.settle()
	env.expectReady("http", "203.0.113.2")
}

// TestTierHandsOverDespiteOthers: what can't be created keeps no tier from handing over to one that
// is ready.
func TestTierHandsOverDespiteOthers(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 9)(env)
	const spec = `{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], healthCheck: {tcpSocket: {}}, failover: {pinnedTier: %d}, targets: [
		{name: a, address: 203.0.113.1, ports: [{name: http, targetPort: 6432}]}, {name: b, address: 203.0.113.2, tier: 1}%s]}`
	env.spec(fmt.Sprintf(spec, 0, ""))
	env.settle()
	env.refuse = newSlices
	env.spec(fmt.Sprintf(spec, 1, ", {name: c, address: 203.0.113.3, tier: 1, ports: [{name: http, targetPort: 7432}]}"))
	for range 2 {
		_, _ = env.reconcile()
	}
	env.expectReady("http", "203.0.113.2")
}

// TestPortAddedWithoutSlices: the slices that are there follow, although those that are to replace
// them can't be created.
func TestPortAddedWithoutSlices(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 4)(env)
	env.spec(
		`{targets: [{name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.2}, {name: c, address: 203.0.113.3}], ` + literalSpec[1:strings.Index(literalSpec, ", targets")] + `, healthCheck: {tcpSocket: {}}}`,
	)
	env.settle()
	env.refuse = newSlices
	env.spec(`{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}, {name: more, port: 81, protocol: TCP}]}`)
	_, _ = env.reconcile()
	setVerdict(probe.Unhealthy, 1, 2)(env)
	env.reconciler.policies.declared = []netip.Prefix{netip.MustParsePrefix("203.0.113.3/32")}
	env.reconciler.policies.rulesChanged()
	_, _ = env.reconcile()
	env.expectReady("http", "203.0.113.2")
	if _, ok := env.endpoints()[netip.MustParseAddr("203.0.113.3")]; ok {
		t.Error("what policy refuses stays")
	}
	before := env.writes
	_, _ = env.reconcile()
	if env.writes != before {
		t.Error("what is as it can be is written again")
	}
}

// TestTypeRefused: a type that the Service can't be given takes nothing away.
func TestTypeRefused(t *testing.T) {
	for name, spec := range map[string]string{
		"headless, and the port renamed": `{service: {type: Headless}, ports: [{name: web, port: 80, targetPort: 8080, protocol: TCP}]}`,
		"headless":                       `{service: {type: Headless}}`,
		"an alias":                       `{service: {type: ExternalName}, targets: [{name: a, address: "", hostname: db.example.com}], healthCheck: null}`,
	} {
		t.Run(name, func(t *testing.T) {
			env := literalEnv(t)
			env.refuse = services
			env.spec(spec)
			env.settle()
			env.expect(v1alpha1.ConditionProgrammed, "False ApplyFailed")
			env.expectReady("http", "203.0.113.1", "203.0.113.2")
		})
	}
}

// TestCrossingRefused: a Service that may not become headless, or may not be so no more, does not
// set out; or where that could not be foreseen it comes back, and tries no more.
func TestCrossingRefused(t *testing.T) {
	for _, c := range []struct {
		from, to string
		foreseen bool
	}{{"ClusterIP", "Headless", true}, {"Headless", "NodePort", true}, {"ClusterIP", "Headless", false}, {"Headless", "NodePort", false}} {
		t.Run(fmt.Sprintf("%s to %s, foreseen %t", c.from, c.to, c.foreseen), func(t *testing.T) {
			env := newTestEnv(t)
			setVerdict(probe.Healthy, 1, 3)(env)
			env.spec(`{service: {type: ` + c.from + `}, ` + literalSpec[1:])
			env.settle()
			var before, after corev1.Service
			env.ok(env.live.Get(t.Context(), shop, &before))
			tries := 0
			env.refuse = func(o client.Object) error {
				s, ok := o.(*corev1.Service)
				if ok && (c.foreseen || s.UID != "") &&
					(c.to == "Headless" && plan.Headless(s) || s.Spec.Type == corev1.ServiceType(c.to)) {
					tries++
					return invalid(o)
				}
				return nil
			}
			env.spec(`{service: {type: ` + c.to + `}}`)
			env.settle()
			env.expect(v1alpha1.ConditionProgrammed, "False ApplyFailed")
			env.ok(env.live.Get(t.Context(), shop, &after))
			if diff := cmp.Diff(before.Spec, after.Spec); diff != "" {
				t.Errorf("the Service is not as it was:\n%s", diff)
			}
			if c.foreseen && after.ResourceVersion != before.ResourceVersion {
				t.Error("it has set out")
			}
			tries = 0
			setVerdict(probe.Unhealthy, 1, 2)(env)
			env.settle()
			env.expectReady("http", "203.0.113.2")
			if !c.foreseen && tries > 0 {
				t.Error("it has set out again")
			}
			env.refuse = nothing
			env.spec(`{service: {labels: {team: shop}, type: ` + c.to + `}}`)
			env.settle()
			env.expectReady("http", "203.0.113.2")
			env.ok(env.live.Get(t.Context(), shop, &after))
			if after.UID != before.UID || plan.Headless(&after) != (c.to == "Headless") {
				t.Errorf("the Service has become %+v", after.Spec)
			}
		})
	}
}

// TestNamespaceGoes: what can't be created in a namespace that is being deleted is nobody's error.
func TestNamespaceGoes(t *testing.T) {
	env := newTestEnv(t)
	env.refuse = func(o client.Object) error {
		err := apierrors.NewForbidden(schema.GroupResource{}, o.GetName(), errors.New("the namespace is being terminated"))
		err.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
		if _, ok := o.(*v1alpha1.ExternalBackend); ok {
			return nil
		}
		return err
	}
	env.spec(literalSpec)
	if _, err := env.reconcile(); err != nil {
		t.Error(err)
	}
	env.expect(v1alpha1.ConditionProgrammed, "False ApplyFailed")
}

// TestRestartWithoutAnswers: a restart tells nothing new of names that nobody answers for.
func TestRestartWithoutAnswers(t *testing.T) {
	env := newTestEnv(t)
	env.spec(poolSpec)
	failed := map[string]resolve.Answer{"pool.example.com": {Status: resolve.Failed}}
	env.resolver.known = failed
	env.settle()
	if tier := env.backend().Status.ActiveTier; tier != nil {
		t.Fatalf("tier %d is active, of which there are no addresses", *tier)
	}
	before := env.writes
	env.resolver.known = nil
	env.restart()
	env.settle()
	env.resolver.known = failed
	env.settle()
	if env.writes != before {
		t.Errorf("%d writes after a restart", env.writes-before)
	}
}

// TestTwoPortsRenamed: two targets at one address keep their own conditions behind the old port.
func TestTwoPortsRenamed(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	const spec = `{ports: [{name: NAME, port: 80, protocol: TCP, targetPort: 6432}], healthCheck: {tcpSocket: {}}, failover: {pinnedTier: 0},
		targets: [{name: a, address: 203.0.113.1, ports: [{name: NAME, targetPort: 6432}]}, {name: b, address: 203.0.113.1, tier: 1, ports: [{name: NAME, targetPort: 6433}]}]}`
	env.spec(strings.ReplaceAll(spec, "NAME", "http"))
	env.settle()
	env.expectReady("http", "203.0.113.1")
	env.refuse = services
	env.spec(strings.ReplaceAll(spec, "NAME", "web"))
	env.settle()
	env.expectReady("http", "203.0.113.1")
	env.spec(`{failover: {pinnedTier: 1}}`)
	env.settle()
	env.expectReady("http", "203.0.113.1")
}

// TestNotTakenOver: what others publish behind a Service is theirs until the Service is ours.
func TestNotTakenOver(t *testing.T) {
	adoption := stories[len(stories)-1]
	env := newTestEnv(t, adoption.objects()...)
	env.refuse = services
	for _, step := range adoption.steps {
		step(env)
		env.settle()
	}
	env.expect(v1alpha1.ConditionProgrammed, "False ApplyFailed")
	var s discoveryv1.EndpointSlice
	if err := env.live.Get(t.Context(), client.ObjectKey{Namespace: shop.Namespace, Name: "by-hand"}, &s); err != nil {
		t.Errorf("the slice of others: %v", err)
	}
}

// TestWithdrawnDespiteLabels: that the labels are what is invalid keeps nothing published that
// policy refuses.
func TestWithdrawnDespiteLabels(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(`{service: {labels: {team: shop}}, ` + literalSpec[1:])
	env.settle()
	env.spec(`{service: {labels: {"example.com/": x}}}`)
	env.reconciler.policies.declared = []netip.Prefix{netip.MustParsePrefix("203.0.113.1/32")}
	env.reconciler.policies.rulesChanged()
	env.settle()
	env.expect(v1alpha1.ConditionAccepted, "False InvalidSpec: spec.service.labels")
	env.expectReady("http", "203.0.113.2")
	for _, o := range env.objects() {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok && (s.Labels["team"] != "shop" || s.Labels["example.com/"] != "") {
			t.Errorf("labels %v", s.Labels)
		}
	}
}

// TestLost: where the Service has gone, its slices with it, and it can't be made anew, nobody is
// told of endpoints that are no more.
func TestLost(t *testing.T) {
	env := literalEnv(t)
	for _, o := range env.objects() {
		if _, ok := o.(*v1alpha1.ExternalBackend); !ok {
			env.ok(env.live.Delete(t.Context(), o))
		}
	}
	env.refuse = services
	env.settle()
	env.expect(v1alpha1.ConditionReady, "False ApplyFailed")
	if got := env.backend().Status.Endpoints.ReadyOfTotal; got != "0/0" {
		t.Errorf("readyOfTotal %s", got)
	}
	if env.prober.order != nil {
		t.Errorf("still probed: %v", env.prober.order)
	}
	env.refuse = nothing
	env.settle()
	env.expectReady("http", "203.0.113.1", "203.0.113.2")
}

// TestServiceRefGone: where the Service of serviceRef has gone, and the slices with it, nothing is
// asked for or probed any more, and nobody is told of endpoints. When the Service is back all of it
// is, too.
func TestServiceRefGone(t *testing.T) {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "theirs", Namespace: shop.Namespace, UID: "uid-of-theirs"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.9", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	for _, answered := range []bool{true, false} {
		t.Run(fmt.Sprintf("answered %t", answered), func(t *testing.T) {
			env := newTestEnv(t, service.DeepCopy())
			if answered {
				setAnswer(1, 3)(env)
			}
			setVerdict(probe.Healthy, 1, 3)(env)
			env.spec(`{serviceRef: {name: theirs}, ` + poolSpec[1:])
			env.settle()
			env.expect(v1alpha1.ConditionReady, map[bool]string{true: "True", false: "False NoReadyEndpoints"}[answered])
			for _, o := range env.objects() {
				if _, ok := o.(*v1alpha1.ExternalBackend); !ok {
					env.ok(env.live.Delete(t.Context(), o))
				}
			}
			env.settle()
			env.expect(v1alpha1.ConditionReady, `False ServiceNotFound: Service "theirs" does not exist in namespace "default".`)
			env.expect(v1alpha1.ConditionHealthy, "Unknown NoEndpoints")
			if got := env.backend().Status.Endpoints.ReadyOfTotal; got != "0/0" {
				t.Errorf("readyOfTotal %s", got)
			}
			if len(env.prober.order)+len(env.resolver.seeds) > 0 {
				t.Errorf("still probed: %v, asked for: %v", env.prober.order, env.resolver.seeds)
			}
			env.ok(env.live.Create(t.Context(), service.DeepCopy()))
			setAnswer(1, 3)(env)
			env.settle()
			env.expect(v1alpha1.ConditionReady, "True")
			env.expectReady("http", "203.0.113.1", "203.0.113.2")
		})
	}
}

// TestHeldByFinalizer: what stands of an ExternalBackend that is being deleted, and is held by
// somebody's finalizer, stays true; what the garbage collector takes is not made anew.
func TestHeldByFinalizer(t *testing.T) {
	for _, propagation := range []string{"", metav1.FinalizerDeleteDependents, metav1.FinalizerOrphanDependents} {
		t.Run(propagation, func(t *testing.T) {
			env := literalEnv(t)
			b := env.backend()
			b.Finalizers = []string{"example.com/hold"}
			if propagation != "" {
				b.Finalizers = append(b.Finalizers, propagation)
			}
			env.ok(env.live.Update(t.Context(), b))
			env.ok(env.live.Delete(t.Context(), b))
			setVerdict(probe.Unhealthy, 1, 2)(env)
			env.settle()
			if propagation == "" {
				env.expectReady("http", "203.0.113.2")
				return
			}
			env.expectReady("http", "203.0.113.1", "203.0.113.2")
			for _, o := range env.objects() { // as the garbage collector does
				switch _, ok := o.(*v1alpha1.ExternalBackend); {
				case ok:
					o.SetFinalizers([]string{"example.com/hold"})
					env.ok(env.live.Update(t.Context(), o))
				case propagation == metav1.FinalizerOrphanDependents:
					o.SetOwnerReferences(nil)
					env.ok(env.live.Update(t.Context(), o))
				default:
					env.ok(env.live.Delete(t.Context(), o))
				}
			}
			before := env.state()
			env.settle()
			if after := env.state(); after != before {
				t.Errorf("%s became %s", before, after)
			}
		})
	}
	env := literalEnv(t)
	b := env.backend()
	b.Finalizers = []string{"example.com/hold"}
	env.ok(env.live.Update(t.Context(), b))
	env.ok(env.live.Delete(t.Context(), b))
	var s corev1.Service
	env.ok(env.live.Get(t.Context(), shop, &s))
	env.ok(env.live.Delete(t.Context(), &s))
	env.settle()
	if err := env.live.Get(t.Context(), shop, &s); !apierrors.IsNotFound(err) {
		t.Errorf("the Service that somebody deleted after it: %v", err)
	}
}

// TestLostForAMoment: what was known of endpoints outlives a Service that is made anew only at the
// second try.
func TestLostForAMoment(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(
		`{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], healthCheck: {tcpSocket: {}}, failover: {failback: Manual},
		targets: [{name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.2, tier: 1}]}`,
	)
	env.settle()
	setVerdict(probe.Unhealthy, 1, 2)(env)
	env.settle()
	setVerdict(probe.Healthy, 1, 2)(env)
	env.settle()
	env.expectReady("http", "203.0.113.2")
	for _, o := range env.objects() {
		if _, ok := o.(*v1alpha1.ExternalBackend); !ok {
			env.ok(env.live.Delete(t.Context(), o))
		}
	}
	env.refuse = func(o client.Object) error {
		if _, ok := o.(*corev1.Service); ok {
			return apierrors.NewInternalError(errors.New("a webhook is down"))
		}
		return nil
	}
	if _, err := env.reconcile(); err == nil {
		t.Error("it is not tried again")
	}
	env.refuse = nothing
	env.settle()
	env.expectReady("http", "203.0.113.2")
}

const referring = `{healthCheck: {tcpSocket: null, httpGet: {scheme: HTTPS}, tls: {caCertificateRefs: [{kind: ConfigMap, name: ca}]}}}`

// TestInvalidRests: a spec that can't be acted on waits for nothing, whatever it refers to.
func TestInvalidRests(t *testing.T) {
	env := newTestEnv(t)
	env.spec(literalSpec)
	env.spec(referring)
	env.settle()
	env.reconciler.states.of(shop).planning.refs.read = time.Now().Add(-time.Hour)
	env.spec(
		`{healthCheck: {httpGet: {scheme: HTTPS, httpHeaders: [{name: Connection, value: close}]}, tls: {caCertificateRefs: [{kind: ConfigMap, name: ca}]}}}`,
	)
	env.settle()
	env.expect(v1alpha1.ConditionAccepted, "False InvalidSpec")
	if result, err := env.reconcile(); err != nil || result.RequeueAfter > 0 && result.RequeueAfter < time.Second {
		t.Errorf("again after %v, %v", result.RequeueAfter, err)
	}
}

// mute is an API server that does not answer reads of ConfigMaps.
type mute struct{ client.Reader }

func (m mute) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if _, ok := o.(*corev1.ConfigMap); ok {
		return context.DeadlineExceeded
	}
	return m.Reader.Get(ctx, key, o, options...)
}

// TestUnreadReference: what a check needs and could not be read yet keeps the check from running,
// and is read again soon; nothing is said against the spec.
func TestUnreadReference(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.reconciler.Live = mute{env.live}
	env.spec(literalSpec)
	env.spec(referring)
	env.settle()
	env.expect(v1alpha1.ConditionAccepted, "True")
	if !env.prober.check.Suspended {
		t.Error("it is probed without its roots")
	}
	if result, err := env.reconcile(); err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > referenceRetry {
		t.Errorf("again after %v, %v", result.RequeueAfter, err)
	}
}
