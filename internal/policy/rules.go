package policy

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/labels"
)

// A Rule names one rule of a policy.
type Rule struct {
	Policy string // metadata.name
	Index  int    // in spec.allow
	Audit  bool   // the policy is in mode Audit
}

// A Selection names a policy that selects a namespace.
type Selection struct {
	Policy string // metadata.name
	Audit  bool   // the policy is in mode Audit
}

// Selecting returns the policies that select a namespace with these labels, in the order of the
// Input.
func (s *Set) Selecting(namespaceLabels map[string]string) []Selection {
	var out []Selection
	for _, p := range s.policies {
		if p.selector.Matches(labels.Set(namespaceLabels)) {
			out = append(out, Selection{p.name, p.audit})
		}
	}
	return out
}

// TargetRules returns the rules that Target goes by: each of them allows the address under the name
// on at least one of the ports. Without ports, they allow it on some port.
func (v *View) TargetRules(name string, a netip.Addr, ports ...Port) []Rule {
	return v.rules(v.target(name, a, ports))
}

// UnnamedRules returns the rules that Unnamed goes by.
func (v *View) UnnamedRules(a netip.Addr, ports ...Port) []Rule { return v.rules(v.unnamed(a, ports)) }

// LookupRules returns the rules that Lookup goes by.
func (v *View) LookupRules(name string, ports ...Port) []Rule { return v.rules(v.lookup(name, ports)) }

// NameRules returns the rules that Name goes by.
func (v *View) NameRules(name string, ports ...Port) []Rule {
	if under(name, v.set.clusterDomain) {
		return nil
	}
	return v.rules(v.alias(name, ports))
}

// rules returns the rules that cover the question and one of its ports, in the order of the Input.
func (v *View) rules(q question) []Rule {
	guarded := q.reach.kind.guarded()
	if q.reach.kind != None && !guarded {
		return nil
	}
	covers := func(rules set, id int) bool {
		covering := rules[id/64] & q.names[id/64] & q.reach.word(id/64, guarded)
		return covering&v.onePort(q.ports, id/64)&(1<<(id%64)) != 0
	}

	var out []Rule
	for _, p := range v.set.policies {
		rules := v.enforce.rules
		if p.audit {
			rules = v.audit.rules
		}
		for id := p.from; id < p.to; id++ {
			if covers(rules, id) {
				out = append(out, Rule{p.name, id - p.from, p.audit})
			}
		}
	}
	return out
}

// onePort is word i of the set of rules that cover at least one of the ports; of all rules, if
// there are no ports.
func (v *View) onePort(ports []Port, i int) uint64 {
	if len(ports) == 0 {
		return v.set.everything[i]
	}
	var covering uint64
	for _, p := range ports {
		covering |= v.set.portRules(p)[i]
	}
	return covering
}
