package controllers

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/external-backend/operator/internal/probe"
)

// TestMetricsFollowTheStatus: the series show what the status says of traffic, and are removed with
// the object.
func TestMetricsFollowTheStatus(t *testing.T) {
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
