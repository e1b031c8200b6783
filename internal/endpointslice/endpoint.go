package endpointslice

import (
	discoveryv1 "k8s.io/api/discovery/v1"
)

// endpoints builds the endpoints of one slice with a few allocations, whatever their number.
func (p *planner) endpoints(members []int32) []discoveryv1.Endpoint {
	list := make([]discoveryv1.Endpoint, len(members))
	flags := make([]bool, 0, 3*len(members))
	flag := func(b bool) *bool {
		flags = append(flags, b)
		return &flags[len(flags)-1]
	}

	optional, hinted := 0, 0
	for _, j := range members {
		e := &p.desired[j]
		for _, s := range []string{e.Hostname, e.Zone, e.NodeName} {
			if s != "" {
				optional++
			}
		}
		if zone, node := p.template.hints(e); zone != "" || node != "" {
			hinted++
		}
	}
	strs := make([]string, 0, optional)
	str := func(s string) *string {
		if s == "" {
			return nil
		}
		strs = append(strs, s)
		return &strs[len(strs)-1]
	}

	hints := hintList{
		hints: make([]discoveryv1.EndpointHints, 0, hinted),
		zones: make([]discoveryv1.ForZone, 0, hinted),
		nodes: make([]discoveryv1.ForNode, 0, hinted),
	}
	addresses := p.addresses(members)
	for i, j := range members {
		e, c := &p.desired[j], p.conditionsOf(j)
		list[i] = discoveryv1.Endpoint{
			Addresses: addresses[i : i+1 : i+1],
			Conditions: discoveryv1.EndpointConditions{
				Ready: flag(c.Ready), Serving: flag(c.Serving), Terminating: flag(c.Terminating),
			},
			Hostname: str(e.Hostname),
			Zone:     str(e.Zone),
			NodeName: str(e.NodeName),
			Hints:    hints.of(p.template.hints(e)),
		}
	}
	return list
}

// addresses returns the members' addresses as parts of one string.
func (p *planner) addresses(members []int32) []string {
	p.text = p.text[:0]
	list := make([]string, len(members))
	for _, j := range members {
		p.text = p.desired[j].Addr.AppendTo(p.text)
	}
	all := string(p.text)
	for i, j := range members {
		n := len(p.desired[j].Addr.AppendTo(p.text[:0]))
		list[i], all = all[:n], all[n:]
	}
	return list
}

// hints returns the zone and the node that e is hinted for; "" if there is no hint.
func (t *Template) hints(e *Endpoint) (zone, node string) {
	if t.ZoneHints {
		zone = e.Zone
	}
	if t.NodeHints {
		node = e.NodeName
	}
	return zone, node
}

// hintList hands out the hints of one slice.
type hintList struct {
	hints []discoveryv1.EndpointHints
	zones []discoveryv1.ForZone
	nodes []discoveryv1.ForNode
}

func (l *hintList) of(zone, node string) *discoveryv1.EndpointHints {
	if zone == "" && node == "" {
		return nil
	}
	var h discoveryv1.EndpointHints
	if zone != "" {
		l.zones = append(l.zones, discoveryv1.ForZone{Name: zone})
		h.ForZones = l.zones[len(l.zones)-1 : len(l.zones) : len(l.zones)]
	}
	if node != "" {
		l.nodes = append(l.nodes, discoveryv1.ForNode{Name: node})
		h.ForNodes = l.nodes[len(l.nodes)-1 : len(l.nodes) : len(l.nodes)]
	}
	l.hints = append(l.hints, h)
	return &l.hints[len(l.hints)-1]
}

// sameEndpoint reports whether have says all that want says and nothing more, except for
// conditions.
func sameEndpoint(have *discoveryv1.Endpoint, want *Endpoint, t *Template) bool {
	var text [64]byte
	zone, node := t.hints(want)
	return len(have.Addresses) == 1 && have.Addresses[0] == string(want.Addr.AppendTo(text[:0])) &&
		valueOr(have.Hostname, "") == want.Hostname && valueOr(have.Zone, "") == want.Zone &&
		valueOr(have.NodeName, "") == want.NodeName &&
		have.TargetRef == nil && len(have.DeprecatedTopology) == 0 && sameHints(have.Hints, zone, node)
}

// sameConditions reports whether all three conditions are set as wanted.
func sameConditions(have *discoveryv1.EndpointConditions, want *Conditions) bool {
	return have.Ready != nil && *have.Ready == want.Ready &&
		have.Serving != nil && *have.Serving == want.Serving &&
		have.Terminating != nil && *have.Terminating == want.Terminating
}

// sameHints reports whether have hints for zone and node and nothing more.
func sameHints(have *discoveryv1.EndpointHints, zone, node string) bool {
	if have == nil {
		return zone == "" && node == ""
	}
	zones, nodes := have.ForZones, have.ForNodes
	return (len(zones) == 0 && zone == "" || len(zones) == 1 && zone != "" && zones[0].Name == zone) &&
		(len(nodes) == 0 && node == "" || len(nodes) == 1 && node != "" && nodes[0].Name == node)
}
