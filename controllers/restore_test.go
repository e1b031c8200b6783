package controllers

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/probe"
)

// tiersSpec has a standby, a draining target, and addresses that drain when they leave.
const tiersSpec = `{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], drainSeconds: 600, healthCheck: {tcpSocket: {}}, targets: [
  {name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.2}, {name: c, address: 203.0.113.3, adminState: Draining},
  {name: s, address: 203.0.113.4, tier: 1}, {name: t, address: 203.0.113.5, tier: 1}, {name: gone, address: 203.0.113.6}]}`

// restored is what a backup tool brings back: names, labels, annotations and content, with neither
// owners nor the UIDs of before.
func restored[T client.Object](o T, uid types.UID) T {
	o.SetOwnerReferences(nil)
	o.SetUID(uid)
	o.SetResourceVersion("")
	return o
}

// TestRestore brings everything back in every order. Nothing is taken down, and an ExternalBackend
// that arrives takes its slices up as they were.
func TestRestore(t *testing.T) {
	for _, way := range []string{created, adopting, attaching} {
		for _, order := range []string{"service slices backend", "slices service backend", "slices backend service"} {
			for _, policy := range []v1alpha1.DeletionPolicy{"", v1alpha1.DeletionPolicyRetain} {
				t.Run(fmt.Sprintf("%s/%s/%s", way, order, policy), func(t *testing.T) { testRestore(t, way, order, policy) })
			}
		}
	}
}

func testRestore(t *testing.T, way, order string, policy v1alpha1.DeletionPolicy) {
	env := newTestEnv(t)
	if way != created {
		env = newTestEnv(t, selectorless())
	}
	setVerdict(probe.Healthy, 1, 9)(env)
	env.prober.verdicts[netip.MustParseAddr("203.0.113.1")] = probe.Unhealthy
	env.prober.verdicts[netip.MustParseAddr("203.0.113.2")] = probe.Unhealthy
	env.spec(strings.Replace(tiersSpec, "{ports", way, 1))
	env.settle()
	env.spec(
		`{targets: [{name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.2}, {name: c, address: 203.0.113.3, adminState: Draining},
		{name: s, address: 203.0.113.4, tier: 1}, {name: t, address: 203.0.113.5, tier: 1}]}`,
	) // "gone" drains
	env.settle()
	before, backup, service := env.slices(), env.backend(), env.service()
	if e := env.endpoints()[netip.MustParseAddr("203.0.113.6")]; e.DrainUntil.IsZero() || *backup.Status.ActiveTier != 1 {
		t.Fatalf("before: %s", env.state())
	}
	for _, o := range env.objects() {
		env.ok(env.live.Delete(t.Context(), o))
	}

	env.restart()
	env.prober.verdicts = nil // nobody has been probed anew
	env.look(shop.Name)
	for what := range strings.FieldsSeq(order) {
		switch what {
		case "service":
			env.ok(env.live.Create(t.Context(), restored(service.DeepCopy(), "uid-of-service-2")))
		case "slices":
			for name, s := range before {
				env.ok(env.live.Create(t.Context(), restored(s.DeepCopy(), types.UID("uid-of-restored-"+name))))
			}
		case "backend":
			b := restored(backup.DeepCopy(), "uid-of-shop-2")
			b.Status = v1alpha1.ExternalBackendStatus{ObservedGeneration: -1}
			b.Spec.DeletionPolicy = policy
			b.CreationTimestamp = metav1.Now()
			env.ok(env.live.Create(t.Context(), b))
		}
		env.settle()
		if _, ok := env.slices()[slices.Sorted(maps.Keys(before))[0]]; ok {
			env.sameEndpoints("after "+what, before)
		}
	}

	env.sameEndpoints("at the end", before)
	for name, s := range env.slices() {
		if got, was := s.Annotations["external-backend.io/endpoints"], before[name].Annotations["external-backend.io/endpoints"]; got != was {
			t.Errorf("the annotation of slice %s was %q and is %q", name, was, got)
		}
		if ref := s.OwnerReferences; len(ref) != 1 || ref[0].UID != "uid-of-service-2" && ref[0].UID != "uid-of-shop-2" {
			t.Errorf("slice %s belongs to %v", name, ref)
		}
	}
	if s := env.service(); s.UID != "uid-of-service-2" || s.Spec.ClusterIP != service.Spec.ClusterIP {
		t.Errorf("the Service is %s with %s", s.UID, s.Spec.ClusterIP)
	}
	if got := env.backend().Status.ActiveTier; got == nil || *got != 1 {
		t.Errorf("the active tier is %v", got)
	}
}

