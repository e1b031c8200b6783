package plan

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// builder holds the state of one buildCandidates.
type builder struct {
	Input
	Candidates // so far
	// addresses are indexed by the numbers that Published gives to addresses.
	addresses []addressState
	// commonPorts are the ports of targets without ports of their own.
	commonPorts []Port
	// siblings are the endpoints of siblings by address.
	siblings map[netip.Addr]*Endpoint
	// states are the states of the targets in Status.
	states map[string]v1alpha1.TargetState
	// nextWinner chains the winners of one address; -1 ends a chain.
	nextWinner []int32
}

// addressState is what the passes know about one address.
type addressState struct {
	// winner is the last candidate of this address that won its conflicts, or -1.
	winner int32
	// wanted reports whether spec and answers lead to the address, allowed or not, so that it has
	// not left.
	wanted bool
}

func newBuilder(in Input) *builder {
	in.Published.Endpoints() // numbers the published addresses
	n := len(in.Backend.Spec.Targets)
	for _, a := range in.Answers {
		n += len(a.Addrs)
	}

	b := &builder{Input: in, addresses: make([]addressState, 0, max(n, in.Published.Addresses()))}
	b.Notes = make([]TargetNotes, len(in.Backend.Spec.Targets))
	b.Endpoints = make([]Endpoint, 0, n)
	b.origins = make([]origin, 0, n)
	b.siblings = map[netip.Addr]*Endpoint{}
	for _, s := range slices.Concat(in.Siblings, in.FormerSiblings) {
		for i := range s.Endpoints {
			if e := &s.Endpoints[i]; b.siblings[e.Addr] == nil {
				b.siblings[e.Addr] = e
			}
		}
	}
	b.states = make(map[string]v1alpha1.TargetState, len(in.Status.Targets))
	for _, t := range in.Status.Targets {
		b.states[t.Name] = t.State
	}
	return b
}

// address returns the number of an address.
func (b *builder) address(a netip.Addr) int32 {
	n := b.Published.Number(a)
	for int(n) >= len(b.addresses) {
		b.addresses = append(b.addresses, addressState{winner: -1})
	}
	return n
}

func (b *builder) add(e *Endpoint, o *origin) {
	b.Endpoints = append(b.Endpoints, *e)
	b.origins = append(b.origins, *o)
}

// setProbe sets how o is probed. published is an endpoint at its address, or nil. Its health is
// taken over even if its ports differ, because it is the same server.
func (b *builder) setProbe(o *origin, t *v1alpha1.Target, srvPort uint16, ports []Port, published *Endpoint) {
	if b.Backend.Spec.HealthCheck == nil || len(ports) == 0 {
		return
	}
	port, ok := probePort(b.Backend, t, srvPort)
	if !ok {
		return
	}

	o.probePort, o.host = port, t.Hostname
	if published != nil {
		o.keepsHealth, o.healthy = true, published.Healthy
		o.seed = b.publishedVerdict(t.Name, published)
	}
}

// publishedVerdict reads the last verdict on a published endpoint back. The slice does not show it
// if the check only observes or if there was no verdict yet; then the status of the target does.
func (b *builder) publishedVerdict(target string, published *Endpoint) Verdict {
	state := b.states[target]
	switch {
	case published.Unread, !published.Healthy && state == v1alpha1.TargetStateUnknown:
		return Unknown
	case !published.Healthy, observes(b.Backend) && state == v1alpha1.TargetStateUnhealthy:
		return Unhealthy
	}
	return Healthy
}

// permit asks policy about an address, the ports that are published there, and the port that is
// probed.
func (b *builder) permit(name string, addr netip.Addr, ports []Port, probed uint16) Refusal {
	isProbed := func(p Port) bool { return p.Port == int32(probed) && p.Protocol == corev1.ProtocolTCP }
	if probed == 0 || slices.ContainsFunc(ports, isProbed) {
		return b.Permit(name, addr, ports)
	}
	r := b.Permit(name, addr, append(slices.Clip(ports), Port{Port: int32(probed), Protocol: corev1.ProtocolTCP}))
	r.OfCheck = isProbed(r.Port)
	return r
}

// portsOf returns the ports of an endpoint of t. Targets without ports of their own share one list.
func (b *builder) portsOf(t *v1alpha1.Target, srvPort uint16) []Port {
	if len(t.Ports) > 0 || srvPort != 0 {
		return slicePorts(b.Backend, t, b.ServesPort, srvPort)
	}
	if b.commonPorts == nil {
		b.commonPorts = slicePorts(b.Backend, t, b.ServesPort, 0)
	}
	return b.commonPorts
}

// servedPorts returns those ports of a published endpoint that spec and the Service still have.
func (b *builder) servedPorts(ports []Port) []Port {
	return slices.DeleteFunc(slices.Clone(ports), func(p Port) bool {
		return !slices.ContainsFunc(b.Backend.Spec.Ports, func(s v1alpha1.Port) bool {
			return s.Name == p.Name && s.EffectiveProtocol() == p.Protocol && b.ServesPort(&s)
		})
	})
}
