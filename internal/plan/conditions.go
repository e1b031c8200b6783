package plan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

func (w *statusWriter) accepted() {
	if w.Invalid != "" {
		w.set(v1alpha1.ConditionAccepted, metav1.ConditionFalse, v1alpha1.ReasonInvalidSpec, w.Invalid)
		return
	}
	w.set(v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "The spec can be acted on.")
}

func (w *statusWriter) resolvedRefs() {
	switch {
	case w.References == nil: // what was said before holds
	case w.References.Reason != "":
		w.set(v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, w.References.Reason, w.References.Message)
	default:
		w.set(v1alpha1.ConditionResolvedRefs, metav1.ConditionTrue, v1alpha1.ReasonResolvedRefs,
			"Every Secret and ConfigMap that the spec names can be used.")
	}
}

func (w *statusWriter) permitted() {
	denied := w.list(func(n *TargetNotes) string { return n.Denied })
	audited := w.list(func(n *TargetNotes) string { return n.Audited })
	refused := joinSentences(sentence("Refused by policy: %s.", denied), sentence("Refused nameserver: %s.", w.Nameserver))
	would := joinSentences(sentence("A policy in mode Audit would refuse: %s.", audited), sentence("A policy in mode Audit would refuse the nameserver: %s.", w.NameserverAudited))
	switch {
	case refused != "":
		w.set(v1alpha1.ConditionPermitted, metav1.ConditionFalse, v1alpha1.ReasonTargetDenied, refused)
	case would != "":
		w.set(v1alpha1.ConditionPermitted, metav1.ConditionTrue, v1alpha1.ReasonWouldDeny, would)
	default:
		w.set(v1alpha1.ConditionPermitted, metav1.ConditionTrue, v1alpha1.ReasonPermitted, "No target is refused.")
	}
}

func (w *statusWriter) resolved() {
	by := func(status AnswerStatus) string {
		return w.list(func(n *TargetNotes) string {
			if n.Answer.Status != status {
				return ""
			}
			return cmp.Or(n.Answer.Cause, "no answer yet")
		})
	}
	if failed := by(AnswerFailed); failed != "" {
		w.set(v1alpha1.ConditionNamesResolved, metav1.ConditionFalse, v1alpha1.ReasonResolutionFailed, "Not resolved: "+failed+".")
	} else if stale := by(AnswerStale); stale != "" {
		w.set(v1alpha1.ConditionNamesResolved, metav1.ConditionFalse, v1alpha1.ReasonServingStale, "The last good answer serves: "+stale+".")
	} else if pending := by(AnswerPending); pending != "" {
		if before := meta.FindStatusCondition(w.out.Conditions, v1alpha1.ConditionNamesResolved); before != nil && before.ObservedGeneration == w.Backend.Generation {
			return // after a restart what was said holds until there is an answer
		}
		w.set(v1alpha1.ConditionNamesResolved, metav1.ConditionUnknown, v1alpha1.ReasonPending, "Being resolved: "+pending+".")
	} else {
		w.set(v1alpha1.ConditionNamesResolved, metav1.ConditionTrue, v1alpha1.ReasonNamesResolved, "Every name has a current answer.")
	}
}

func (w *statusWriter) healthy() {
	p := w.probed
	summary := fmt.Sprintf("%d of %d probed endpoints are healthy.", p.healthy, p.total)
	if observes(w.Backend) {
		summary += " The check only observes: it changes no endpoint."
	}
	if w.Blind {
		summary += " Some do not answer, like nearly all that the manager probes: " +
			"it takes its own network for broken, and none for unhealthy because of silence."
	}
	switch {
	case w.Backend.Spec.HealthCheck == nil:
		w.set(v1alpha1.ConditionHealthy, metav1.ConditionTrue, v1alpha1.ReasonNotProbed, "The spec has no healthCheck.")
	case !Resolves(w.Backend):
		w.set(v1alpha1.ConditionHealthy, metav1.ConditionTrue, v1alpha1.ReasonNotProbed,
			"The Service leads to a name, which is not probed.")
	case p.total == 0:
		w.set(v1alpha1.ConditionHealthy, metav1.ConditionUnknown, v1alpha1.ReasonNoEndpoints, "There is no endpoint to probe.")
	case p.healthy == p.total:
		w.set(v1alpha1.ConditionHealthy, metav1.ConditionTrue, v1alpha1.ReasonHealthy, summary)
	case p.unhealthy == p.total:
		w.set(v1alpha1.ConditionHealthy, metav1.ConditionFalse, v1alpha1.ReasonAllUnhealthy, summary)
	case p.unhealthy > 0:
		w.set(v1alpha1.ConditionHealthy, metav1.ConditionFalse, v1alpha1.ReasonSomeUnhealthy, summary)
	default:
		w.set(v1alpha1.ConditionHealthy, metav1.ConditionUnknown, v1alpha1.ReasonPending, summary)
	}
}

func (w *statusWriter) programmed() {
	switch w.Programmed {
	case "": // not known: the spec was not acted on
		if meta.FindStatusCondition(w.out.Conditions, v1alpha1.ConditionProgrammed) == nil {
			w.set(v1alpha1.ConditionProgrammed, metav1.ConditionUnknown, v1alpha1.ReasonPending, "Nothing has been written yet.")
		}
	case v1alpha1.ReasonProgrammed:
		w.set(v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed,
			joinSentences("Service and EndpointSlices are as planned.", w.ProgrammedMessage))
	default:
		w.set(v1alpha1.ConditionProgrammed, metav1.ConditionFalse, w.Programmed, w.ProgrammedMessage)
	}
}

