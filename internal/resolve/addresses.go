package resolve

import (
	"cmp"
	"net/netip"
	"slices"
)

// compareAddrs orders by rank, address and port: the order in which answers list them.
func compareAddrs(a, b Addr) int {
	return cmp.Or(cmp.Compare(a.Rank, b.Rank), compareUnits(a, b))
}

// compareUnits orders by address and port. An answer lists each address and port once.
func compareUnits(a, b Addr) int {
	return cmp.Or(a.IP.Compare(b.IP), cmp.Compare(a.Port, b.Port))
}

// sorted orders addresses in place as answers list them.
func sorted(addrs []Addr) []Addr {
	slices.SortFunc(addrs, compareAddrs)
	return addrs
}

// units is a set of addresses and ports, whatever their ranks.
type units map[Addr]struct{}

func unitsOf(addrs []Addr) units {
	u := make(units, len(addrs))
	for _, a := range addrs {
		u.add(a)
	}
	return u
}

// add adds an address and port, and reports whether the set lacked them.
func (u units) add(a Addr) (added bool) {
	before := len(u)
	a.Rank = 0
	u[a] = struct{}{}
	return len(u) > before
}

func (u units) has(a Addr) bool {
	a.Rank = 0
	_, ok := u[a]
	return ok
}

// merge adds to addrs those of more whose address and port it lacks.
func merge(addrs, more []Addr) []Addr {
	if len(more) == 0 {
		return addrs
	}
	known := unitsOf(addrs)
	for _, a := range more {
		if known.add(a) {
			addrs = append(addrs, a)
		}
	}
	return sorted(addrs)
}

func familyOf(ip netip.Addr) int {
	if ip.Is4() {
		return 0
	}
	return 1
}

// has reports whether the set contains a family: 0 is IPv4, 1 is IPv6.
func (f Families) has(family int) bool { return f&(1<<family) != 0 }
