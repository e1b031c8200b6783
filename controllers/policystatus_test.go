package controllers

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

// policyEnv runs a policyReporter over a fake API server, in fake time.
type policyEnv struct {
	t        *testing.T
	client   client.WithWatch
	refusals *refusalStore
	events   ownEvents
	writes   atomic.Int32
	refuse   atomic.Bool // the API server refuses every write
	stop     context.CancelFunc
	p        *policies
}

// newPolicyEnv starts a reporter in a cluster with these objects.
func newPolicyEnv(t *testing.T, objects ...client.Object) *policyEnv {
	env := &policyEnv{t: t}
	env.client = fake.NewClientBuilder().WithScheme(testScheme()).WithObjects(objects...).
		WithStatusSubresource(&v1alpha1.ExternalBackend{}, &v1alpha1.ExternalBackendPolicy{}).
		WithInterceptorFuncs(interceptor.Funcs{SubResourcePatch: func(
			ctx context.Context, c client.Client, sub string, o client.Object, p client.Patch,
			options ...client.SubResourcePatchOption,
		) error {
			env.writes.Add(1)
			if env.refuse.Load() {
				return apierrors.NewForbidden(schema.GroupResource{Resource: "externalbackendpolicies"}, o.GetName(), nil)
			}
			return c.SubResource(sub).Patch(ctx, o, p, options...)
		}}).Build()
	env.start()
	t.Cleanup(func() { env.stop() })
	return env
}

// start starts a new process, which knows only what is in the cluster.
func (env *policyEnv) start() {
	ctx, stop := context.WithCancel(env.t.Context())
	env.stop = stop
	env.refusals, env.p = newRefusalStore(), &policies{client: env.client}
	reporter := newPolicyReporter(&Reconciler{
		Client: env.client, Recorder: &env.events, policies: env.p, refusals: env.refusals,
	})
	go func() { _ = reporter.run(ctx) }()
}

// restart stops the process and starts another.
func (env *policyEnv) restart() {
	env.stop()
	synctest.Wait()
	env.start()
}

// wait lets time pass.
func (env *policyEnv) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// judge reports what policy says about an ExternalBackend, as its reconcile does.
func (env *policyEnv) judge(key string, d plan.PolicyRefusals, withdrawn bool) {
	namespace, name, _ := strings.Cut(key, "/")
	env.refusals.report(types.NamespacedName{Namespace: namespace, Name: name}, d, withdrawn)
}

// policy returns a policy from the API server.
func (env *policyEnv) policy(name string) *v1alpha1.ExternalBackendPolicy {
	env.t.Helper()
	p := &v1alpha1.ExternalBackendPolicy{}
	if err := env.client.Get(env.t.Context(), types.NamespacedName{Name: name}, p); err != nil {
		env.t.Fatal(err)
	}
	return p
}

// edit changes the spec of a policy, as the API server and the watch do.
func (env *policyEnv) edit(name string, change func(*v1alpha1.ExternalBackendPolicySpec)) {
	env.t.Helper()
	p := env.policy(name)
	change(&p.Spec)
	p.Generation++
	if err := env.client.Update(env.t.Context(), p); err != nil {
		env.t.Fatal(err)
	}
	env.p.rulesChanged()
	env.refusals.notify()
}

// expect fails unless the status of a policy has these counts: namespaces, ExternalBackends,
// refused.
func (env *policyEnv) expect(when, name, want string) {
	env.t.Helper()
	s := env.policy(name).Status
	count := func(n *int32) string {
		if n == nil {
			return "-"
		}
		return fmt.Sprint(*n)
	}
	got := strings.Join([]string{
		count(s.SelectedNamespaces), count(s.SelectedExternalBackends), count(s.RefusedExternalBackends),
	}, " ")
	if got != want {
		env.t.Errorf("%s: %s counts %s, not %s", when, name, got, want)
	}
}

// expectWrites fails unless the status of policies was written so often.
func (env *policyEnv) expectWrites(when string, want int32) {
	env.t.Helper()
	if n := env.writes.Load(); n != want {
		env.t.Errorf("%s: %d writes, not %d", when, n, want)
	}
}

func namespaceOf(team, name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"team": team}}}
}

