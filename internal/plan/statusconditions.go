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

// setCondition sets a condition of an object of that generation. Its time changes only with its
// status.
func setCondition(all *[]metav1.Condition, condition string, c metav1.Condition, generation int64, now time.Time) {
	c.Type, c.Message = condition, bounded(c.Message, maxMessage)
	c.ObservedGeneration, c.LastTransitionTime = generation, metav1.NewTime(now)
	meta.SetStatusCondition(all, c)
}

func isTrue(reason, message string) metav1.Condition {
	return metav1.Condition{Status: metav1.ConditionTrue, Reason: reason, Message: message}
}

func isFalse(reason, message string) metav1.Condition {
	return metav1.Condition{Status: metav1.ConditionFalse, Reason: reason, Message: message}
}

func isUnknown(reason, message string) metav1.Condition {
	return metav1.Condition{Status: metav1.ConditionUnknown, Reason: reason, Message: message}
}

// The methods below assess one condition each. They return the zero Condition if the previous one
// holds.

func (w *statusWriter) accepted() metav1.Condition {
	if w.Invalid != "" {
		return isFalse(v1alpha1.ReasonInvalidSpec, w.Invalid)
	}
	return isTrue(v1alpha1.ReasonAccepted, "The spec can be acted on.")
}

func (w *statusWriter) resolvedRefs() metav1.Condition {
	switch {
	case w.References == nil:
		return metav1.Condition{}
	case w.References.Reason != "":
		return isFalse(w.References.Reason, w.References.Message)
	}
	return isTrue(v1alpha1.ReasonResolvedRefs, "Every Secret and ConfigMap that the spec names can be used.")
}

func (w *statusWriter) permitted() metav1.Condition {
	denied := w.listTargets(func(n *TargetNotes) string { return n.Denied })
	audited := w.listTargets(func(n *TargetNotes) string { return n.Audited })
	refused := joinSentences(
		sentence("Refused by policy: %s.", denied),
		sentence("Refused nameserver: %s.", w.Nameserver),
	)
	wouldRefuse := joinSentences(
		sentence("A policy in mode Audit would refuse: %s.", audited),
		sentence("A policy in mode Audit would refuse the nameserver: %s.", w.NameserverAudited),
	)

	switch {
	case refused != "":
		return isFalse(v1alpha1.ReasonTargetDenied, refused)
	case wouldRefuse != "":
		return isTrue(v1alpha1.ReasonWouldDeny, wouldRefuse)
	}
	return isTrue(v1alpha1.ReasonPermitted, "No target is refused.")
}

func (w *statusWriter) namesResolved() metav1.Condition {
	targetsWith := func(status AnswerStatus) string {
		return w.listTargets(func(n *TargetNotes) string {
			if n.Answer.Status != status {
				return ""
			}
			return cmp.Or(n.Answer.Cause, "no answer yet")
		})
	}

	if failed := targetsWith(AnswerFailed); failed != "" {
		return isFalse(v1alpha1.ReasonResolutionFailed, "Not resolved: "+failed+".")
	}
	if stale := targetsWith(AnswerStale); stale != "" {
		return isFalse(v1alpha1.ReasonServingStale, "The last good answer serves: "+stale+".")
	}
	pending := targetsWith(AnswerPending)
	if pending == "" {
		return isTrue(v1alpha1.ReasonNamesResolved, "Every name has a current answer.")
	}
	before := w.condition(v1alpha1.ConditionNamesResolved)
	if before != nil && before.ObservedGeneration == w.Backend.Generation {
		return metav1.Condition{} // after a restart the previous condition holds until there is an answer
	}
	return isUnknown(v1alpha1.ReasonPending, "Being resolved: "+pending+".")
}

