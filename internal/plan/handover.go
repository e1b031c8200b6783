package plan

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/external-backend/operator/internal/endpointslice"
)

// HandOver plans the moment before our endpoints replace those that others publish behind an
// adopted Service.
//
// It returns the conditions of our endpoints. One at an ip:port that others publish, too, gets the
// conditions of theirs, so that kube-proxy sees no difference, whichever it reads.
//
// It also reports whether the others may go once these are written. They may if one of ours is
// ready by our own plan. They may also go if we publish some of their addresses and every endpoint
// of ours has a verdict (allVerdicts), because then waiting changes nothing. Without others there
// is nothing to wait for.
func HandOver(ours []Endpoint, conditions []Conditions, others []Endpoint, allVerdicts bool) ([]Conditions, bool) {
	if len(others) == 0 {
		return conditions, true
	}

	byAddr := make(map[netip.Addr][]*Endpoint, len(others))
	for i := range others {
		byAddr[others[i].Addr] = append(byAddr[others[i].Addr], &others[i])
	}

	out := slices.Clone(conditions)
	shared, ready := false, false
	for i := range ours {
		ready = ready || conditions[i].Ready
		for _, other := range byAddr[ours[i].Addr] {
			if portsConflict(ours[i].Ports, other.Ports) {
				out[i].Ready, out[i].Serving, out[i].Terminating = other.Ready, other.Serving, other.Terminating
				shared = true
			}
		}
	}
	return out, ready || shared && allVerdicts
}

// ReadEndpoints reads an Endpoints object as the mirroring controller does. It skips addresses that
// are not IP addresses.
//
//nolint:staticcheck // Endpoints are deprecated, but existing objects must be handed over.
func ReadEndpoints(e *corev1.Endpoints) []Endpoint {
	var out []Endpoint
	for _, s := range e.Subsets {
		ports := make([]Port, len(s.Ports))
		for i, p := range s.Ports {
			ports[i] = Port{Name: p.Name, Port: p.Port, Protocol: p.Protocol}
			if p.AppProtocol != nil {
				ports[i].AppProtocol = *p.AppProtocol
			}
		}
		slices.SortFunc(ports, endpointslice.ComparePorts)
		add := func(addresses []corev1.EndpointAddress, ready bool) {
			for _, a := range addresses {
				if ip, err := netip.ParseAddr(a.IP); err == nil {
					conditions := Conditions{Ready: ready, Serving: ready, Healthy: ready}
					out = append(out, Endpoint{Addr: ip, Ports: ports, Conditions: conditions})
				}
			}
		}
		add(s.Addresses, true)
		add(s.NotReadyAddresses, false)
	}
	return out
}
