package endpointslice

import (
	"net/netip"
	"slices"
)

// ForPostponed returns the endpoints of a slice that can't be deleted yet, or can't lose endpoints
// yet. Each published endpoint becomes what desired says of its address, if possible of its target,
// with the ports that are published. Endpoints whose address is not desired are left out.
func ForPostponed(published, desired []Endpoint) []Endpoint {
	at := make(map[netip.Addr][]*Endpoint, len(desired))
	for i := range desired {
		at[desired[i].Addr] = append(at[desired[i].Addr], &desired[i])
	}

	var out []Endpoint
	for _, e := range published {
		var best *Endpoint
		bestLikeness := -1
		for _, d := range at[e.Addr] {
			if n := likeness(d, &e); n > bestLikeness {
				best, bestLikeness = d, n
			}
		}
		if best != nil {
			ports := e.Ports
			e = *best
			e.Ports = ports
			out = append(out, e)
		}
	}
	return out
}

// likeness compares two endpoints at one address: the target counts more than the first port.
func likeness(a, b *Endpoint) int {
	n := 0
	if a.Target == b.Target {
		n += 2
	}
	// Somebody may have removed a slice's ports.
	if len(a.Ports) > 0 && len(b.Ports) > 0 && a.Ports[0].Port == b.Ports[0].Port {
		n++
	}
	return n
}

// HasReadyReplacement reports whether an address is ready both in published and in desired.
func HasReadyReplacement(published, desired []Endpoint) bool {
	ready := make(map[netip.Addr]bool, len(desired))
	for i := range desired {
		ready[desired[i].Addr] = ready[desired[i].Addr] || desired[i].Ready
	}
	return slices.ContainsFunc(published, func(e Endpoint) bool { return e.Ready && ready[e.Addr] })
}
