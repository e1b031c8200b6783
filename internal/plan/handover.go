package plan

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/external-backend/operator/internal/endpointslice"
)

// HandOver plans the moment at which endpoints that others publish behind an adopted Service are
// about to give way to ours. It returns ours, those at an ip:port that others publish, too, with
// the very conditions that these have, so that nothing changes for kube-proxy whichever it reads;
// and whether the others may go once this is written: once one of ours is ready by its own verdict.
// Where some are shared and judged says that no verdict is waited for, nothing better is to come,
// and they go, too. Without others there is nothing to change or to wait for.
func HandOver(ours, others []Endpoint, judged bool) ([]Endpoint, bool) {
	if len(others) == 0 {
		return ours, true
	}
	byKey := make(map[netip.Addr][]*Endpoint, len(others))
	for i := range others {
		byKey[others[i].Addr] = append(byKey[others[i].Addr], &others[i])
	}
	out := make([]Endpoint, len(ours))
	shared, ready := false, false
	for i, e := range ours {
		ready = ready || e.Ready
		for _, other := range byKey[e.Addr] {
			if portsConflict(e.Ports, other.Ports) {
				e.Ready, e.Serving, e.Terminating = other.Ready, other.Serving, other.Terminating
				shared = true
			}
		}
		out[i] = e
	}
	return out, ready || shared && judged
}

// ReadEndpoints reads what an Endpoints object publishes, as the mirroring controller does. Its
// addresses that are no IP are left out.
//
//nolint:staticcheck // Endpoints are deprecated, and the objects that are there still have to be taken over.
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