// ready sums the other conditions up.
func (w *statusWriter) ready() {
	if c := w.firstNotTrue(v1alpha1.ConditionAccepted, v1alpha1.ConditionProgrammed); c != nil {
		w.set(v1alpha1.ConditionReady, c.Status, c.Reason, c.Message)
		return
	}

	if w.out.ServiceType == v1alpha1.ServiceTypeExternalName {
		w.readyAlias()
		return
	}

	if w.out.Endpoints == nil || w.out.Endpoints.Ready == 0 {
		w.set(v1alpha1.ConditionReady, metav1.ConditionFalse, cmp.Or(w.cause, v1alpha1.ReasonNoReadyEndpoints),
			joinSentences(w.traffic(), w.worstTargets()))
		return
	}
	w.set(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, w.traffic())
}

// readyAlias is Ready of a Service of type ExternalName.
func (w *statusWriter) readyAlias() {
	switch {
	case w.Candidates != nil && w.Candidates.Notes[0].Denied != "":
		w.set(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonTargetDenied,
			"Policy refuses the target: the Service leads nowhere.")
	case w.Backend.Spec.Targets[0].AdminState == v1alpha1.AdminStateDisabled:
		w.set(v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonNoReadyEndpoints,
			"The target is Disabled: the Service leads nowhere.")
	default:
		w.set(v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady, "The Service is an alias of the target.")
	}
}

// firstNotTrue returns the first of the named conditions that is not True, or nil.
func (w *statusWriter) firstNotTrue(types ...string) *metav1.Condition {
	for _, t := range types {
		if c := meta.FindStatusCondition(w.out.Conditions, t); c.Status != metav1.ConditionTrue {
			return c
		}
	}
	return nil
}

// stallDelay is how long what another object may mend counts as in progress (kstatus): tools that
// apply many objects at once need not order them.
const stallDelay = 2 * time.Minute

// slowStallReasons are the reasons that become Stalled's after stallDelay.
var slowStallReasons = []string{
	v1alpha1.ReasonServiceConflict, v1alpha1.ReasonServiceNotFound, v1alpha1.ReasonPortMismatch,
	v1alpha1.ReasonRefNotFound, v1alpha1.ReasonRefNotPermitted, v1alpha1.ReasonInvalidRef,
}

// stalled sets or removes Stalled. It returns when time alone will set it; zero: never.
func (w *statusWriter) stalled() time.Time {
	var next time.Time
	for _, t := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionProgrammed, v1alpha1.ConditionResolvedRefs} {
		c := meta.FindStatusCondition(w.out.Conditions, t)
		if c.Status != metav1.ConditionFalse {
			continue
		}
		due := w.Now
		switch {
		case c.Reason == v1alpha1.ReasonInvalidSpec:
		case slices.Contains(slowStallReasons, c.Reason):
			due = c.LastTransitionTime.Add(stallDelay)
		default:
			continue
		}
		if !due.After(w.Now) {
			w.set(v1alpha1.ConditionStalled, metav1.ConditionTrue, c.Reason, c.Message)
			return time.Time{}
		}
		if next.IsZero() || due.Before(next) {
			next = due
		}
	}
	meta.RemoveStatusCondition(&w.out.Conditions, v1alpha1.ConditionStalled)
	return next
}

// traffic says in a sentence what traffic finds.
func (w *statusWriter) traffic() string {
	e := w.out.Endpoints
	if e == nil || e.Total == 0 {
		return "No endpoint is published."
	}
	text := fmt.Sprintf("%d of %d endpoints are ready.", e.Ready, e.Total)
	switch active := w.out.ActiveTier; {
	case w.Publication != nil && w.Publication.FailOpen:
		text += " No tier has enough healthy endpoints, and whenNoTierQualifies is AllEndpoints: every endpoint of an Active target is ready, whatever its health."
	case w.pinnedToNothing():
		text += fmt.Sprintf(" spec.failover.pinnedTier is %d, and no endpoint is in that tier.", *active)
	case active != nil && w.Publication != nil:
		if why := w.Publication.explainTier(w.Backend, *active); why != "" {
			text += fmt.Sprintf(" Tier %d is active. %s", *active, why)
		}
	case active != nil && *active != 0:
		text += fmt.Sprintf(" Tier %d is active.", *active)
	case active == nil && e.Ready > 0 && w.Publication != nil && w.Publication.Tier.None:
		text += " No tier has enough healthy endpoints: the healthy ones of every tier are ready."
	}
	return text
}

// pinnedToNothing: the tier that spec.failover.pinnedTier makes the active one has no endpoint, so
// that none is ready.
func (w *statusWriter) pinnedToNothing() bool {
	f := w.Backend.Spec.Failover
	if f == nil || f.PinnedTier == nil || w.Candidates == nil || w.out.ActiveTier == nil {
		return false
	}
	return !slices.ContainsFunc(w.Candidates.Endpoints, func(e Endpoint) bool { return e.Tier == *f.PinnedTier })
}
