package controllers

import (
	"context"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

// statusPeriod is the minimum time between two writes of status that change no condition. A change
// of the active tier counts as a change of a condition, so that a failover shows at once.
const statusPeriod = 10 * time.Second

// report writes the status if it has changed, the events and the metrics. It returns when a status
// that was held back is due.
func (r *Reconciler) report(
	ctx context.Context, b *v1alpha1.ExternalBackend, out *outcome, m *memory,
) (time.Time, error) {
	before := out.status.Previous
	result := plan.Status(out.status)
	status := result.Status
	m.targets = result.TargetMemory
	r.Metrics.status(client.ObjectKeyFromObject(b), &status)
	out.next = earlier(out.next, result.Next)

	events := slices.Concat(out.events, r.verdictEvents(b, status, out, m))
	due, err := r.writeStatus(ctx, b, before, status, m)
	logged := events
	if err == nil && due.IsZero() {
		logged = append(slices.Clip(events), conditionLog(before.Conditions, status.Conditions)...)
		events = append(events, conditionEvents(before.Conditions, status.Conditions)...)
	}

	for _, e := range m.events.admit(events, r.now()) {
		e.emit(r.Recorder, b)
	}
	log := ctrl.LoggerFrom(ctx)
	for _, e := range m.logged.admit(logged, r.now()) {
		log.Info(e.text, "reason", e.reason)
	}
	return due, err
}

// writeStatus patches what differs from before. It returns when a write that was held back is due.
func (r *Reconciler) writeStatus(
	ctx context.Context, b *v1alpha1.ExternalBackend, before, after v1alpha1.ExternalBackendStatus, m *memory,
) (time.Time, error) {
	if equality.Semantic.DeepEqual(before, after) {
		return time.Time{}, nil
	}
	urgent := !sameConditions(before.Conditions, after.Conditions) || !sameTier(before.ActiveTier, after.ActiveTier)
	if due := m.statusTime.Add(statusPeriod); due.After(r.now()) && !urgent {
		return due, nil
	}

	old, changed := b.DeepCopy(), b.DeepCopy()
	old.Status, changed.Status = before, after
	if err := r.Status().Patch(ctx, changed, client.MergeFrom(old)); err != nil {
		return time.Time{}, client.IgnoreNotFound(err)
	}
	m.wroteStatus(&after, changed.ResourceVersion, r.now())
	return time.Time{}, nil
}

func sameTier(before, after *int32) bool {
	if before == nil || after == nil {
		return before == after
	}
	return *before == *after
}

// sameConditions reports whether no condition has another status, reason or observed generation.
func sameConditions(before, after []metav1.Condition) bool {
	if len(before) != len(after) {
		return false
	}
	for _, is := range after {
		was := meta.FindStatusCondition(before, is.Type)
		if was == nil || !sameReason(was, &is) || was.ObservedGeneration != is.ObservedGeneration {
			return false
		}
	}
	return true
}

// verdictEvents report the verdicts and tiers that have changed since the last report, and set the
// metrics. State restored from slices at startup emits no events.
func (r *Reconciler) verdictEvents(
	b *v1alpha1.ExternalBackend, status v1alpha1.ExternalBackendStatus, out *outcome, m *memory,
) []pendingEvent {
	p := out.status.Publication
	if p == nil {
		return nil
	}

	var events []pendingEvent
	hasEndpoints := len(p.Endpoints) > 0
	if before := m.reported; before != nil {
		if hasEndpoints = hasEndpoints || before.hadEndpoints; hasEndpoints {
			events = trafficEvents(b, p, *before, status.ActiveTier)
		}
		transitions := m.verdicts.since(before.verdicts)
		events = append(events, endpointEvents(transitions)...)
		r.Metrics.transitions(transitions)
	}

	m.reported = &lastReported{
		verdicts: m.verdicts, tier: status.ActiveTier, failOpen: p.FailOpen, hadEndpoints: hasEndpoints,
	}
	r.Metrics.endpoints(client.ObjectKeyFromObject(b), plan.CountStates(out.status.Candidates, p))
	return events
}

// lastReported is what events and metrics have reported last.
type lastReported struct {
	verdicts
	tier     *int32
	failOpen bool
	// hadEndpoints is set once the object has had an endpoint. Before that it has no tier that could
	// change.
	hadEndpoints bool
}
