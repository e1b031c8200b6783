package plan

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// WithPorts returns s with the ports of b's spec. differ reports whether s has other ports, by name
// and protocol.
func WithPorts(b *v1alpha1.ExternalBackend, s *corev1.Service) (next *corev1.Service, differ bool) {
	next = s.DeepCopy()
	next.Spec.Ports = servicePorts(b, s)
	return next, lacksPort(s, next) || lacksPort(next, s)
}

// OldPortsInput is what WithOldPorts decides from.
type OldPortsInput struct {
	Backend *v1alpha1.ExternalBackend
	// Live is the Service. It cannot get the ports of the spec now.
	Live      *corev1.Service
	Published *endpointslice.PublishedEndpoints
	Permit    Permit
}

// WithOldPorts returns what to publish while the Service cannot get the ports of the spec. desired
// are the candidates with their conditions and the ports of the spec. If the Service still has
// other ports, the endpoints are published for those, too:
//   - A port of the spec leads where the spec says.
//   - A port with the number and protocol of a port of the spec has been renamed. It leads where
//     the new name does.
//   - Any other port leads where it led before: for this endpoint, else for its target, else for
//     any endpoint. If that is unknown, or policy refuses it, the endpoint lacks the port.
//
// Ports that the Service will get are published ahead, as they are during a normal write.
func (c *Candidates) WithOldPorts(in OldPortsInput, desired []Endpoint) []Endpoint {
	next, _ := WithPorts(in.Backend, in.Live)
	if !lacksPort(next, in.Live) {
		return desired
	}

	publishAhead, old := lacksPort(in.Live, next), newOldPorts(&in, next, c.publishedEndpoints(in.Published))
	out := make([]Endpoint, 0, 2*len(desired))
	for i := range desired {
		e := desired[i]
		e.Ports = old.of(&e, c.origins[i].name)
		same := len(e.Ports) == 0 || slices.Equal(e.Ports, desired[i].Ports)
		if same || publishAhead {
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
	// from is the name of the port of the spec that says where this one leads.
	from string
	// led is where this port led before, if no port of the spec says where it leads; else nil.
	led map[portUser]Port
}

// portUser is an endpoint, a target (without address), or any endpoint (without both).
type portUser struct {
	target string
	addr   netip.Addr
}

// portUsers returns whose port e uses, in order of preference.
func portUsers(e *Endpoint) [3]portUser {
	return [3]portUser{{e.Target, e.Addr}, {target: e.Target}, {}}
}

func newOldPorts(in *OldPortsInput, next *corev1.Service, published []Endpoint) *oldPorts {
	old := &oldPorts{OldPortsInput: in}
	for i := range in.Live.Spec.Ports {
		l := &in.Live.Spec.Ports[i]
		p := oldPort{name: l.Name, from: l.Name, protocol: cmp.Or(l.Protocol, corev1.ProtocolTCP)}
		known := ServesPort(next, &v1alpha1.Port{Name: p.name, Protocol: p.protocol})
		for j := range next.Spec.Ports {
			n := &next.Spec.Ports[j]
			if !known && n.Port == l.Port && n.Protocol == p.protocol {
				p.from, known = n.Name, true
			}
		}
		if !known {
			p.readBack(published)
		}
		old.ports = append(old.ports, p)
	}
	return old
}

// readBack notes where the port led before.
func (p *oldPort) readBack(published []Endpoint) {
	p.led = make(map[portUser]Port, len(published))
	for i := range published {
		e := &published[i]
		j := slices.IndexFunc(e.Ports, func(q Port) bool { return q.Name == p.name && q.Protocol == p.protocol })
		if j < 0 {
			continue
		}
		for _, user := range portUsers(e) {
			if _, known := p.led[user]; !known {
				p.led[user] = e.Ports[j]
			}
		}
	}
}

// of returns the ports of the Service at e, sorted. name is the DNS name that led to e.
func (old *oldPorts) of(e *Endpoint, name string) []Port {
	var ports []Port
	for i := range old.ports {
		p := &old.ports[i]
		if p.led != nil {
			if port, ok := p.before(e); ok {
				if r := old.Permit(name, e.Addr, []Port{port}); !r.Denied || r.KeepPublished {
					ports = append(ports, port)
				}
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

// before returns where the port led for e.
func (p *oldPort) before(e *Endpoint) (Port, bool) {
	for _, user := range portUsers(e) {
		if port, ok := p.led[user]; ok {
			return port, true
		}
	}
	return Port{}, false
}
