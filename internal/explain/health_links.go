package explain

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

// This file has the links about health and tier: verdict, tier and override.

// verdict asks what the probes say.
func (e *explainer) verdict() Link {
	l := Link{ID: LinkVerdict, Title: "Is it healthy?", Answer: Yes}
	check := e.Backend.Spec.HealthCheck
	switch {
	case check == nil || !plan.Resolves(e.Backend):
		l.Reason = v1alpha1.ReasonNotProbed
		l.say("It is not probed, and counts as healthy.")
		return l
	case e.published == nil:
		l.Answer = Unknown
		e.judgeByStatus(&l)
		l.sayCondition(e.condition(v1alpha1.ConditionHealthy))
		return l
	case check.EffectiveMode() == v1alpha1.HealthCheckModeObserve:
		l.say("It counts as healthy, whatever the probes say: the check only observes.")
		e.sayTargetHealth(&l)
	case e.published.Unread:
		l.Answer = Unknown
		l.say("The annotation of its slice does not say it.")
		e.judgeByStatus(&l)
		if l.Reason != "" && !e.published.Serving {
			l.Answer = No
		}
	case e.published.Healthy && e.isHealth(v1alpha1.TargetHealthUnknown):
		l.say("There is no verdict on every endpoint of the target yet; this one is published as healthy.")
	case e.published.Healthy:
		l.say("It is healthy%s.", e.sinceState(v1alpha1.TargetStateHealthy))
	case e.isHealth(v1alpha1.TargetHealthHealthy):
		l.Answer = No
		l.say("It is unhealthy: its slice says so. Status still says that its target is healthy, because it follows the " +
			"slices with a delay.")
		l.Hint = "Ask again in ten seconds, or look at the events: they say the reason at once."
	default:
		l.Answer = No
		e.sayTargetHealth(&l)
	}

	l.sayCondition(e.condition(v1alpha1.ConditionHealthy))
	refs := e.failed(v1alpha1.ConditionResolvedRefs)
	if refs != nil && strings.HasPrefix(refs.Message, "spec.healthCheck.") {
		l.say("No probe runs; what was published last stays.")
		l.sayCondition(refs)
		if l.Answer != Yes {
			l.Reason = refs.Reason
		}
	}
	return l
}

// judgeByStatus answers without a slice. Status knows the worst health of the target.
func (e *explainer) judgeByStatus(l *Link) {
	if e.isOut() || e.status == nil {
		l.say("Only what is published is probed.")
		return
	}
	e.sayTargetHealth(l)
	switch {
	case e.isHealth(v1alpha1.TargetHealthHealthy):
		l.Answer = Yes
	case e.isHealth(v1alpha1.TargetHealthUnhealthy) && e.status.Endpoints.Total == 1:
		l.Answer = No
	}
}

// sayTargetHealth says what the probes of the target have seen.
func (e *explainer) sayTargetHealth(l *Link) {
	switch {
	case e.isHealth(v1alpha1.TargetHealthUnhealthy):
		l.Reason = e.status.Reason
		l.say("It is unhealthy%s: %s.", e.sinceState(v1alpha1.TargetStateUnhealthy), orReason(e.status))
		if n := e.status.Endpoints.Total; n > 1 {
			l.say("The message is about the worst of the %d endpoints of the target.", n)
		}
	case e.status == nil:
		l.say("The probes find it unhealthy, or have no verdict yet; status does not list the target.")
	case e.isHealth(v1alpha1.TargetHealthHealthy):
		l.say("The probes find it healthy%s.", e.sinceState(v1alpha1.TargetStateHealthy))
	default:
		l.Reason = v1alpha1.ReasonPending
		initial := e.Backend.Spec.HealthCheck.EffectiveInitialState()
		l.say("There is no verdict yet; until then initialState %s holds.", initial)
	}
}

func (e *explainer) isHealth(h v1alpha1.TargetHealth) bool {
	return e.status != nil && e.status.Health == h
}

// sinceState says since when the target is in that state; "" if it is in another one.
func (e *explainer) sinceState(state v1alpha1.TargetState) string {
	if !e.isState(state) {
		return ""
	}
	return e.since(e.status.LastTransitionTime)
}

// orReason returns the message of a target, else its reason.
func orReason(t *v1alpha1.TargetStatus) string {
	switch {
	case t.Message != "":
		return t.Message
	case t.Reason != "":
		return t.Reason
	}
	return "status does not say why"
}

