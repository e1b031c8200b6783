package endpointslice

import (
	"cmp"
	"slices"
)

// compact moves the endpoints of half-empty slices into others: steps 4 and 5 of the package
// comment.
func (p *planner) compact(g *group) {
	anySlice := func(*plannedSlice) bool { return true }
	mustWrite := func(s *plannedSlice) bool { return s.mustWrite }
	p.compactInto(g, func(s *plannedSlice) bool {
		return s.mustWrite && !s.effects.conditionsChange && !s.onlyMetadata
	}, mustWrite, 0)
	if p.countHalfEmpty(g) <= maxHalfEmpty {
		return
	}

	// From here on compaction has a price: first one deletion more, then slices that have to be
	// written once more before their endpoints move.
	p.compactOne(g)
	p.compactInto(g, mustWrite, mustWrite, maxHalfEmpty)
	if p.exceedsBound(g) {
		p.compactInto(g, anySlice, anySlice, maxHalfEmpty)
	}
}

// countHalfEmpty returns the number of half-empty slices of g.
func (p *planner) countHalfEmpty(g *group) (n int) {
	for _, s := range g.slices {
		if p.halfEmpty(s) {
			n++
		}
	}
	return n
}

// exceedsBound reports whether g has more slices than the package comment proves for regular
// groups.
func (p *planner) exceedsBound(g *group) bool {
	n := 0
	for _, s := range g.slices {
		if s.size > 0 {
			n++
		}
	}
	ideal := (len(g.wanted) + p.template.Max - 1) / p.template.Max
	return n > 2*ideal+1
}

// compactInto moves the endpoints of half-empty donors, the smallest first, into receivers, until
// the group has no more than enough half-empty slices.
func (p *planner) compactInto(g *group, donor, receiver func(*plannedSlice) bool, enough int) {
	left := p.countHalfEmpty(g)
	for _, s := range p.donors(g, donor) {
		if left <= enough {
			return
		}
		if r := p.receiver(g, s, receiver); r != nil && p.halfEmpty(s) {
			p.move(g, s, r)
			left = p.countHalfEmpty(g)
		}
	}
}

// compactOne moves the endpoints of the smallest untouched slice for which a written and half-empty
// slice has places.
func (p *planner) compactOne(g *group) {
	untouched := func(s *plannedSlice) bool { return !s.mustWrite }
	halfEmptyAndWritten := func(s *plannedSlice) bool { return s.mustWrite && p.halfEmpty(s) }
	for _, s := range p.donors(g, untouched) {
		if r := p.receiver(g, s, halfEmptyAndWritten); r != nil {
			p.move(g, s, r)
			return
		}
	}
}

// donors returns the half-empty slices that can be deleted and that ok approves, the smallest
// first.
func (p *planner) donors(g *group, ok func(*plannedSlice) bool) []*plannedSlice {
	var list []*plannedSlice
	for _, s := range g.slices {
		if s.slice != nil && p.halfEmpty(s) && ok(s) {
			list = append(list, s)
		}
	}
	slices.SortStableFunc(list, func(a, b *plannedSlice) int { return a.size - b.size })
	return list
}

// receiver finds a slice that ok approves and that has places for all of s. It prefers slices that
// are written anyway, then those of the same zone, then the fullest. A receiver of another zone has
// to be half-empty too. It returns nil if there is none.
func (p *planner) receiver(g *group, s *plannedSlice, ok func(*plannedSlice) bool) *plannedSlice {
	rank := func(r *plannedSlice) int {
		n := 0
		if !r.mustWrite {
			n += 2
		}
		if r.domain.zone != s.domain.zone {
			n++
		}
		return n
	}

	var best *plannedSlice
	for _, r := range g.slices {
		if r == s || r.size == 0 || r.size+s.size > p.template.Max || !ok(r) ||
			r.domain.zone != s.domain.zone && !p.halfEmpty(r) {
			continue
		}
		if best == nil || cmp.Or(rank(r)-rank(best), best.size-r.size) < 0 {
			best = r
		}
	}
	return best
}

// move moves all endpoints of from into to.
func (p *planner) move(g *group, from, to *plannedSlice) {
	for _, s := range []*plannedSlice{from, to} {
		if !s.mustWrite {
			p.markForWriting(g, s)
		}
	}
	p.addMembers(to, from.members)
	to.effects.receivesUpdated = to.effects.receivesUpdated || from.effects.conditionsChange ||
		from.effects.receivesUpdated
	from.members, from.size = nil, 0
}
