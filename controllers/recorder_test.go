package controllers

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/external-backend/operator/api/v1alpha1"
)

// refusingSink is an API server that takes no events.
type refusingSink struct {
	events.EventSink
	err   error
	tries atomic.Int32
}

func (r *refusingSink) Create(context.Context, *eventsv1.Event) (*eventsv1.Event, error) {
	r.tries.Add(1)
	return nil, r.err
}

// TestEventsOfATerminatingNamespaceAreDropped: it is not logged that a namespace which is being
// deleted takes no events. Any other refusal is.
func TestEventsOfATerminatingNamespaceAreDropped(t *testing.T) {
	resource := schema.GroupResource{Group: "events.k8s.io", Resource: "events"}
	terminating := apierrors.NewForbidden(resource, "x", errors.New("it is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, tt := range map[string]struct {
		err  error
		logs int32
	}{
		"being deleted": {terminating, 0},
		"gone":          {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "x"), 0},
		"not permitted": {apierrors.NewForbidden(resource, "x", nil), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var logs atomic.Int32
				log := funcr.New(func(_, line string) { logs.Add(1) }, funcr.Options{})
				sink := &refusingSink{err: tt.err}
				broadcaster := events.NewBroadcaster(quietSink{sink})
				if err := broadcaster.StartRecordingToSinkWithContext(ctrl.LoggerInto(t.Context(), log)); err != nil {
					t.Fatal(err)
				}

				b := &v1alpha1.ExternalBackend{ObjectMeta: metav1.ObjectMeta{Name: shop.Name, Namespace: shop.Namespace}}
				broadcaster.NewRecorder(testScheme(), "test").Eventf(b, nil, corev1.EventTypeNormal, "Reason", "Action", "text")
				synctest.Wait()
				if sink.tries.Load() != 1 || logs.Load() != tt.logs {
					t.Errorf("tried %d times, %d lines logged, want %d", sink.tries.Load(), logs.Load(), tt.logs)
				}
				broadcaster.Shutdown()
			})
		})
	}
}
