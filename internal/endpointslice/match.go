package endpointslice

import (
	"cmp"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// match decides which slice keeps which endpoint, which slices have to be written, and which
// endpoints have to be added.
func (p *planner) match(g *group) {
	p.matchAddresses(g)
	for _, s := range g.slices {
		p.keepEndpoints(g, s)
		p.noteFailureDomain(g, s)
		if s.mustWrite {
			p.markForWriting(g, s)
		}
	}
	for _, j := range g.wanted {
		if !p.assigned[j] {
			g.added = append(g.added, j)
		}
	}
	p.sortByFailureDomain(g.added)
}

// matchAddresses fills g.match. It also sorts the slices: if several hold one endpoint, the one
// with more endpoints keeps it, because it may have taken over those of another.
func (p *planner) matchAddresses(g *group) {
	total := 0
	for _, s := range g.slices {
		total += len(s.slice.Endpoints)
	}
	if total == 0 {
		return
	}

	g.match = make([]int32, 0, total)
	index := newAddressIndex(len(g.wanted))
	for _, j := range g.wanted {
		index.number(p.desired[j].Addr)
	}
	for _, s := range g.slices {
		s.first = len(g.match)
		for i := range s.slice.Endpoints {
			wanted := int32(-1)
			if addr, ok := firstAddress(&s.slice.Endpoints[i]); ok && !s.deleting {
				if at := index.find(addr); at >= 0 {
					wanted = g.wanted[at]
					s.size++
				}
			}
			g.match = append(g.match, wanted)
		}
	}
	slices.SortFunc(g.slices, func(a, b *plannedSlice) int {
		return cmp.Or(b.size-a.size, strings.Compare(a.slice.Name, b.slice.Name))
	})
}

// matchOf is the part of g.match that is about s, which exists.
func (g *group) matchOf(s *plannedSlice) []int32 {
	return g.match[s.first : s.first+len(s.slice.Endpoints)]
}

// keepEndpoints assigns to s those of its endpoints that are wanted, that no slice before it keeps,
// and for which it has a place. It removes the others from g.match, and decides whether s has to be
// written.
func (p *planner) keepEndpoints(g *group, s *plannedSlice) {
	match := g.matchOf(s)
	p.annotation.reset()
	s.size = 0
	unread, leaving := false, false // an end of draining has to be kept, so the annotation is written
	for i, j := range match {
		have := &s.slice.Endpoints[i]
		if j < 0 || p.assigned[j] || s.size == p.template.Max {
			match[i], s.mustWrite = -1, true
			s.effects.loses = s.effects.loses || j >= 0 // another slice has it, or will
			s.effects.takesReady = s.effects.takesReady || valueOr(have.Conditions.Ready, true)
			continue
		}
		p.assigned[j] = true
		s.size++

		want, conditions := &p.desired[j], p.conditionsOf(j)
		s.effects.noteConditions(have, conditions)
		unread, leaving = unread || conditions.Unread, leaving || want.Leaving()
		if s.effects.conditionsChange || !sameEndpoint(have, want, &p.template) {
			s.mustWrite = true
		}
		if !s.mustWrite {
			p.annotation.add(want, conditions, have.Addresses[0])
		}
	}

	switch {
	case s.deleting:
		s.mustWrite = len(match) > 0
	case s.mustWrite:
	case s.size == 0:
		s.mustWrite = true
	default:
		s.onlyMetadata = !p.sameMetadata(s.slice, unread && !leaving)
		s.mustWrite = s.onlyMetadata
	}
}

// sameMetadata reports whether s, whose endpoints stay as they are, has the metadata that it should
// have. If its annotation can't be read, it stays: a version that can read it may come back.
func (p *planner) sameMetadata(s *discoveryv1.EndpointSlice, unread bool) bool {
	annotation := p.annotation.bytes()
	if unread {
		annotation = []byte(s.Annotations[annotationEndpoints])
	}
	return p.metadata.matches(&s.ObjectMeta, annotation)
}

// noteFailureDomain sets the failure domain that stands for s.
func (p *planner) noteFailureDomain(g *group, s *plannedSlice) {
	match := g.matchOf(s)
	for i := range match {
		if j := match[(len(match)/2+i)%len(match)]; j >= 0 {
			s.domain = domainOf(&p.desired[j])
			return
		}
	}
}

// markForWriting makes s a slice that has to be written. From here on its members count.
func (p *planner) markForWriting(g *group, s *plannedSlice) {
	s.mustWrite = true
	s.members = p.keptMembers(g, s)
}

// keptMembers are the endpoints that an existing slice keeps, without those that come in.
func (p *planner) keptMembers(g *group, s *plannedSlice) []int32 {
	members := make([]int32, 0, p.template.Max)
	for _, j := range g.matchOf(s) {
		if j >= 0 {
			members = append(members, j)
		}
	}
	return members
}

// addMembers adds endpoints to a slice that is written.
func (p *planner) addMembers(s *plannedSlice, list []int32) {
	if len(list) == 0 {
		return
	}
	s.members = append(s.members, list...)
	s.size = len(s.members)
	s.onlyMetadata = false
	s.effects.gains = true
	s.effects.makesReady = s.effects.makesReady ||
		slices.ContainsFunc(list, func(j int32) bool { return p.conditionsOf(j).Ready })
}