// listTargets names the first targets that describe has a text for, with that text.
func (w *statusWriter) listTargets(describe func(*TargetNotes) string) string {
	var l targetList
	for i := range w.Candidates.Notes {
		if w.Backend.Spec.Targets[i].AdminState == v1alpha1.AdminStateDisabled {
			continue
		}
		if text := describe(&w.Candidates.Notes[i]); text != "" {
			l.add(w.Backend.Spec.Targets[i].Name, text)
		}
	}
	return l.String()
}

func (w *statusWriter) healthy() metav1.Condition {
	p := w.probed
	summary := fmt.Sprintf("%d of %d probed endpoints are healthy.", p.Healthy, p.Total)
	if observes(w.Backend) {
		summary += " The check only observes: it changes no endpoint."
	}
	if w.Blind {
		summary += " Some do not answer, like nearly all that the manager probes: " +
			"it takes its own network for broken, and none for unhealthy because of silence."
	}

	switch {
	case w.Backend.Spec.HealthCheck == nil:
		return isTrue(v1alpha1.ReasonNotProbed, "The spec has no healthCheck.")
	case !Resolves(w.Backend):
		return isTrue(v1alpha1.ReasonNotProbed, "The Service leads to a name, which is not probed.")
	case p.Total == 0:
		return isUnknown(v1alpha1.ReasonNoEndpoints, "There is no endpoint to probe.")
	case p.Healthy == p.Total:
		return isTrue(v1alpha1.ReasonHealthy, summary)
	case p.Unhealthy == p.Total:
		return isFalse(v1alpha1.ReasonAllUnhealthy, summary)
	case p.Unhealthy > 0:
		return isFalse(v1alpha1.ReasonSomeUnhealthy, summary)
	}
	return isUnknown(v1alpha1.ReasonPending, summary)
}

func (w *statusWriter) programmed() metav1.Condition {
	switch w.Programmed {
	case "": // the spec was not acted on
		return w.previousOr(v1alpha1.ConditionProgrammed, "Nothing has been written yet.")
	case v1alpha1.ReasonProgrammed:
		return isTrue(v1alpha1.ReasonProgrammed,
			joinSentences("Service and EndpointSlices are as planned.", w.ProgrammedMessage))
	}
	return isFalse(w.Programmed, w.ProgrammedMessage)
}

// previousOr lets the previous condition hold. If there is none, it is unknown.
func (w *statusWriter) previousOr(condition, message string) metav1.Condition {
	if w.condition(condition) != nil {
		return metav1.Condition{}
	}
	return isUnknown(v1alpha1.ReasonPending, message)
}

// ready sums the other conditions up.
func (w *statusWriter) ready() metav1.Condition {
	for _, condition := range []string{v1alpha1.ConditionAccepted, v1alpha1.ConditionProgrammed} {
		if c := w.condition(condition); c.Status != metav1.ConditionTrue {
			return *c
		}
	}

	switch {
	case w.out.ServiceType == v1alpha1.ServiceTypeExternalName:
		return w.readyOfAlias()
	case w.out.Endpoints == nil || w.out.Endpoints.Ready == 0:
		return isFalse(cmp.Or(w.sharedReason, v1alpha1.ReasonNoReadyEndpoints),
			joinSentences(w.describeTraffic(), w.notReadyTargets(), w.describeOverride()))
	}
	return isTrue(v1alpha1.ReasonReady, joinSentences(w.describeTraffic(), w.describeOverride()))
}

// readyOfAlias assesses Ready for a Service of type ExternalName.
func (w *statusWriter) readyOfAlias() metav1.Condition {
	switch {
	case w.Candidates != nil && w.Candidates.Notes[0].Denied != "":
		return isFalse(v1alpha1.ReasonTargetDenied, "Policy refuses the target: the Service leads nowhere.")
	case w.Backend.Spec.Targets[0].AdminState == v1alpha1.AdminStateDisabled:
		return isFalse(v1alpha1.ReasonNoReadyEndpoints, "The target is Disabled: the Service leads nowhere.")
	}
	return isTrue(v1alpha1.ReasonReady, "The Service is an alias of the target.")
}

