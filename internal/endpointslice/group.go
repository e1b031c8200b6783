package endpointslice

import (
	"encoding/binary"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// grouping sorts endpoints and slices into groups.
type grouping struct {
	byKey map[string]*group
	list  []*group
}

// lookup returns the group of a family and a list of ports. It adds the group if it is new.
func (gs *grouping) lookup(family discoveryv1.AddressType, ports []Port) *group {
	key := append([]byte(family), 0)
	for _, p := range ports {
		key = append(append(key, p.Name...), 0)
		key = append(append(key, p.Protocol...), 0)
		key = append(append(key, p.AppProtocol...), 0)
		key = binary.BigEndian.AppendUint32(key, uint32(p.Port))
	}
	g := gs.byKey[string(key)]
	if g == nil {
		g = &group{family: family, ports: ports, key: string(key)}
		gs.byKey[g.key], gs.list = g, append(gs.list, g)
	}
	return g
}

// groups sorts the wanted endpoints and the existing slices into groups.
func (p *planner) groups() []*group {
	gs := grouping{byKey: map[string]*group{}}
	var g *group
	for i := range p.desired {
		e := &p.desired[i]
		family := addressFamily(e.Addr)
		if family == "" {
			continue
		}
		if g == nil || g.family != family || !SameList(g.ports, e.Ports) { // most share one list
			g = gs.lookup(family, e.Ports)
		}
		g.wanted = append(g.wanted, int32(i))
	}
	for _, s := range p.existing {
		g := gs.lookup(s.AddressType, portsOf(s))
		g.slices = append(g.slices, &plannedSlice{slice: s, deleting: s.DeletionTimestamp != nil})
	}
	return gs.list
}
