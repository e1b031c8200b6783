package controllers

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/probe"
)

// Reasons of events that are no condition's reason.
const (
	eventEndpointUnhealthy = "EndpointUnhealthy"
	eventEndpointHealthy   = "EndpointHealthy"
	eventEndpointFlapping  = "EndpointFlapping"
	eventTierChanged       = "TierChanged"
	eventFailOpen          = "FailOpen"
	eventSelectorRemoved   = "SelectorRemoved"
	eventHeadlessChanged   = "HeadlessChanged"
	eventAdopted           = "Adopted"
	eventForeignRemoved    = "ForeignEndpointsRemoved"
	eventServiceRecreated  = "ServiceRecreated"
	eventSummary           = "MoreEvents"
	eventConditionChanged  = "ConditionChanged" // in the log alone
)

// note is an event to be. about is the part of the ExternalBackend that it is about: events that
// differ in nothing but their text are merged under the first text.
type note struct {
	kind, reason, action, text, about string
	// ofMany: it is about one of many endpoints.
	ofMany bool
}

// on says what the note is about.
func (n note) on(format string, args ...any) note {
	n.about = fmt.Sprintf(format, args...)
	return n
}

func normal(reason, action, format string, args ...any) note {
	return note{kind: corev1.EventTypeNormal, reason: reason, action: action, text: fmt.Sprintf(format, args...)}
}

func warning(reason, action, format string, args ...any) note {
	return note{kind: corev1.EventTypeWarning, reason: reason, action: action, text: fmt.Sprintf(format, args...)}
}

// serviceNotes tell what a write to the Service did that its owner should know.
func serviceNotes(p plan.ServicePlan) []note {
	var out []note
	if p.SelectorRemoved {
		out = append(out, warning(eventSelectorRemoved, "Apply", "Removed a selector from Service %q: its endpoints come from this ExternalBackend.", p.Write.Name))
	}
	if p.HeadlessChanged {
		out = append(out, normal(eventHeadlessChanged, "Apply", "Service %q passes through ExternalName, so that it keeps its identity while its ClusterIP changes.", p.Write.Name))
	}
	if p.Adopted {
		out = append(out, normal(eventAdopted, "Adopt", "Took Service %q over.", p.Write.Name))
	}
	return out
}

// recreatedNotes tell of a Service that was deleted and made anew: whoever knows its old ClusterIP
// finds nothing there.
func recreatedNotes(before seenService, s *corev1.Service) []note {
	if before.uid == "" || before.uid == s.UID {
		return nil
	}
	return []note{warning(eventServiceRecreated, "Apply", "Service %q was deleted and has been made anew: its cluster IP was %s and is %s.",
		s.Name, cmp.Or(before.clusterIP, "none"), cmp.Or(s.Spec.ClusterIP, "none"))}
}

func noteForeignRemoved(kind, name string) note {
	return normal(eventForeignRemoved, "Adopt", "%s %q no longer stands behind the Service: this ExternalBackend publishes its endpoints.", kind, name).on("%s{%s}", kind, name)
}

// conditionChanges tell of every condition that has another status or reason, for the log. A new
// object's are news where they are False.
func conditionChanges(before, after []metav1.Condition) []note {
	var out []note
	for i := range after {
		is, was := &after[i], meta.FindStatusCondition(before, after[i].Type)
		if was == nil && is.Status == metav1.ConditionFalse || was != nil && (was.Status != is.Status || was.Reason != is.Reason) {
			out = append(out, normal(eventConditionChanged, "Reconcile", "%s is %s, %s: %s", is.Type, is.Status, is.Reason, is.Message))
		}
	}
	return out
}

// conditionNotes tell which conditions went wrong with this status.
func conditionNotes(before, after []metav1.Condition) []note {
	var out []note
	for _, t := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionResolvedRefs, v1alpha1.ConditionPermitted,
		v1alpha1.ConditionNamesResolved, v1alpha1.ConditionProgrammed} {
		was, is := meta.FindStatusCondition(before, t), meta.FindStatusCondition(after, t)
		if is == nil || is.Status != metav1.ConditionFalse || was != nil && was.Status == is.Status && was.Reason == is.Reason {
			continue
		}
		out = append(out, warning(is.Reason, "Reconcile", "%s", is.Message))
	}
	return out
}

