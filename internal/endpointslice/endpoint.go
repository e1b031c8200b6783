package endpointslice

import (
	discoveryv1 "k8s.io/api/discovery/v1"
)

// endpoints builds the endpoints of one slice.
func (p *planner) endpoints(members []int32) []discoveryv1.Endpoint {
	list := make([]discoveryv1.Endpoint, len(members))
	for i, j := range members {
		e, c := &p.desired[j], p.conditionsOf(j)
		list[i] = discoveryv1.Endpoint{
			Addresses: []string{e.Addr.String()},
			Conditions: discoveryv1.EndpointConditions{
				Ready: new(c.Ready), Serving: new(c.Serving), Terminating: new(c.Terminating),
			},
			Hostname: optional(e.Hostname),
			Zone:     optional(e.Zone),
			NodeName: optional(e.NodeName),
			Hints:    endpointHints(p.template.hints(e)),
		}
	}
	return list
}

// optional returns s as a field that is absent if it is empty.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
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

// endpointHints returns hints for zone and node, as far as they are not "".
func endpointHints(zone, node string) *discoveryv1.EndpointHints {
	if zone == "" && node == "" {
		return nil
	}
	hints := &discoveryv1.EndpointHints{}
	if zone != "" {
		hints.ForZones = []discoveryv1.ForZone{{Name: zone}}
	}
	if node != "" {
		hints.ForNodes = []discoveryv1.ForNode{{Name: node}}
	}
	return hints
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
