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

// statusPeriod is the least time between two writes of status that change no condition; what the
// message of Ready says of the active tier counts as one, so that a failover is seen at once.
const statusPeriod = 10 * time.Second

// report writes the status where it has changed, and tells events and metrics. It returns when a
// status that was held back is due.
func (r *Reconciler) report(ctx context.Context, b *v1alpha1.ExternalBackend, out *outcome, m *memory) (time.Time, error) {
	before := out.status.Previous
	told := plan.Status(out.status)
	status := told.Status
	m.targets = told.TargetMemory
	r.Metrics.status(client.ObjectKeyFromObject(b), &status)
	out.next = earlier(out.next, told.Next)
	notes := slices.Concat(out.notes, r.verdictNotes(b, status, out, m))
	due, err := r.writeStatus(ctx, b, before, status, m)
	logged := notes
	if err == nil && due.IsZero() {
		logged = append(slices.Clip(notes), conditionChanges(before.Conditions, status.Conditions)...)
		notes = append(notes, conditionNotes(before.Conditions, status.Conditions)...)
	}
	for _, n := range m.events.admit(notes, r.now()) {
		n.emit(r.Recorder, b)
	}
	log := ctrl.LoggerFrom(ctx)
	for _, n := range m.logged.admit(logged, r.now()) {
		log.Info(n.text, "reason", n.reason)
	}
	return due, err
}

// writeStatus patches what differs from before. It returns when a write that was held back is due.
func (r *Reconciler) writeStatus(ctx context.Context, b *v1alpha1.ExternalBackend, before, after v1alpha1.ExternalBackendStatus, m *memory) (time.Time, error) {
	if equality.Semantic.DeepEqual(before, after) {
		return time.Time{}, nil
	}
	if due := m.statusTime.Add(statusPeriod); due.After(r.now()) && sameConditions(before.Conditions, after.Conditions) && sameTier(before.ActiveTier, after.ActiveTier) {
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

// sameConditions: nothing that a user waits for has changed.
func sameConditions(before, after []metav1.Condition) bool {
	if len(before) != len(after) {
		return false
	}
	for _, is := range after {
		was := meta.FindStatusCondition(before, is.Type)
		if was == nil || was.Status != is.Status || was.Reason != is.Reason || was.ObservedGeneration != is.ObservedGeneration {
			return false
		}
	}
	return true
}

// verdictNotes tell of verdicts and tiers that have changed since they were told of last, and set
// the metrics. What stood in the slices at the start is no news.
func (r *Reconciler) verdictNotes(b *v1alpha1.ExternalBackend, status v1alpha1.ExternalBackendStatus, out *outcome, m *memory) []note {
	p := out.status.Publication
	if p == nil {
		return nil
	}
	var notes []note
	if m.told != nil {
		news := m.verdicts.since(m.told.verdicts)
		if m.told.published || len(p.Endpoints) > 0 { // before its first endpoint an object has no tier to speak of
			notes = trafficNotes(b, p, *m.told, status.ActiveTier)
		}
		notes = append(notes, endpointNotes(news)...)
		r.Metrics.transitions(news)
	}
	m.told = &told{verdicts: m.verdicts, tier: status.ActiveTier, failOpen: p.FailOpen, published: len(p.Endpoints) > 0 || m.told != nil && m.told.published}
	r.Metrics.endpoints(client.ObjectKeyFromObject(b), plan.CountStates(out.status.Candidates, p))
	return notes
}

// told is what events and metrics have told of.
type told struct {
	verdicts
	tier     *int32
	failOpen bool
	// published: it has had an endpoint.
	published bool
}
