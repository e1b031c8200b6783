package endpointslice

import (
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// firstAddress returns the address that stands for an endpoint: consumers only look at the first.
func firstAddress(e *discoveryv1.Endpoint) (netip.Addr, bool) {
	if len(e.Addresses) == 0 {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(e.Addresses[0])
	return addr, err == nil
}

// addressFamily returns the address type of the slices that may hold addr; "" if none may.
func addressFamily(addr netip.Addr) discoveryv1.AddressType {
	switch {
	case addr.Is4():
		return discoveryv1.AddressTypeIPv4
	case addr.Is6() && !addr.Is4In6() && addr.Zone() == "":
		return discoveryv1.AddressTypeIPv6
	}
	return ""
}

// readEndpoint reads one endpoint; false if no consumer could use it as family.
func readEndpoint(e *discoveryv1.Endpoint, family discoveryv1.AddressType) (Endpoint, bool) {
	addr, ok := firstAddress(e)
	if !ok || addressFamily(addr) != family {
		return Endpoint{}, false
	}
	out := Endpoint{
		Addr: addr, Hostname: valueOr(e.Hostname, ""), Zone: valueOr(e.Zone, ""), NodeName: valueOr(e.NodeName, ""),
	}
	out.Ready, out.Serving, out.Terminating = readConditions(e)
	out.Healthy = out.Serving
	return out, true
}

// readConditions reads the conditions of an endpoint. If they are missing, the API's defaults
// apply: an endpoint is ready, and is serving if it is ready.
func readConditions(e *discoveryv1.Endpoint) (ready, serving, terminating bool) {
	ready = valueOr(e.Conditions.Ready, true)
	return ready, valueOr(e.Conditions.Serving, ready), valueOr(e.Conditions.Terminating, false)
}

// valueOr returns what p points to; without it, the default of the API.
func valueOr[T any](p *T, unset T) T {
	if p == nil {
		return unset
	}
	return *p
}

// optional returns s as a field that is absent if it is empty.
func optional(s string) *string {
	if s == "" {
		return nil
	}
	return &s
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
