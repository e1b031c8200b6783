package endpointslice

import (
	"cmp"
	"slices"
	"strings"
)

// placeAdded gives every added endpoint a slice: steps 2 and 3 of the package comment.
func (p *planner) placeAdded(g *group) {
	if len(g.added) == 0 {
		return
	}
	limit := p.template.Max
	var emptied, open []*plannedSlice
	free := 0
	for _, s := range g.slices {
		switch {
		case !s.mustWrite || s.deleting:
			continue
		case s.size == 0:
			emptied = append(emptied, s)
		case s.size < limit:
			open = append(open, s)
		}
		free += limit - s.size
	}
	further := (max(0, len(g.added)-free) + limit - 1) / limit

	rest := p.fill(emptied, g.added)
	rest = p.fillByFailureDomain(open, rest)
	slices.SortStableFunc(open, func(a, b *plannedSlice) int { return a.size - b.size })
	must := max(0, len(rest)-further*limit)
	p.fill(open, rest[:must])
	p.cut(g, rest[must:], further)
}

// fill puts as much of list into the slices as they have places for, one after the other, and
// returns the rest.
func (p *planner) fill(list []*plannedSlice, endpoints []int32) (rest []int32) {
	for _, s := range list {
		n := min(len(endpoints), p.template.Max-s.size)
		if n > 0 && s.size == 0 {
			s.domain = domainOf(&p.desired[endpoints[n/2]])
		}
		p.addMembers(s, endpoints[:n])
		endpoints = endpoints[n:]
	}
	return endpoints
}

// fillByFailureDomain puts endpoints, which are ordered by failure domain, into slices of the same
// target, then of the same zone, and returns the rest.
//
// New endpoints first replace those that have left, so that slices keep their sizes. Then the
// emptiest slices grow, so that all keep some free places: the next new endpoint mostly finds one
// in a slice that is written anyway.
func (p *planner) fillByFailureDomain(list []*plannedSlice, endpoints []int32) (rest []int32) {
	byZone := func(a, b failureDomain) int { return strings.Compare(a.zone, b.zone) }
	byTarget := func(a, b failureDomain) int { return cmp.Or(byZone(a, b), strings.Compare(a.target, b.target)) }
	sizeBefore := func(s *plannedSlice) int { return min(len(s.slice.Endpoints), p.template.Max) }
	full := func(*plannedSlice) int { return p.template.Max }

	for _, compare := range []func(a, b failureDomain) int{byTarget, byZone} {
		for _, level := range []func(*plannedSlice) int{sizeBefore, full} {
			slices.SortStableFunc(list, func(a, b *plannedSlice) int {
				return cmp.Or(compare(a.domain, b.domain), a.size-b.size)
			})
			endpoints = p.fillMatching(list, endpoints, compare, level)
		}
	}
	return endpoints
}

// fillMatching puts endpoints into slices for which compare returns 0, up to the given level. Both
// lists are ordered by compare. It returns the rest.
func (p *planner) fillMatching(
	list []*plannedSlice, endpoints []int32, compare func(a, b failureDomain) int, level func(*plannedSlice) int,
) (rest []int32) {
	for i := 0; i < len(endpoints); {
		if len(list) == 0 {
			return append(rest, endpoints[i:]...)
		}
		s := list[0]
		switch order := compare(domainOf(&p.desired[endpoints[i]]), s.domain); {
		case s.size >= level(s) || order > 0:
			list = list[1:]
		case order < 0:
			rest = append(rest, endpoints[i])
			i++
		default:
			p.addMembers(s, endpoints[i:i+1])
			i++
		}
	}
	return rest
}

// cut makes the given number of pieces of list, and finds a slice for each.
func (p *planner) cut(g *group, list []int32, pieces int) {
	for ; len(list) > 0; pieces-- {
		n := p.pieceSize(list, len(list)-(pieces-1)*p.template.Max)
		s := p.findRoom(g, list[:n])
		if s == nil {
			s = &plannedSlice{mustWrite: true, members: make([]int32, 0, n)}
			g.slices = append(g.slices, s)
		}
		p.fill([]*plannedSlice{s}, list[:n])
		list = list[n:]
	}
}

// pieceSize returns how much of list to cut off: at least least and at most a full slice. If
// possible, it does not cut through a zone, else not through a target.
func (p *planner) pieceSize(list []int32, least int) int {
	most := min(len(list), p.template.Max)
	if most == len(list) {
		return most
	}
	betweenTargets := 0
	for n := most; n >= max(least, 1); n-- {
		before, after := &p.desired[list[n-1]], &p.desired[list[n]]
		if before.Zone != after.Zone {
			return n
		}
		if betweenTargets == 0 && before.Target != after.Target {
			betweenTargets = n
		}
	}
	return cmp.Or(betweenTargets, most)
}

// findRoom finds an untouched slice that has places for all of list, and marks it as written. It
// prefers the emptiest of the same zone, then of the half-empty ones, then of all. It returns nil
// if there is none.
func (p *planner) findRoom(g *group, list []int32) *plannedSlice {
	if len(list) == p.template.Max {
		return nil
	}
	zone := p.desired[list[len(list)/2]].Zone
	rank := func(s *plannedSlice) int {
		switch {
		case s.domain.zone == zone:
			return 0
		case p.halfEmpty(s):
			return 1
		}
		return 2
	}

	var best *plannedSlice
	for _, s := range g.slices {
		if s.mustWrite || s.deleting || s.size+len(list) > p.template.Max {
			continue
		}
		if best == nil || cmp.Or(rank(s)-rank(best), s.size-best.size) < 0 {
			best = s
		}
	}
	if best != nil {
		p.markForWriting(g, best)
	}
	return best
}
