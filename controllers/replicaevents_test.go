package controllers

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/external-backend/operator/api/v1alpha1"
)

// recordedEvents are the events of a recorder, one line each.
type recordedEvents []string

func (r *recordedEvents) Eventf(regarding, _ runtime.Object, kind, reason, _, note string, args ...any) {
	o := regarding.(*corev1.ObjectReference)
	text := fmt.Sprintf(note, args...)
	*r = append(*r, fmt.Sprintf("%s %s/%s %s: %s %s: %s", o.Kind, o.Namespace, o.Name, o.UID, kind, reason, text))
}

// TestBlindProberIsRecordedOnTheLease: the events are on the manager's Lease, or on its namespace
// if it has no Lease.
func TestBlindProberIsRecordedOnTheLease(t *testing.T) {
	lease := types.NamespacedName{Namespace: "operators", Name: "external-backend.io"}
	held := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: lease.Namespace, Name: lease.Name, UID: "uid"}}
	for want, s := range map[string]*replicaEvents{
		"Lease operators/external-backend.io uid: Warning ProbesBlind: 95 of 100 ": newReplicaEvents(
			fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(held).Build(), &recordedEvents{}, lease),
		"Lease operators/external-backend.io : Warning ProbesBlind: 95 of 100 ": newReplicaEvents(
			fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).Build(), &recordedEvents{}, lease),
		"Namespace /operators : Warning ProbesBlind: 95 of 100 ": newReplicaEvents(
			nil, &recordedEvents{}, types.NamespacedName{Namespace: lease.Namespace}),
	} {
		synctest.Test(t, func(t *testing.T) {
			s := newReplicaEvents(s.live, s.recorder, s.lease) // with a channel of this bubble
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error)
			go func() { ended <- s.run(ctx) }()
			s.sight(true, 95, 100)
			s.sight(false, 5, 100)
			synctest.Wait()
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}

			got := *s.recorder.(*recordedEvents)
			if len(got) != 2 || !strings.HasPrefix(got[0], want) || !strings.Contains(got[1], ": Normal ProbesSeeAgain: ") {
				t.Errorf("want %q, got %q", want, got)
			}

			for range 2 * cap(s.changes) { // run has ended, and changed does not block
				s.sight(true, 95, 100)
			}
		})
	}
}

// TestBlindProberShowsInTheHealthyCondition: as long as the prober is blind, the Healthy condition
// of each ExternalBackend with a silent endpoint says so.
func TestBlindProberShowsInTheHealthyCondition(t *testing.T) {
	env := literalEnv(t)
	const told = "takes its own network for broken"
	for _, blind := range []bool{true, false} {
		env.prober.blind = blind
		env.reconciler.states.of(shop).reported.statusTime = env.reconciler.now().Add(-statusPeriod)
		env.settle()
		got := env.condition(v1alpha1.ConditionHealthy)
		if strings.Contains(got, told) != blind || !strings.HasPrefix(got, "True Healthy: 2 of 2 ") {
			t.Errorf("blind %t: %s", blind, got)
		}
	}
}
