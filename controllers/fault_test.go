package controllers

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

// scenario is a sequence of changes. After each of them the testEnv settles.
type scenario struct {
	name    string
	objects func() []client.Object
	steps   []func(env *testEnv)
}

var scenarios = []scenario{
	{
		name: "a pool grows, flips, rolls over and shrinks",
		steps: []func(*testEnv){
			func(env *testEnv) { setAnswer(1, 6)(env); env.spec(poolSpec) },
			setVerdict(probe.Healthy, 1, 20),
			setAnswer(1, 12),
			setVerdict(probe.Unhealthy, 3, 5),
			setAnswer(5, 15),
			setAnswer(13, 15),
		},
	},
	{
		name: "only verdicts change", // each plan reuses the one before
		steps: []func(*testEnv){
			func(env *testEnv) { setAnswer(1, 12)(env); setVerdict(probe.Healthy, 1, 12)(env); env.spec(poolSpec) },
			setVerdict(probe.Unhealthy, 2, 4),
			func(env *testEnv) { setVerdict(probe.Healthy, 2, 4)(env); setVerdict(probe.Unhealthy, 6, 11)(env) },
			setVerdict(probe.Unhealthy, 1, 12),
			setVerdict(probe.Healthy, 1, 12),
		},
	},
	{
		name: "ClusterIP, Headless, NodePort, ExternalName",
		steps: []func(*testEnv){
			func(env *testEnv) { setAnswer(1, 5)(env); setVerdict(probe.Healthy, 1, 5)(env); env.spec(poolSpec) },
			spec(`{service: {type: Headless}}`),
			spec(`{service: {type: NodePort, labels: {a: b}}}`),
			spec(`{service: {type: ExternalName}, healthCheck: null}`),
			spec(`{service: {type: ClusterIP}}`),
		},
	},
	{
		name: "ports that change move every endpoint to another group",
		steps: []func(*testEnv){
			func(env *testEnv) { setAnswer(1, 9)(env); setVerdict(probe.Healthy, 1, 9)(env); env.spec(poolSpec) },
			spec(`{ports: [{name: http, port: 80, targetPort: 9090, protocol: TCP}]}`),
			spec(`{ports: [{name: http, port: 80, targetPort: 9090, protocol: TCP}, {name: admin, port: 81, protocol: TCP}]}`),
		},
	},
	{
		name: "adoption of a Service with a slice of its own",
		objects: func() []client.Object {
			return []client.Object{
				&corev1.Service{
					ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: "default", UID: "uid-of-old"},
					Spec: corev1.ServiceSpec{
						Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.77", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
						Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
					},
				},
				&discoveryv1.EndpointSlice{
					ObjectMeta: metav1.ObjectMeta{
						Name:      "by-hand",
						Namespace: "default",
						UID:       "uid-of-slice",
						Labels:    map[string]string{discoveryv1.LabelServiceName: "shop"},
					},
					AddressType: discoveryv1.AddressTypeIPv4,
					Ports: []discoveryv1.EndpointPort{
						{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)},
					},
					Endpoints: []discoveryv1.Endpoint{
						{Addresses: []string{"203.0.113.1"}},
						{Addresses: []string{"203.0.113.2"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
					},
				},
			}
		},
		steps: []func(*testEnv){
			func(env *testEnv) {
				setAnswer(1, 4)(env)
				env.spec(`{service: {adoptionPolicy: IfSelectorless}, ` + poolSpec[1:])
			},
			setVerdict(probe.Healthy, 1, 3),
		},
	},
}

// writeFaults returns what can happen to one write. After each of them the same state has to be
// reached.
func writeFaults() map[string]fault {
	slicesResource := schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
	return map[string]fault{
		"crash before":         {crash: true},
		"crash after":          {crash: true, committed: true},
		"conflict":             {err: apierrors.NewConflict(slicesResource, "x", nil)},
		"too many requests":    {err: apierrors.NewTooManyRequests("slow down", 1)},
		"internal error":       {err: apierrors.NewInternalError(fmt.Errorf("boom"))},
		"timeout":              {err: context.DeadlineExceeded},
		"timeout after commit": {err: context.DeadlineExceeded, committed: true},
	}
}

func (s *scenario) begin(t *testing.T) *testEnv {
	if s.objects == nil {
		return newTestEnv(t)
	}
	return newTestEnv(t, s.objects()...)
}

// scenarioStep is one step of a scenario as it goes undisturbed: the objects before it, how many
// writes it takes, and the state after it.
type scenarioStep struct {
	before   []client.Object
	known    map[string]resolve.Answer
	verdicts map[netip.Addr]probe.Verdict
	step     func(*testEnv)
	writes   int
	after    string
	// stable are the addresses that are published before and after.
	stable []netip.Addr
}

// run runs the scenario undisturbed.
func (s *scenario) run(t *testing.T) []scenarioStep {
	env := s.begin(t)
	var out []scenarioStep
	for i, step := range s.steps {
		next := scenarioStep{
			before:   env.objects(),
			known:    maps.Clone(env.resolver.known),
			verdicts: maps.Clone(env.prober.verdicts),
			step:     step,
		}
		writes, published := env.writes, env.endpoints()
		step(env)
		env.settle()
		for a := range env.endpoints() {
			if _, ok := published[a]; ok {
				next.stable = append(next.stable, a)
			}
		}
		next.writes, next.after = env.writes-writes, env.state()
		if next.writes == 0 {
			t.Fatalf("step %d writes nothing and so tests nothing", i)
		}
		out = append(out, next)
	}
	return out
}

// TestEveryWriteMayFail: each scenario runs once undisturbed. Then each of its steps runs once for
// every write and everything that can happen to that write, with a cache that is fresh or lags
// behind in turn. It has to end in the same state. No endpoint that is published before and after
// the step may be missing after any write.
func TestEveryWriteMayFail(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			for i, c := range s.run(t) {
				for name, f := range writeFaults() {
					for n := 1; n <= c.writes; n++ {
						c.disturb(t, fmt.Sprintf("step %d, write %d: %s", i, n, name), n, f, n%2 == 0)
					}
				}
			}
		})
	}
}

// disturb runs the step with a fault at its n-th write.
func (c *scenarioStep) disturb(t *testing.T, what string, n int, f fault, lag bool) {
	t.Helper()
	env := newTestEnv(t, c.before...)
	env.what = fmt.Sprintf("%s, lag=%t", what, lag)
	env.resolver.known, env.prober.verdicts = maps.Clone(c.known), maps.Clone(c.verdicts)
	env.settle()
	first := env.writes
	env.fault = func(i int) fault {
		if i == first+n {
			return f
		}
		return fault{}
	}
	env.lag, env.stable = lag, c.stable
	c.step(env)
	env.settle()
	if diff := cmp.Diff(c.after, env.state()); diff != "" {
		t.Errorf("%s (-undisturbed +disturbed):\n%s", env.what, diff)
	}
}
