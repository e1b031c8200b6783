package controllers

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/render"
)

// TestRenderedObjectsStandInTheCluster renders ExternalBackends from what the API server has after
// the manager is done. Nothing of it differs from what the manager has written.
func TestRenderedObjectsStandInTheCluster(t *testing.T) {
	const fixed = "targets: [{name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.2, tier: 1}]"
	for name, spec := range map[string]string{
		"ClusterIP": `{ports: [{name: http, port: 80}], healthCheck: {tcpSocket: {}}, ` + fixed + `}`,
		"Headless": `{service: {type: Headless, labels: {team: shop}}, ports: [{name: http, port: 80}], deletionPolicy: Retain, ` +
			fixed + `}`,
		"name": `{ports: [{name: http, port: 80}], healthCheck: {tcpSocket: {}},
			targets: [{name: pool, hostname: pool.example.com}]}`,
		"alias": `{service: {type: ExternalName}, ports: [{name: http, port: 80}],
			targets: [{name: a, hostname: pool.example.com}]}`,
		"passthrough": `{service: {type: Headless}, dns: {resolution: Passthrough}, ports: [{name: http, port: 80}],
			targets: [{name: a, hostname: pool.example.com}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			env := newTestEnv(t)
			setAnswer(1, 3)(env)
			setVerdict(probe.Healthy, 1, 3)(env)
			setVerdict(probe.Unhealthy, 2, 3)(env)
			env.spec(spec)
			env.settle()

			in := render.Input{
				Backend: env.backend(), Families: []corev1.IPFamily{corev1.IPv4Protocol},
				MaxPerSlice: 100, MaxPerBackend: 10000, Now: env.reconciler.now(),
			}
			for _, o := range env.objects() {
				switch o := o.(type) {
				case *corev1.Service:
					in.Service = o
				case *discoveryv1.EndpointSlice:
					in.Slices = append(in.Slices, o)
				}
			}
			planned, err := render.Render(in)
			env.ok(err)
			live, err := render.Documents(in.Service, in.Slices)
			env.ok(err)
			after, err := render.Documents(planned.Service, planned.Slices)
			env.ok(err)
			if len(live) == 0 || name != "alias" && len(live) == 1 {
				t.Fatalf("only %d objects stand", len(live))
			}
			if diff, err := render.Diff(live, after); diff != "" || err != nil {
				t.Errorf("%v\n%s", err, diff)
			}
		})
	}
}
