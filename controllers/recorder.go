package controllers

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	eventsclient "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
)

// quietSink writes events. It drops those for a namespace that is being deleted or gone: client-go
// would log each of them as an error with a stack trace.
type quietSink struct{ events.EventSink }

func (q quietSink) Create(ctx context.Context, event *eventsv1.Event) (*eventsv1.Event, error) {
	created, err := q.EventSink.Create(ctx, event)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) || apierrors.IsNotFound(err) {
		return event, nil
	}
	return created, err
}

// newRecorder returns a recorder like the manager's own that writes to a quietSink until ctx ends.
func newRecorder(ctx context.Context, mgr ctrl.Manager) (events.EventRecorder, error) {
	client, err := eventsclient.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return nil, err
	}
	log := mgr.GetLogger().WithName("events")
	broadcaster := events.NewBroadcaster(quietSink{&events.EventSinkImpl{Interface: client}})
	if err := broadcaster.StartRecordingToSinkWithContext(ctrl.LoggerInto(ctx, log)); err != nil {
		return nil, err
	}
	if _, err := broadcaster.StartLogging(log.V(1)); err != nil {
		return nil, err
	}

	stop := leaderRunnable(func(ctx context.Context) error {
		<-ctx.Done()
		broadcaster.Shutdown()
		return nil
	})
	return broadcaster.NewRecorder(mgr.GetScheme(), "external-backend"), mgr.Add(stop)
}
