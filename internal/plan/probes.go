package plan

import "net/netip"

// ProbeID identifies a probed endpoint by its target, its address and its first port. The port is
// needed because two SRV records may share a host.
type ProbeID struct {
	Target string
	Addr   netip.Addr
	Port   uint16
}

// Probe is one endpoint to probe.
type Probe struct {
	ID   ProbeID
	Dial netip.AddrPort
	// Host is the hostname of the target, or "" for a literal address.
	Host string
	// Name is the DNS name that led to the address, that of an SRV record included. Policy judges
	// the address by it.
	Name string
	// SeedVerdict is read back from the slice and the status. It holds until the first probe.
	SeedVerdict Verdict
}

// Probes returns the probes of all candidates, in their order. Without healthCheck there are none.
// If the probes are those of the previous plan, Probes returns previous itself, and changed is
// false. The comparison ignores the seeds, which count only once.
func (c *Candidates) Probes(previous []Probe) (probes []Probe, changed bool) {
	if c.layout != nil || c.matchProbes(previous) {
		return previous, false
	}

	probes = make([]Probe, 0, len(c.Endpoints))
	for i := range c.origins {
		if c.origins[i].probed() {
			probes = append(probes, c.probe(i))
		}
	}
	return probes, true
}

// matchProbes reports whether probes are those of all candidates, seeds apart.
func (c *Candidates) matchProbes(probes []Probe) bool {
	n := 0
	for i := range c.origins {
		if !c.origins[i].probed() {
			continue
		}
		if n >= len(probes) {
			return false
		}
		want := c.probe(i)
		want.SeedVerdict = probes[n].SeedVerdict
		if probes[n] != want {
			return false
		}
		n++
	}
	return n == len(probes)
}

// probedAt is where candidate i is probed; its port is 0 if it is not.
func (c *Candidates) probedAt(i int) netip.AddrPort {
	return netip.AddrPortFrom(c.Endpoints[i].Addr, c.origins[i].probePort)
}

func (c *Candidates) probe(i int) Probe {
	e, o := &c.Endpoints[i], &c.origins[i]
	return Probe{
		ID:          ProbeID{Target: e.Target, Addr: e.Addr, Port: uint16(e.Ports[0].Port)},
		Dial:        c.probedAt(i),
		Host:        o.host,
		Name:        o.name,
		SeedVerdict: o.seed,
	}
}

// NamedAddrs returns the addresses that a DNS name led to, for the next plan. It is never nil. If
// they are those of the previous plan, NamedAddrs returns previous itself.
func (c *Candidates) NamedAddrs(previous []NamedAddr) []NamedAddr {
	if c.layout != nil {
		return previous
	}
	n, same := 0, previous != nil
	for i := range c.origins {
		if name := c.origins[i].name; name != "" {
			same = same && n < len(previous) && previous[n] == NamedAddr{c.Endpoints[i].Addr, name}
			n++
		}
	}
	if same && n == len(previous) {
		return previous
	}

	named := make([]NamedAddr, 0, n)
	for i := range c.origins {
		if name := c.origins[i].name; name != "" {
			named = append(named, NamedAddr{c.Endpoints[i].Addr, name})
		}
	}
	return named
}
