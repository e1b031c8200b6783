package controllers

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/probe"
)

// TestStatusShowsNoEndpointsWithoutAService: if the Service is gone with its slices and can't be
// created again, status reports no endpoints and nothing is probed.
func TestStatusShowsNoEndpointsWithoutAService(t *testing.T) {
	env := literalEnv(t)
	for _, o := range env.objects() {
		if _, ok := o.(*v1alpha1.ExternalBackend); !ok {
			env.ok(env.live.Delete(t.Context(), o))
		}
	}
	env.refuse = refuseServices
	env.settle()
	env.expectCondition(v1alpha1.ConditionReady, "False ApplyFailed")
	if got := env.backend().Status.Endpoints.ReadyOfTotal; got != "0/0" {
		t.Errorf("readyOfTotal %s", got)
	}
	if env.prober.order != nil {
		t.Errorf("still probed: %v", env.prober.order)
	}

	env.refuse = refuseNothing
	env.settle()
	env.expectReady("http", "203.0.113.1", "203.0.113.2")
}

// TestNothingIsProbedWithoutTheReferencedService: if the Service of serviceRef is gone with the
// slices, nothing is resolved or probed, and status reports no endpoints. All of it returns with
// the Service.
func TestNothingIsProbedWithoutTheReferencedService(t *testing.T) {
	service := theirService()
	for _, answered := range []bool{true, false} {
		t.Run(fmt.Sprintf("answered %t", answered), func(t *testing.T) {
			env := newTestEnv(t, service.DeepCopy())
			if answered {
				setAnswer(1, 3)(env)
			}
			setVerdict(probe.Healthy, 1, 3)(env)
			env.spec(`{serviceRef: {name: theirs}, ` + poolSpec[1:])
			env.settle()
			want := map[bool]string{true: "True", false: "False NoReadyEndpoints"}[answered]
			env.expectCondition(v1alpha1.ConditionReady, want)

			for _, o := range env.objects() {
				if _, ok := o.(*v1alpha1.ExternalBackend); !ok {
					env.ok(env.live.Delete(t.Context(), o))
				}
			}
			env.settle()
			env.expectCondition(v1alpha1.ConditionReady,
				`False ServiceNotFound: Service "theirs" does not exist in namespace "default".`)
			env.expectCondition(v1alpha1.ConditionHealthy, "Unknown NoEndpoints")
			if got := env.backend().Status.Endpoints.ReadyOfTotal; got != "0/0" {
				t.Errorf("readyOfTotal %s", got)
			}
			if len(env.prober.order)+len(env.resolver.seeds) > 0 {
				t.Errorf("still probed: %v, asked for: %v", env.prober.order, env.resolver.seeds)
			}

			env.ok(env.live.Create(t.Context(), service.DeepCopy()))
			setAnswer(1, 3)(env)
			env.settle()
			env.expectCondition(v1alpha1.ConditionReady, "True")
			env.expectReady("http", "203.0.113.1", "203.0.113.2")
		})
	}
}

// TestTierSurvivesAServiceThatIsRecreatedAtTheSecondTry: the knowledge about endpoints is kept
// until the Service exists again.
func TestTierSurvivesAServiceThatIsRecreatedAtTheSecondTry(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.spec(`{ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}], healthCheck: {tcpSocket: {}},
		failover: {failback: Manual},
		targets: [{name: a, address: 203.0.113.1}, {name: b, address: 203.0.113.2, tier: 1}]}`)
	env.settle()
	setVerdict(probe.Unhealthy, 1, 2)(env)
	env.settle()
	setVerdict(probe.Healthy, 1, 2)(env)
	env.settle()
	env.expectReady("http", "203.0.113.2")

	for _, o := range env.objects() {
		if _, ok := o.(*v1alpha1.ExternalBackend); !ok {
			env.ok(env.live.Delete(t.Context(), o))
		}
	}
	env.refuse = func(o client.Object) error {
		if _, ok := o.(*corev1.Service); ok {
			return apierrors.NewInternalError(errors.New("a webhook is down"))
		}
		return nil
	}
	if _, err := env.reconcile(); err == nil {
		t.Error("it is not tried again")
	}

	env.refuse = refuseNothing
	env.settle()
	env.expectReady("http", "203.0.113.2")
}
