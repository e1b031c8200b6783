package endpointslice

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// PublishedEndpoints is what is published, and what of it at which address. It is read from the slices when
// somebody asks, which most plans never do.
type PublishedEndpoints struct {
	slices []*discoveryv1.EndpointSlice
	// elsewhere is what stands in no slice of ours.
	elsewhere []Endpoint

	read      bool
	endpoints []Endpoint
	index     addressIndex
	// last is, by number of the address, the endpoint there that came last; before, parallel to
	// endpoints, the one at the same address that came before it; -1: none.
	last, before []int32
}

// Published reads back what slices say, and what their annotation says of it. An endpoint of which
// it tells nothing that can be relied on has no target and is Unread: its health, its tier and
// whether it drains are not known. An endpoint in several slices, as a crash may leave it, comes
// once, from the slice with most endpoints; one with a target is preferred. Slices of names
// (addressType FQDN) have no addresses to tell. The order does not depend on that of the input.
// What stands elsewhere has the targets of another spec: what this one does not name has not left
// it.
func Published(existing []*discoveryv1.EndpointSlice, elsewhere ...Endpoint) *PublishedEndpoints {
	return &PublishedEndpoints{slices: existing, elsewhere: elsewhere}
}

// Slices are the slices that it is read from.
func (st *PublishedEndpoints) Slices() []*discoveryv1.EndpointSlice { return st.slices }

// Elsewhere reports whether some of it stands in no slice of ours.
func (st *PublishedEndpoints) Elsewhere() bool { return len(st.elsewhere) > 0 }

// Addresses is how many addresses have a number.
func (st *PublishedEndpoints) Addresses() int { return len(st.last) }

// Endpoints are what is published, that which stands elsewhere at the end.
func (st *PublishedEndpoints) Endpoints() []Endpoint {
	if !st.read {
		st.read = true
		st.readSlices()
		for _, e := range st.elsewhere {
			e.Target, e.Unread, e.Tier, e.Rank, e.DrainUntil = "", false, 0, 0, time.Time{}
			st.chain(st.Number(e.Addr), &e)
		}
	}
	return st.endpoints
}

func (st *PublishedEndpoints) readSlices() {
	ordered := slices.Clone(st.slices)
	total := 0
	for _, s := range ordered {
		total += len(s.Endpoints)
	}
	slices.SortFunc(ordered, func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Or(len(b.Endpoints)-len(a.Endpoints), strings.Compare(a.Name, b.Name))
	})
	st.endpoints, st.index = make([]Endpoint, 0, total), newAddressIndex(total)
	st.last, st.before = make([]int32, 0, total), make([]int32, 0, total)
	groups := grouping{byKey: map[string]int32{}}
	shared := map[int32][]Port{} // by group: its list of ports, by which its endpoints are told from those of others
	var room []run
	for _, s := range ordered {
		ports := portsOf(s, nil)
		if group := groups.lookup(s.AddressType, ports); shared[group] == nil {
			shared[group] = ports
		} else {
			ports = shared[group]
		}
		room = attributions(s, room[:0])
		for _, e := range readEndpoints(s, room) {
			e.Ports = ports
			st.addOnce(e)
		}
	}
}

// addOnce adds e, or, where it stands already, takes over what it tells more.
func (st *PublishedEndpoints) addOnce(e *Endpoint) {
	place := st.Number(e.Addr)
	for i := st.last[place]; i >= 0; i = st.before[i] {
		if identical(st.endpoints[i].Ports, e.Ports) {
			if st.endpoints[i].Target == "" && e.Target != "" {
				st.endpoints[i] = *e
			}
			return
		}
	}
	st.chain(place, e)
}

func (st *PublishedEndpoints) chain(place int32, e *Endpoint) {
	st.before = append(st.before, st.last[place])
	st.last[place] = int32(len(st.endpoints))
	st.endpoints = append(st.endpoints, *e)
}

// Number finds or makes the number of an address.
func (st *PublishedEndpoints) Number(a netip.Addr) int32 {
	n := st.index.number(a)
	for int(n) >= len(st.last) {
		st.last = append(st.last, -1)
	}
	return n
}

// At is what stands at a place, the newest first, that has the same first port: no two at one
// address have it, because they would claim one ip:port for one Service port. exact is false where
// there is only one with other ports.
func (st *PublishedEndpoints) At(place int32, ports []Port) (e *Endpoint, exact bool) {
	for i := st.last[place]; i >= 0; i = st.before[i] {
		e = &st.endpoints[i]
		if len(e.Ports) > 0 && len(ports) > 0 && e.Ports[0].Port == ports[0].Port {
			return e, true
		}
	}
	return e, false
}