func backendNamed(namespace, name string) *v1alpha1.ExternalBackend {
	return &v1alpha1.ExternalBackend{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// policyFor returns a policy for a team, or with "" for every namespace.
func policyFor(team string, mode v1alpha1.PolicyMode) *v1alpha1.ExternalBackendPolicy {
	p := &v1alpha1.ExternalBackendPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "for-" + team, UID: types.UID("uid-of-" + team), Generation: 1},
		Status:     v1alpha1.ExternalBackendPolicyStatus{ObservedGeneration: -1},
	}
	p.Spec.Mode = mode
	if team != "" {
		p.Spec.NamespaceSelector.MatchLabels = map[string]string{"team": team}
	}
	return p
}

// shopAndOps returns two teams with a namespace and a policy each, and their ExternalBackends.
func shopAndOps() []client.Object {
	return []client.Object{
		namespaceOf("shop", "shop"), namespaceOf("ops", "ops"),
		policyFor("shop", v1alpha1.PolicyModeEnforce), policyFor("ops", v1alpha1.PolicyModeAudit),
		backendNamed("shop", "a"), backendNamed("shop", "b"), backendNamed("ops", "c"),
	}
}

// TestStatusOfPoliciesFollowsRefusals: a status is written soon after the first change and at most
// once in ten seconds, and only if it has changed.
func TestStatusOfPoliciesFollowsRefusals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newPolicyEnv(t, shopAndOps()...)
		env.judge("shop/a", plan.PolicyRefusals{WouldRefuse: true}, false)
		env.judge("shop/b", plan.PolicyRefusals{}, false)
		env.judge("ops/c", plan.PolicyRefusals{Refused: true, WouldRefuse: true}, false)
		env.wait(countDelay)
		env.expect("at first", "for-shop", "1 2 0")
		env.expect("at first", "for-ops", "1 1 1")
		env.expectWrites("at first", 2)

		env.judge("shop/a", plan.PolicyRefusals{Refused: true}, false)
		env.wait(5 * time.Second)
		env.judge("shop/b", plan.PolicyRefusals{Refused: true}, false)
		env.wait(statusPeriod - 6*time.Second - time.Millisecond)
		env.expect("within ten seconds", "for-shop", "1 2 0")
		env.wait(2 * time.Second)
		env.expect("after ten seconds", "for-shop", "1 2 2")
		env.expect("after ten seconds", "for-ops", "1 1 1")
		env.expectWrites("after ten seconds", 3)

		env.judge("shop/a", plan.PolicyRefusals{Refused: true}, false)
		env.refusals.notify()
		env.wait(time.Hour)
		env.expectWrites("at rest", 3)

		env.judge("shop/a", plan.PolicyRefusals{}, false)
		env.wait(countDelay)
		env.expect("after a long rest", "for-shop", "1 2 1")
	})
}

// TestStatusOfPoliciesFollowsObjects: namespaces and ExternalBackends that come and go are counted,
// and policies that go leave nothing behind.
func TestStatusOfPoliciesFollowsObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newPolicyEnv(t, append(shopAndOps(), policyFor("", v1alpha1.PolicyModeEnforce))...)
		for _, key := range []string{"shop/a", "shop/b", "ops/c"} {
			env.judge(key, plan.PolicyRefusals{Refused: true}, false)
		}
		env.wait(countDelay)
		env.expect("at first", "for-", "2 3 3")

		ctx := t.Context()
		for _, err := range []error{
			env.client.Create(ctx, namespaceOf("shop", "shop-2")), env.client.Create(ctx, backendNamed("shop-2", "d")),
			env.client.Delete(ctx, backendNamed("shop", "a")), env.client.Delete(ctx, policyFor("ops", "")),
		} {
			if err != nil {
				t.Fatal(err)
			}
		}
		env.refusals.forget(types.NamespacedName{Namespace: "shop", Name: "a"})
		env.judge("shop-2/d", plan.PolicyRefusals{}, false)
		env.p.rulesChanged()
		env.wait(2 * statusPeriod)
		env.expect("later", "for-", "3 3 2")
		env.expect("later", "for-shop", "2 2 1")

		if known := len(env.refusals.byKey); known != 3 {
			t.Errorf("%d ExternalBackends are remembered, not 3", known)
		}
	})
}

