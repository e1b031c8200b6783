package plan

import (
	"cmp"
	"hash/maphash"
	"net/netip"
	"slices"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// Standing is what is published, and what of it at which address. It is read from the slices when
// somebody asks, which most plans never do.
type Standing struct {
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
func Published(existing []*discoveryv1.EndpointSlice, elsewhere ...Endpoint) *Standing {
	return &Standing{slices: existing, elsewhere: elsewhere}
}

// Endpoints are what is published, that which stands elsewhere at the end.
func (st *Standing) Endpoints() []Endpoint {
	if !st.read {
		st.read = true
		st.readSlices()
		for _, e := range st.elsewhere {
			e.Target, e.Unread, e.Tier, e.Rank, e.DrainUntil = "", false, 0, 0, time.Time{}
			st.chain(st.place(e.Addr), &e)
		}
	}
	return st.endpoints
}

func (st *Standing) readSlices() {
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
func (st *Standing) addOnce(e *Endpoint) {
	place := st.place(e.Addr)
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

func (st *Standing) chain(place int32, e *Endpoint) {
	st.before = append(st.before, st.last[place])
	st.last[place] = int32(len(st.endpoints))
	st.endpoints = append(st.endpoints, *e)
}

// place finds or makes the number of an address.
func (st *Standing) place(a netip.Addr) int32 {
	n := st.index.number(a)
	for int(n) >= len(st.last) {
		st.last = append(st.last, -1)
	}
	return n
}

// at is what stands at a place, the newest first, that has the same first port: no two at one
// address have it, because they would claim one ip:port for one Service port. exact is false where
// there is only one with other ports.
func (st *Standing) at(place int32, ports []Port) (e *Endpoint, exact bool) {
	for i := st.last[place]; i >= 0; i = st.before[i] {
		e = &st.endpoints[i]
		if len(e.Ports) > 0 && len(ports) > 0 && e.Ports[0].Port == ports[0].Port {
			return e, true
		}
	}
	return e, false
}

// addressIndex numbers addresses in the order in which they come: a table with open addressing and
// without pointers, because every plan makes two of them for all endpoints. It tells the addresses
// of one family apart, and those of both as long as none is IPv4-mapped.
type addressIndex struct {
	keys  [][16]byte // by number
	slots []int32    // number + 1; 0: free. A power of two, at most half of them taken
	// the number after the one asked for last: addresses are mostly asked for in the order in which
	// they came
	next int
}

var hashSeed = maphash.MakeSeed() // addresses are other people's choice, and should not be able to collide at will

func newAddressIndex(n int) addressIndex {
	size := 8
	for size < 2*n {
		size *= 2
	}
	return addressIndex{keys: make([][16]byte, 0, n), slots: make([]int32, size)}
}

// find returns the number of an address; -1 where it has none.
func (x *addressIndex) find(a netip.Addr) int32 {
	key := a.As16()
	n, _ := x.lookup(&key)
	return n
}

// number returns the number of an address, a new one where it has none.
func (x *addressIndex) number(a netip.Addr) int32 {
	key := a.As16()
	n, slot := x.lookup(&key)
	if n >= 0 {
		return n
	}
	if 2*len(x.keys) >= len(x.slots) {
		x.grow()
		slot = x.slot(&key)
	}
	x.keys = append(x.keys, key)
	x.next = len(x.keys)
	x.slots[slot] = int32(x.next)
	return int32(x.next) - 1
}

// lookup returns the number of key, or -1 and the slot where it would be.
func (x *addressIndex) lookup(key *[16]byte) (n int32, slot int) {
	if x.next < len(x.keys) && x.keys[x.next] == *key {
		x.next++
		return int32(x.next) - 1, 0
	}
	slot = x.slot(key)
	if n = x.slots[slot] - 1; n >= 0 {
		x.next = int(n) + 1
	}
	return n, slot
}

// slot is where key is, or would be.
func (x *addressIndex) slot(key *[16]byte) int {
	mask := len(x.slots) - 1
	for i := int(maphash.Bytes(hashSeed, key[:])) & mask; ; i = (i + 1) & mask {
		if n := x.slots[i]; n == 0 || x.keys[n-1] == *key {
			return i
		}
	}
}

func (x *addressIndex) grow() {
	x.slots = make([]int32, 2*len(x.slots))
	for i := range x.keys {
		x.slots[x.slot(&x.keys[i])] = int32(i + 1)
	}
}
