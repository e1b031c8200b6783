package controllers

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

const tieredSpec = `{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], healthCheck: {tcpSocket: {}}, failover: {failbackDelaySeconds: 0},
	targets: [{name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.2, tier: 1}]}`

// TestTierChangedSaysWhy: the event of a failover, of a return, of a pin and of a pin that takes
// everything out.
func TestTierChangedSaysWhy(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(tieredSpec)
	env.settle()
	env.events.take()
	for _, step := range []struct {
		name string
		do   func()
		want string
	}{
		{"failure", func() { setVerdict(probe.Unhealthy, 1, 2)(env) }, "Normal TierChanged Tier 1 is active in place of tier 0. 0 of 1 endpoints of tier 0 are healthy."},
		{"return", func() { setVerdict(probe.Healthy, 1, 2)(env) }, "Normal TierChanged Tier 0 is active in place of tier 1. It has qualified for failbackDelaySeconds."},
		{"pin", func() { env.spec(`{failover: {pinnedTier: 1}}`) }, "Normal TierChanged Tier 1 is active in place of tier 0. spec.failover.pinnedTier pins it."},
		{"pin of what is dead", func() {
			setVerdict(probe.Unhealthy, 1, 2)(env)
			env.settle()
			env.spec(`{failover: {pinnedTier: 0}}`)
		}, "Warning TierChanged Tier 0 is active in place of tier 1. spec.failover.pinnedTier pins it. No endpoint is ready."},
	} {
		step.do()
		env.settle()
		if got := env.events.take(); !slices.Contains(got, step.want) {
			t.Errorf("%s: %q lacks %q", step.name, got, step.want)
		}
	}
}

// TestNoTierBeforeTheFirstEndpoint: an object whose name does not resolve never had a tier to lose.
func TestNoTierBeforeTheFirstEndpoint(t *testing.T) {
	env := newTestEnv(t)
	env.spec(poolSpec)
	env.settle()
	env.resolver.known = map[string]resolve.Answer{
		"pool.example.com": {Status: resolve.Failed, Reason: resolve.ReasonNameNotFound, Cause: "NXDOMAIN"},
	}
	env.settle()
	for _, e := range env.events.take() {
		if strings.Contains(e, "TierChanged") {
			t.Error(e)
		}
	}
}

// TestChangesAreLogged: verdicts, tiers and conditions that change stand in the log, a line each.
func TestChangesAreLogged(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(tieredSpec)
	env.settle()
	setVerdict(probe.Unhealthy, 1, 2)(env)
	env.refresh()
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	if _, err := env.reconciler.Reconcile(ctrl.LoggerInto(t.Context(), log), ctrl.Request{NamespacedName: shop}); err != nil {
		t.Fatal(err)
	}
	all := strings.Join(lines, "\n")
	for _, want := range []string{
		`Target \"a\" at 203.0.113.1:8080 is unhealthy`, "Tier 1 is active in place of tier 0", "Healthy is False, SomeUnhealthy: 1 of 2 probed endpoints are healthy.",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("the log lacks %q:\n%s", want, all)
		}
	}
}

// TestServiceRecreated: a Service that somebody deletes comes back with another cluster IP, which an event tells once.
func TestServiceRecreated(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(literalSpec)
	env.settle()
	var s corev1.Service
	env.ok(env.live.Get(t.Context(), shop, &s))
	env.ok(env.live.Delete(t.Context(), &s))
	env.writes++
	env.refresh()
	env.events.take()
	env.settle()
	recreated := func(e string) bool {
		return strings.HasPrefix(e, "Warning ServiceRecreated Service \"shop\" was deleted and has been made anew")
	}
	if got := env.events.take(); !slices.ContainsFunc(got, recreated) {
		t.Errorf("%q", got)
	}
	env.spec(`{drainSeconds: 5}`)
	env.settle()
	if got := env.events.take(); slices.ContainsFunc(got, recreated) {
		t.Errorf("told again: %q", got)
	}
}

// TestMetricsOfOneObject: what status says of traffic is in metrics, and goes with the object.
func TestMetricsOfOneObject(t *testing.T) {
	env := newTestEnv(t)
	registry := prometheus.NewRegistry()
	env.reconciler.Metrics = NewMetrics(registry)
	want := func(when string, want map[string]float64) {
		t.Helper()
		families, err := registry.Gather()
		env.ok(err)
		got := map[string]float64{}
		for _, f := range families {
			if name := f.GetName(); strings.Contains(name, "ready") || strings.Contains(name, "tier") {
				got[name] = f.GetMetric()[0].GetGauge().GetValue()
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -want +got:\n%s", when, diff)
		}
	}
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(tieredSpec)
	env.settle()
	want("healthy", map[string]float64{
		"externalbackend_ready_endpoints": 1,
		"externalbackend_active_tier":     0,
		"externalbackend_ready":           1,
	})
	setVerdict(probe.Unhealthy, 1, 2)(env)
	env.settle()
	want("failed over", map[string]float64{
		"externalbackend_ready_endpoints": 1,
		"externalbackend_active_tier":     1,
		"externalbackend_ready":           1,
	})
	setVerdict(probe.Unhealthy, 2, 3)(env)
	env.settle()
	want("all dead", map[string]float64{"externalbackend_ready_endpoints": 0, "externalbackend_ready": 0})
	env.reconciler.Metrics.forget(shop)
	want("gone", map[string]float64{})
}