// tier asks whether the tier of the endpoint gets traffic.
func (e *explainer) tier() Link {
	l := Link{ID: LinkTier, Title: "Is its tier active?", Answer: Yes}
	active, status := e.Backend.Status.ActiveTier, &e.Backend.Status
	switch {
	case !plan.Resolves(e.Backend):
		l.say("A name that is published itself has no tiers.")
		return l
	case e.target == nil && (e.published == nil || e.published.Unread):
		l.Answer = Unknown
		l.say("Its tier is not known.")
		return l
	}

	own := e.ownTier()
	switch {
	case active == nil && (status.Endpoints == nil || status.Endpoints.Total == 0):
		l.Answer = Unknown
		l.say("It is in tier %d. No tier is active, because no endpoint is published.", own)
	case active == nil:
		l.say("It is in tier %d. No tier has enough healthy endpoints, and whenNoTierQualifies is %s.", own,
			e.Backend.Spec.Failover.EffectiveWhenNoTierQualifies())
	case *active == own:
		l.say("It is in tier %d, which is active.", own)
	case e.adminState() != v1alpha1.AdminStateActive || e.isOut():
		l.Answer = Unknown
		l.say("Tier %d is active. The endpoint does not count for its tier %d: it is not published, or its target is not "+
			"Active.", *active, own)
	default:
		l.Answer = No
		l.say("It is in tier %d, a standby: tier %d is active.", own, *active)
		e.sayWhyTier(&l)
	}
	return l
}

// ownTier returns the tier of the endpoint, which its slice knows best.
func (e *explainer) ownTier() int32 {
	if e.published != nil {
		return e.published.Tier
	}
	return e.target.EffectiveTier()
}

// sayWhyTier says why another tier is active.
func (e *explainer) sayWhyTier(l *Link) {
	override, failover := e.appliedOverride(), e.Backend.Spec.Failover
	switch {
	case override != nil && override.Spec.PinnedTier != nil:
		l.say("ExternalBackendOverride %q pins tier %d.", override.Name, *override.Spec.PinnedTier)
		l.Hint = "Delete the override, or wait for its end."
	case failover != nil && failover.PinnedTier != nil:
		l.say("spec.failover.pinnedTier pins tier %d.", *failover.PinnedTier)
		l.Hint = "Remove spec.failover.pinnedTier if the tiers shall follow health again."
	default:
		l.Hint = "A standby gets traffic when the better tiers no longer qualify; pin its tier to force that."
	}
	l.sayCondition(e.condition(v1alpha1.ConditionReady))
}

// override asks whether an override keeps the endpoint out of traffic.
func (e *explainer) override() Link {
	l := Link{ID: LinkOverride, Title: "Does no override hold it back?", Answer: Yes}
	applied := e.appliedOverride()
	switch {
	case e.Backend.Status.Override == "":
		l.say("No ExternalBackendOverride is applied.")
	case applied == nil:
		l.Answer = Unknown
		l.say("ExternalBackendOverride %q is applied. What it sets is unknown%s.", e.Backend.Status.Override,
			inBrackets(e.OverridesUnread))
		e.judgeUnreadOverride(&l)
		l.sayCondition(e.condition(v1alpha1.ConditionReady))
	default:
		e.judgeOverride(&l, applied)
	}
	for i := range e.Overrides {
		o := &e.Overrides[i]
		if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionApplied); c != nil {
			l.say("ExternalBackendOverride %q: Applied is %s (%s): %s", o.Name, c.Status, c.Reason, c.Message)
		}
	}
	return l
}

// judgeUnreadOverride answers by status: a target whose state is not that of its own adminState is
// subject to the override.
func (e *explainer) judgeUnreadOverride(l *Link) {
	state := e.adminState()
	if e.target == nil || state == e.target.EffectiveAdminState() {
		return
	}
	l.Answer, l.Reason = No, string(state)
	l.say("Status says that the target is %s, and spec does not.", state)
	l.Hint = "Ask whoever made the override, or wait for its end."
}

// judgeOverride says what the applied override means for the endpoint.
func (e *explainer) judgeOverride(l *Link, applied *v1alpha1.ExternalBackendOverride) {
	state, pinned := e.adminState(), applied.Spec.PinnedTier
	isOwn := func(t v1alpha1.TargetOverride) bool { return t.Name == e.name }
	overridden := slices.ContainsFunc(applied.Spec.Targets, isOwn)
	switch {
	case overridden && state != v1alpha1.AdminStateActive:
		l.Answer, l.Reason = No, string(state)
		l.say("ExternalBackendOverride %q sets adminState %s of the target.", applied.Name, state)
		l.Hint = "Delete the override, or wait for its end."
	case pinned != nil && (e.published != nil || e.target != nil) && *pinned != e.ownTier():
		l.Answer = No
		l.say("ExternalBackendOverride %q pins tier %d.", applied.Name, *pinned)
		l.Hint = "Delete the override, or wait for its end."
	default:
		l.say("ExternalBackendOverride %q is applied, and does not keep traffic from it.", applied.Name)
	}
	l.say("It ends at %s.", applied.EndTime().UTC().Format("2006-01-02 15:04:05 MST"))
}
