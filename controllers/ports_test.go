package controllers

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

// renamedPort renames the port of literalSpec.
const renamedPort = `{ports: [{name: web, port: 80, targetPort: 8080, protocol: TCP}]}`

// TestPortIsServedThroughoutARename: whatever name the Service has for its port, at every moment
// there are slices with that name for all endpoints.
func TestPortIsServedThroughoutARename(t *testing.T) {
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
	env.expectCondition(v1alpha1.ConditionReady, "True")
}

// TestServiceKeepsItsPortUntilSlicesForTheNewOneExist: if the slices for a new port can't be
// created, the Service keeps the port that has some.
func TestServiceKeepsItsPortUntilSlicesForTheNewOneExist(t *testing.T) {
	env := literalEnv(t)
	env.refuse = refuseNewSlices
	env.spec(renamedPort)
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

// TestRefusedRenameKeepsOldSlicesCurrent: as long as the Service does not get its new port, the
// slices for the old one follow verdicts and spec.
func TestRefusedRenameKeepsOldSlicesCurrent(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 4)(env)
	env.spec(literalSpec)
	env.settle()
	env.refuse = refuseServices
	env.spec(renamedPort)
	env.settle()
	env.expectCondition(v1alpha1.ConditionProgrammed, "False ApplyFailed")
	env.expectReady("http", "203.0.113.1", "203.0.113.2")

	setVerdict(probe.Unhealthy, 1, 2)(env)
	env.settle()
	env.expectReady("http", "203.0.113.2")

	env.spec(`{targets: [{name: a, address: 203.0.113.1}]}`)
	setVerdict(probe.Healthy, 1, 2)(env)
	env.settle()
	env.restart() // the delay is read back from the slices
	env.settle()
	env.expectReady("http", "203.0.113.1")

	env.refuse = refuseNothing
	env.settle()
	env.expectCondition(v1alpha1.ConditionReady, "True")
	env.expectReady("http")
	env.expectReady("web", "203.0.113.1")
}

// TestOldPortsAreServedWhileTheServiceKeepsThem: as long as the Service can't be given other ports,
// for whatever reason, its old ports are served. Addresses come and go behind them as names and
// spec say.
func TestOldPortsAreServedWhileTheServiceKeepsThem(t *testing.T) {
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
			AddressType: discoveryv1.AddressTypeIPv4,
			Ports:       []discoveryv1.EndpointPort{{Name: new("theirs")}},
			Endpoints:   []discoveryv1.Endpoint{},
		}))
	}
	refuse := func(env *testEnv) { env.refuse = refuseServices }
	const replacedPort = `{ports: [{name: web, port: 81, targetPort: 8081, protocol: TCP}]}`
	for _, c := range []struct {
		name   string
		hinder func(*testEnv)
		spec   string
		reason string
	}{
		{"refused, renamed", refuse, renamedPort, "ApplyFailed"},
		{"refused, replaced", refuse, replacedPort, "ApplyFailed"},
		{
			"refused, another protocol", refuse,
			`{ports: [{name: http, port: 80, targetPort: 8080, protocol: UDP}], healthCheck: {tcpSocket: {port: 8080}}}`,
			"ApplyFailed",
		},
		{"marks lost, renamed", loseMarks, renamedPort, "ServiceConflict"},
		{"marks lost, replaced", loseMarks, replacedPort, "ServiceConflict"},
		{"foreign slices, renamed", obstruct, renamedPort, "ServiceConflict"},
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
				env.expectCondition(v1alpha1.ConditionProgrammed, "False "+c.reason)
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

// TestOverridesOfANewPortApplyBehindTheOldOne: a target that is added while a port can't be renamed
// uses its target port for the new name behind the old name as well. So does the port of an SRV
// record.
func TestOverridesOfANewPortApplyBehindTheOldOne(t *testing.T) {
	env := literalEnv(t)
	env.refuse = refuseServices
	setVerdict(probe.Healthy, 1, 9)(env)
	env.resolver.known = map[string]resolve.Answer{
		"_web._tcp.example.com": {
			Status: resolve.Current,
			Addrs:  []resolve.Addr{{IP: netip.MustParseAddr("203.0.113.4"), Port: 7000}},
		},
	}
	env.spec(`{ports: [{name: web, port: 80, targetPort: 8080, protocol: TCP}], targets: [
		{name: a, address: 203.0.113.1},
		{name: c, address: 203.0.113.3, ports: [{name: web, targetPort: 6432}]},
		{name: d, srvName: _web._tcp.example.com}]}`)
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

	env.refuse = refuseNothing
	env.settle()
	env.expectCondition(v1alpha1.ConditionReady, "True")
	env.expectReady("http")
	env.expectReady("web", "203.0.113.1", "203.0.113.3", "203.0.113.4")
}

// TestPortThatCannotBeRemovedIsServed: a port that the Service keeps against spec is served, unless
// policy refuses its target port.
func TestPortThatCannotBeRemovedIsServed(t *testing.T) {
	env := newTestEnv(t)
	setAnswer(1, 3)(env)
	setVerdict(probe.Healthy, 1, 9)(env)
	env.spec(`{ports: [{name: admin, port: 81, targetPort: 8081, protocol: TCP}, ` + poolSpec[len(`{ports: [`):])
	env.settle()
	env.refuse = refuseServices
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
	env.expectCondition(v1alpha1.ConditionPermitted, "True")
}

// TestTargetsAtOneAddressKeepTheirConditions: two targets at one address, with different ports,
// keep their own conditions behind the old port.
func TestTargetsAtOneAddressKeepTheirConditions(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	const spec = `{ports: [{name: NAME, port: 80, protocol: TCP, targetPort: 6432}],
		healthCheck: {tcpSocket: {}}, failover: {pinnedTier: 0}, targets: [
		{name: a, address: 203.0.113.1, ports: [{name: NAME, targetPort: 6432}]},
		{name: b, address: 203.0.113.1, tier: 1, ports: [{name: NAME, targetPort: 6433}]}]}`
	env.spec(strings.ReplaceAll(spec, "NAME", "http"))
	env.settle()
	env.expectReady("http", "203.0.113.1")

	env.refuse = refuseServices
	env.spec(strings.ReplaceAll(spec, "NAME", "web"))
	env.settle()
	env.expectReady("http", "203.0.113.1")

	env.spec(`{failover: {pinnedTier: 1}}`)
	env.settle()
	env.expectReady("http", "203.0.113.1")
}

// TestExistingSlicesStayCurrentWhileNewOnesAreRefused: existing slices follow verdicts and policy
// although the slices that are to replace them can't be created.
func TestExistingSlicesStayCurrentWhileNewOnesAreRefused(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 4)(env)
	env.spec(`{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], healthCheck: {tcpSocket: {}}, targets: [
		{name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.2}, {name: c, address: 203.0.113.3}]}`)
	env.settle()
	env.refuse = refuseNewSlices
	env.spec(`{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}, {name: more, port: 81, protocol: TCP}]}`)
	_, _ = env.reconcile()
	setVerdict(probe.Unhealthy, 1, 2)(env)
	env.reconciler.policies.options.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("203.0.113.3/32")}
	env.reconciler.policies.rulesChanged()
	_, _ = env.reconcile()
	env.expectReady("http", "203.0.113.2")
	if _, ok := env.endpoints()[netip.MustParseAddr("203.0.113.3")]; ok {
		t.Error("an endpoint that policy refuses stays")
	}

	before := env.writes
	_, _ = env.reconcile()
	if env.writes != before {
		t.Error("slices are written although nothing has changed")
	}
}
