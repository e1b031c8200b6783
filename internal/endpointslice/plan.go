package endpointslice

import (
	"cmp"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
)

const (
	// maxPerSlice is the API server's own limit of endpoints in one slice.
	maxPerSlice = 1000
	// maxLight is how many slices of a group may rest light.
	maxLight = 2
)

// Plan plans the writes that turn existing, all slices of one ExternalBackend, into slices that
// publish desired and nothing else; the package comment says how. No ip:port may be twice in
// desired. The order of desired and existing does not matter, and neither is changed. Addresses that
// no slice can hold (invalid, IPv4-mapped, with an IPv6 zone) are left out. The layout is nil unless
// the existing slices hold all of desired and nothing else.
func Plan(t Template, desired []Endpoint, existing []*discoveryv1.EndpointSlice) (*Layout, Changes) {
	p := newPlanner(t, newMetadata(&t), desired, existing)
	groups := p.plan()
	return p.layout(t, groups), p.changes()
}

// planner holds one run of Plan.
type planner struct {
	template Template
	metadata metadata
	desired  []Endpoint
	names    map[string]bool // taken names; filled when the first slice is created
	existing []*discoveryv1.EndpointSlice

	create, delete []*discoveryv1.EndpointSlice
	update         []rewrite

	annotation runEncoder
	text       []byte
}

// group is the slices of one address family and list of ports.
type group struct {
	family discoveryv1.AddressType
	key    string
	wanted []int32 // into desired
	slots  []*slot
	// match tells for every endpoint of the existing slices, slot by slot, which wanted one it is; -1:
	// it has to go.
	match []int32
	added []int32 // wanted and in no slice, in the order of fate
}

// slot is a slice of the plan: one that exists or one to be created.
type slot struct {
	slice *discoveryv1.EndpointSlice // nil: to be created
	first int                        // where its part of group.match begins
	size  int                        // endpoints that it will hold

	written  bool // has to be written
	gains    bool // endpoints come in
	flipped  bool // an endpoint that stays changes its conditions
	renamed  bool // only metadata changes
	readies  bool // an endpoint becomes ready, or comes in so
	relaxes  bool // a ready endpoint, or one that traffic goes to where none is, is to be so no more, or goes
	loses    bool // an endpoint goes
	receives bool // takes over the endpoints of a slice that is written once more before
	leaving  bool // being deleted by someone else, only a finalizer keeps it

	members []int32 // into desired; only where written
	// zone and target are the fate of the endpoint in the middle: where most of a slice belongs.
	zone, target string
}

func (s *slot) light(limit int) bool { return s.size > 0 && 2*s.size <= limit }

func newPlanner(t Template, m metadata, desired []Endpoint, existing []*discoveryv1.EndpointSlice) *planner {
	t.Max = min(max(t.Max, 1), maxPerSlice)
	return &planner{template: t, metadata: m, desired: desired, existing: existing}
}

// plan goes through the steps of the package comment.
func (p *planner) plan() []*group {
	groups := p.groups()
	for _, g := range groups {
		p.match(g)
		p.place(g)
		p.fold(g)
		p.render(g)
	}
	return groups
}

// rewrite is a slice to be written anew, and when.
type rewrite struct {
	slice *discoveryv1.EndpointSlice
	turn  int
}

// turn tells when a slice is written among those that are: what adds comes before what takes away,
// and above all what becomes ready before what is to be so no more, so that traffic that moves from
// one slice to another finds an endpoint at all times. early: its endpoints move elsewhere
// afterwards.
func (s *slot) turn(early bool) int {
	more := s.readies || !s.relaxes
	free := !early && !s.receives && !s.loses && s.readies // waits for nobody
	switch {
	case early && s.readies && !s.relaxes:
		return 0
	case free && !s.relaxes:
		return 1
	case free:
		return 2
	case early:
		return 3
	case !s.loses && s.readies && !s.relaxes:
		return 4
	case s.gains && more:
		return 5
	case !s.loses && more:
		return 6
	case s.gains:
		return 7
	case s.readies:
		return 8
	}
	return 9
}

// changes puts the writes into an order that does not depend on that of the input.
func (p *planner) changes() Changes {
	byName := func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(p.create, byName)
	slices.SortFunc(p.delete, byName)
	slices.SortFunc(p.update, func(a, b rewrite) int { return cmp.Or(a.turn-b.turn, byName(a.slice, b.slice)) })
	c := Changes{Create: p.create, Delete: p.delete}
	for _, u := range p.update {
		c.Update = append(c.Update, u.slice)
	}
	return c
}

// fate orders endpoints so that those which are likely to change together stand together: a zone,
// in it a target, in it an SRV rank.
func fate(a, b *Endpoint) int {
	if c := strings.Compare(a.Zone, b.Zone); c != 0 {
		return c
	}
	if c := strings.Compare(a.Target, b.Target); c != 0 {
		return c
	}
	if c := cmp.Compare(a.Rank, b.Rank); c != 0 {
		return c
	}
	return a.Addr.Compare(b.Addr)
}

func (p *planner) sortByFate(list []int32) {
	slices.SortFunc(list, func(a, b int32) int { return fate(&p.desired[a], &p.desired[b]) })
}
