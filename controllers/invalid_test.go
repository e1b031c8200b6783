package controllers

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/probe"
)

// invalidSpec is literalSpec with an error that the schema can't find.
var invalidSpec = strings.Replace(literalSpec, "{name: a, address: 203.0.113.1}",
	"{name: a, address: 203.0.113.1, ports: [{name: nope, targetPort: 1}]}", 1)

// TestLastValidSpecHolds: as long as a spec is invalid, the valid one before it is in force:
// health, names and policy keep working, and nothing of the invalid one applies.
func TestLastValidSpecHolds(t *testing.T) {
	env := newTestEnv(t)
	setAnswer(1, 3)(env)
	setVerdict(probe.Healthy, 1, 9)(env)
	env.spec(poolSpec)
	env.settle()
	env.spec(strings.Replace(invalidSpec, "tcpSocket: {}", "tcpSocket: {}, mode: Observe", 1))
	env.settle()
	env.expectCondition(v1alpha1.ConditionAccepted, "False InvalidSpec")
	env.expectCondition(v1alpha1.ConditionReady, "False InvalidSpec")
	env.expectReady("http", "203.0.113.1", "203.0.113.2")

	setAnswer(2, 5)(env)
	setVerdict(probe.Unhealthy, 3, 4)(env)
	env.settle()
	env.expectReady("http", "203.0.113.2", "203.0.113.4")
	env.expectCondition(v1alpha1.ConditionHealthy, "False SomeUnhealthy: 2 of 3")

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
	env.expectCondition(v1alpha1.ConditionReady, "True")
	env.expectReady("http", "203.0.113.1")
}

// TestPolicyAppliesToAnInvalidSpec: an ExternalBackend with an invalid spec keeps its endpoints,
// except for those that policy refuses.
func TestPolicyAppliesToAnInvalidSpec(t *testing.T) {
	env := literalEnv(t)
	env.spec(invalidSpec)
	env.settle()
	env.expectCondition(v1alpha1.ConditionAccepted, "False InvalidSpec")
	if n := len(env.endpoints()); n != 2 {
		t.Fatalf("%d endpoints of an invalid spec, want both as before", n)
	}

	env.reconciler.policies.options.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("203.0.113.1/32")}
	env.reconciler.policies.rulesChanged()
	env.settle()
	if _, ok := env.endpoints()[netip.MustParseAddr("203.0.113.2")]; !ok || len(env.endpoints()) != 1 {
		t.Errorf("published: %v", env.endpoints())
	}
	env.expectCondition(v1alpha1.ConditionPermitted, `False TargetDenied: Refused by policy: target "a" (`)
	if strings.Contains(env.condition(v1alpha1.ConditionPermitted), "203.0.113") {
		t.Error("the message holds the refused address")
	}
	if got := env.backend().Status.Endpoints.ReadyOfTotal; got != "1/1" {
		t.Errorf("readyOfTotal %s", got)
	}
}

// TestPolicyAppliesDespiteInvalidLabels: although the labels in spec are invalid, an endpoint that
// policy refuses is withdrawn.
func TestPolicyAppliesDespiteInvalidLabels(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(`{service: {labels: {team: shop}}, ` + literalSpec[1:])
	env.settle()
	env.spec(`{service: {labels: {"example.com/": x}}}`)
	env.reconciler.policies.options.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("203.0.113.1/32")}
	env.reconciler.policies.rulesChanged()
	env.settle()
	env.expectCondition(v1alpha1.ConditionAccepted, "False InvalidSpec: spec.service.labels")
	env.expectReady("http", "203.0.113.2")

	for _, o := range env.objects() {
		if s, ok := o.(*discoveryv1.EndpointSlice); ok && (s.Labels["team"] != "shop" || s.Labels["example.com/"] != "") {
			t.Errorf("labels %v", s.Labels)
		}
	}
}

// TestPermittedEndpointsReturnWhileInvalid: endpoints that policy withdraws while the spec is
// invalid return when policy allows them again. Status shows both, whether or not the manager knows
// the last valid spec.
func TestPermittedEndpointsReturnWhileInvalid(t *testing.T) {
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
				env.reconciler.policies.options.ClusterCIDRs = nil
				for _, a := range refused {
					options := &env.reconciler.policies.options
					options.ClusterCIDRs = append(options.ClusterCIDRs, netip.MustParsePrefix(a+"/32"))
				}
				env.reconciler.policies.rulesChanged()
				env.settle()
				env.expectCondition(v1alpha1.ConditionPermitted, `False TargetDenied: Refused by policy: target "a" (`)
				if n := len(env.endpoints()); n != 2-len(refused) {
					t.Errorf("%d endpoints", n)
				}
				for i, target := range env.backend().Status.Targets {
					denied := target.State == v1alpha1.TargetStateDenied &&
						target.Reason == v1alpha1.ReasonTargetDenied && target.Addresses == nil
					if denied != (i < len(refused)) {
						t.Errorf("target %+v", target)
					}
				}

				env.reconciler.policies.options.ClusterCIDRs = nil
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

				env.refuse = refuseNothing
				env.settle()
				env.expectCondition(v1alpha1.ConditionAccepted, "False InvalidSpec")
				env.expectCondition(v1alpha1.ConditionPermitted, "True Permitted")
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

// TestRenamedTargetKeepsItsAddressesWhileInvalid: a target that an invalid spec renames keeps the
// addresses that only its hostname allows, until policy refuses the hostname.
func TestRenamedTargetKeepsItsAddressesWhileInvalid(t *testing.T) {
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
	env.expectCondition(v1alpha1.ConditionAccepted, "False InvalidSpec")
	env.expectCondition(v1alpha1.ConditionPermitted, "True")

	env.restart()
	rules("*.example.com")
	published("after a restart", 2)
	env.reconciler.policies.options.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("203.0.113.1/32")}
	env.reconciler.policies.rulesChanged()
	published("one of them refused whatever its name", 1)

	env.spec(`{targets: [{name: pool, hostname: pool.example.com, ports: null}]}`)
	rules("*.example.com")
	published("valid again", 2)
	env.spec(renamed)
	rules("*.example.org")
	published("a name that is not allowed any more", 0)
}
