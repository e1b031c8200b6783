package controllers

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/probe"
)

// Reasons of events that are not the reason of a condition.
const (
	// eventEndpointUnhealthy is a Warning: an endpoint became unhealthy. The text says why.
	eventEndpointUnhealthy = "EndpointUnhealthy"
	// eventEndpointHealthy is a Normal event: an endpoint that was unhealthy is healthy again.
	eventEndpointHealthy = "EndpointHealthy"
	// eventEndpointFlapping is a Warning: an endpoint keeps recovering and failing, and its recovery
	// is delayed.
	eventEndpointFlapping = "EndpointFlapping"
	// eventTierChanged is a Normal event, and a Warning where no endpoint is ready: another tier is
	// active, or none is any more. The text says why: a pin, the health of the tier before, or a
	// failback after failbackDelaySeconds.
	eventTierChanged = "TierChanged"
	// eventFailOpen is a Warning: no tier qualifies, and whenNoTierQualifies AllEndpoints made every
	// endpoint of an Active target ready.
	eventFailOpen = "FailOpen"
	// eventSelectorRemoved is a Warning: somebody gave our Service a selector, and it was removed.
	eventSelectorRemoved = "SelectorRemoved"
	// eventHeadlessChanged is a Normal event: the Service passes between ClusterIP and Headless.
	eventHeadlessChanged = "HeadlessChanged"
	// eventAdopted is a Normal event: a Service that was there before was adopted.
	eventAdopted = "Adopted"
	// eventForeignRemoved is a Normal event: Endpoints or an EndpointSlice of somebody else no longer
	// publish behind the Service.
	eventForeignRemoved = "ForeignEndpointsRemoved"
	// eventServiceRecreated is a Warning: our Service was deleted and has been created again. The
	// text has its old and its new cluster IP.
	eventServiceRecreated = "ServiceRecreated"
	// eventOverridden is a Normal event: an ExternalBackendOverride is applied. The text says what it
	// sets.
	eventOverridden = "Overridden"
	// eventOverrideEnded is a Normal event: an ExternalBackendOverride is no longer applied.
	eventOverrideEnded = "OverrideEnded"
	// eventSummary is a Normal event: it counts, by reason, the events that exceeded the limit of the
	// last minute.
	eventSummary = "MoreEvents"
)

// logConditionChanged is the reason of a line that only the log has.
const logConditionChanged = "ConditionChanged"

// pendingEvent is an event that has not been written yet.
type pendingEvent struct {
	kind, reason, action, text string
	// field is the part of the ExternalBackend that the event is about. The recorder merges events
	// that differ only in their text and keeps the first text, so events about different things
	// need different fields.
	field string
	// perEndpoint marks an event about a single endpoint, of which there may be many.
	perEndpoint bool
}

func normalEvent(reason, action, format string, args ...any) pendingEvent {
	return pendingEvent{kind: corev1.EventTypeNormal, reason: reason, action: action, text: fmt.Sprintf(format, args...)}
}

func warningEvent(reason, action, format string, args ...any) pendingEvent {
	return pendingEvent{kind: corev1.EventTypeWarning, reason: reason, action: action, text: fmt.Sprintf(format, args...)}
}

// about returns the event with its field set.
func (e pendingEvent) about(format string, args ...any) pendingEvent {
	e.field = fmt.Sprintf(format, args...)
	return e
}

func (e pendingEvent) aboutEndpoint(id probe.ID) pendingEvent {
	e.perEndpoint = true
	return e.about("spec.targets{%s}{%s}", id.Target, netip.AddrPortFrom(id.Addr, id.Port))
}

// emit writes the event.
func (e *pendingEvent) emit(recorder events.EventRecorder, b *v1alpha1.ExternalBackend) {
	var related runtime.Object
	if e.field != "" {
		related = &corev1.ObjectReference{
			Kind: "ExternalBackend", APIVersion: v1alpha1.GroupVersion.String(),
			Namespace: b.Namespace, Name: b.Name, UID: b.UID, FieldPath: e.field,
		}
	}
	recorder.Eventf(b, related, e.kind, e.reason, e.action, "%s", e.text)
}

// serviceEvents report what a write to the Service did that its owner should know.
func serviceEvents(p plan.ServicePlan) []pendingEvent {
	var out []pendingEvent
	if p.SelectorRemoved {
		out = append(out, warningEvent(eventSelectorRemoved, "Apply",
			"Removed a selector from Service %q: its endpoints come from this ExternalBackend.", p.Write.Name))
	}
	if p.HeadlessChanged {
		out = append(out, normalEvent(eventHeadlessChanged, "Apply",
			"Service %q passes through ExternalName, so that it keeps its identity while its ClusterIP changes.", p.Write.Name))
	}
	if p.Adopted {
		out = append(out, normalEvent(eventAdopted, "Adopt", "Took Service %q over.", p.Write.Name))
	}
	return out
}

// recreatedEvents report that a Service was deleted and created again: clients that know the old
// ClusterIP no longer reach it.
func recreatedEvents(before seenService, s *corev1.Service) []pendingEvent {
	if before.uid == "" || before.uid == s.UID {
		return nil
	}
	return []pendingEvent{warningEvent(eventServiceRecreated, "Apply",
		"Service %q was deleted and has been made anew: its cluster IP was %s and is %s.",
		s.Name, cmp.Or(before.clusterIP, "none"), cmp.Or(s.Spec.ClusterIP, "none"))}
}

