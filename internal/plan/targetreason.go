package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/external-backend/operator/api/v1alpha1"
)

// unhealthyReason returns what the probes of an unhealthy target saw. A verdict that was read back
// after a restart has no reason of its own. For it the reason in the previous status holds.
func (w *statusWriter) unhealthyReason(target string, sum *targetEndpoints) (reason, message string) {
	if sum.worst.Reason == "" {
		before := w.previousTarget(target)
		if before == nil || before.Health != v1alpha1.TargetHealthUnhealthy {
			return "", ""
		}
		return before.Reason, before.Message
	}

	message = fmt.Sprintf("%s, at %s", sum.worst.Cause(), sum.worstAt)
	if more := sum.unhealthy - 1; more > 0 {
		message += fmt.Sprintf(", and %d more", more)
	}
	return sum.worst.Reason, message
}

// previousTarget returns the target of that name in the previous status, or nil.
func (w *statusWriter) previousTarget(name string) *v1alpha1.TargetStatus {
	listed := w.Previous.Targets
	i := slices.IndexFunc(listed, func(t v1alpha1.TargetStatus) bool { return t.Name == name })
	if i < 0 {
		return nil
	}
	return &listed[i]
}

// unpublishedReason returns the first reason why addresses of a target are not published, or not
// current.
func (w *statusWriter) unpublishedReason(t *v1alpha1.Target, n *TargetNotes) (reason, message string) {
	switch {
	case n.Denied != "":
		return v1alpha1.ReasonTargetDenied, n.Denied
	case n.Answer.Reason != "":
		return n.Answer.Reason, n.Answer.Cause
	case n.Duplicates > 0:
		return v1alpha1.TargetReasonDuplicateAddress, n.Winner + " publishes the same address and port"
	case n.OtherFamily > 0:
		return v1alpha1.TargetReasonFamilyNotServed, w.familyNotServed(t)
	case n.Truncated > 0 || n.Answer.Omitted > 0:
		return v1alpha1.TargetReasonTruncated, fmt.Sprintf("%d addresses are too many", n.Truncated+n.Answer.Omitted)
	}
	return w.stillUnresolved(t.Name, n)
}

// familyNotServed names the IP family that the Service lacks, and the field to set.
func (w *statusWriter) familyNotServed(t *v1alpha1.Target) string {
	family := "the address's IP family"
	if a, err := netip.ParseAddr(t.Address); err == nil && a.Is4() {
		family = "IPv4"
	} else if err == nil {
		family = "IPv6"
	}
	if w.Backend.Spec.ServiceRef != nil {
		return fmt.Sprintf("Service %q does not serve %s (its spec.ipFamilies)", w.Backend.EffectiveServiceName(), family)
	}
	return fmt.Sprintf("the Service does not serve %s (spec.service.ipFamilies, ipFamilyPolicy)", family)
}

// stillUnresolved returns what was wrong with a name before a restart. It holds until there is an
// answer, as the condition NamesResolved does.
func (w *statusWriter) stillUnresolved(target string, n *TargetNotes) (reason, message string) {
	if n.Answer.Status != AnswerPending || w.Previous.ObservedGeneration != w.Backend.Generation {
		return "", ""
	}
	before := w.previousTarget(target)
	if before == nil || !slices.Contains(resolutionReasons, before.Reason) {
		return "", ""
	}
	return before.Reason, before.Message
}

// resolutionReasons are the reasons that say what is wrong with a name.
var resolutionReasons = []string{
	v1alpha1.ReasonServingStale, v1alpha1.ReasonResolutionFailed, v1alpha1.TargetReasonNameNotFound,
}

// findSharedReason returns the reason for Ready if all targets that are not Disabled have no ready
// endpoint for the same reason; else "".
func (w *statusWriter) findSharedReason(all []v1alpha1.TargetStatus, sums []targetEndpoints) string {
	shared := ""
	for i := range all {
		if all[i].State == v1alpha1.TargetStateDisabled {
			continue
		}
		reason := notReadyReason(&all[i], &sums[i])
		if reason == "" || shared != "" && shared != reason {
			return ""
		}
		shared = reason
	}
	return shared
}

// notReadyReason returns the reason for Ready why no endpoint of a target is ready; "" if there is
// no single reason.
func notReadyReason(t *v1alpha1.TargetStatus, sum *targetEndpoints) string {
	switch {
	case t.State == v1alpha1.TargetStateDenied:
		return v1alpha1.ReasonTargetDenied
	case t.State == v1alpha1.TargetStateUnresolved && t.Reason != v1alpha1.ReasonPending:
		return v1alpha1.ReasonResolutionFailed
	case t.State == v1alpha1.TargetStateDraining:
		return v1alpha1.ReasonDraining
	case sum.total == 0 && t.Reason == v1alpha1.TargetReasonFamilyNotServed:
		return v1alpha1.TargetReasonFamilyNotServed
	case sum.total > 0 && sum.unhealthy == sum.total:
		return v1alpha1.ReasonAllUnhealthy
	}
	return ""
}

// notReadyTargets names the first targets without a ready endpoint, and says why.
func (w *statusWriter) notReadyTargets() string {
	if w.Candidates == nil {
		return ""
	}
	list := targetList{omitted: int(w.out.OmittedTargets)}
	for i := range w.out.Targets {
		t := &w.out.Targets[i]
		if t.Endpoints.Ready == 0 {
			list.add(t.Name, notReadyPhrase(t))
		}
	}
	return capitalized(sentence("%s.", list.String()))
}

// notReadyPhrase says why a target has no ready endpoint.
func notReadyPhrase(t *v1alpha1.TargetStatus) string {
	switch {
	case t.Message != "" || t.Reason != "":
		return cmp.Or(t.Message, t.Reason)
	case t.State == v1alpha1.TargetStateUnknown:
		return "no verdict yet"
	case t.State == v1alpha1.TargetStateHealthy || t.State == v1alpha1.TargetStateUnprobed:
		return fmt.Sprintf("%s, in tier %d", t.State, t.Tier)
	}
	return string(t.State)
}
