package plan

import (
	"net/netip"
	"slices"
	"time"

	"github.com/external-backend/operator/internal/endpointslice"
)

// Candidates are the endpoints that may be published, with their probes, and the reasons why other
// addresses may not.
type Candidates struct {
	// Endpoints are in the order of the names of their targets. Leaving ones come last. They never
	// change: Publish returns their conditions apart.
	Endpoints []Endpoint
	origins   []origin // parallel to Endpoints
	// Notes are parallel to spec.targets.
	Notes []TargetNotes
	// nextDrainEnd is when the first leaving endpoint has drained; zero if none is leaving.
	nextDrainEnd time.Time
	// layout is the layout of the slices that hold these candidates, if they are those of the
	// previous plan; else nil.
	layout *endpointslice.Layout
	// keepsPublished reports whether an endpoint stays exactly as it is published.
	keepsPublished bool
	// attributed are the published endpoints, in which unread ones have the target and tier that lead
	// to their address and ports; nil if there are no such ones.
	attributed []Endpoint
}

// origin says where a candidate comes from.
type origin struct {
	// name is the DNS name that led to the address, or "".
	name string
	// host is the hostname that probes use, and probePort the port they go to; 0 without probes.
	host      string
	probePort uint16
	// terminating reports whether the target is Draining or the address is leaving.
	terminating bool
	// rejected reports whether the candidate is not published, because of a conflict or of Max.
	rejected bool
	// keepsHealth reports whether the candidate has, until there is a verdict, the health of an
	// endpoint that we or a sibling publish at its address, and healthy is that health. Both are set
	// only for candidates that are probed or leaving. unread reports whether one of our slices holds
	// the candidate, but its annotation says nothing about it.
	keepsHealth, healthy, unread bool
	// asPublished reports whether the endpoint stays exactly as it is published, because a name that
	// may have led to it has no answer yet.
	asPublished bool
	// seed is the verdict until the first probe.
	seed Verdict
	// target is the index in spec.targets, or -1.
	target int32
	// address is the number of the address in Published.
	address int32
}

func (o *origin) probed() bool { return o.probePort != 0 }

// TargetNotes are the decisions about one target that its endpoints do not show.
type TargetNotes struct {
	Answer Answer
	// Denied says why policy denies an address of the target, and Audited why it would. Both are ""
	// if it does not.
	Denied, Audited string
	// Duplicates, OtherFamily and Truncated count the addresses that are not published for these
	// reasons.
	Duplicates, OtherFamily, Truncated int
	// Winner names for people who publishes the first of the duplicates.
	Winner string
}

func (n *TargetNotes) addRefusal(r Refusal) {
	if r.WouldDeny {
		n.Audited = r.Text()
	}
	if r.Denied {
		n.Denied = r.Text()
	}
}

// publishedEndpoints returns what pub holds, with a target for as many endpoints as possible.
func (c *Candidates) publishedEndpoints(pub *endpointslice.PublishedEndpoints) []Endpoint {
	if c.attributed != nil {
		return c.attributed
	}
	return pub.Endpoints()
}

// WithConditions returns copies of the endpoints that have these conditions.
func (c *Candidates) WithConditions(conditions []Conditions) []Endpoint {
	out := slices.Clone(c.Endpoints)
	for i := range out {
		out[i].Conditions = conditions[i]
	}
	return out
}

// keptHealth reports whether candidate i keeps the health of a published endpoint, whether that
// endpoint counts as healthy, and whether it is unread. See [origin].
func (c *Candidates) keptHealth(i int) (keeps, healthy, unread bool) {
	o := &c.origins[i]
	if c.layout != nil {
		return o.probed(), c.layout.Healthy(i), false
	}
	return o.keepsHealth, o.healthy, o.unread
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

// probedAt is where candidate i is probed; its port is 0 if it is not.
func (c *Candidates) probedAt(i int) netip.AddrPort {
	return netip.AddrPortFrom(c.Endpoints[i].Addr, c.origins[i].probePort)
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

// ExplainIgnoredHints says which hints for trafficDistribution kube-proxy will ignore; "" if none.
// nodes reports whether hints name nodes, too. kube-proxy ignores hints for nodes if one endpoint
// has no node, and hints for zones if one has no zone (KEP-4444, KEP-3015).
func ExplainIgnoredHints(c *Candidates, nodes bool) string {
	lacksZone, lacksNode := false, false
	for i := range c.Endpoints {
		lacksZone = lacksZone || c.Endpoints[i].Zone == ""
		lacksNode = lacksNode || nodes && c.Endpoints[i].NodeName == ""
	}

	const ignoresAll = "kube-proxy will ignore all trafficDistribution hints, because some targets have no "
	switch {
	case lacksZone && !nodes:
		return ignoresAll + "zone."
	case lacksZone && lacksNode:
		return ignoresAll + "nodeName and some no zone."
	case lacksNode:
		return "kube-proxy will ignore all hints for nodes and go by zones alone, because some targets have no nodeName."
	case lacksZone:
		return "kube-proxy will ignore all hints for zones, because some targets have no zone."
	}
	return ""
}
