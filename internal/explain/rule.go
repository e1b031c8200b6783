package explain

import (
	"fmt"
	"slices"

	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
)

// maxRules is how many rules a sentence names.
const maxRules = 3

// allowingRule names the rules that allow the endpoint.
func (e *explainer) allowingRule() string {
	if e.PoliciesUnread != "" {
		return "Which rule allows it is unknown: " + e.PoliciesUnread + "."
	}
	set, _ := policy.Compile(policy.Input{Policies: e.Policies})
	isEnforced := func(s policy.Selection) bool { return !s.Audit }
	if !slices.ContainsFunc(set.Selecting(e.NamespaceLabels), isEnforced) {
		return "No ExternalBackendPolicy in mode Enforce selects the namespace."
	}

	var texts []string
	for _, rule := range e.rules(set.For(e.NamespaceLabels)) {
		if !rule.Audit {
			texts = append(texts, fmt.Sprintf("spec.allow[%d] of ExternalBackendPolicy %q", rule.Index, rule.Policy))
		}
	}
	if len(texts) == 0 {
		return "No rule allows it now. The manager may not know the policies yet."
	}
	return fmt.Sprintf("It goes by %s.", plan.FirstFew(texts, maxRules))
}

// rules returns the rules that the manager goes by.
func (e *explainer) rules(view *policy.View) []policy.Rule {
	name, ports := e.hostname(), e.policyPorts()
	switch {
	case !plan.Resolves(e.Backend):
		return view.NameRules(name, ports...)
	case !e.addr.IsValid():
		return view.LookupRules(name, ports...)
	}
	return view.TargetRules(name, e.addr, ports...)
}

// policyPorts returns the ports that are published.
func (e *explainer) policyPorts() []policy.Port {
	var out []policy.Port
	if e.published != nil {
		for _, p := range e.published.Ports {
			out = append(out, policy.Port{Protocol: p.Protocol, Port: uint16(p.Port)})
		}
	}
	return out
}