// endpointNotes tell which endpoints changed their verdict. The first verdict is news only where it
// is a bad one.
func endpointNotes(news []transition) []note {
	var out []note
	for _, t := range news {
		switch {
		case t.is.Flapping && !t.was.Flapping:
			out = append(out, warning(eventEndpointFlapping, "Probe", "Target %q at %s is flapping: its return is held back.", t.id.Target, t.at).onEndpoint(t.id))
		case t.is.Verdict == t.was.Verdict:
		case t.is.Verdict == probe.Unhealthy:
			out = append(out, warning(eventEndpointUnhealthy, "Probe", "Target %q at %s is unhealthy: %s.", t.id.Target, t.at, t.cause()).onEndpoint(t.id))
		case t.is.Verdict == probe.Healthy && t.was.Verdict == probe.Unhealthy:
			out = append(out, normal(eventEndpointHealthy, "Probe", "Target %q at %s is healthy again.", t.id.Target, t.at).onEndpoint(t.id))
		}
	}
	return out
}

func (n note) onEndpoint(id probe.ID) note {
	n.ofMany = true
	return n.on("spec.targets{%s}{%s}", id.Target, netip.AddrPortFrom(id.Addr, id.Port))
}

// trafficNotes tell of changes of the active tier, and why it changed.
func trafficNotes(b *v1alpha1.ExternalBackend, p *plan.Publication, before told, after *int32) []note {
	var out []note
	switch {
	case after != nil && (before.tier == nil || *before.tier != *after):
		text := fmt.Sprintf("Tier %d is active", *after)
		if before.tier != nil {
			text += fmt.Sprintf(" in place of tier %d", *before.tier)
		}
		n := normal(eventTierChanged, "Failover", "%s. %s", text, plan.ExplainTierChange(b, p, before.tier, *after))
		if !slices.ContainsFunc(p.Endpoints, func(e endpointslice.Endpoint) bool { return e.Ready }) { // a pin may take everything out
			n.kind, n.text = corev1.EventTypeWarning, n.text+" No endpoint is ready."
		}
		out = append(out, n.on("status.activeTier{%d}", *after))
	case before.tier != nil && after == nil && len(p.Tiers) > 0: // without endpoints there is none to choose
		out = append(out, warning(eventTierChanged, "Failover", "No tier has enough healthy endpoints to be active; tier %d was. %s",
			*before.tier, plan.ExplainTierChange(b, p, nil, *before.tier)))
	}
	if p.FailOpen && !before.failOpen {
		out = append(out, warning(eventFailOpen, "Failover", "No tier has enough healthy endpoints, and "+
			"spec.failover.whenNoTierQualifies is AllEndpoints: every endpoint of an Active target is ready, whatever its health."))
	}
	return out
}

// Of each object at most eventBurst events are told within eventWindow, of which eventsOfMany,
// those about single endpoints, leave some for what says more; the others are counted and summed up
// in one.
const (
	eventBurst   = 10
	eventsOfMany = 7
	eventWindow  = time.Minute
)

// eventBudget is what one object may still tell.
type eventBudget struct {
	since   time.Time // the window's begin
	told    int
	omitted map[string]int // by reason
}

// next is when what was omitted can be summed up; zero where nothing was.
func (e *eventBudget) next() time.Time {
	if len(e.omitted) == 0 {
		return time.Time{}
	}
	return e.since.Add(eventWindow)
}

// admit returns the notes that the budget has room for, after the sum of those that a window which
// is over had none for.
func (e *eventBudget) admit(notes []note, now time.Time) []note {
	var out []note
	if now.Sub(e.since) >= eventWindow {
		if len(e.omitted) > 0 {
			notes = append([]note{e.summary()}, notes...)
		}
		*e = eventBudget{since: now}
	}
	for _, n := range notes {
		if e.told >= eventBurst || n.ofMany && e.told >= eventsOfMany {
			if e.omitted == nil {
				e.omitted = map[string]int{}
			}
			e.omitted[n.reason]++
			continue
		}
		e.told++
		out = append(out, n)
	}
	return out
}

// emit writes an event.
func (n *note) emit(recorder events.EventRecorder, b *v1alpha1.ExternalBackend) {
	var related runtime.Object
	if n.about != "" {
		related = &corev1.ObjectReference{
			Kind: "ExternalBackend", APIVersion: v1alpha1.GroupVersion.String(), Namespace: b.Namespace, Name: b.Name, UID: b.UID, FieldPath: n.about,
		}
	}
	recorder.Eventf(b, related, n.kind, n.reason, n.action, "%s", n.text)
}

// summary counts what was omitted in the window that ends.
func (e *eventBudget) summary() note {
	var parts []string
	for _, reason := range slices.Sorted(maps.Keys(e.omitted)) {
		parts = append(parts, fmt.Sprintf("%d %s", e.omitted[reason], reason))
	}
	return normal(eventSummary, "Reconcile", "More events in the minute before: %s.", strings.Join(parts, ", "))
}
