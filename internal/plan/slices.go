// Package plan decides what an ExternalBackend publishes, and which writes lead there: specs,
// observations and existing objects come in, objects and changes go out. It knows no clock, no
// client and no goroutine.
//
// # The fewest writes
//
// Every write of an EndpointSlice goes to every node of the cluster, and its endpoints can only be
// written all at once. A group is an address family and a list of ports; a slice belongs to one
// group. Within a group of n endpoints, B to a slice, ideal = ceil(n/B), [Slices]
//
//  1. matches what is published with what is wanted. The k slices that hold something to be
//     removed or changed have to be written, whatever the layout;
//  2. places the A additions: into emptied slices, then where their target or their zone is at
//     home among the k, then as many elsewhere among the
//     k as would not fit into ceil(max(0, A-F)/B) further slices, F being the room in the k;
//  3. cuts the rest, in the order of their fate, into just that many pieces. A piece goes into an
//     untouched slice that has room for all of it, else it becomes a slice;
//  4. folds: a slice that is light (at most half full, 2 x size <= B) moves as a whole into
//     another one that is written anyway, and is deleted instead of being written.
//     One of which nothing but metadata changes stays: a new owner or label moves no endpoint;
//  5. folds one untouched light slice more where otherwise over two light ones would remain.
//
// Writes. Every one of the k is written or deleted, once, by 1 and 4; 3 touches ceil(max(0, A-F)/B)
// others, and fewer would not hold the additions: that is W*, and without 5 it is the price. 5
// costs one deletion more: its receiver is being written already.
//
// Slices. Two light slices fit into one, so 4 leaves at most one light slice among those that were
// there and are written; the pieces waste less than B places together, so at most one new slice is
// light, and 4 folds the former into it. So at most one light slice is written, beside those of
// which only metadata changes. With the two that the plan before left there are three, and 5 makes
// them two. Now let h slices be more than half full: n > hB/2, so 2 x ideal > h, and with the light
// ones there are at most h + 2 <= 2 x ideal + 1. Where the bound is broken all the same (the cap
// was raised, slices were edited by hand), folding goes on, at its price, until two light ones are
// left.
//
// Between the writes. Endpoints move in two ways only: with a light slice, which is deleted last,
// and out of a slice that holds more than B (the cap was lowered), which is written after all that
// gain something. So nothing wanted is missing at any time, and after a crash the doubled endpoints
// count as published in the slice with most of them. Of the updates those come first that make
// endpoints ready, and last those that only take readiness away: a tier hands over to another one
// without a moment in which none is ready. A moved endpoint says the same in both slices: a slice
// whose endpoints change their conditions is no donor while others are to be had. It becomes one
// only where three light slices or more, with changes in all of them, would remain, and then it is
// written before all others, with the new conditions, and deleted last: a write beyond W*, which is
// the price of that compaction.
package plan

