package explain

import (
	"fmt"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
)

// allowingRule names the rule that allows the endpoint. It asks package policy about each rule
// alone, because a decision does not name a rule.
func (e *explainer) allowingRule() string {
	if e.PoliciesUnread != "" {
		return "Which rule allows it is unknown: " + e.PoliciesUnread + "."
	}
	selected := false
	for i := range e.Policies {
		p := &e.Policies[i]
		if p.Spec.EffectiveMode() == v1alpha1.PolicyModeAudit || !selects(p, e.NamespaceLabels) {
			continue
		}
		selected = true
		for rule := range p.Spec.Allow {
			alone := *p
			alone.Spec.Allow = p.Spec.Allow[rule : rule+1]
			if e.allows(&alone) {
				return fmt.Sprintf("spec.allow[%d] of ExternalBackendPolicy %q allows it.", rule, p.Name)
			}
		}
	}
	if selected {
		return "No single rule allows all of it."
	}
	return "No ExternalBackendPolicy selects the namespace."
}

// selects reports whether a policy selects a namespace with these labels.
func selects(p *v1alpha1.ExternalBackendPolicy, labels map[string]string) bool {
	set, _ := policy.Compile(policy.Input{Policies: []v1alpha1.ExternalBackendPolicy{*p}})
	return set.Count([]policy.Namespace{{Labels: labels}})[0].Namespaces > 0
}

// allows reports whether a policy alone allows the endpoint on all its ports.
func (e *explainer) allows(p *v1alpha1.ExternalBackendPolicy) bool {
	set, _ := policy.Compile(policy.Input{Policies: []v1alpha1.ExternalBackendPolicy{*p}})
	view, name := set.For(e.NamespaceLabels), e.hostname()
	ports := e.policyPorts()
	if !plan.Resolves(e.Backend) {
		return view.Name(name, ports...).Allowed
	}
	return e.addr.IsValid() && view.Target(name, e.addr, ports...).Allowed
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
