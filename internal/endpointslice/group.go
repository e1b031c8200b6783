package endpointslice

import (
	"encoding/binary"
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"
)

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

// firstAddress returns the address that stands for an endpoint: consumers only look at the first.
func firstAddress(e *discoveryv1.Endpoint) (netip.Addr, bool) {
	if len(e.Addresses) == 0 {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(e.Addresses[0])
	return addr, err == nil
}

// grouping sorts endpoints and slices into groups.
type grouping struct {
	byKey map[string]int32
	list  []*group
	key   []byte
	// last remembers the group of the last endpoint of either family: callers share one list of ports
	// among many endpoints.
	last [2]struct {
		ports []Port
		group int32
		known bool
	}
}

// lookup returns the index of a group in list. It adds the group if it is new.
func (gs *grouping) lookup(family discoveryv1.AddressType, ports []Port) int32 {
	key := append(append(gs.key[:0], family...), 0)
	for _, p := range ports {
		key = append(append(key, p.Name...), 0)
		key = append(append(key, p.Protocol...), 0)
		key = append(append(key, p.AppProtocol...), 0)
		key = binary.BigEndian.AppendUint32(key, uint32(p.Port))
	}
	gs.key = key
	i, ok := gs.byKey[string(key)]
	if !ok {
		i = int32(len(gs.list))
		g := &group{family: family, key: string(key)}
		gs.byKey[g.key], gs.list = i, append(gs.list, g)
	}
	return i
}

// of returns the group of a wanted endpoint, or -1 if no slice can hold it.
func (gs *grouping) of(e *Endpoint) int32 {
	family := addressFamily(e.Addr)
	if family == "" {
		return -1
	}
	last := &gs.last[0]
	if family == discoveryv1.AddressTypeIPv6 {
		last = &gs.last[1]
	}
	if !last.known || !SameList(last.ports, e.Ports) {
		last.ports, last.group, last.known = e.Ports, gs.lookup(family, e.Ports), true
	}
	return last.group
}

// groups sorts the wanted endpoints and the existing slices into groups.
func (p *planner) groups() []*group {
	gs := grouping{byKey: map[string]int32{}}
	of := make([]int32, len(p.desired))
	var counts []int
	for i := range p.desired {
		of[i] = gs.of(&p.desired[i])
		if of[i] < 0 {
			continue
		}
		if int(of[i]) == len(counts) {
			counts = append(counts, 0)
		}
		counts[of[i]]++
	}

	memory := make([]int32, len(p.desired))
	for i, n := range counts {
		gs.list[i].wanted, memory = memory[:0:n], memory[n:]
	}
	for i, g := range of {
		if g >= 0 {
			gs.list[g].wanted = append(gs.list[g].wanted, int32(i))
		}
	}

	planned := make([]plannedSlice, len(p.existing))
	var ports []Port
	for i, s := range p.existing {
		ports = portsOf(s, ports[:0])
		g := gs.list[gs.lookup(s.AddressType, ports)]
		planned[i] = plannedSlice{slice: s, deleting: s.DeletionTimestamp != nil}
		g.slices = append(g.slices, &planned[i])
	}
	return gs.list
}
