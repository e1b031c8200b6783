package endpointslice

import (
	"maps"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// Layout says which published slice holds which endpoint. As long as only conditions change, it
// plans the writes without matching endpoints with slices again. A Layout never changes: Refresh
// returns a new one.
type Layout struct {
	template Template
	metadata metadata
	wantedEndpoints
	// slices hold all of the wanted endpoints, each one once, and nothing else. They are sorted by
	// name.
	slices []layoutSlice
	// healthy, parallel to desired, is the health that the slices say.
	healthy []bool
}

// layoutSlice is a slice and the endpoints that it holds.
type layoutSlice struct {
	name string
	// slice says what it should, except for conditions; nil before the first Refresh.
	slice   *discoveryv1.EndpointSlice
	members []int32      // into desired, one for each endpoint of the slice
	marks   []healthMark // what its annotation says of their health; parallel to members
}

func (ls layoutSlice) compareName(name string) int { return strings.Compare(ls.name, name) }

// Healthy reports whether endpoint i is healthy, as its slice says.
func (l *Layout) Healthy(i int) bool { return l.healthy[i] }

// Refresh returns the layout of existing, all slices of the ExternalBackend. ok is false if they,
// or the template, differ from l in more than conditions.
func (l *Layout) Refresh(t *Template, existing []*discoveryv1.EndpointSlice) (next *Layout, ok bool) {
	if len(existing) != len(l.slices) || !sameTemplate(&l.template, t) {
		return nil, false
	}

	next = new(*l)
	next.slices = slices.Clone(l.slices)
	next.healthy = nil
	for _, s := range existing {
		i, found := slices.BinarySearchFunc(next.slices, s.Name, layoutSlice.compareName)
		if !found {
			return nil, false
		}

		ls := &next.slices[i]
		was := ls.slice
		ls.slice = s
		if was != nil && s.ResourceVersion != "" && s.ResourceVersion == was.ResourceVersion && s.UID == was.UID {
			continue
		}
		if !l.matchesExceptConditions(s, ls.members) {
			return nil, false
		}
		if next.healthy == nil {
			next.healthy = make([]bool, len(l.desired))
			copy(next.healthy, l.healthy)
		}
		next.readHealth(ls)
	}
	if next.healthy == nil {
		next.healthy = l.healthy
	}
	return next, true
}

// readHealth reads what a slice says of the health of its endpoints.
func (l *Layout) readHealth(ls *layoutSlice) {
	ls.marks = make([]healthMark, len(ls.members))
	for i, j := range ls.members {
		c := l.conditionsOf(j)
		ls.marks[i] = c.healthMark()
		_, l.healthy[j], _ = readConditions(&ls.slice.Endpoints[i])
		if ls.marks[i] != healthAsServing {
			l.healthy[j] = c.Healthy
		}
	}
}

// matchesExceptConditions reports whether s says what it should of members, except for conditions.
// What its annotation says of their health has to be what the plan before wanted.
func (l *Layout) matchesExceptConditions(s *discoveryv1.EndpointSlice, members []int32) bool {
	first := &l.desired[members[0]]
	if s.DeletionTimestamp != nil || len(s.Endpoints) != len(members) || s.AddressType != addressFamily(first.Addr) ||
		!slices.Equal(portsOf(s), first.Ports) {
		return false
	}
	var annotation annotationEncoder
	for i, j := range members {
		have, want := &s.Endpoints[i], &l.desired[j]
		if !sameEndpoint(have, want, &l.template) {
			return false
		}
		annotation.add(want, l.conditionsOf(j), have.Addresses[0])
	}
	return l.metadata.matches(&s.ObjectMeta, annotation.bytes())
}

// sameTemplate compares what can change in the life of one ExternalBackend.
func sameTemplate(a, b *Template) bool {
	owners := a.Owner == b.Owner || a.Owner != nil && b.Owner != nil && sameOwner(a.Owner, b.Owner)
	return owners && maps.Equal(a.Labels, b.Labels) && a.Headless == b.Headless && a.ZoneHints == b.ZoneHints &&
		a.NodeHints == b.NodeHints && a.Max == b.Max
}

// UpdateConditions plans the writes that bring conditions, which are parallel to the endpoints that
// [Plan] was called with, into the slices. The next layout expects them there.
func (l *Layout) UpdateConditions(conditions []Conditions) (next *Layout, changes Changes) {
	next = new(*l)
	next.conditions = conditions
	p := newPlanner(l.template, l.metadata, next.wantedEndpoints, nil)
	for i := range l.slices {
		p.updateConditions(&l.slices[i])
	}
	return next, p.changes()
}

// updateConditions updates a slice if conditions have changed, or health that its annotation holds.
func (p *planner) updateConditions(ls *layoutSlice) {
	s := plannedSlice{slice: ls.slice}
	for i, j := range ls.members {
		s.effects.noteConditions(&ls.slice.Endpoints[i], p.conditionsOf(j))
		s.mustWrite = s.mustWrite || p.conditionsOf(j).healthMark() != ls.marks[i]
	}
	if s.mustWrite || s.effects.conditionsChange {
		s.members = slices.Clone(ls.members)
		p.updateSlice(ls.slice.AddressType, &s)
	}
}