// TestRestartWritesNoStatusOfPolicies: after a restart the reporter waits for the reconciles, and
// then finds the status as it was.
func TestRestartWritesNoStatusOfPolicies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newPolicyEnv(t, shopAndOps()...)
		judgeAll := func() {
			env.judge("shop/a", plan.PolicyRefusals{Refused: true}, false)
			env.wait(2 * countDelay)
			env.judge("shop/b", plan.PolicyRefusals{}, false)
			env.judge("ops/c", plan.PolicyRefusals{Refused: true, WouldRefuse: true}, false)
		}
		judgeAll()
		env.wait(time.Minute)
		env.expect("before", "for-shop", "1 2 1")
		env.expect("before", "for-ops", "1 1 1")
		before := env.writes.Load()

		env.restart()
		env.wait(maxUnjudged / 2)
		judgeAll()
		env.wait(time.Minute)
		env.expectWrites("after a restart", before)
	})
}

// TestUnjudgedBackendHoldsNoStatusBack: an ExternalBackend that nobody can reconcile counts by its
// own status, after a while.
func TestUnjudgedBackendHoldsNoStatusBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newPolicyEnv(t, shopAndOps()...)
		stuck := backendNamed("shop", "stuck")
		if err := env.client.Create(t.Context(), stuck); err != nil {
			t.Fatal(err)
		}
		stuck.Status.Conditions = []metav1.Condition{
			{Type: v1alpha1.ConditionPermitted, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonTargetDenied},
		}
		if err := env.client.Status().Update(t.Context(), stuck); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"shop/a", "shop/b", "ops/c"} {
			env.judge(key, plan.PolicyRefusals{}, false)
		}

		env.wait(maxUnjudged)
		env.expect("while it waits", "for-shop", "- - -")
		env.expect("while the other waits", "for-ops", "1 1 0")
		env.wait(2 * countDelay)
		env.expect("when it has waited", "for-shop", "1 3 1")
	})
}

// TestRefusedStatusOfPolicyIsTriedAgain: a write that fails is repeated.
func TestRefusedStatusOfPolicyIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newPolicyEnv(t, policyFor("shop", ""), policyFor("ops", ""))
		env.refuse.Store(true)
		env.wait(time.Minute)
		if n := env.writes.Load(); n < 8 || n > 12 {
			t.Errorf("%d attempts in a minute for two policies", n)
		}
		env.refuse.Store(false)
		env.wait(2 * statusPeriod)
		env.expect("when it is allowed", "for-shop", "0 0 0")
		env.expect("when it is allowed", "for-ops", "0 0 0")
	})
}

// TestUnreadablePolicyIsReported: what gets past the schema, as from a newer one, is named, and
// what the policy selects is counted all the same.
func TestUnreadablePolicyIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		env := newPolicyEnv(t, shopAndOps()...)
		for _, key := range []string{"shop/a", "shop/b", "ops/c"} {
			env.judge(key, plan.PolicyRefusals{}, false)
		}
		env.wait(countDelay)
		env.edit("for-shop", func(s *v1alpha1.ExternalBackendPolicySpec) {
			rule := `{weekdays: [Monday], cidrs: [203.0.113.0/24]}`
			s.Allow = make([]v1alpha1.PolicyRule, 1)
			if err := yaml.Unmarshal([]byte(rule), &s.Allow[0]); err != nil {
				t.Fatal(err)
			}
			s.Allow[0].CIDRs = append(s.Allow[0].CIDRs, "203.0.113.0/33")
		})
		env.wait(2 * statusPeriod)
		s := env.policy("for-shop").Status
		c := s.Conditions[0]
		if s.ObservedGeneration != 2 || c.Type != v1alpha1.ConditionAccepted || c.Reason != v1alpha1.ReasonInvalidSpec ||
			!strings.HasPrefix(c.Message, "spec.allow[0]") {
			t.Errorf("its status is %+v", s)
		}
		env.expect("while it can't be read", "for-shop", "1 2 0")
		env.edit("for-shop", func(s *v1alpha1.ExternalBackendPolicySpec) { s.Allow = nil })
		env.wait(2 * statusPeriod)
		if s := env.policy("for-shop").Status; s.Conditions[0].Status != metav1.ConditionTrue || len(s.Conditions) != 1 {
			t.Errorf("once it is corrected: %+v", s)
		}
	})
}

