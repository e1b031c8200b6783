package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

// This file has the links that say whether the endpoint may be published: spec, name, policy,
// family, duplicate and limit.

// explainer makes the links of one chain.
type explainer struct {
	*Input
	*subject
}

// spec asks where the target stands.
func (e *explainer) spec() Link {
	l := Link{ID: LinkSpec, Title: "Is the target in spec, and Active?", Answer: Yes}
	switch {
	case e.name == "":
		l.Answer = Unknown
		l.say("The annotation of the slice does not say which target the endpoint belongs to, and no target has its address.")
		if until := e.published.DrainUntil; e.published.Terminating {
			l.Answer = No
			l.say("It drains%s.", untilText(until))
		}
		return l
	case e.target == nil:
		l.Answer = No
		l.say("Target %q is not in spec.targets.", e.name)
		l.say("Its endpoint drains%s.", untilText(e.published.DrainUntil))
		return l
	}

	own, state := e.target.EffectiveAdminState(), e.adminState()
	l.say("%s.", e.describeTarget())
	switch {
	case own != state:
		l.say("An override sets adminState %s.", state)
	case own != v1alpha1.AdminStateActive:
		l.Answer, l.Reason = No, string(own)
	}
	e.judgeSpec(&l)
	return l
}

// describeTarget says what spec says of the target.
func (e *explainer) describeTarget() string {
	kind, value := "address", e.target.Address
	switch {
	case e.target.Hostname != "":
		kind, value = "hostname", e.target.Hostname
	case e.target.SRVName != "":
		kind, value = "srvName", e.target.SRVName
	}
	return fmt.Sprintf("Target %q has %s %s, tier %d, adminState %s",
		e.name, kind, value, e.target.EffectiveTier(), e.target.EffectiveAdminState())
}

// judgeSpec says whether the manager acts on the spec.
func (e *explainer) judgeSpec(l *Link) {
	status := &e.Backend.Status
	if status.ObservedGeneration != e.Backend.Generation {
		l.say("The manager has not acted on generation %d of the spec yet: the rest is about generation %d.",
			e.Backend.Generation, status.ObservedGeneration)
		if e.published == nil && e.status == nil && l.Answer == Yes {
			l.Answer, l.Reason = Unknown, v1alpha1.ReasonPending
		}
	}
	c := e.condition(v1alpha1.ConditionAccepted)
	l.sayCondition(c)
	if c == nil || c.Status != metav1.ConditionFalse {
		return
	}
	if !e.isOut() {
		l.say("What was published before stays, by the last valid spec.")
		return
	}
	l.Answer, l.Reason = No, c.Reason
}

// dnsName asks whether a name leads to the address.
func (e *explainer) dnsName() Link {
	l := Link{ID: LinkName, Title: "Does a name lead to it?", Answer: Yes}
	name := e.hostname()
	switch {
	case e.target == nil:
		l.Answer = Unknown
		l.say("The target is not in spec, and nothing is resolved for it.")
		return l
	case name == "":
		l.say("The address is written in spec; there is no name.")
		return l
	case !plan.Resolves(e.Backend):
		l.say("The name %s itself is published; clients resolve it.", name)
		return l
	}

	c := e.condition(v1alpha1.ConditionNamesResolved)
	switch {
	case e.isState(v1alpha1.TargetStateDenied), e.adminState() == v1alpha1.AdminStateDisabled:
		l.Answer = Unknown
		l.say("The name %s is not resolved, because the target may not be published.", name)
		return l
	case e.published != nil && e.published.Leaving():
		l.Answer = No
		l.say("The address is no longer an address of %s; it drains%s.", name, untilText(e.published.DrainUntil))
	case e.published != nil:
		l.say("%s leads to %s.", name, e.published.Addr)
	case e.isState(v1alpha1.TargetStateUnresolved):
		l.Answer, l.Reason = No, e.status.Reason
		l.say("%s has no address%s.", name, inBrackets(e.status.Message))
		l.sayCondition(e.failed(v1alpha1.ConditionPermitted))
	case e.status == nil:
		l.Answer = Unknown
		l.say("Status lists the worst targets only, and not this one; no slice publishes it.")
	default:
		l.say("%s has addresses.", name)
	}
	if e.isReason(v1alpha1.ReasonServingStale) {
		l.Reason, l.Hint = e.status.Reason, hints[e.status.Reason]
		l.say("Its last good answer serves%s.", inBrackets(e.status.Message))
	}
	l.sayCondition(c)
	if refs := e.failed(v1alpha1.ConditionResolvedRefs); refs != nil && strings.HasPrefix(refs.Message, "spec.dns.") {
		l.sayCondition(refs)
		if l.Answer == No {
			l.Reason = refs.Reason
		}
	}
	return l
}

// hostname returns the name of the target; "" for a literal address.
func (e *explainer) hostname() string {
	if e.target == nil {
		return ""
	}
	return e.target.Hostname + e.target.SRVName
}

// policy asks whether policy allows the endpoint, and by which rule.
func (e *explainer) policy() Link {
	l := Link{ID: LinkPolicy, Title: "Does policy allow it?", Answer: Yes}
	c := e.condition(v1alpha1.ConditionPermitted)
	denied := e.isReason(v1alpha1.ReasonTargetDenied)
	switch {
	case denied && e.isOut():
		l.Answer, l.Reason = No, v1alpha1.ReasonTargetDenied
		l.say("Policy refuses target %q%s.", e.name, inBrackets(e.status.Message))
	case denied:
		l.say("Policy refuses an address of target %q%s; this endpoint is published.", e.name, inBrackets(e.status.Message))
	case e.published == nil && e.status == nil:
		l.Answer = Unknown
		l.say("Status does not list the target, and no slice publishes it.")
	default:
		l.say("Policy does not refuse it.")
	}
	l.sayCondition(c)
	if c != nil && c.Reason == v1alpha1.ReasonWouldDeny {
		l.Reason, l.Hint = c.Reason, hints[c.Reason]
	}
	if l.Answer == Yes {
		l.say("%s", e.allowingRule())
	}
	return l
}