// foreignRemovedEvent reports that an object of somebody else no longer publishes endpoints.
func foreignRemovedEvent(kind, name string) pendingEvent {
	return normalEvent(eventForeignRemoved, "Adopt",
		"%s %q no longer stands behind the Service: this ExternalBackend publishes its endpoints.", kind, name).
		about("%s{%s}", kind, name)
}

// conditionLog reports, for the log, each condition whose status or reason has changed, and each
// condition of a new object that is False.
func conditionLog(before, after []metav1.Condition) []pendingEvent {
	var out []pendingEvent
	for i := range after {
		is, was := &after[i], meta.FindStatusCondition(before, after[i].Type)
		if was == nil && is.Status == metav1.ConditionFalse || was != nil && !sameReason(was, is) {
			out = append(out, normalEvent(logConditionChanged, "Reconcile",
				"%s is %s, %s: %s", is.Type, is.Status, is.Reason, is.Message))
		}
	}
	return out
}

// conditionEvents report the conditions that have become False, or are False for another reason.
func conditionEvents(before, after []metav1.Condition) []pendingEvent {
	var out []pendingEvent
	for _, t := range []string{
		v1alpha1.ConditionAccepted, v1alpha1.ConditionResolvedRefs, v1alpha1.ConditionPermitted,
		v1alpha1.ConditionNamesResolved, v1alpha1.ConditionProgrammed,
	} {
		was, is := meta.FindStatusCondition(before, t), meta.FindStatusCondition(after, t)
		if is == nil || is.Status != metav1.ConditionFalse || was != nil && sameReason(was, is) {
			continue
		}
		out = append(out, warningEvent(is.Reason, "Reconcile", "%s", is.Message))
	}
	return out
}

func sameReason(a, b *metav1.Condition) bool { return a.Status == b.Status && a.Reason == b.Reason }

// endpointEvents report the endpoints whose verdict has changed. The first verdict of an endpoint
// is only reported if it is Unhealthy.
func endpointEvents(transitions []transition) []pendingEvent {
	var out []pendingEvent
	for _, t := range transitions {
		switch {
		case t.is.Flapping && !t.was.Flapping:
			out = append(out, warningEvent(eventEndpointFlapping, "Probe",
				"Target %q at %s is flapping: its return is held back.", t.id.Target, t.at).aboutEndpoint(t.id))
		case t.is.Verdict == t.was.Verdict:
		case t.is.Verdict == probe.Unhealthy:
			out = append(out, warningEvent(eventEndpointUnhealthy, "Probe",
				"Target %q at %s is unhealthy: %s.", t.id.Target, t.at, t.cause()).aboutEndpoint(t.id))
		case t.is.Verdict == probe.Healthy && t.was.Verdict == probe.Unhealthy:
			out = append(out, normalEvent(eventEndpointHealthy, "Probe",
				"Target %q at %s is healthy again.", t.id.Target, t.at).aboutEndpoint(t.id))
		}
	}
	return out
}

// trafficEvents report that another tier is active, and why, and that fail-open has begun.
func trafficEvents(
	b *v1alpha1.ExternalBackend, override plan.AppliedOverride, p *plan.Publication, before lastReported, after *int32,
) []pendingEvent {
	var out []pendingEvent
	switch {
	case after != nil && !sameTier(before.tier, after):
		text := fmt.Sprintf("Tier %d is active", *after)
		if before.tier != nil {
			text += fmt.Sprintf(" in place of tier %d", *before.tier)
		}
		why := plan.ExplainTierChange(b, override, p, before.tier, *after)
		e := normalEvent(eventTierChanged, "Failover", "%s. %s", text, why)
		isReady := func(c endpointslice.Conditions) bool { return c.Ready }
		if !slices.ContainsFunc(p.Conditions, isReady) { // the tier may be pinned
			e.kind, e.text = corev1.EventTypeWarning, e.text+" No endpoint is ready."
		}
		out = append(out, e.about("status.activeTier{%d}", *after))

	case before.tier != nil && after == nil && len(p.Tiers) > 0: // no tiers: there are no endpoints
		out = append(out, warningEvent(eventTierChanged, "Failover",
			"No tier has enough healthy endpoints to be active; tier %d was. %s",
			*before.tier, plan.ExplainTierChange(b, override, p, nil, *before.tier)))
	}

	if p.FailOpen && !before.failOpen {
		out = append(out, warningEvent(eventFailOpen, "Failover", "No tier has enough healthy endpoints, "+
			"and spec.failover.whenNoTierQualifies is AllEndpoints: "+
			"every endpoint of an Active target is ready, whatever its health."))
	}
	return out
}

// lastReported is what events and metrics have reported last.
type lastReported struct {
	verdicts
	tier     *int32
	failOpen bool
	// hadEndpoints is set once the object has had an endpoint. Before that it has no tier that
	// could change.
	hadEndpoints bool
}

// seenService identifies a Service, so that a new one of the same name is noticed.
type seenService struct {
	uid       types.UID
	clusterIP string
}
