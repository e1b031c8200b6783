package endpointslice

import (
	"cmp"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// match decides which slice keeps which endpoint, which slices have to be written, and what is to
// be added.
func (p *planner) match(g *group) {
	placed := p.find(g)
	for _, s := range g.slots {
		p.claim(g, s, placed)
	}
	for i, j := range g.wanted {
		if !placed[i] {
			g.added = append(g.added, j)
		}
	}
	p.sortByFate(g.added)
}

// find fills g.match with positions in g.wanted, and puts the slots into the order in which they
// may claim an endpoint that is in several: a slice that took over another's endpoints has more of
// them. The result is room for what has been claimed.
func (p *planner) find(g *group) (placed []bool) {
	total := 0
	for _, s := range g.slots {
		total += len(s.slice.Endpoints)
	}
	placed = make([]bool, len(g.wanted))
	if total == 0 {
		return placed
	}
	g.match = make([]int32, 0, total)
	position := newAddressIndex(len(g.wanted))
	for _, j := range g.wanted {
		position.number(p.desired[j].Addr)
	}
	for _, s := range g.slots {
		s.first = len(g.match)
		for i := range s.slice.Endpoints {
			at := int32(-1)
			if addr, ok := firstAddress(&s.slice.Endpoints[i]); ok && !s.leaving {
				if at = position.find(addr); at >= 0 {
					s.size++
				}
			}
			g.match = append(g.match, at)
		}
	}
	slices.SortFunc(g.slots, func(a, b *slot) int { return cmp.Or(b.size-a.size, strings.Compare(a.slice.Name, b.slice.Name)) })
	return placed
}

// claim gives s those of its endpoints that are wanted, that no slice before it has claimed, and
// that it has room for. From here on g.match holds positions in p.desired.
func (p *planner) claim(g *group, s *slot, placed []bool) {
	match := g.match[s.first : s.first+len(s.slice.Endpoints)]
	p.annotation.reset()
	s.size = 0
	unread, leaving := false, false
	for i, at := range match {
		if at < 0 || placed[at] || s.size == p.template.Max {
			s.loses = s.loses || at >= 0 // it is to be found elsewhere
			match[i], s.written = -1, true
			s.relaxes = s.relaxes || orTrue(s.slice.Endpoints[i].Conditions.Ready)
			continue
		}
		placed[at] = true
		match[i] = g.wanted[at]
		s.size++
		want, have := &p.desired[match[i]], &s.slice.Endpoints[i]
		s.compare(have, want)
		unread, leaving = unread || want.Unread, leaving || want.Leaving()
		if s.flipped || !sameEndpoint(have, want, &p.template) {
			s.written = true
		}
		if !s.written {
			p.annotation.add(want, have.Addresses[0])
		}
	}
	switch {
	case s.leaving:
		s.written = len(match) > 0
	case !s.written && s.size == 0:
		s.written = true
	case !s.written:
		annotation := p.annotation.bytes()
		if unread && !leaving { // those who can read it may come back; but an end of draining has to be kept
			annotation = []byte(s.slice.Annotations[annotationEndpoints])
		}
		s.renamed = !p.metadata.in(&s.slice.ObjectMeta, annotation)
		s.written = s.renamed
	}
	p.locate(g, s)
	if s.written {
		p.open(g, s)
	}
}

// compare notes what changes of the conditions of an endpoint that stays.
func (s *slot) compare(have *discoveryv1.Endpoint, want *Endpoint) {
	if !sameConditions(&have.Conditions, want) {
		s.flipped = true
		ready, serving, terminating := conditionsOf(have)
		lastResort := serving && terminating && !(want.Serving && want.Terminating)
		s.readies = s.readies || want.Ready && !ready
		s.relaxes = s.relaxes || (ready || lastResort) && !want.Ready
	}
}

// locate notes the fate of s.
func (p *planner) locate(g *group, s *slot) {
	match := g.match[s.first : s.first+len(s.slice.Endpoints)]
	for i := range match {
		if j := match[(len(match)/2+i)%len(match)]; j >= 0 {
			s.zone, s.target = p.desired[j].Zone, p.desired[j].Target
			return
		}
	}
}

// open makes s a slice that is written: from here on its members count.
func (p *planner) open(g *group, s *slot) {
	s.written = true
	s.members = p.kept(g, s)
}

// kept are the endpoints of an existing slice that it keeps, whatever is added or moves away.
func (p *planner) kept(g *group, s *slot) []int32 {
	members := make([]int32, 0, p.template.Max)
	for _, j := range g.match[s.first : s.first+len(s.slice.Endpoints)] {
		if j >= 0 {
			members = append(members, j)
		}
	}
	return members
}