// family asks whether the Service has the IP family of the address.
func (e *explainer) family() Link {
	return e.unpublished(LinkFamily, "Does the Service serve its IP family?", v1alpha1.TargetReasonFamilyNotServed,
		func() string {
			switch {
			case !e.addr.IsValid():
				return "There is no address to publish."
			case e.Service == nil:
				return "The Service does not refuse it, as far as status says."
			}
			return fmt.Sprintf("Service %q serves %v.", e.Service.Name, e.Service.Spec.IPFamilies)
		})
}

// duplicate asks whether somebody else publishes the same ip:port.
func (e *explainer) duplicate() Link {
	l := e.unpublished(LinkDuplicate, "Is no other claim on its ip:port better?", v1alpha1.TargetReasonDuplicateAddress,
		func() string { return "Nobody else publishes its ip:port." })
	if l.Answer != No || !e.addr.IsValid() {
		return l
	}
	everybody := func(*discoveryv1.EndpointSlice) bool { return true }
	for _, p := range publishedBy(e.Slices, everybody) {
		if p.Addr == e.addr {
			l.say("EndpointSlice %q publishes %s.", p.slice.Name, p.Addr)
		}
	}
	return l
}

// limit asks whether there are too many addresses.
func (e *explainer) limit() Link {
	return e.unpublished(LinkLimit, "Is there room for it?", v1alpha1.TargetReasonTruncated,
		func() string { return "No limit leaves it out." })
}

// unpublished makes a link about one reason why an endpoint is not published. good says for people
// that it does not apply.
func (e *explainer) unpublished(id, title, reason string, good func() string) Link {
	l := Link{ID: id, Title: title, Answer: Yes}
	switch {
	case e.isReason(reason) && e.isOut():
		l.Answer, l.Reason = No, reason
		l.say("%s.", capitalized(e.status.Message))
	case e.isOut() && (e.status == nil || e.status.Reason != ""):
		l.Answer = Unknown
		l.say("It is not published, and status does not say this.")
	case e.isReason(reason):
		l.say("%s", good())
		l.say("Other addresses of the target are left out%s.", inBrackets(e.status.Message))
	default:
		l.say("%s", good())
	}
	return l
}

// isOut reports whether no slice publishes the endpoint. If the slices were not read, status says
// whether the target has endpoints.
func (e *explainer) isOut() bool {
	unread := e.SlicesUnread != "" && e.status != nil && e.status.Endpoints.Total > 0
	return e.published == nil && !unread
}

// condition returns a condition of the ExternalBackend, or nil.
func (e *explainer) condition(name string) *metav1.Condition {
	return meta.FindStatusCondition(e.Backend.Status.Conditions, name)
}

// failed returns a condition if it is False; else nil.
func (e *explainer) failed(name string) *metav1.Condition {
	if c := e.condition(name); c != nil && c.Status == metav1.ConditionFalse {
		return c
	}
	return nil
}

func (e *explainer) isState(state v1alpha1.TargetState) bool {
	return e.status != nil && e.status.State == state
}

func (e *explainer) isReason(reason string) bool { return e.status != nil && e.status.Reason == reason }

// adminState is the adminState that is in force. If the override that is applied was not read, the
// state of the target shows it.
func (e *explainer) adminState() v1alpha1.AdminState {
	if o := e.appliedOverride(); o != nil {
		i := slices.IndexFunc(o.Spec.Targets, func(t v1alpha1.TargetOverride) bool { return t.Name == e.name })
		if i >= 0 {
			return o.Spec.Targets[i].AdminState
		}
	}
	unread := e.Backend.Status.Override != "" && e.appliedOverride() == nil
	for _, state := range []v1alpha1.AdminState{v1alpha1.AdminStateDraining, v1alpha1.AdminStateDisabled} {
		if unread && e.isState(v1alpha1.TargetState(state)) {
			return state
		}
	}
	if e.target == nil {
		return ""
	}
	return e.target.EffectiveAdminState()
}

// appliedOverride returns the override that status names, or nil.
func (e *explainer) appliedOverride() *v1alpha1.ExternalBackendOverride {
	for i := range e.Overrides {
		if e.Backend.Status.Override != "" && e.Overrides[i].Name == e.Backend.Status.Override {
			return &e.Overrides[i]
		}
	}
	return nil
}

// since says how long something has been so; "" if that is not known.
func (e *explainer) since(t *metav1.Time) string {
	if t == nil || t.IsZero() {
		return ""
	}
	return fmt.Sprintf(" for %s, since %s", duration.HumanDuration(e.Now.Sub(t.Time)), t.UTC().Format("2006-01-02 15:04:05 MST"))
}

func (l *Link) say(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); text != "" {
		l.Evidence = append(l.Evidence, text)
	}
}

// sayCondition adds a condition to the evidence, if it is there.
func (l *Link) sayCondition(c *metav1.Condition) {
	if c != nil {
		l.say("Condition %s is %s (%s): %s", c.Type, c.Status, c.Reason, c.Message)
	}
}

// inBrackets returns a message to put behind a clause; "" if there is none.
func inBrackets(message string) string {
	if message == "" {
		return ""
	}
	return " (" + message + ")"
}

// untilText says until when an endpoint drains; "" if that is not known.
func untilText(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return " until " + t.Format("15:04:05 MST")
}

func capitalized(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
