package controllers

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/internal/probe"
)

// TestSomeTierIsReadyThroughoutAFailover: at each moment one tier is ready, although the endpoints
// of the two tiers are in different slices. If the new one can't be made ready the old one stays.
func TestSomeTierIsReadyThroughoutAFailover(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	const spec = `{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}],
		healthCheck: {tcpSocket: {}}, failover: {pinnedTier: %}, targets: [
		{name: a, address: 203.0.113.1, ports: [{name: http, targetPort: 6432}]},
		{name: b, address: 203.0.113.2, tier: 1}]}`
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
	setVerdict(probe.Unhealthy, 1, 2)(env) // no failed write may delay this
	_, _ = env.reconcile()
	env.expectReady("http")
}

// TestFailedWriteKeepsNoUnhealthyEndpointReady: although one slice can't be written, unhealthy and
// denied endpoints in other slices get no traffic.
func TestFailedWriteKeepsNoUnhealthyEndpointReady(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 5)(env)
	env.spec(`{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}],
		healthCheck: {tcpSocket: {}}, failover: {minHealthyPercent: 60}, targets: [
		{name: a, address: 203.0.113.1, ports: [{name: http, targetPort: 6432}]},
		{name: c, address: 203.0.113.3, ports: [{name: http, targetPort: 6432}]},
		{name: d, address: 203.0.113.4, ports: [{name: http, targetPort: 6432}]},
		{name: b, address: 203.0.113.2, tier: 1}]}`)
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

	env.reconciler.policies.options.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("203.0.113.4/32")}
	env.reconciler.policies.rulesChanged()
	_, _ = env.reconcile()
	if _, ok := env.endpoints()[netip.MustParseAddr("203.0.113.4")]; ok {
		t.Error("an endpoint that policy refuses stays")
	}

	env.refuse = refuseNothing
	env.settle()
	env.expectReady("http", "203.0.113.2")
}

// TestFailedCreateDelaysNoFailover: a slice that can't be created does not stop a failover to a
// tier with another endpoint that is ready.
func TestFailedCreateDelaysNoFailover(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 9)(env)
	const spec = `{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}],
		healthCheck: {tcpSocket: {}}, failover: {pinnedTier: %d}, targets: [
		{name: a, address: 203.0.113.1, ports: [{name: http, targetPort: 6432}]},
		{name: b, address: 203.0.113.2, tier: 1}%s]}`
	env.spec(fmt.Sprintf(spec, 0, ""))
	env.settle()
	env.refuse = refuseNewSlices
	env.spec(fmt.Sprintf(spec, 1, ", {name: c, address: 203.0.113.3, tier: 1, ports: [{name: http, targetPort: 7432}]}"))
	for range 2 {
		_, _ = env.reconcile()
	}
	env.expectReady("http", "203.0.113.2")
}
