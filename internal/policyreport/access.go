package policyreport

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/policy"
)

// Namespace is a namespace whose ExternalBackends policies select by its labels.
type Namespace struct {
	Name   string
	Labels map[string]string
}

// Answer says whether the ExternalBackends of a namespace may publish an address or a name.
type Answer string

// The answers, the most permissive first.
const (
	// Yes means that they may.
	Yes Answer = "Yes"
	// Conditional means that they may if the address or the name is as Rules say.
	Conditional Answer = "Conditional"
	// No means that policy refuses it.
	No Answer = "No"
)

// Access says who may publish an address or a name.
type Access struct {
	// Subject is the address or the name, and Ports are those that have to be allowed, too.
	Subject string   `json:"subject"`
	Ports   []string `json:"ports,omitempty"`
	// Namespaces are in the order of the answers, then of the names.
	Namespaces []NamespaceAccess `json:"namespaces"`
}

// NamespaceAccess says whether a namespace may publish an address or a name.
type NamespaceAccess struct {
	Namespace string `json:"namespace"`
	Answer    Answer `json:"answer"`
	// Why says why policy refuses it.
	Why string `json:"why,omitempty"`
	// Rules are those that allow it.
	Rules []RuleAccess `json:"rules,omitempty"`
	// Refusing are the policies that select the namespace and have no rule that allows it.
	Refusing []string `json:"refusing,omitempty"`
	// WouldRefuse reports whether the policies in mode Audit would refuse it.
	WouldRefuse bool `json:"wouldRefuse,omitempty"`
}

// RuleAccess is one rule that allows an address or a name.
type RuleAccess struct {
	Rule string `json:"rule"`
	// Condition is what the rule demands beyond the address or the name; "" if nothing.
	Condition string `json:"condition,omitempty"`
}

// A Question asks who may publish an address or a name.
type Question struct {
	Address netip.Addr // the zero Addr if Name is asked for
	Name    string
	Ports   []policy.Port
}

// WhoCan answers a question for each namespace. The Set is compiled from the policies.
func WhoCan(set *policy.Set, policies []v1alpha1.ExternalBackendPolicy, namespaces []Namespace, q Question) Access {
	w := whoCan{set: set, Question: q, rules: map[string]*v1alpha1.PolicyRule{}}
	for i := range policies {
		for j := range policies[i].Spec.Allow {
			w.rules[RuleText(policy.Rule{Policy: policies[i].Name, Index: j})] = &policies[i].Spec.Allow[j]
		}
	}
	out := Access{Subject: q.Name, Ports: portTexts(q.Ports)}
	if q.Address.IsValid() {
		out.Subject = q.Address.String()
	}
	for i := range namespaces {
		out.Namespaces = append(out.Namespaces, w.namespace(&namespaces[i]))
	}

	order := []Answer{Yes, Conditional, No}
	slices.SortFunc(out.Namespaces, func(a, b NamespaceAccess) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Answer), slices.Index(order, b.Answer)),
			strings.Compare(a.Namespace, b.Namespace))
	})
	return out
}

// whoCan answers a Question.
type whoCan struct {
	Question
	set   *policy.Set
	rules map[string]*v1alpha1.PolicyRule // by their texts
}

func (w *whoCan) namespace(n *Namespace) NamespaceAccess {
	view := w.set.For(n.Labels)
	strict, lenient, rules := w.ask(view)
	out := NamespaceAccess{Namespace: n.Name, Answer: No, WouldRefuse: lenient.WouldDeny}
	switch {
	case strict.Allowed:
		out.Answer = Yes
	case lenient.Allowed:
		out.Answer = Conditional
	default:
		out.Why = why(lenient)
	}

	allowing := map[string]bool{}
	for _, r := range rules {
		if r.Audit {
			continue
		}
		allowing[r.Policy] = true
		text := RuleText(r)
		out.Rules = append(out.Rules, RuleAccess{Rule: text, Condition: w.condition(w.rules[text])})
	}
	for _, s := range w.set.Selecting(n.Labels) {
		if !s.Audit && !allowing[s.Policy] {
			out.Refusing = append(out.Refusing, s.Policy)
		}
	}
	return out
}

// ask asks policy. strict is the decision about the address or the name alone. lenient is the one
// about it with the most favourable name or address.
func (w *whoCan) ask(view *policy.View) (strict, lenient policy.Decision, rules []policy.Rule) {
	if w.Address.IsValid() {
		return view.Target("", w.Address, w.Ports...), view.Unnamed(w.Address, w.Ports...),
			view.UnnamedRules(w.Address, w.Ports...)
	}
	return view.Name(w.Name, w.Ports...), view.Lookup(w.Name, w.Ports...), view.LookupRules(w.Name, w.Ports...)
}

// condition says what a rule demands beyond the address or the name.
func (w *whoCan) condition(r *v1alpha1.PolicyRule) string {
	if r == nil {
		return ""
	}
	var parts []string
	if w.Address.IsValid() && len(r.Hostnames) > 0 {
		parts = append(parts, "for the names "+firstFew(r.Hostnames))
	}
	if !w.Address.IsValid() && len(r.CIDRs) > 0 {
		parts = append(parts, "if it leads to "+firstFew(r.CIDRs))
	}
	if len(r.Ports) > 0 {
		parts = append(parts, "on "+firstFew(rangeTexts(r.Ports)))
	}
	return strings.Join(parts, ", ")
}

func rangeTexts(ports []v1alpha1.PolicyPort) []string {
	out := make([]string, len(ports))
	for i := range ports {
		p := &ports[i]
		out[i] = portText(policy.Port{Protocol: p.EffectiveProtocol(), Port: uint16(p.Port)})
		if end := p.EffectiveEndPort(); end != p.Port {
			out[i] = portText(policy.Port{Protocol: p.EffectiveProtocol(), Port: uint16(p.Port)}) + " to " +
				portText(policy.Port{Protocol: p.EffectiveProtocol(), Port: uint16(end)})
		}
	}
	return out
}
