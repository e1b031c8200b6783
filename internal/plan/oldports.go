package plan

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// WithPorts is s with the ports of b's spec. lags reports whether s has others, by name and
// protocol.
func WithPorts(b *v1alpha1.ExternalBackend, s *corev1.Service) (next *corev1.Service, lags bool) {
	next = s.DeepCopy()
	next.Spec.Ports = servicePorts(b, s)
	return next, lacksPort(s, next) || lacksPort(next, s)
}

// lacksPort reports whether other has a port that s lacks, by name and protocol.
func lacksPort(s, other *corev1.Service) bool {
	return slices.ContainsFunc(other.Spec.Ports, func(p corev1.ServicePort) bool {
		return !ServesPort(s, &v1alpha1.Port{Name: p.Name, Protocol: p.Protocol})
	})
}

// OldPortsInput is what WithOldPorts goes by.
type OldPortsInput struct {
	Backend *v1alpha1.ExternalBackend
	// Live is the Service, which can't be given the ports of spec.
	Live      *corev1.Service
	Published *endpointslice.PublishedEndpoints
	Permit    Permit
}

// WithOldPorts is what to publish while the Service can't be given the ports of spec. desired are
// the candidates with their conditions, behind the ports of spec. Where the Service still has ports
// that spec has not, they are published behind the ports of the Service, too:
//   - A port that is in spec leads where spec says.
//   - A port whose number and protocol are in spec under another name has been renamed: it leads
//     where
//     the new name does.
//   - Any other port leads where it has led so far: for this endpoint, else for its target, else
//     for
//     anybody. An endpoint for which nothing is known, or which policy refuses there, lacks the port.
//
// Ports that the Service is still to get are served ahead, as they are while it is written.
func (c *Candidates) WithOldPorts(in OldPortsInput, desired []Endpoint) []Endpoint {
	next, _ := WithPorts(in.Backend, in.Live)
	if !lacksPort(next, in.Live) {
		return desired
	}
	ahead, old := lacksPort(in.Live, next), newOldPorts(&in, next)
	out := make([]Endpoint, 0, 2*len(desired))
	for i := range desired {
		e := desired[i]
		e.Ports = old.of(&e, c.origins[i].name)
		same := len(e.Ports) == 0 || slices.EqualFunc(e.Ports, desired[i].Ports, endpointslice.SamePort)
		if same || ahead {
			out = append(out, desired[i])
		}
		if !same {
			out = append(out, e)
		}
	}
	return out
}

// oldPorts knows where the ports of a Service lead.
type oldPorts struct {
	*OldPortsInput
	ports []oldPort
}

// oldPort is a port of the Service.
type oldPort struct {
	name     string
	protocol corev1.Protocol
	// from is the name of the port of spec that says where it leads.
	from string
	// forgotten: spec does not say. stood is where it led, for an endpoint, a target or anybody.
	forgotten bool
	stood     map[oldPlace]Port
}

// oldPlace is an endpoint, a target (without address), or anybody (without target).
type oldPlace struct {
	target string
	addr   netip.Addr
}

func newOldPorts(in *OldPortsInput, next *corev1.Service) *oldPorts {
	old := &oldPorts{OldPortsInput: in}
	for i := range in.Live.Spec.Ports {
		l := &in.Live.Spec.Ports[i]
		p := oldPort{name: l.Name, protocol: cmp.Or(l.Protocol, corev1.ProtocolTCP)}
		p.from, p.forgotten = p.name, !ServesPort(next, &v1alpha1.Port{Name: p.name, Protocol: p.protocol})
		for j := range next.Spec.Ports {
			n := &next.Spec.Ports[j]
			if p.forgotten && n.Port == l.Port && n.Protocol == p.protocol {
				p.from, p.forgotten = n.Name, false
			}
		}
		if p.forgotten {
			p.recall(in.Published.Endpoints())
		}
		old.ports = append(old.ports, p)
	}
	return old
}

// recall notes where the port led.
func (p *oldPort) recall(published []Endpoint) {
	p.stood = make(map[oldPlace]Port, len(published))
	for i := range published {
		e := &published[i]
		j := slices.IndexFunc(e.Ports, func(q Port) bool { return q.Name == p.name && q.Protocol == p.protocol })
		if j < 0 {
			continue
		}
		for _, place := range []oldPlace{{e.Target, e.Addr}, {target: e.Target}, {}} {
			if _, known := p.stood[place]; !known {
				p.stood[place] = e.Ports[j]
			}
		}
	}
}

// of are the ports of the Service at e, sorted; name led to its address.
func (old *oldPorts) of(e *Endpoint, name string) []Port {
	var ports []Port
	for i := range old.ports {
		p := &old.ports[i]
		if p.forgotten {
			if stood, ok := p.at(e); ok && old.permits(name, e, stood) {
				ports = append(ports, stood)
			}
			continue
		}
		for _, q := range e.Ports {
			if q.Name == p.from && q.Protocol == p.protocol {
				q.Name = p.name
				ports = append(ports, q)
			}
		}
	}
	slices.SortFunc(ports, endpointslice.ComparePorts)
	return ports
}

func (p *oldPort) at(e *Endpoint) (Port, bool) {
	for _, place := range []oldPlace{{e.Target, e.Addr}, {target: e.Target}, {}} {
		if port, ok := p.stood[place]; ok {
			return port, true
		}
	}
	return Port{}, false
}

// permits asks policy about a port that spec does not name any more.
func (old *oldPorts) permits(name string, e *Endpoint, p Port) bool {
	r := old.Permit(name, e.Addr, []Port{p})
	return !r.Denied || r.KeepPublished
}
