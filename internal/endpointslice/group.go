package endpointslice

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// addressFamily tells which slices may hold addr; "" where none may.
func addressFamily(addr netip.Addr) discoveryv1.AddressType {
	switch {
	case addr.Is4():
		return discoveryv1.AddressTypeIPv4
	case addr.Is6() && !addr.Is4In6() && addr.Zone() == "":
		return discoveryv1.AddressTypeIPv6
	}
	return ""
}

// firstAddress returns the address that an endpoint is known by: consumers look at the first one
// alone.
func firstAddress(e *discoveryv1.Endpoint) (netip.Addr, bool) {
	if len(e.Addresses) == 0 {
		return netip.Addr{}, false
	}
	addr, err := netip.ParseAddr(e.Addresses[0])
	return addr, err == nil
}

func ComparePorts(a, b Port) int {
	if c := strings.Compare(a.Name, b.Name); c != 0 {
		return c
	}
	if c := strings.Compare(string(a.Protocol), string(b.Protocol)); c != 0 {
		return c
	}
	return int(a.Port) - int(b.Port)
}

func SamePort(a, b Port) bool {
	return ComparePorts(a, b) == 0 && appProtocolOf(a) == appProtocolOf(b)
}

func appProtocolOf(p Port) string {
	if p.AppProtocol == nil {
		return ""
	}
	return *p.AppProtocol
}

// portsOf appends the ports of a slice to ports, sorted and with the API's defaults.
func portsOf(s *discoveryv1.EndpointSlice, ports []Port) []Port {
	for _, sp := range s.Ports {
		p := Port{Port: -1, Protocol: corev1.ProtocolTCP} // -1: all ports, which is nothing that we write
		if sp.Name != nil {
			p.Name = *sp.Name
		}
		if sp.Port != nil {
			p.Port = *sp.Port
		}
		if sp.Protocol != nil {
			p.Protocol = *sp.Protocol
		}
		if sp.AppProtocol != nil && *sp.AppProtocol != "" {
			p.AppProtocol = sp.AppProtocol
		}
		ports = append(ports, p)
	}
	slices.SortFunc(ports, ComparePorts)
	return ports
}

// sortedPorts returns ports in order, with the API's default protocol; ports itself where nothing
// had to be mended.
func sortedPorts(ports []Port) []Port {
	if slices.IsSortedFunc(ports, ComparePorts) && !slices.ContainsFunc(ports, func(p Port) bool { return p.Protocol == "" }) {
		return ports
	}
	ports = slices.Clone(ports)
	for i := range ports {
		if ports[i].Protocol == "" {
			ports[i].Protocol = corev1.ProtocolTCP
		}
	}
	slices.SortFunc(ports, ComparePorts)
	return ports
}

// appendGroupKey appends what tells one group of slices from another.
func appendGroupKey(key []byte, family discoveryv1.AddressType, ports []Port) []byte {
	key = append(append(key, family...), 0)
	for _, p := range ports {
		key = append(append(key, p.Name...), 0)
		key = append(append(key, p.Protocol...), 0)
		key = append(append(key, appProtocolOf(p)...), 0)
		key = binary.BigEndian.AppendUint32(key, uint32(p.Port))
	}
	return key
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

func (gs *grouping) lookup(family discoveryv1.AddressType, ports []Port) int32 {
	gs.key = appendGroupKey(gs.key[:0], family, ports)
	i, ok := gs.byKey[string(gs.key)]
	if !ok {
		i = int32(len(gs.list))
		key := string(gs.key)
		gs.byKey[key] = i
		gs.list = append(gs.list, &group{family: family, key: key})
	}
	return i
}

// of returns the group of a wanted endpoint, -1 where no slice can hold it.
func (gs *grouping) of(e *Endpoint) int32 {
	family := addressFamily(e.Addr)
	if family == "" {
		return -1
	}
	last := &gs.last[0]
	if family == discoveryv1.AddressTypeIPv6 {
		last = &gs.last[1]
	}
	if !last.known || !identical(last.ports, e.Ports) {
		last.ports, last.group, last.known = e.Ports, gs.lookup(family, sortedPorts(e.Ports)), true
	}
	return last.group
}

// identical reports whether two lists of ports are one and the same piece of memory.
func identical(a, b []Port) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// groups sorts what is wanted and what exists into groups.
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
	room := make([]int32, len(p.desired))
	for i, n := range counts {
		gs.list[i].wanted, room = room[:0:n], room[n:]
	}
	for i, g := range of {
		if g >= 0 {
			gs.list[g].wanted = append(gs.list[g].wanted, int32(i))
		}
	}
	slots := make([]slot, len(p.existing))
	var ports []Port
	for i, s := range p.existing {
		ports = portsOf(s, ports[:0])
		g := gs.list[gs.lookup(s.AddressType, ports)]
		slots[i] = slot{slice: s, leaving: s.DeletionTimestamp != nil}
		g.slots = append(g.slots, &slots[i])
	}
	return gs.list
}
