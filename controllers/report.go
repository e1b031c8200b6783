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
func (r *reconciliation) report(ctx context.Context) (time.Time, error) {
	state := &r.state.reported
	before := r.observed.status
	planned := plan.Status(r.result.statusInput)
	after := planned.Status
	state.targets = planned.TargetMemory
	r.reportRefusals(planned.Refusals)
	r.Metrics.status(r.key(), &after)
	r.result.next = earlier(r.result.next, planned.Next)

	events := slices.Concat(r.result.events, r.reportVerdicts(after.ActiveTier))
	due, err := r.writeStatus(ctx, before, after)
	logged := events
	if err == nil && due.IsZero() {
		logged = append(slices.Clip(events), conditionLog(before.Conditions, after.Conditions)...)
		events = append(events, conditionEvents(before.Conditions, after.Conditions)...)
		events = append(events, overrideEvents(before.Override, r.observed.overridden.Applied)...)
	}

	for _, e := range state.events.admit(events, r.now()) {
		e.emit(r.Recorder, r.backend)
	}
	log := ctrl.LoggerFrom(ctx)
	for _, e := range state.logged.admit(logged, r.now()) {
		log.Info(e.text, "reason", e.reason)
	}
	return due, err
}

// writeStatus patches what differs from before. It returns when a write that was held back is due.
func (r *reconciliation) writeStatus(
	ctx context.Context, before, after v1alpha1.ExternalBackendStatus,
) (time.Time, error) {
	if equality.Semantic.DeepEqual(before, after) {
		return time.Time{}, nil
	}
	state := &r.state.reported
	urgent := !sameConditions(before.Conditions, after.Conditions) || !sameTier(before.ActiveTier, after.ActiveTier) ||
		before.Override != after.Override
	if due := state.statusTime.Add(statusPeriod); due.After(r.now()) && !urgent {
		return due, nil
	}

	old, changed := r.backend.DeepCopy(), r.backend.DeepCopy()
	old.Status, changed.Status = before, after
	if err := r.Status().Patch(ctx, changed, client.MergeFrom(old)); err != nil {
		return time.Time{}, client.IgnoreNotFound(err)
	}
	state.status, state.statusTime = &after, r.now()
	state.statusVersion.Store(new(changed.ResourceVersion))
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

// reportVerdicts returns the events about verdicts and tiers that have changed since the last
// report, and sets the metrics. State restored from slices at startup causes no events.
func (r *reconciliation) reportVerdicts(tier *int32) []pendingEvent {
	p := r.result.statusInput.Publication
	if p == nil {
		return nil
	}

	state, verdicts := &r.state.reported, r.state.engines.verdicts
	var events []pendingEvent
	hasEndpoints := len(p.Conditions) > 0
	if before := state.last; before != nil {
		if hasEndpoints = hasEndpoints || before.hadEndpoints; hasEndpoints {
			events = trafficEvents(r.backend, r.observed.overridden.Applied, p, *before, tier)
		}
		transitions := verdicts.since(before.verdicts)
		events = append(events, endpointEvents(transitions)...)
		r.Metrics.transitions(transitions)
	}

	state.last = &lastReported{verdicts: verdicts, tier: tier, failOpen: p.FailOpen, hadEndpoints: hasEndpoints}
	r.Metrics.endpoints(r.key(), plan.CountStates(r.result.statusInput.Candidates, p))
	return events
}
