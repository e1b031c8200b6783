package controllers

import (
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

// TestTierChangedEventGivesTheReason: it does so for a failover, a return, a pinned tier, and a
// pinned tier without a ready endpoint.
func TestTierChangedEventGivesTheReason(t *testing.T) {
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
		{
			"failure", func() { setVerdict(probe.Unhealthy, 1, 2)(env) },
			"Normal TierChanged Tier 1 is active in place of tier 0. 0 of 1 endpoints of tier 0 are healthy.",
		},
		{
			"return", func() { setVerdict(probe.Healthy, 1, 2)(env) },
			"Normal TierChanged Tier 0 is active in place of tier 1. It has qualified for failbackDelaySeconds.",
		},
		{
			"pinned", func() { env.spec(`{failover: {pinnedTier: 1}}`) },
			"Normal TierChanged Tier 1 is active in place of tier 0. spec.failover.pinnedTier pins it.",
		},
		{
			"pinned while unhealthy", func() {
				setVerdict(probe.Unhealthy, 1, 2)(env)
				env.settle()
				env.spec(`{failover: {pinnedTier: 0}}`)
			},
			"Warning TierChanged Tier 0 is active in place of tier 1. spec.failover.pinnedTier pins it. " +
				"No endpoint is ready.",
		},
	} {
		step.do()
		env.settle()
		if got := env.events.take(); !slices.Contains(got, step.want) {
			t.Errorf("%s: %q lacks %q", step.name, got, step.want)
		}
	}
}

// TestNoTierEventBeforeTheFirstEndpoint: an object whose name does not resolve never had a tier
// that it could lose.
func TestNoTierEventBeforeTheFirstEndpoint(t *testing.T) {
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

// TestChangesAreLogged: the log has one line for each verdict, tier and condition that changes.
func TestChangesAreLogged(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(tieredSpec)
	env.settle()
	setVerdict(probe.Unhealthy, 1, 2)(env)
	env.refresh()
	var lines []string
	log := funcr.New(func(_, args string) { lines = append(lines, args) }, funcr.Options{})
	_, err := env.reconciler.Reconcile(ctrl.LoggerInto(t.Context(), log), ctrl.Request{NamespacedName: shop})
	env.ok(err)
	all := strings.Join(lines, "\n")
	for _, want := range []string{
		`Target \"a\" at 203.0.113.1:8080 is unhealthy`,
		"Tier 1 is active in place of tier 0",
		"Healthy is False, SomeUnhealthy: 1 of 2 probed endpoints are healthy.",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("the log lacks %q:\n%s", want, all)
		}
	}
}

// TestRecreatedServiceIsReportedOnce: a Service that somebody deletes comes back with another
// cluster IP, and one event says so.
func TestRecreatedServiceIsReportedOnce(t *testing.T) {
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
		t.Errorf("reported again: %q", got)
	}
}
