package endpointslice

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// PublishedEndpoints are the endpoints that are published, with an index by address. They are read
// from the slices on first use, and most plans never use them.
type PublishedEndpoints struct {
	slices   []*discoveryv1.EndpointSlice
	handover []Endpoint

	loaded    bool
	endpoints []Endpoint
	// index numbers the addresses. Others than those of the endpoints may have a number too.
	index addressIndex
	// last is, by number of the address, the index of the last endpoint there. before, parallel to
	// endpoints, is the index of the endpoint at the same address that came before it. -1: none.
	last, before []int32
}

// Published reads back what slices and their annotations say.
//
// If the annotation says nothing reliable of an endpoint, the endpoint has no target and is Unread:
// its health, its tier and whether it drains are not known. An endpoint that is in several slices,
// as a crash may leave it, is read once: from a slice that knows its target, else from the slice
// with the most endpoints. Slices of names (addressType FQDN) have no addresses and are left out.
// The order of the endpoints does not depend on that of the slices.
//
// handover are endpoints that somebody else publishes and that ours shall take over from. Their
// targets are those of another spec and are left out.
func Published(existing []*discoveryv1.EndpointSlice, handover ...Endpoint) *PublishedEndpoints {
	return &PublishedEndpoints{slices: existing, handover: handover}
}

// Slices are the slices that the endpoints are read from.
func (pub *PublishedEndpoints) Slices() []*discoveryv1.EndpointSlice { return pub.slices }

// HasHandover reports whether there are endpoints that ours shall take over from.
func (pub *PublishedEndpoints) HasHandover() bool { return len(pub.handover) > 0 }

// Endpoints are the published endpoints, those of the handover at the end.
func (pub *PublishedEndpoints) Endpoints() []Endpoint {
	if pub.loaded {
		return pub.endpoints
	}
	pub.loaded = true
	pub.readSlices()
	for _, e := range pub.handover {
		e.Target, e.Unread, e.Tier, e.Rank, e.DrainUntil = "", false, 0, 0, time.Time{}
		pub.add(pub.Number(e.Addr), &e)
	}
	return pub.endpoints
}

// readSlices reads the slices, those with the most endpoints first.
func (pub *PublishedEndpoints) readSlices() {
	ordered := slices.Clone(pub.slices)
	total := 0
	for _, s := range ordered {
		total += len(s.Endpoints)
	}
	slices.SortFunc(ordered, func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Or(len(b.Endpoints)-len(a.Endpoints), strings.Compare(a.Name, b.Name))
	})

	pub.endpoints, pub.index = make([]Endpoint, 0, total), newAddressIndex(total)
	pub.last, pub.before = make([]int32, 0, total), make([]int32, 0, total)
	groups := grouping{byKey: map[string]*group{}}
	for _, s := range ordered {
		group := groups.lookup(s.AddressType, portsOf(s))
		for _, e := range readEndpoints(s) {
			e.Ports = group.ports // one list for all of the group, so that addOnce can compare lists as a whole
			pub.addOnce(e)
		}
	}
}

// addOnce adds e. If the same endpoint is there already, the one with a target stays.
func (pub *PublishedEndpoints) addOnce(e *Endpoint) {
	number := pub.Number(e.Addr)
	for i := pub.last[number]; i >= 0; i = pub.before[i] {
		if SameList(pub.endpoints[i].Ports, e.Ports) {
			if pub.endpoints[i].Target == "" && e.Target != "" {
				pub.endpoints[i] = *e
			}
			return
		}
	}
	pub.add(number, e)
}

// add adds e, whose address has that number.
func (pub *PublishedEndpoints) add(number int32, e *Endpoint) {
	pub.before = append(pub.before, pub.last[number])
	pub.last[number] = int32(len(pub.endpoints))
	pub.endpoints = append(pub.endpoints, *e)
}

// Number returns the number of an address. An address without one gets the next.
func (pub *PublishedEndpoints) Number(a netip.Addr) int32 {
	n := pub.index.number(a)
	for int(n) >= len(pub.last) {
		pub.last = append(pub.last, -1)
	}
	return n
}

// Addresses returns how many addresses have a number.
func (pub *PublishedEndpoints) Addresses() int { return len(pub.last) }

// At returns the index of the endpoint at the address with that number whose first port number
// equals that of ports; exact is then true. Otherwise it returns that of the first endpoint there,
// or -1.
func (pub *PublishedEndpoints) At(number int32, ports []Port) (index int32, exact bool) {
	index = -1
	for i := pub.last[number]; i >= 0; i = pub.before[i] {
		index = i
		e := &pub.endpoints[i]
		if len(e.Ports) > 0 && len(ports) > 0 && e.Ports[0].Port == ports[0].Port {
			return i, true
		}
	}
	return index, false
}
