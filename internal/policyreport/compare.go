package policyreport

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/translate"
)

// asked is what the planner has asked policy about one address, and the answer.
type asked struct {
	name    string
	ports   []policy.Port
	refusal plan.Refusal
}

// planned is what the planner plans by one view of policy.
type planned struct {
	plan.Candidates
	set   endpointSet
	asked map[netip.Addr][]asked
}

// plan plans the candidates by a view, and remembers what the planner asks.
func (c *comparison) plan(view *policy.View) planned {
	out := planned{asked: map[netip.Addr][]asked{}}
	permit := translate.Permit(view)
	traits := plan.TraitsOfSlices(c.Slices, false)
	if c.Service != nil {
		traits = plan.TraitsOf(c.Service)
	}
	in := plan.Input{
		Backend: c.spec, Published: endpointslice.Published(c.Slices), Status: c.Object.Status,
		Families: traits.Families, Headless: traits.Headless, ServesPort: traits.ServesPort,
		Override: c.override, Rules: view, Max: math.MaxInt, Now: c.now,
		Permit: func(name string, a netip.Addr, ports []plan.Port) plan.Refusal {
			refusal := permit(name, a, ports)
			out.asked[a] = append(out.asked[a], asked{name, policyPorts(ports), refusal})
			return refusal
		},
	}
	names := translate.NamesOf(c.spec, view, in.Families, in.Published)
	in.Answers = names.Answers(c.Answers)

	out.Candidates = new(plan.Cache).Candidates(in, endpointslice.Template{})
	out.set = newEndpointSet(out.Endpoints)
	return out
}

func policyPorts(ports []plan.Port) []policy.Port {
	out := make([]policy.Port, len(ports))
	for i, p := range ports {
		out[i] = policy.Port{Protocol: p.Protocol, Port: uint16(p.Port)}
	}
	return out
}

// about returns what the planner has asked about an endpoint: its name, and its ports with the one
// that is probed.
func (p *planned) about(e *plan.Endpoint) (asked, bool) {
	own := policyPorts(e.Ports)
	for _, a := range p.asked[e.Addr] {
		if len(a.ports) >= len(own) && slices.Equal(a.ports[:len(own)], own) {
			return a, true
		}
	}
	return asked{}, false
}

// compareCandidates compares the endpoints that may be published.
func (c *comparison) compareCandidates() {
	was, will := c.plan(c.before), c.plan(c.after)
	published := newEndpointSet(endpointslice.Published(c.Slices).Endpoints())
	for i := range was.Endpoints {
		if e := &was.Endpoints[i]; !will.set.has(e) {
			c.addLost(e, published.has(e), &was, &will)
		}
	}
	for i := range will.Endpoints {
		if e := &will.Endpoints[i]; !was.set.has(e) {
			c.addGained(e, &will)
		}
	}
	for i := range c.spec.Spec.Targets {
		if t := &c.spec.Spec.Targets[i]; t.AdminState != v1alpha1.AdminStateDisabled {
			c.compareTarget(t, &was.Notes[i], &will.Notes[i])
		}
	}
}

// addLost adds an endpoint that policy will refuse.
func (c *comparison) addLost(e *plan.Endpoint, published bool, was, will *planned) {
	change := Change{Target: e.Target, Subject: e.Addr.String(), Effect: Refused}
	if published {
		change.Effect = Withdrawn
	}
	before, known := was.about(e)
	if !known {
		before = asked{name: c.nameOf(e.Target), ports: policyPorts(e.Ports)}
	}
	change.Ports = portTexts(before.ports)
	change.Rules = ruleTexts(c.before.TargetRules(before.name, e.Addr, before.ports...), false)

	after, known := will.about(e)
	refusal := after.refusal
	if !known || !refusal.Denied {
		refusal = c.refusalOfName(e.Target, will)
	}
	change.Why = refusal.Text()
	c.add(change)
}

// refusalOfName returns what policy says about the name of a target.
func (c *comparison) refusalOfName(target string, p *planned) plan.Refusal {
	for i := range c.spec.Spec.Targets {
		if c.spec.Spec.Targets[i].Name == target {
			return p.Notes[i].Answer.Refusal
		}
	}
	return plan.Refusal{}
}

// addGained adds an endpoint that policy will allow.
func (c *comparison) addGained(e *plan.Endpoint, will *planned) {
	a, known := will.about(e)
	if !known {
		a = asked{name: c.nameOf(e.Target), ports: policyPorts(e.Ports)}
	}
	c.add(Change{
		Target: e.Target, Effect: Allowed, Subject: e.Addr.String(), Ports: portTexts(a.ports),
		Rules: ruleTexts(c.after.TargetRules(a.name, e.Addr, a.ports...), false),
	})
}