// TestEventSaysWhoseTargetsArePublishedNoMore: policies in mode Enforce that select the namespace
// get one event in ten seconds at most, which names the first ExternalBackends.
func TestEventSaysWhoseTargetsArePublishedNoMore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := append(shopAndOps(), policyFor("", v1alpha1.PolicyModeEnforce))
		for i := range 9 {
			objects = append(objects, backendNamed("shop", fmt.Sprintf("web-%d", i)))
		}
		env := newPolicyEnv(t, objects...)
		judge := func(key string, withdrawn bool) { env.judge(key, plan.PolicyRefusals{Refused: withdrawn}, withdrawn) }
		for _, key := range []string{"shop/a", "shop/b", "ops/c"} {
			judge(key, false)
		}
		for i := range 9 {
			judge(fmt.Sprintf("shop/web-%d", i), false)
		}
		env.wait(time.Minute)
		if events := env.events.take(); len(events) > 0 {
			t.Errorf("nothing was withdrawn: %q", events)
		}

		judge("ops/c", true)
		env.wait(countDelay)
		const prefix = "Warning PublishedTargetsDenied Refuses targets that were published, of ExternalBackends: "
		// The policy for-ops gets none: it is in mode Audit.
		if events := env.events.take(); !slices.Equal(events, []string{prefix + "ops/c."}) {
			t.Errorf("%q", events)
		}
		for i := range 9 {
			judge(fmt.Sprintf("shop/web-%d", i), true)
			env.wait(countDelay / 2)
		}
		env.wait(time.Minute)
		want := []string{
			prefix + "shop/web-0, shop/web-1, shop/web-2 and 6 more.",
			prefix + "shop/web-0, shop/web-1.",
			prefix + "shop/web-2, shop/web-3, shop/web-4 and 4 more.",
		}
		events := env.events.take()
		slices.Sort(events)
		if !slices.Equal(events, want) {
			t.Errorf("%q", events)
		}
	})
}

// TestPolicyThatWithdrawsIsReportedOnce: only the reconcile that takes a published endpoint away
// reports that, however often it is repeated.
func TestPolicyThatWithdrawsIsReportedOnce(t *testing.T) {
	env := literalEnv(t)
	store := env.reconciler.refusals
	if d, known := store.of(shop); d != (plan.PolicyRefusals{}) || !known {
		t.Fatalf("at first policy says %+v, %t", d, known)
	}
	policy := policyFor("", v1alpha1.PolicyModeEnforce)
	policy.Spec.Allow = []v1alpha1.PolicyRule{{CIDRs: []string{"203.0.113.1/32"}}}
	env.ok(env.live.Create(t.Context(), policy))
	env.reconciler.policies.rulesChanged()
	env.fault = func(n int) fault { // the slice can't be written at first
		if n%2 == 0 {
			return fault{err: apierrors.NewConflict(schema.GroupResource{}, "x", nil)}
		}
		return fault{}
	}
	env.settle()
	env.fault = func(int) fault { return fault{} }
	env.expectReady("http", "203.0.113.1")
	if d, _ := store.of(shop); d != (plan.PolicyRefusals{Refused: true}) {
		t.Errorf("policy says %+v", d)
	}
	if withdrawn := store.takeWithdrawn(); !slices.Equal(withdrawn, []types.NamespacedName{shop}) {
		t.Errorf("withdrawn: %v", withdrawn)
	}

	env.spec(`{drainSeconds: 1}`)
	env.settle()
	if withdrawn := store.takeWithdrawn(); len(withdrawn) > 0 {
		t.Errorf("withdrawn again: %v", withdrawn)
	}
	env.ok(env.live.Delete(t.Context(), env.backend()))
	env.refresh()
	if _, err := env.reconcile(); err != nil {
		t.Fatal(err)
	}
	if _, known := store.of(shop); known {
		t.Error("it is remembered when it is gone")
	}
}