// stallDelay is how long a problem counts as in progress (kstatus) if another object may solve it.
// So tools that apply many objects at once need no order.
const stallDelay = 2 * time.Minute

// slowStallReasons are the reasons that set Stalled only after stallDelay.
var slowStallReasons = []string{
	v1alpha1.ReasonServiceConflict, v1alpha1.ReasonServiceNotFound, v1alpha1.ReasonPortMismatch,
	v1alpha1.ReasonRefNotFound, v1alpha1.ReasonRefNotPermitted, v1alpha1.ReasonInvalidRef,
}

// setStalled sets or removes Stalled. It returns when time alone will set it; zero for never.
func (w *statusWriter) setStalled() time.Time {
	var next time.Time
	for _, t := range []string{
		v1alpha1.ConditionAccepted, v1alpha1.ConditionProgrammed, v1alpha1.ConditionResolvedRefs,
	} {
		c := w.condition(t)
		due, stalls := stallTime(c, w.Now)
		if !stalls {
			continue
		}
		if !due.After(w.Now) {
			w.set(v1alpha1.ConditionStalled, isTrue(c.Reason, c.Message))
			return time.Time{}
		}
		next = earlier(next, due)
	}
	meta.RemoveStatusCondition(&w.out.Conditions, v1alpha1.ConditionStalled)
	return next
}

// stallTime returns when c sets Stalled, if it does.
func stallTime(c *metav1.Condition, now time.Time) (due time.Time, stalls bool) {
	switch {
	case c.Status != metav1.ConditionFalse:
		return time.Time{}, false
	case c.Reason == v1alpha1.ReasonInvalidSpec:
		return now, true
	}
	return c.LastTransitionTime.Add(stallDelay), slices.Contains(slowStallReasons, c.Reason)
}

// describeTraffic says which endpoints get traffic.
func (w *statusWriter) describeTraffic() string {
	e := w.out.Endpoints
	if e == nil || e.Total == 0 {
		return "No endpoint is published."
	}
	return joinSentences(fmt.Sprintf("%d of %d endpoints are ready.", e.Ready, e.Total), w.describeTier())
}

// describeOverride says what an override sets; "" if none is applied.
func (w *statusWriter) describeOverride() string {
	if w.Override.Name == "" {
		return ""
	}
	return fmt.Sprintf("ExternalBackendOverride %q is applied: %s.", w.Override.Name, w.Override.Effect)
}

// describeTier says which tier is active and why; "" if nothing about it is worth saying.
func (w *statusWriter) describeTier() string {
	active, p := w.out.ActiveTier, w.Publication
	switch {
	case p != nil && p.FailOpen:
		return "No tier has enough healthy endpoints, and whenNoTierQualifies is AllEndpoints: " +
			"every endpoint of an Active target is ready, whatever its health."
	case w.isPinnedTierEmpty():
		return fmt.Sprintf("%s is %d, and no endpoint is in that tier.", w.Override.pin(), *active)
	case active != nil && p != nil:
		if why := p.explainTier(w.Backend, w.Override, *active); why != "" {
			return fmt.Sprintf("Tier %d is active. %s", *active, why)
		}
	case active != nil && *active != 0:
		return fmt.Sprintf("Tier %d is active.", *active)
	case active == nil && w.out.Endpoints.Ready > 0 && p != nil && p.TierState.None:
		return "No tier has enough healthy endpoints: the healthy ones of every tier are ready."
	}
	return ""
}

// isPinnedTierEmpty reports whether no endpoint is in the tier that spec.failover.pinnedTier makes
// active, so that none is ready.
func (w *statusWriter) isPinnedTierEmpty() bool {
	pinned := failover(w.Backend).Pinned
	return pinned != nil && w.Candidates != nil && w.out.ActiveTier != nil &&
		!slices.ContainsFunc(w.Candidates.Endpoints, func(e Endpoint) bool { return e.Tier == *pinned })
}
