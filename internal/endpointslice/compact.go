package endpointslice

import (
	"cmp"
	"slices"
)

// fold empties light slices into others: steps 4 and 5 of the package comment.
func (p *planner) fold(g *group) {
	anyone := func(*slot) bool { return true }
	written := func(s *slot) bool { return s.written }
	p.foldInto(g, func(s *slot) bool { return s.written && !s.flipped && !s.renamed }, written, 0)
	if p.lights(g) <= maxLight {
		return
	}
	// Nothing that is free will do. First the slice that costs a deletion more, then those that have
	// to be written once more before their endpoints move.
	p.foldOne(g, func(s *slot) bool { return !s.written }, func(s *slot) bool { return s.written && s.light(p.template.Max) })
	p.foldInto(g, written, written, maxLight)
	if p.crowded(g) {
		p.foldInto(g, anyone, anyone, maxLight)
	}
}

// lights counts the light slices of g.
func (p *planner) lights(g *group) (n int) {
	for _, s := range g.slots {
		if s.light(p.template.Max) {
			n++
		}
	}
	return n
}

// crowded reports whether g holds more slices than it ever should.
func (p *planner) crowded(g *group) bool {
	n := 0
	for _, s := range g.slots {
		if s.size > 0 {
			n++
		}
	}
	return n > 2*((len(g.wanted)+p.template.Max-1)/p.template.Max)+1
}

// foldInto folds light donors, the smallest first, into receivers, until no more than enough light
// slices are left in the group.
func (p *planner) foldInto(g *group, donor, receiver func(*slot) bool, enough int) {
	lights := p.lights(g)
	for _, s := range p.donors(g, donor) {
		if lights <= enough {
			return
		}
		if r := p.receiver(g, s, receiver); r != nil && s.light(p.template.Max) {
			p.move(g, s, r)
			lights = p.lights(g)
		}
	}
}

// foldOne folds the smallest light donor that finds a receiver.
func (p *planner) foldOne(g *group, donor, receiver func(*slot) bool) {
	for _, s := range p.donors(g, donor) {
		if r := p.receiver(g, s, receiver); r != nil {
			p.move(g, s, r)
			return
		}
	}
}

// donors returns the light slices that can be deleted and that ok approves, the smallest first.
func (p *planner) donors(g *group, ok func(*slot) bool) []*slot {
	var list []*slot
	for _, s := range g.slots {
		if s.slice != nil && s.light(p.template.Max) && ok(s) {
			list = append(list, s)
		}
	}
	slices.SortStableFunc(list, func(a, b *slot) int { return a.size - b.size })
	return list
}

// receiver finds the slice that can take all of s: one that is written anyway, of the same zone,
// and the fullest. Another zone is mixed with only where the receiver is light too.
func (p *planner) receiver(g *group, s *slot, ok func(*slot) bool) *slot {
	var best *slot
	rank := func(r *slot) int {
		n := 0
		if !r.written {
			n += 2
		}
		if r.zone != s.zone {
			n++
		}
		return n
	}
	for _, r := range g.slots {
		if r == s || r.size == 0 || r.size+s.size > p.template.Max || !ok(r) || r.zone != s.zone && !r.light(p.template.Max) {
			continue
		}
		if best == nil || cmp.Or(rank(r)-rank(best), best.size-r.size) < 0 {
			best = r
		}
	}
	return best
}

// move moves all endpoints of from into to.
func (p *planner) move(g *group, from, to *slot) {
	for _, s := range []*slot{from, to} {
		if !s.written {
			p.open(g, s)
		}
	}
	p.put(to, from.members)
	to.receives = to.receives || from.flipped || from.receives
	from.members, from.size = nil, 0
}
