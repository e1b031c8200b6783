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
// It returns our endpoints to publish. One at an ip:port that others publish, too, gets the
// conditions of theirs, so that kube-proxy sees no difference, whichever it reads.
//
// It also reports whether the others may go once these are written. They may if one of ours is
// ready by its own verdict. They may, too, if some are shared and allVerdicts reports that no
// verdict is missing, because then waiting changes nothing. Without others there is nothing to wait
// for.
func HandOver(ours, others []Endpoint, allVerdicts bool) ([]Endpoint, bool) {
	if len(others) == 0 {
		return ours, true
	}

	byAddr := make(map[netip.Addr][]*Endpoint, len(others))
	for i := range others {
		byAddr[others[i].Addr] = append(byAddr[others[i].Addr], &others[i])
	}

	out := make([]Endpoint, len(ours))
	shared, ready := false, false
	for i, e := range ours {
		ready = ready || e.Ready
		for _, other := range byAddr[e.Addr] {
			if portsConflict(e.Ports, other.Ports) {
				e.Ready, e.Serving, e.Terminating = other.Ready, other.Serving, other.Terminating
				shared = true
			}
		}
		out[i] = e
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
			ports[i] = Port{Name: p.Name, Port: p.Port, Protocol: p.Protocol, AppProtocol: p.AppProtocol}
		}
		slices.SortFunc(ports, endpointslice.ComparePorts)
		add := func(addresses []corev1.EndpointAddress, ready bool) {
			for _, a := range addresses {
				if ip, err := netip.ParseAddr(a.IP); err == nil {
					out = append(out, Endpoint{Addr: ip, Ports: ports, Ready: ready, Serving: ready, Healthy: ready})
				}
			}
		}
		add(s.Addresses, true)
		add(s.NotReadyAddresses, false)
	}
	return out
}
