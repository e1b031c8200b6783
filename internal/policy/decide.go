package policy

import "net/netip"

// A reach holds the rules that cover an address.
type reach struct {
	kind    Kind             // forbidden or guarded; None: free
	named   set              // the rules that name the address itself; nil: none does
	free    set              // the rules that cover every address that is free
	within  [maxEmbedded]set // per guarded address embedded in it, the rules that name that one
	guarded int              // how many of within are set
}

// reach looks an address up, once for itself and once for each it embeds.
func (s *Set) reach(a netip.Addr, naming func(netip.Addr) set, free set) reach {
	if !a.IsValid() {
		return reach{kind: NotAnAddress}
	}
	a = a.WithZone("")
	r := reach{kind: s.classifier.own(a), named: naming(a), free: free}
	var buf [maxEmbedded]netip.Addr
	for _, e := range embedded(a, buf[:0]) {
		kind := s.classifier.own(e)
		r.kind = stronger(r.kind, kind)
		if kind.guarded() {
			r.within[r.guarded] = naming(e)
			r.guarded++
		}
	}
	return r
}

// word is word i of the set of rules that cover the address, or with guarded of those that open it
// although it is guarded.
func (r *reach) word(i int, guarded bool) uint64 {
	var w uint64
	if r.named != nil {
		w = r.named[i]
	}
	if !guarded {
		return w | r.free[i]
	}
	for _, within := range r.within[:r.guarded] {
		w &= within[i]
	}
	return w
}

// A question is a decision whose ports have not been looked up yet.
type question struct {
	reach reach
	names set
	ports []Port
}

// target asks about one address of a target, with the name that led to it.
func (v *View) target(name string, a netip.Addr, ports []Port) question {
	return v.about(a, v.set.names.at(name), ports)
}

// unnamed asks about an address under any name, or none.
func (v *View) unnamed(a netip.Addr, ports []Port) question { return v.about(a, v.set.targets, ports) }

// about asks about an address. names are the rules that cover the names that it may have.
func (v *View) about(a netip.Addr, names set, ports []Port) question {
	return question{reach: v.set.reach(a, v.set.addresses.at, v.set.anyAddress), names: names, ports: ports}
}

// lookup asks about a name, whatever its addresses.
func (v *View) lookup(name string, ports []Port) question {
	return question{reach: reach{free: v.set.everything}, names: v.set.names.at(name), ports: ports}
}

// alias asks about a name whose addresses nobody checks.
func (v *View) alias(name string, ports []Port) question {
	return question{reach: reach{free: v.set.anyAddress}, names: v.set.names.at(name), ports: ports}
}

// decide asks the Enforce policies, and apart from them the Audit policies.
func (v *View) decide(q question) Decision {
	d := v.judge(&v.enforce, &q)
	if !v.audit.selected {
		return d
	}
	if would := v.judge(&v.audit, &q); !would.Allowed {
		d.WouldDeny = true
		if d.Allowed {
			d.Kind, d.Port = would.Kind, would.Port
		}
	}
	return d
}

// judge decides by the policies of one side:
//  1. a forbidden address is refused;
//  2. a guarded address is allowed if the rules whose cidrs contain it allow it;
//  3. any other address is allowed if the rules that cover it allow it;
//  4. an address that 2 refuses, that 3 would allow, and that discovery alone guards is marked so.
func (v *View) judge(s *side, q *question) Decision {
	kind, guarded := q.reach.kind, q.reach.kind.guarded()
	if kind != None && !guarded {
		return Decision{Kind: kind}
	}
	refusal, port := v.refusal(s, q, guarded)
	if refusal == None {
		return Decision{Allowed: true}
	}
	d := Decision{Kind: refusal, Port: port}
	if guarded {
		unguarded, _ := v.refusal(s, q, false)
		d.ByDiscoveryAlone = kind == DiscoveredRange && unguarded == None
		if refusal == NotAllowed {
			d.Kind = kind
		}
	}
	return d
}

// refusal is None, NotAllowed, or PortNotAllowed with that port.
func (v *View) refusal(s *side, q *question, guarded bool) (Kind, Port) {
	if !s.selected {
		if guarded || v.set.defaultDeny {
			return NotAllowed, Port{}
		}
		return None, Port{}
	}
	if !s.allows(q, guarded, v.set.everything) {
		return NotAllowed, Port{}
	}
	for _, p := range q.ports {
		if !s.allows(q, guarded, v.set.portRules(p)) {
			return PortNotAllowed, p
		}
	}
	return None, Port{}
}

// allows reports whether one rule covers address, name and port.
func (s *side) allows(q *question, guarded bool, port set) bool {
	for i, rules := range s.rules {
		if rules &= q.names[i] & port[i]; rules != 0 && rules&q.reach.word(i, guarded) != 0 {
			return true
		}
	}
	return false
}

func (s *Set) portRules(p Port) set {
	if t, ok := s.ports[p.Protocol]; ok {
		return t.at(key{lo: uint64(p.Port)})
	}
	return s.nothing
}