// TestRestoredServiceIsAwaited: an ExternalBackend whose slices are there without a Service gives a
// restore half a minute to bring it.
func TestRestoredServiceIsAwaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := literalEnv(t)
		service, backend := env.service(), env.backend()
		arrive := func() {
			for _, o := range []client.Object{env.service(), env.backend()} {
				env.ok(env.live.Delete(t.Context(), o))
			}
			for _, s := range env.slices() {
				s.OwnerReferences = nil
				env.ok(env.live.Update(t.Context(), s))
			}
			env.look(shop.Name)
			b := restored(backend.DeepCopy(), types.UID(fmt.Sprintf("uid-of-shop-%d", env.writes)))
			b.CreationTimestamp = metav1.Now()
			b.Status = v1alpha1.ExternalBackendStatus{ObservedGeneration: -1}
			env.ok(env.live.Create(t.Context(), b))
		}
		arrive()
		if wait := env.look(shop.Name).RequeueAfter; wait <= 28*time.Second || wait > serviceGrace || env.service() != nil {
			t.Errorf("looks again after %v, with a Service: %t", wait, env.service() != nil)
		}
		env.expect(v1alpha1.ConditionProgrammed, `False ServiceNotFound: Service "shop" does not exist`)
		time.Sleep(25 * time.Second)
		env.ok(env.live.Create(t.Context(), restored(service.DeepCopy(), "uid-of-service-2")))
		env.settle()
		env.expect(v1alpha1.ConditionReady, "True")
		if s := env.service(); s.UID != "uid-of-service-2" {
			t.Errorf("the Service is another one: %s", s.UID)
		}

		arrive()
		time.Sleep(env.look(shop.Name).RequeueAfter)
		env.settle()
		if env.service() == nil {
			t.Error("no Service is made although none came back")
		}

		// One that is deleted by hand later on is made anew at once.
		env.ok(env.live.Delete(t.Context(), env.service()))
		for _, s := range env.slices() {
			s.OwnerReferences = nil
			env.ok(env.live.Update(t.Context(), s))
		}
		env.settle()
		if env.service() == nil {
			t.Error("the Service that was deleted by hand is not made anew")
		}
	})
}

// TestOrphans: slices without owner whose ExternalBackend is gone.
func TestOrphans(t *testing.T) {
	const grace = 10 * time.Minute
	for _, tt := range []struct {
		name    string
		service bool
		owner   string
		age     time.Duration // when the manager starts
		up      time.Duration // of the manager
		left    bool
		looks   time.Duration // again after; 0: never
	}{
		{name: "restored, and the manager has been up for long", up: time.Hour, age: -time.Hour, left: true, looks: grace},
		{name: "restored a while ago", up: time.Hour, age: -time.Hour + 4*time.Minute, left: true, looks: 6 * time.Minute},
		{name: "old, and the manager has just started", age: time.Hour, left: true, looks: grace},
		{name: "old", age: time.Hour, up: grace},
		{name: "restored long enough ago", up: time.Hour, age: -time.Hour + grace},
		{name: "old, with the Service", age: time.Hour, up: time.Hour, service: true, left: true},
		{name: "old, with an owner", age: time.Hour, up: time.Hour, owner: "Service", left: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				_, slice := leftBy("former", shop.Name)
				slice.OwnerReferences = nil
				if tt.owner != "" {
					slice.OwnerReferences = []metav1.OwnerReference{
						{APIVersion: "v1", Kind: tt.owner, Name: shop.Name, UID: "uid-of-service"},
					}
				}
				started := time.Now()
				time.Sleep(tt.up)
				slice.CreationTimestamp = metav1.NewTime(started.Add(-tt.age))
				env := newTestEnv(t, slice)
				if tt.service {
					env = newTestEnv(t, slice, selectorless())
				}
				env.reconciler.Started, env.reconciler.Options.OrphanGrace = started, grace
				wait := env.look("former").RequeueAfter
				if wait != tt.looks {
					t.Errorf("looks again after %v, not %v", wait, tt.looks)
				}
				if left := len(env.slices()) > 0; left != tt.left {
					t.Errorf("still there: %t, want %t", left, tt.left)
				}
			})
		})
	}
}

