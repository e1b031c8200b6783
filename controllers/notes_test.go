package controllers

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

const tieredSpec = `{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], healthCheck: {tcpSocket: {}}, failover: {failbackDelaySeconds: 0},
	targets: [{name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.2, tier: 1}]}`

// TestTierChangedSaysWhy: the event of a failover, of a return, of a pin and of a pin that takes everything out.
func TestTierChangedSaysWhy(t *testing.T) {
	w := newWorld(t)
	verdict(probe.Healthy, 1, 3)(w)
	w.spec(tieredSpec)
	w.settle()
	w.events.take()
	for _, step := range []struct {
		name string
		do   func()
		want string
	}{
		{"failure", func() { verdict(probe.Unhealthy, 1, 2)(w) }, "Normal TierChanged Tier 1 is active in place of tier 0. 0 of 1 endpoints of tier 0 are healthy."},
		{"return", func() { verdict(probe.Healthy, 1, 2)(w) }, "Normal TierChanged Tier 0 is active in place of tier 1. It has qualified for failbackDelaySeconds."},
		{"pin", func() { w.spec(`{failover: {pinnedTier: 1}}`) }, "Normal TierChanged Tier 1 is active in place of tier 0. spec.failover.pinnedTier pins it."},
		{"pin of what is dead", func() {
			verdict(probe.Unhealthy, 1, 2)(w)
			w.settle()
			w.spec(`{failover: {pinnedTier: 0}}`)
		}, "Warning TierChanged Tier 0 is active in place of tier 1. spec.failover.pinnedTier pins it. No endpoint is ready."},
	} {
		step.do()
		w.settle()
		if got := w.events.take(); !slices.Contains(got, step.want) {
			t.Errorf("%s: %q lacks %q", step.name, got, step.want)
		}
	}
}

// TestNoTierBeforeTheFirstEndpoint: an object whose name does not resolve never had a tier to lose.
func TestNoTierBeforeTheFirstEndpoint(t *testing.T) {
	w := newWorld(t)
	w.spec(poolSpec)
	w.settle()
	w.resolver.known = map[string]resolve.Answer{"pool.example.com": {Status: resolve.Failed, Reason: resolve.ReasonNameNotFound, Cause: "NXDOMAIN"}}
	w.settle()
	for _, e := range w.events.take() {
		if strings.Contains(e, "TierChanged") {
			t.Error(e)
		}
	}
}

// TestChangesAreLogged: verdicts, tiers and conditions that change stand in the log, a line each.
func TestChangesAreLogged(t *testing.T) {
	w := newWorld(t)
	verdict(probe.Healthy, 1, 3)(w)
	w.spec(tieredSpec)
	w.settle()
	verdict(probe.Unhealthy, 1, 2)(w)
	w.refresh()
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	if _, err := w.reconciler.Reconcile(ctrl.LoggerInto(t.Context(), log), ctrl.Request{NamespacedName: shop}); err != nil {
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
