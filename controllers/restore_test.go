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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/probe"
)

// tiersSpec has a standby tier, a draining target, and addresses that drain when they leave.
const tiersSpec = `{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], drainSeconds: 600,
	healthCheck: {tcpSocket: {}}, targets: [
	{name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.2},
	{name: c, address: 203.0.113.3, adminState: Draining},
	{name: s, address: 203.0.113.4, tier: 1}, {name: t, address: 203.0.113.5, tier: 1},
	{name: gone, address: 203.0.113.6}]}`

// TestRestoreInAnyOrderRemovesNothing: a restore brings everything back, in any order. No endpoint
// is removed, and a new ExternalBackend takes up its slices as they were.
func TestRestoreInAnyOrderRemovesNothing(t *testing.T) {
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
		env = newTestEnv(t, selectorlessService())
	}
	setVerdict(probe.Healthy, 1, 9)(env)
	env.prober.verdicts[netip.MustParseAddr("203.0.113.1")] = probe.Unhealthy
	env.prober.verdicts[netip.MustParseAddr("203.0.113.2")] = probe.Unhealthy
	env.spec(strings.Replace(tiersSpec, "{ports", way, 1))
	env.settle()
	env.spec(`{targets: [{name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.2},
		{name: c, address: 203.0.113.3, adminState: Draining},
		{name: s, address: 203.0.113.4, tier: 1}, {name: t, address: 203.0.113.5, tier: 1}]}`) // "gone" drains
	env.settle()
	before, backup, service := env.slices(), env.backend(), env.service()
	if e := env.endpoints()[netip.MustParseAddr("203.0.113.6")]; e.DrainUntil.IsZero() || *backup.Status.ActiveTier != 1 {
		t.Fatalf("before: %s", env.state())
	}

	for _, o := range env.objects() {
		env.ok(env.live.Delete(t.Context(), o))
	}

	env.restart()
	env.prober.verdicts = nil // nothing has been probed since the restart
	env.reconcileNamed(shop.Name)
	for what := range strings.FieldsSeq(order) {
		switch what {
		case "service":
			env.ok(env.live.Create(t.Context(), asRestored(service.DeepCopy(), "uid-of-service-2")))
		case "slices":
			for name, s := range before {
				env.ok(env.live.Create(t.Context(), asRestored(s.DeepCopy(), types.UID("uid-of-restored-"+name))))
			}
		case "backend":
			b := asRestored(backup.DeepCopy(), "uid-of-shop-2")
			b.Status = v1alpha1.ExternalBackendStatus{ObservedGeneration: -1}
			b.Spec.DeletionPolicy = policy
			b.CreationTimestamp = metav1.Now()
			env.ok(env.live.Create(t.Context(), b))
		}
		env.settle()
		if _, ok := env.slices()[slices.Sorted(maps.Keys(before))[0]]; ok {
			env.expectSameEndpoints("after "+what, before)
		}
	}

	env.expectSameEndpoints("at the end", before)
	for name, s := range env.slices() {
		const annotation = "external-backend.io/endpoints"
		if got, was := s.Annotations[annotation], before[name].Annotations[annotation]; got != was {
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

// TestRestoredServiceIsAwaited: an ExternalBackend that finds its slices without a Service gives a
// restore half a minute to bring the Service.
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
			env.reconcileNamed(shop.Name)
			b := asRestored(backend.DeepCopy(), types.UID(fmt.Sprintf("uid-of-shop-%d", env.writes)))
			b.CreationTimestamp = metav1.Now()
			b.Status = v1alpha1.ExternalBackendStatus{ObservedGeneration: -1}
			env.ok(env.live.Create(t.Context(), b))
		}
		arrive()
		wait := env.reconcileNamed(shop.Name).RequeueAfter
		if wait <= 28*time.Second || wait > serviceGrace || env.service() != nil {
			t.Errorf("looks again after %v, with a Service: %t", wait, env.service() != nil)
		}
		env.expectCondition(v1alpha1.ConditionProgrammed, `False ServiceNotFound: Service "shop" does not exist`)

		time.Sleep(25 * time.Second)
		env.ok(env.live.Create(t.Context(), asRestored(service.DeepCopy(), "uid-of-service-2")))
		env.settle()
		env.expectCondition(v1alpha1.ConditionReady, "True")
		if s := env.service(); s.UID != "uid-of-service-2" {
			t.Errorf("the Service is another one: %s", s.UID)
		}

		arrive()
		time.Sleep(env.reconcileNamed(shop.Name).RequeueAfter)
		env.settle()
		if env.service() == nil {
			t.Error("no Service is created although none came back")
		}

		// A Service that is deleted by hand later is created again at once.
		env.ok(env.live.Delete(t.Context(), env.service()))
		for _, s := range env.slices() {
			s.OwnerReferences = nil
			env.ok(env.live.Update(t.Context(), s))
		}
		env.settle()
		if env.service() == nil {
			t.Error("the Service that was deleted by hand is not created again")
		}
	})
}
