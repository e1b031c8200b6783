package endpointslice

import (
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// Plan plans the writes that turn existing, all slices of one ExternalBackend, into slices that
// publish desired and nothing else; the package comment says how. conditions, parallel to desired,
// are the conditions of the endpoints; if they are nil, each endpoint has its own.
//
// No ip:port may be twice in desired. The order of desired and existing does not matter, and
// nothing of the input is changed. Addresses that no slice can hold (invalid, IPv4-mapped, with an
// IPv6 zone) are left out. The layout is nil unless the existing slices hold all of desired and
// nothing else.
func Plan(
	t Template, desired []Endpoint, conditions []Conditions, existing []*discoveryv1.EndpointSlice,
) (*Layout, Changes) {
	p := newPlanner(t, newMetadata(&t), wantedEndpoints{desired, conditions}, existing)
	groups := p.plan()
	return p.layout(t, groups), p.changes()
}

// plan goes through the steps of the package comment.
func (p *planner) plan() []*group {
	p.assigned = make([]bool, len(p.desired))
	groups := p.groups()
	for _, g := range groups {
		p.match(g)
		p.placeAdded(g)
		p.compact(g)
		p.render(g)
	}
	return groups
}

// layout returns the layout of a finished plan. It is nil if the slices do not yet hold what they
// should, or if some are left to be compacted.
func (p *planner) layout(t Template, groups []*group) *Layout {
	var list []layoutSlice
	held := 0
	for _, g := range groups {
		if p.countHalfEmpty(g) > maxHalfEmpty {
			return nil
		}
		for _, s := range g.slices {
			if s.slice == nil || s.size == 0 || s.size != len(s.slice.Endpoints) {
				return nil
			}
			members := g.match[s.first : s.first+s.size]
			if slices.Contains(members, -1) {
				return nil
			}
			if list == nil {
				list = make([]layoutSlice, 0, len(p.existing))
			}
			held += s.size
			list = append(list, layoutSlice{name: s.slice.Name, members: members})
		}
	}
	if held < len(p.desired) {
		return nil
	}
	slices.SortFunc(list, func(a, b layoutSlice) int { return a.compareName(b.name) })
	return &Layout{template: t, metadata: p.metadata, wantedEndpoints: p.wantedEndpoints, slices: list}
}