// compareTarget compares what policy says about a target apart from its published addresses.
func (c *comparison) compareTarget(t *v1alpha1.Target, was, will *plan.TargetNotes) {
	name := c.nameOf(t.Name)
	before, after := was.Answer.Refusal.Denied, will.Answer.Refusal.Denied
	change := Change{Target: t.Name, Subject: name}
	switch {
	case before && !after && isPending(will):
		change.Effect, change.Why = Unknown, "the name may be looked up, and the addresses that it leads to decide"
		change.Rules = ruleTexts(c.after.LookupRules(name), false)
		c.add(change)
	case !before && after && !c.changed(t.Name):
		change.Effect, change.Why = Refused, will.Answer.Refusal.Text()
		change.Rules = ruleTexts(c.before.LookupRules(name), false)
		c.add(change)
	case name != "" && !after && isPending(will) && c.hidesRefusals(was):
		change.Effect, change.Why = Unknown, "it may have addresses that are refused now; these are not known here"
		change.Rules = ruleTexts(c.after.LookupRules(name), false)
		c.add(change)
	}

	audit := Change{Target: t.Name}
	switch {
	case was.Audited == "" && will.Audited != "":
		audit.Effect, audit.Why = WouldRefuse, will.Audited
		c.add(audit)
	case was.Audited != "" && will.Audited == "":
		audit.Effect = WouldAllow
		c.add(audit)
	}
}

// isPending reports whether it is not known what a name leads to.
func isPending(n *plan.TargetNotes) bool { return n.Answer.Status == plan.AnswerPending }

// changed reports whether there is a change about a target already.
func (c *comparison) changed(target string) bool {
	return slices.ContainsFunc(c.changes, func(o Change) bool { return o.Target == target })
}

// hidesRefusals reports whether the status says that policy refuses something, and what is
// published does not show that it is something of another target.
func (c *comparison) hidesRefusals(was *plan.TargetNotes) bool {
	return was.Denied == "" && plan.RefusalsOf(&c.Object.Status).Refused
}

// compareName compares what policy says about a name that is published itself.
func (c *comparison) compareName() {
	t := &c.spec.Spec.Targets[0]
	if t.AdminState == v1alpha1.AdminStateDisabled {
		return
	}
	ports := translate.TargetPorts(c.spec, t)
	published := len(c.Slices) > 0 || c.Service != nil && c.Service.Spec.ExternalName == t.Hostname
	change := Change{Target: t.Name, Subject: t.Hostname, Ports: portTexts(ports)}
	c.addDecision(change, published, c.before.Name(t.Hostname, ports...), c.after.Name(t.Hostname, ports...),
		func(v *policy.View) []policy.Rule { return v.NameRules(t.Hostname, ports...) })
}

// comparePublished compares what stays published while the spec can't be acted on.
func (c *comparison) comparePublished() {
	filter := func(view *policy.View) plan.Filtered {
		return plan.FilterPublished(plan.FilterInput{
			Backend: c.spec, Published: endpointslice.Published(c.Slices).Endpoints(),
			Permit: translate.Permit(view), PermitUnnamed: translate.PermitUnnamed(view),
		})
	}
	was, will := filter(c.before), filter(c.after)
	stays := newEndpointSet(will.Kept)
	for i := range was.Kept {
		e := &was.Kept[i]
		if stays.has(e) {
			continue
		}
		ports := policyPorts(e.Ports)
		c.add(Change{
			Target: e.Target, Effect: Withdrawn, Subject: e.Addr.String(), Ports: portTexts(ports),
			Why:   will.Reasons[e.Target],
			Rules: ruleTexts(c.before.UnnamedRules(e.Addr, ports...), false),
		})
	}
}

// compareNameservers compares what policy says about spec.dns.nameservers.
func (c *comparison) compareNameservers() {
	dns := c.spec.Spec.DNS
	if dns == nil {
		return
	}
	for i, text := range dns.Nameservers {
		ns, err := translate.ParseNameserver(text, dns.Transport)
		if err != nil {
			continue
		}
		change := Change{Subject: fmt.Sprintf("spec.dns.nameservers[%d] %s", i, text)}
		c.addDecision(change, false, c.before.Nameserver(ns), c.after.Nameserver(ns),
			func(*policy.View) []policy.Rule { return nil })
	}
}
