package endpointslice

import (
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// WouldUnpublish reports whether replacing the slice current by next (nil: deleting it) would
// unpublish an address that one of the failed writes should have published in another slice,
// whatever the ports. Such a write has to wait for the next plan. All others go on after a failure.
func WouldUnpublish(current, next *discoveryv1.EndpointSlice, failed []*discoveryv1.EndpointSlice) bool {
	if len(failed) == 0 {
		return false
	}
	for i := range current.Endpoints {
		addr, ok := firstAddress(&current.Endpoints[i])
		if !ok || next != nil && publishes(next, addr) {
			continue
		}
		for _, f := range failed {
			if f.AddressType == current.AddressType && publishes(f, addr) {
				return true
			}
		}
	}
	return false
}

// MakesReady reports whether replacing current (nil: nothing) by next makes an endpoint ready.
func MakesReady(current, next *discoveryv1.EndpointSlice) bool {
	was := readiness(current)
	for addr, ready := range readiness(next) {
		if ready && !was[addr] {
			return true
		}
	}
	return false
}

// KeepReady keeps those endpoints of next ready that are ready in current and stay healthy. It is
// for endpoints whose traffic should move to others that could not be made ready.
func KeepReady(current, next *discoveryv1.EndpointSlice) {
	was := readiness(current)
	var annotation annotationEncoder
	for i, e := range readEndpoints(next) {
		address := next.Endpoints[i].Addresses[0]
		if was[address] && e.Healthy && !e.Terminating {
			e.Ready, e.Serving = true, true
			next.Endpoints[i].Conditions.Ready, next.Endpoints[i].Conditions.Serving = new(true), new(true)
		}
		annotation.add(e, &e.Conditions, address)
	}
	next.Annotations[annotationEndpoints] = string(annotation.bytes())
}

// readiness says of each address in s, which may be nil, whether it is ready.
func readiness(s *discoveryv1.EndpointSlice) map[string]bool {
	ready := map[string]bool{}
	if s == nil {
		return ready
	}
	for i := range s.Endpoints {
		if e := &s.Endpoints[i]; len(e.Addresses) > 0 {
			ready[e.Addresses[0]] = valueOr(e.Conditions.Ready, true)
		}
	}
	return ready
}

// publishes reports whether s has an endpoint at addr.
func publishes(s *discoveryv1.EndpointSlice, addr netip.Addr) bool {
	return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
		a, ok := firstAddress(&e)
		return ok && a == addr
	})
}
