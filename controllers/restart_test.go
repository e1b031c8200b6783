package controllers

import (
	"maps"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

// TestUnreadableAnnotationRemovesNothing: after a restart that finds annotations it can't read, no
// endpoint is removed and no condition changes before names and verdicts are known.
func TestUnreadableAnnotationRemovesNothing(t *testing.T) {
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

// TestRestartWithoutAnswersWritesNothing: after a restart nothing is new about a name that does not
// resolve.
func TestRestartWithoutAnswersWritesNothing(t *testing.T) {
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
