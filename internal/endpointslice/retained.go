package endpointslice

import (
	"net/netip"
	"slices"
)

// ForRetained is what standing, endpoints that can't be taken away yet, should say: what desired says of
// the same target at the same address, whatever its ports. What is desired no more is not among
// them.
func ForRetained(standing, desired []Endpoint) []Endpoint {
	at := make(map[netip.Addr][]*Endpoint, len(desired))
	for i := range desired {
		at[desired[i].Addr] = append(at[desired[i].Addr], &desired[i])
	}
	var out []Endpoint
	for _, e := range standing {
		var heir *Endpoint
		best := -1
		for _, h := range at[e.Addr] {
			if n := likeness(h, &e); n > best {
				heir, best = h, n
			}
		}
		if heir != nil {
			ports := e.Ports
			e = *heir
			e.Ports = ports
			out = append(out, e)
		}
	}
	return out
}

// likeness is the higher, the more a and b, at one address, have in common.
func likeness(a, b *Endpoint) int {
	n := 0
	if a.Target == b.Target {
		n += 2
	}
	if sameFirstPort(a, b) {
		n++
	}
	return n
}

// sameFirstPort compares the ports that tell endpoints of one address apart. Someone may have taken
// a slice's ports away.
func sameFirstPort(a, b *Endpoint) bool {
	return len(a.Ports) > 0 && len(b.Ports) > 0 && a.Ports[0].Port == b.Ports[0].Port
}

// HasReadyReplacement reports whether an address is ready in standing that is to be so in desired.
func HasReadyReplacement(standing, desired []Endpoint) bool {
	ready := make(map[netip.Addr]bool, len(desired))
	for i := range desired {
		ready[desired[i].Addr] = ready[desired[i].Addr] || desired[i].Ready
	}
	return slices.ContainsFunc(standing, func(e Endpoint) bool { return e.Ready && ready[e.Addr] })
}