// TestOrphansOfAnArrival: the cache may not have seen yet that the ExternalBackend, or the Service,
// is there.
func TestOrphansOfAnArrival(t *testing.T) {
	for _, arrives := range []client.Object{
		selectorless(),
		&v1alpha1.ExternalBackend{ObjectMeta: metav1.ObjectMeta{Name: "former", Namespace: shop.Namespace, UID: "uid-of-former"}},
	} {
		_, slice := leftBy("former", shop.Name)
		slice.OwnerReferences = nil
		env := newTestEnv(t, slice)
		env.reconciler.Options.OrphanGrace = 0
		env.ok(env.live.Create(t.Context(), arrives))
		key := types.NamespacedName{Namespace: shop.Namespace, Name: "former"}
		_, err := env.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: key}) // on the cache of before
		env.ok(err)
		if len(env.slices()) == 0 {
			t.Errorf("deleted although there is a %T", arrives)
		}
	}
}

// leftBy is a Service and what an ExternalBackend that is gone has left behind it: a slice that
// belongs to the Service, with one address that shop has, and one that it has not.
func leftBy(former, name string) (*corev1.Service, *discoveryv1.EndpointSlice) {
	service := selectorless()
	service.Name, service.Labels = name, map[string]string{v1alpha1.LabelName: former}
	ready := discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)}
	return service, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: former + "-v4-x-0", Namespace: shop.Namespace, UID: "uid-of-left-slice",
			Labels: map[string]string{
				discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: v1alpha1.ManagedBy, v1alpha1.LabelName: former,
			},
			Annotations: map[string]string{"external-backend.io/endpoints": ""},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(service, corev1.SchemeGroupVersion.WithKind("Service")),
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)},
		},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"203.0.113.1"}, Conditions: ready},
			{Addresses: []string{"203.0.113.9"}, Conditions: ready},
		},
	}
}

// TestOrphansHearOfTheirService: when the Service goes, somebody looks at the slices that it kept.
func TestOrphansHearOfTheirService(t *testing.T) {
	service, slice := leftBy("former", shop.Name)
	slice.OwnerReferences = nil
	env := newTestEnv(t, service, slice)
	env.spec(having(attaching))
	env.refresh()
	got := env.reconciler.requestsForService(t.Context(), service)
	if want := []ctrl.Request{newRequest(shop.Namespace, "shop"), newRequest(shop.Namespace, "former")}; !slices.Equal(
		got,
		want,
	) {
		t.Errorf("looked at: %v, want %v", got, want)
	}
}

// TestOrphanedUnderARunningManager: kubectl delete --cascade=orphan keeps Service and endpoints,
// whatever the manager has seen of it.
func TestOrphanedUnderARunningManager(t *testing.T) {
	for _, way := range []string{created, adopting, attaching} {
		env := newTestEnv(t)
		if way != created {
			env = newTestEnv(t, selectorless())
		}
		setVerdict(probe.Healthy, 1, 3)(env)
		env.spec(having(way))
		env.settle()
		before, uid := env.slices(), env.backend().UID
		// The garbage collector takes the references to the ExternalBackend off, then lets it go.
		b := env.backend()
		b.Finalizers = []string{metav1.FinalizerOrphanDependents}
		env.ok(env.live.Update(t.Context(), b))
		env.ok(env.live.Delete(t.Context(), b))
		ofBackend := func(ref metav1.OwnerReference) bool { return ref.UID == uid }
		for _, o := range env.objects() {
			if o.SetOwnerReferences(slices.DeleteFunc(o.GetOwnerReferences(), ofBackend)); o.GetName() != shop.Name ||
				o.GetUID() != uid {
				env.ok(env.live.Update(t.Context(), o))
				env.look(shop.Name)
			}
		}
		b = env.backend()
		b.Finalizers = nil
		env.ok(env.live.Update(t.Context(), b))
		env.look(shop.Name)
		env.restart()
		env.look(shop.Name)
		env.sameEndpoints(way, before)
		if s := env.service(); s == nil || owner(s) != "" {
			t.Errorf("%s: the Service is %v", way, s)
		}
	}
}