import (
	"cmp"
	"net/netip"
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

// Slices plans the writes that turn existing, all slices of one ExternalBackend, into slices that
// publish desired and nothing else; the package comment says how. No ip:port may be twice in
// desired; its order is of no account, nor is that of existing, and neither is changed. Addresses
// that no slice can hold (invalid, IPv4-mapped, with an IPv6 zone) are left out.
func Slices(t SliceTemplate, desired []Endpoint, existing []*discoveryv1.EndpointSlice) SliceChanges {
	p := newPlanner(t, newSliceMetadata(&t), desired, existing)
	p.plan()
	return p.changes()
}

// Strands reports whether replacing the slice current by next (nil: deleting it) would leave an
// endpoint unpublished that one of the writes that failed was to publish elsewhere, be it with
// other ports. Such a write has to wait for the next plan; all others go on after a failure.
func Strands(current, next *discoveryv1.EndpointSlice, failed []*discoveryv1.EndpointSlice) bool {
	if len(failed) == 0 {
		return false
	}
	for i := range current.Endpoints {
		addr, ok := firstAddress(&current.Endpoints[i])
		if !ok || next != nil && publishes(next, addr) {
			continue
		}
		for _, f := range failed {
			if f.AddressType == current.AddressType && publishes(f, addr) {
				return true
			}
		}
	}
	return false
}

// Follow is what standing, endpoints that can't be taken away yet, should say: what desired says of
// the same target at the same address, whatever its ports. What is desired no more is not among
// them.
func Follow(standing, desired []Endpoint) []Endpoint {
	at := make(map[netip.Addr][]*Endpoint, len(desired))
	for i := range desired {
		at[desired[i].Addr] = append(at[desired[i].Addr], &desired[i])
	}
	var out []Endpoint
	for _, e := range standing {
		var heir *Endpoint
		likeness := -1
		for _, h := range at[e.Addr] {
			if n := 2*count(h.Target == e.Target) + count(sameFirstPort(h, &e)); n > likeness {
				heir, likeness = h, n
			}
		}
		if heir != nil {
			ports := e.Ports
			e = *heir
			e.Ports = ports
			out = append(out, e)
		}
	}
	return out
}

// sameFirstPort compares the ports that tell endpoints of one address apart. Someone may have taken
// a slice's ports away.
func sameFirstPort(a, b *Endpoint) bool {
	return len(a.Ports) > 0 && len(b.Ports) > 0 && a.Ports[0].Port == b.Ports[0].Port
}

// Readies reports whether writing next over current (nil: as a new slice) makes an endpoint ready.
func Readies(current, next *discoveryv1.EndpointSlice) bool {
	was := readiness(current)
	for addr, ready := range readiness(next) {
		if ready && !was[addr] {
			return true
		}
	}
	return false
}

// KeepReady leaves those endpoints of next ready that are so in current and stay healthy: their
// traffic is to be another one's, which could not be made ready.
func KeepReady(current, next *discoveryv1.EndpointSlice) {
	was := readiness(current)
	var annotation runEncoder
	for i, e := range readEndpoints(next, attributions(next, nil)) {
		address := next.Endpoints[i].Addresses[0]
		if was[address] && e.Healthy && !e.Terminating {
			e.Ready, e.Serving = true, true
			next.Endpoints[i].Conditions.Ready, next.Endpoints[i].Conditions.Serving = new(true), new(true)
		}
		annotation.add(e, address)
	}
	next.Annotations[annotationEndpoints] = string(annotation.bytes())
}

// readiness tells of each address in s, which may be nil, whether it is ready.
func readiness(s *discoveryv1.EndpointSlice) map[string]bool {
	ready := map[string]bool{}
	if s == nil {
		return ready
	}
	for i := range s.Endpoints {
		if e := &s.Endpoints[i]; len(e.Addresses) > 0 {
			ready[e.Addresses[0]] = orTrue(e.Conditions.Ready)
		}
	}
	return ready
}

// HandedOn reports whether an address is ready in standing that is to be so in desired.
func HandedOn(standing, desired []Endpoint) bool {
	ready := make(map[netip.Addr]bool, len(desired))
	for i := range desired {
		ready[desired[i].Addr] = ready[desired[i].Addr] || desired[i].Ready
	}
	return slices.ContainsFunc(standing, func(e Endpoint) bool { return e.Ready && ready[e.Addr] })
}

func publishes(s *discoveryv1.EndpointSlice, addr netip.Addr) bool {
	return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool {
		a, ok := firstAddress(&e)
		return ok && a == addr
	})
}

// planner holds one run of Slices.
type planner struct {
	template SliceTemplate
	metadata sliceMetadata
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

func newPlanner(t SliceTemplate, m sliceMetadata, desired []Endpoint, existing []*discoveryv1.EndpointSlice) *planner {
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
func (p *planner) changes() SliceChanges {
	byName := func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(p.create, byName)
	slices.SortFunc(p.delete, byName)
	slices.SortFunc(p.update, func(a, b rewrite) int { return cmp.Or(a.turn-b.turn, byName(a.slice, b.slice)) })
	c := SliceChanges{Create: p.create, Delete: p.delete}
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
