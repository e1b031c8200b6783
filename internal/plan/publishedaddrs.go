package plan

import (
	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// PublishedAddrs returns the addresses that are published for targets with a name, by target, as an
// answer has them. Leaving ones are not among them.
func PublishedAddrs(b *v1alpha1.ExternalBackend, published *endpointslice.PublishedEndpoints) map[string][]Addr {
	named := map[string]bool{}
	for i := range b.Spec.Targets {
		if t := &b.Spec.Targets[i]; targetName(t) != "" {
			named[t.Name] = t.SRVName != ""
		}
	}

	out := map[string][]Addr{}
	all := published.Endpoints()
	for i := range all {
		e := &all[i]
		isSRV, ok := named[e.Target]
		if !ok || e.Leaving() {
			continue
		}
		addr := Addr{IP: e.Addr, Rank: e.Rank}
		if isSRV { // the port of the record is that of the first of spec.ports
			for _, p := range e.Ports {
				if p.Name == b.Spec.Ports[0].Name {
					addr.Port = uint16(p.Port)
				}
			}
		}
		out[e.Target] = append(out[e.Target], addr)
	}
	return out
}
