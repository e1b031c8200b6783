package endpointslice

import (
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// render turns the slices that are written into writes.
func (p *planner) render(g *group) {
	for _, s := range g.slices {
		switch {
		case !s.mustWrite:
		case s.deleting:
			empty := s.slice.DeepCopy()
			empty.Endpoints = []discoveryv1.Endpoint{}
			p.update = append(p.update, newSliceUpdate(empty, s.effects))
		case s.size == 0:
			p.updateBeforeMove(g, s)
			p.delete = append(p.delete, s.slice)
		case s.slice == nil:
			meta := metav1.ObjectMeta{Name: p.newName(g), Namespace: p.template.Namespace}
			p.create = append(p.create, p.buildSlice(g.family, s, meta))
		default:
			p.updateSlice(g.family, s)
		}
	}
}

// updateSlice writes s over its slice.
func (p *planner) updateSlice(family discoveryv1.AddressType, s *plannedSlice) {
	next := p.buildSlice(family, s, *s.slice.ObjectMeta.DeepCopy())
	p.update = append(p.update, newSliceUpdate(next, s.effects))
}

// updateBeforeMove writes a slice whose endpoints move elsewhere and change their conditions. It is
// written before they move, so that they have the same conditions in both slices.
func (p *planner) updateBeforeMove(g *group, s *plannedSlice) {
	if !s.effects.conditionsChange {
		return
	}
	if s.members = p.keptMembers(g, s); len(s.members) > 0 {
		s.effects.beforeMove = true
		p.updateSlice(g.family, s)
	}
}

// buildSlice returns the slice that publishes the members of s. It shares no memory with the slice
// that it replaces.
func (p *planner) buildSlice(
	family discoveryv1.AddressType, s *plannedSlice, meta metav1.ObjectMeta,
) *discoveryv1.EndpointSlice {
	p.sortByFailureDomain(s.members)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  meta,
		AddressType: family,
		Ports:       endpointPorts(p.desired[s.members[0]].Ports),
		Endpoints:   p.endpoints(s.members),
	}
	if s.slice != nil {
		slice.TypeMeta = s.slice.TypeMeta
	}

	p.annotation.reset()
	for i, j := range s.members {
		p.annotation.add(&p.desired[j], p.conditionsOf(j), slice.Endpoints[i].Addresses[0])
	}
	p.metadata.applyTo(&slice.ObjectMeta, p.annotation.bytes())
	return slice
}

// endpoints builds the endpoints of one slice.
func (p *planner) endpoints(members []int32) []discoveryv1.Endpoint {
	list, values := make([]discoveryv1.Endpoint, len(members)), make([]endpointValues, len(members))
	for i, j := range members {
		values[i].conditions = *p.conditionsOf(j)
		values[i].buildEndpoint(&list[i], &p.desired[j], &p.template)
	}
	return list
}

// endpointValues are what an Endpoint points to. Those of a slice are allocated together: with an
// allocation for each pointer, a plan that creates slices takes a third longer.
type endpointValues struct {
	address                  [1]string
	conditions               Conditions
	hostname, zone, nodeName string
	hints                    discoveryv1.EndpointHints
	forZone                  [1]discoveryv1.ForZone
	forNode                  [1]discoveryv1.ForNode
}

// buildEndpoint builds the Endpoint of e, which points to v.
func (v *endpointValues) buildEndpoint(endpoint *discoveryv1.Endpoint, e *Endpoint, template *Template) {
	v.address[0] = e.Addr.String()
	endpoint.Addresses = v.address[:]
	endpoint.Conditions = discoveryv1.EndpointConditions{
		Ready: &v.conditions.Ready, Serving: &v.conditions.Serving, Terminating: &v.conditions.Terminating,
	}
	if v.hostname = e.Hostname; v.hostname != "" {
		endpoint.Hostname = &v.hostname
	}
	if v.zone = e.Zone; v.zone != "" {
		endpoint.Zone = &v.zone
	}
	if v.nodeName = e.NodeName; v.nodeName != "" {
		endpoint.NodeName = &v.nodeName
	}

	zone, node := template.hints(e)
	if zone != "" {
		v.forZone[0].Name = zone
		v.hints.ForZones, endpoint.Hints = v.forZone[:], &v.hints
	}
	if node != "" {
		v.forNode[0].Name = node
		v.hints.ForNodes, endpoint.Hints = v.forNode[:], &v.hints
	}
}
