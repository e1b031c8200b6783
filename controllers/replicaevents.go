package controllers

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The reasons of events about the manager itself. They are about its Lease, or about its
// namespace.
const (
	// eventProbesBlind is a Warning about the manager's Lease: nearly all endpoints fell silent,
	// and the manager takes its own network for broken.
	eventProbesBlind = "ProbesBlind"
	// eventProbesSeeAgain is a Normal event about the manager's Lease: enough endpoints answer
	// again.
	eventProbesSeeAgain = "ProbesSeeAgain"
	// eventShareGivenAway is a Warning about the Lease of a replica: most others reach most of
	// what is silent for it, so it gives its share away.
	eventShareGivenAway = "ShareGivenAway"
	// eventShareTakenAgain is a Normal event about the Lease of a replica: it takes a share
	// again.
	eventShareTakenAgain = "ShareTakenAgain"
)

// replicaEvents records events about the manager itself: that its prober takes itself for blind,
// or that it gives its share away. They are about its Lease, or about its namespace if there is
// none.
type replicaEvents struct {
	live     client.Reader
	recorder events.EventRecorder
	lease    types.NamespacedName // without a name there is none
	changes  chan replicaEvent
}

type replicaEvent struct{ kind, reason, action, note string }

func newReplicaEvents(live client.Reader, recorder events.EventRecorder, lease types.NamespacedName) *replicaEvents {
	return &replicaEvents{live: live, recorder: recorder, lease: lease, changes: make(chan replicaEvent, 16)}
}

// add records an event. It never blocks: an event that nobody receives is dropped.
func (s *replicaEvents) add(e replicaEvent) {
	select {
	case s.changes <- e:
	default:
	}
}

// sight is called by the prober.
func (s *replicaEvents) sight(blind bool, silent, healthy int) {
	if !blind {
		s.add(replicaEvent{corev1.EventTypeNormal, eventProbesSeeAgain, "Probe",
			"Endpoints answer the probes again, so silence counts as before."})
		return
	}
	s.add(replicaEvent{corev1.EventTypeWarning, eventProbesBlind, "Probe", fmt.Sprintf(
		"%d of %d healthy endpoints do not answer: the manager takes its own network for "+
			"broken, and no endpoint for unhealthy because of silence.", silent, healthy)})
}

// share records that this replica gives its share away, or takes one again.
func (s *replicaEvents) share(givenAway bool, overruled, endpoints int) {
	if !givenAway {
		s.add(replicaEvent{corev1.EventTypeNormal, eventShareTakenAgain, "Share",
			"This replica reaches again what the others publish, so it takes a share again."})
		return
	}
	s.add(replicaEvent{corev1.EventTypeWarning, eventShareGivenAway, "Share", fmt.Sprintf(
		"%d of the %d endpoints of this replica are silent for it, and most other replicas reach them: "+
			"it gives its share away.", overruled, endpoints)})
}

// run records what changes until ctx ends.
func (s *replicaEvents) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-s.changes:
			s.recorder.Eventf(s.regarding(ctx), nil, e.kind, e.reason, e.action, "%s", e.note)
		}
	}
}

// regarding returns a reference to the Lease, with its UID if the API server answers, or to the
// namespace.
func (s *replicaEvents) regarding(ctx context.Context) *corev1.ObjectReference {
	if s.lease.Name == "" {
		return &corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: s.lease.Namespace}
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var lease coordinationv1.Lease
	if err := s.live.Get(ctx, s.lease, &lease); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Can't read the manager's Lease, whose event goes without its UID")
	}
	return &corev1.ObjectReference{
		APIVersion: coordinationv1.SchemeGroupVersion.String(), Kind: "Lease",
		Namespace: s.lease.Namespace, Name: s.lease.Name, UID: lease.UID,
	}
}
