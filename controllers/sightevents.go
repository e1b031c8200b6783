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

// The reasons of events about the prober itself. They are about the manager's Lease, or about its
// namespace.
const (
	// eventProbesBlind is a Warning about the manager's Lease: nearly all endpoints fell silent, and
	// the manager takes its own network for broken.
	eventProbesBlind = "ProbesBlind"
	// eventProbesSeeAgain is a Normal event about the manager's Lease: enough endpoints answer again.
	eventProbesSeeAgain = "ProbesSeeAgain"
)

// sightEvents records events when the prober takes itself for blind, and when it no longer does.
// They are about the Lease of the manager, or about its namespace if there is none.
type sightEvents struct {
	live     client.Reader
	recorder events.EventRecorder
	lease    types.NamespacedName // without a name there is none
	changes  chan sightChange
}

type sightChange struct {
	blind           bool
	silent, healthy int
}

func newSightEvents(live client.Reader, recorder events.EventRecorder, lease types.NamespacedName) *sightEvents {
	return &sightEvents{live: live, recorder: recorder, lease: lease, changes: make(chan sightChange, 16)}
}

// changed is called by the prober. It never blocks: a change that nobody receives is dropped.
func (s *sightEvents) changed(blind bool, silent, healthy int) {
	select {
	case s.changes <- sightChange{blind, silent, healthy}:
	default:
	}
}

// run records what changes until ctx ends.
func (s *sightEvents) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case change := <-s.changes:
			s.record(ctx, change)
		}
	}
}

func (s *sightEvents) record(ctx context.Context, change sightChange) {
	kind, reason := corev1.EventTypeNormal, eventProbesSeeAgain
	note := "Endpoints answer the probes again, so silence counts as before."
	if change.blind {
		kind, reason = corev1.EventTypeWarning, eventProbesBlind
		note = fmt.Sprintf("%d of %d healthy endpoints do not answer: the manager takes its own network for "+
			"broken, and no endpoint for unhealthy because of silence.", change.silent, change.healthy)
	}
	s.recorder.Eventf(s.regarding(ctx), nil, kind, reason, "Probe", "%s", note)
}

// regarding returns a reference to the Lease, with its UID if the API server answers, or to the
// namespace.
func (s *sightEvents) regarding(ctx context.Context) *corev1.ObjectReference {
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
