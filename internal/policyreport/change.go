// Package policyreport reports for people what policies allow: what other policies would change,
// and who may publish an address or a name. It is pure. It decides nothing itself, but asks policy
// and the planner, as the manager does.
package policyreport

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/resolve"
)

// Effect is what other policies do about an address, a name or a nameserver.
type Effect string

// The effects, the worst first.
const (
	// Withdrawn means that it is published, and will not be.
	Withdrawn Effect = "Withdrawn"
	// Refused means that it is allowed but not published, and will be refused.
	Refused Effect = "Refused"
	// Allowed means that it is refused, and will be allowed.
	Allowed Effect = "Allowed"
	// Unknown means that the addresses that a name leads to decide, and that they are not known.
	Unknown Effect = "Unknown"
	// WouldRefuse means that policies in mode Audit will report it, and do not yet.
	WouldRefuse Effect = "WouldRefuse"
	// WouldAllow means that policies in mode Audit report it, and will not.
	WouldAllow Effect = "WouldAllow"
)

// A Change is what other policies change for one address, name or nameserver.
type Change struct {
	Namespace       string `json:"namespace"`
	ExternalBackend string `json:"externalBackend"`
	// Target is the target's name; "" for a nameserver.
	Target string `json:"target,omitempty"`
	Effect Effect `json:"effect"`
	// Subject is the address, the name or the field that the effect is about; "" for the whole target.
	Subject string   `json:"subject,omitempty"`
	Ports   []string `json:"ports,omitempty"`
	// Why says why it is refused, or why its effect is unknown.
	Why string `json:"why,omitempty"`
	// Rules are those that allow it: now if it will be refused, else those that will allow it. Without
	// any, it is allowed because no policy selects the namespace.
	Rules []string `json:"rules,omitempty"`
}

// Backend is an ExternalBackend with all that decides what policy means for it.
type Backend struct {
	Object *v1alpha1.ExternalBackend
	// NamespaceLabels are those of its namespace.
	NamespaceLabels map[string]string
	// Service is the Service that it publishes behind; nil if there is none.
	Service *corev1.Service
	// Slices are its own.
	Slices []*discoveryv1.EndpointSlice
	// Overrides are those that name it.
	Overrides []v1alpha1.ExternalBackendOverride
	// Answers are what is known of the names of its targets. A name that is not there leads to the
	// addresses that are published for it, and perhaps to more.
	Answers map[resolve.Question]resolve.Answer
}

// Changes returns what changes for an ExternalBackend if the policies of after replace those of
// before. Withdrawn changes come first.
func Changes(before, after *policy.Set, b Backend, now time.Time) []Change {
	c := &comparison{
		Backend: b, now: now, before: before.For(b.NamespaceLabels), after: after.For(b.NamespaceLabels),
	}
	isValid := plan.Validate(b.Object, b.Service) == ""
	overridden := plan.Override(b.Object, isValid, b.Overrides, now)
	c.spec, c.override = overridden.Backend, overridden.Applied

	switch {
	case !isValid:
		c.comparePublished()
	case !plan.Resolves(c.spec):
		c.compareName()
	default:
		c.compareCandidates()
		c.compareNameservers()
	}

	order := []Effect{Withdrawn, Refused, Allowed, Unknown, WouldRefuse, WouldAllow}
	slices.SortStableFunc(c.changes, func(x, y Change) int {
		return cmp.Or(cmp.Compare(slices.Index(order, x.Effect), slices.Index(order, y.Effect)),
			strings.Compare(x.Target, y.Target))
	})
	return c.changes
}

// comparison compares what policies mean for one ExternalBackend.
type comparison struct {
	Backend
	// spec is the ExternalBackend with its override.
	spec          *v1alpha1.ExternalBackend
	override      plan.AppliedOverride
	now           time.Time
	before, after *policy.View
	changes       []Change
}

func (c *comparison) add(change Change) {
	change.Namespace, change.ExternalBackend = c.Object.Namespace, c.Object.Name
	c.changes = append(c.changes, change)
}

// addDecision adds a change if policy decides otherwise after than before. published reports
// whether it is published. rules returns the rules that allow it.
func (c *comparison) addDecision(
	change Change, published bool, before, after policy.Decision, rules func(*policy.View) []policy.Rule,
) {
	enforced := change
	switch {
	case before.Keep(published) && !after.Keep(published):
		enforced.Effect = Refused
		if published {
			enforced.Effect = Withdrawn
		}
		enforced.Why, enforced.Rules = why(after), ruleTexts(rules(c.before), false)
		c.add(enforced)
	case !before.Keep(published) && after.Keep(published):
		enforced.Effect, enforced.Rules = Allowed, ruleTexts(rules(c.after), false)
		c.add(enforced)
	}

	switch {
	case !before.WouldDeny && after.WouldDeny:
		change.Effect, change.Why = WouldRefuse, why(after)
		c.add(change)
	case before.WouldDeny && !after.WouldDeny:
		change.Effect = WouldAllow
		c.add(change)
	}
}

// why says for people why something is refused.
func why(d policy.Decision) string {
	if d.Kind == policy.PortNotAllowed {
		return fmt.Sprintf("port %s is not allowed by any policy", portText(d.Port))
	}
	return d.Kind.String()
}

func portText(p policy.Port) string { return fmt.Sprintf("%d/%s", p.Port, p.Protocol) }

func portTexts(ports []policy.Port) []string {
	out := make([]string, len(ports))
	for i := range ports {
		out[i] = portText(ports[i])
	}
	return out
}

// ruleTexts names the rules of policies in mode Audit, or those of all others.
func ruleTexts(rules []policy.Rule, audit bool) []string {
	var out []string
	for _, r := range rules {
		if r.Audit == audit {
			out = append(out, RuleText(r))
		}
	}
	return out
}

// RuleText names a rule, as in "databases spec.allow[0]".
func RuleText(r policy.Rule) string { return fmt.Sprintf("%s spec.allow[%d]", r.Policy, r.Index) }

// nameOf returns the DNS name of a target; "" if it has an address or is not in the spec.
func (c *comparison) nameOf(target string) string {
	for i := range c.spec.Spec.Targets {
		if t := &c.spec.Spec.Targets[i]; t.Name == target {
			return cmp.Or(t.Hostname, t.SRVName)
		}
	}
	return ""
}

// endpointSet holds endpoints by address.
type endpointSet map[netip.Addr][]*plan.Endpoint

func newEndpointSet(endpoints []plan.Endpoint) endpointSet {
	s := endpointSet{}
	for i := range endpoints {
		s[endpoints[i].Addr] = append(s[endpoints[i].Addr], &endpoints[i])
	}
	return s
}

// has reports whether the set has an endpoint with the address and the ports of e.
func (s endpointSet) has(e *plan.Endpoint) bool {
	return slices.ContainsFunc(s[e.Addr], e.SameAddressAndPorts)
}
