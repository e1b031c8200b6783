package endpointslice

import (
	"cmp"
	"slices"
	"strings"
)

// put adds endpoints to a slice that is written.
func (p *planner) put(s *slot, list []int32) {
	if len(list) > 0 {
		s.members = append(s.members, list...)
		s.size = len(s.members)
		s.gains, s.renamed = true, false
		s.readies = s.readies || slices.ContainsFunc(list, func(j int32) bool { return p.desired[j].Ready })
	}
}

// place gives every addition a slice: steps 2 and 3 of the package comment.
func (p *planner) place(g *group) {
	if len(g.added) == 0 {
		return
	}
	limit := p.template.Max
	var emptied, open []*slot
	room := 0
	for _, s := range g.slots {
		if !s.written || s.leaving {
			continue
		}
		room += limit - s.size
		if s.size == 0 {
			emptied = append(emptied, s)
		} else if s.size < limit {
			open = append(open, s)
		}
	}
	further := (max(0, len(g.added)-room) + limit - 1) / limit

	rest := p.fill(emptied, g.added)
	byTarget := func(zone, target string, s *slot) int {
		return cmp.Or(strings.Compare(zone, s.zone), strings.Compare(target, s.target))
	}
	byZone := func(zone, _ string, s *slot) int { return strings.Compare(zone, s.zone) }
	// What left is replaced first, so that slices keep their sizes. Then the emptiest grow, so that
	// all have some room: the next addition will mostly find it where something is written anyway.
	asBefore := func(s *slot) int { return min(len(s.slice.Endpoints), limit) }
	full := func(*slot) int { return limit }
	for _, home := range []func(zone, target string, s *slot) int{byTarget, byZone} {
		for _, level := range []func(*slot) int{asBefore, full} {
			slices.SortStableFunc(open, func(a, b *slot) int { return cmp.Or(home(a.zone, a.target, b), a.size-b.size) })
			rest = p.fillHome(open, rest, home, level)
		}
	}
	slices.SortStableFunc(open, func(a, b *slot) int { return a.size - b.size })
	must := max(0, len(rest)-further*limit)
	p.fill(open, rest[:must])
	p.cut(g, rest[must:], further)
}

// fill puts as much of list into the slots as they have room for, one after the other, and returns
// what is left.
func (p *planner) fill(slots []*slot, list []int32) (rest []int32) {
	for _, s := range slots {
		n := min(len(list), p.template.Max-s.size)
		if n > 0 && s.size == 0 {
			s.zone, s.target = p.desired[list[n/2]].Zone, p.desired[list[n/2]].Target
		}
		p.put(s, list[:n])
		list = list[n:]
	}
	return list
}

// fillHome puts endpoints into slots of the same fate, told by home, up to the given level; list
// and slots are in the order of fate. It returns what is left.
func (p *planner) fillHome(slots []*slot, list []int32, home func(zone, target string, s *slot) int, level func(*slot) int) (rest []int32) {
	for i := 0; i < len(list); {
		e := &p.desired[list[i]]
		switch {
		case len(slots) == 0:
			return append(rest, list[i:]...)
		case slots[0].size >= level(slots[0]) || home(e.Zone, e.Target, slots[0]) > 0:
			slots = slots[1:]
		case home(e.Zone, e.Target, slots[0]) < 0:
			rest = append(rest, list[i])
			i++
		default:
			p.put(slots[0], list[i:i+1])
			i++
		}
	}
	return rest
}

// cut makes the given number of pieces of list, and finds a slice for each.
func (p *planner) cut(g *group, list []int32, pieces int) {
	for ; len(list) > 0; pieces-- {
		n := p.pieceSize(list, len(list)-(pieces-1)*p.template.Max)
		s := p.roomy(g, list[:n])
		if s == nil {
			s = &slot{written: true, members: make([]int32, 0, n)}
			g.slots = append(g.slots, s)
		}
		p.fill([]*slot{s}, list[:n])
		list = list[n:]
	}
}

// pieceSize returns how much of list to cut off: at least least, at most a full slice, and if
// possible so that a zone, else a target, is not cut.
func (p *planner) pieceSize(list []int32, least int) int {
	most := min(len(list), p.template.Max)
	if most == len(list) {
		return most
	}
	between := 0
	for n := most; n >= max(least, 1); n-- {
		before, after := &p.desired[list[n-1]], &p.desired[list[n]]
		if before.Zone != after.Zone {
			return n
		}
		if between == 0 && before.Target != after.Target {
			between = n
		}
	}
	return cmp.Or(between, most)
}

// roomy finds an untouched slice that has room for all of list, and opens it: the emptiest of the
// same zone, else of the light ones, else of all. nil: there is none.
func (p *planner) roomy(g *group, list []int32) *slot {
	if len(list) == p.template.Max {
		return nil
	}
	zone := p.desired[list[len(list)/2]].Zone
	var best *slot
	rank := func(s *slot) int {
		switch {
		case s.zone == zone:
			return 0
		case s.light(p.template.Max):
			return 1
		}
		return 2
	}
	for _, s := range g.slots {
		if s.written || s.leaving || s.size+len(list) > p.template.Max {
			continue
		}
		if best == nil || cmp.Or(rank(s)-rank(best), s.size-best.size) < 0 {
			best = s
		}
	}
	if best != nil {
		p.open(g, best)
	}
	return best
}
