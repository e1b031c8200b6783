package controllers

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/google/go-cmp/cmp"

	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

// story is a sequence of changes, after each of which the world comes to rest.
type story struct {
	name    string
	objects func() []client.Object
	steps   []func(w *world)
}

func addresses(from, to int) []resolve.Addr {
	var out []resolve.Addr
	for i := from; i < to; i++ {
		out = append(out, resolve.Addr{IP: netip.AddrFrom4([4]byte{203, 0, 113, byte(i)})})
	}
	return out
}

// resolves makes pool.example.com answer with the addresses 203.0.113.from to to-1.
func resolves(from, to int) func(*world) {
	return func(w *world) {
		w.resolver.known = map[string]resolve.Answer{
			"pool.example.com": {Status: resolve.Current, Addrs: addresses(from, to)},
		}
	}
}

// verdict is what the probes say of these addresses from now on.
func verdict(v probe.Verdict, from, to int) func(*world) {
	return func(w *world) {
		if w.prober.verdicts == nil {
			w.prober.verdicts = map[netip.Addr]probe.Verdict{}
		}
		for _, a := range addresses(from, to) {
			w.prober.verdicts[a.IP] = v
		}
	}
}

func spec(text string) func(*world) { return func(w *world) { w.spec(text) } }

const poolSpec = `{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], targets: [{name: pool, hostname: pool.example.com}], healthCheck: {tcpSocket: {}}}`

var stories = []story{
	{
		name: "a pool grows, flips, rolls over and shrinks",
		steps: []func(*world){
			func(w *world) { resolves(1, 6)(w); w.spec(poolSpec) },
			verdict(probe.Healthy, 1, 20),
			resolves(1, 12),
			verdict(probe.Unhealthy, 3, 5),
			resolves(5, 15),
			resolves(13, 15),
		},
	},
	{
		name: "verdicts alone change", // from plan to plan, which recall one another
		steps: []func(*world){
			func(w *world) { resolves(1, 12)(w); verdict(probe.Healthy, 1, 12)(w); w.spec(poolSpec) },
			verdict(probe.Unhealthy, 2, 4),
			func(w *world) { verdict(probe.Healthy, 2, 4)(w); verdict(probe.Unhealthy, 6, 11)(w) },
			verdict(probe.Unhealthy, 1, 12),
			verdict(probe.Healthy, 1, 12),
		},
	},
	{
		name: "ClusterIP, Headless, NodePort, ExternalName",
		steps: []func(*world){
			func(w *world) { resolves(1, 5)(w); verdict(probe.Healthy, 1, 5)(w); w.spec(poolSpec) },
			spec(`{service: {type: Headless}}`),
			spec(`{service: {type: NodePort, labels: {a: b}}}`),
			spec(`{service: {type: ExternalName}, healthCheck: null}`),
			spec(`{service: {type: ClusterIP}}`),
		},
	},
	{
		name: "ports that change move every endpoint to another group",
		steps: []func(*world){
			func(w *world) { resolves(1, 9)(w); verdict(probe.Healthy, 1, 9)(w); w.spec(poolSpec) },
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
		steps: []func(*world){
			func(w *world) {
				resolves(1, 4)(w)
				w.spec(`{service: {adoptionPolicy: IfSelectorless}, ` + poolSpec[1:])
			},
			verdict(probe.Healthy, 1, 3),
		},
	},
}

// fates are what may become of one write; after each the same fixpoint has to be reached.
func fates() map[string]fault {
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

func (s *story) begin(t *testing.T) *world {
	if s.objects == nil {
		return newWorld(t)
	}
	return newWorld(t, s.objects()...)
}

// chapter is one step of a story as it goes undisturbed: what there was before it, how many writes
// it takes, and what there is after it.
type chapter struct {
	before   []client.Object
	known    map[string]resolve.Answer
	verdicts map[netip.Addr]probe.Verdict
	step     func(*world)
	writes   int
	after    string
	// stable are the addresses that are published before and after.
	stable []netip.Addr
}

// tell goes through the story undisturbed.
func (s *story) tell(t *testing.T) []chapter {
	w := s.begin(t)
	var out []chapter
	for i, step := range s.steps {
		c := chapter{
			before:   w.objects(),
			known:    maps.Clone(w.resolver.known),
			verdicts: maps.Clone(w.prober.verdicts),
			step:     step,
		}
		writes, published := w.writes, w.endpoints()
		step(w)
		w.settle()
		for a := range w.endpoints() {
			if _, ok := published[a]; ok {
				c.stable = append(c.stable, a)
			}
		}
		c.writes, c.after = w.writes-writes, w.state()
		if c.writes == 0 {
			t.Fatalf("step %d writes nothing and so tests nothing", i)
		}
		out = append(out, c)
	}
	return out
}

// TestEveryWriteMayFail tells each story once undisturbed, then every step of it once for each of
// its writes and everything that may become of that write, with a cache that is fresh and one that
// lags behind in turn. It has to end where it ends undisturbed, and no endpoint that was and will
// be there may be missing after any write.
func TestEveryWriteMayFail(t *testing.T) {
	for _, s := range stories {
		t.Run(s.name, func(t *testing.T) {
			for i, c := range s.tell(t) {
				for name, f := range fates() {
					for n := 1; n <= c.writes; n++ {
						c.retell(t, fmt.Sprintf("step %d, write %d: %s", i, n, name), n, f, n%2 == 0)
					}
				}
			}
		})
	}
}

// retell takes the step with its n-th write going wrong.
func (c *chapter) retell(t *testing.T, what string, n int, f fault, lag bool) {
	t.Helper()
	w := newWorld(t, c.before...)
	w.what = fmt.Sprintf("%s, lag=%t", what, lag)
	w.resolver.known, w.prober.verdicts = maps.Clone(c.known), maps.Clone(c.verdicts)
	w.settle()
	first := w.writes
	w.fault = func(i int) fault {
		if i == first+n {
			return f
		}
		return fault{}
	}
	w.lag, w.stable = lag, c.stable
	c.step(w)
	w.settle()
	if diff := cmp.Diff(c.after, w.state()); diff != "" {
		t.Errorf("%s (-undisturbed +disturbed):\n%s", w.what, diff)
	}
}
