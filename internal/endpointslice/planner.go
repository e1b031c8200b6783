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
	// maxHalfEmpty is how many half-empty slices of a group may remain.
	maxHalfEmpty = 2
)

// planner holds one run of Plan.
type planner struct {
	template Template
	metadata metadata
	wantedEndpoints
	existing []*discoveryv1.EndpointSlice
	// assigned says of each desired endpoint whether an existing slice keeps it.
	assigned []bool
	// names are those that are taken; filled when the first slice is created.
	names map[string]bool

	create, delete []*discoveryv1.EndpointSlice
	update         []sliceUpdate

	annotation annotationEncoder
}

// wantedEndpoints are endpoints and their conditions.
type wantedEndpoints struct {
	desired    []Endpoint
	conditions []Conditions // parallel to desired; nil: each endpoint has its own
}

// conditionsOf returns the conditions that endpoint i shall have.
func (w *wantedEndpoints) conditionsOf(i int32) *Conditions {
	if w.conditions == nil {
		return &w.desired[i].Conditions
	}
	return &w.conditions[i]
}

// group is the slices of one address family and list of ports.
type group struct {
	family discoveryv1.AddressType
	ports  []Port
	key    string // of family and ports
	// The names of new slices are namePrefix, which is empty until the first one, and a number.
	namePrefix string
	nextNumber int

	wanted []int32 // into desired
	slices []*plannedSlice
	// match says for every endpoint of the existing slices, slice by slice, which of desired it is;
	// -1: none, or another slice keeps it, so it is removed.
	match []int32
	// added are the wanted endpoints that no slice holds, ordered by failure domain.
	added []int32
}

// plannedSlice is a slice of the plan: one that exists or one to be created.
type plannedSlice struct {
	slice *discoveryv1.EndpointSlice // nil: to be created
	first int                        // where its part of group.match begins
	size  int                        // how many endpoints it will hold

	// mustWrite means that the slice has to be written. onlyMetadata means that only its metadata
	// changes.
	mustWrite, onlyMetadata bool
	// deleting means that someone else deletes it and only a finalizer keeps it.
	deleting bool
	effects  effects

	members []int32 // into desired; only if mustWrite
	// domain is that of the endpoint in the middle, which stands for most of the slice.
	domain failureDomain
}

// failureDomain is what endpoints have in common that are likely to fail together.
type failureDomain struct{ zone, target string }

func domainOf(e *Endpoint) failureDomain { return failureDomain{e.Zone, e.Target} }

func newPlanner(t Template, m metadata, w wantedEndpoints, existing []*discoveryv1.EndpointSlice) *planner {
	t.Max = min(max(t.Max, 1), maxPerSlice)
	return &planner{template: t, metadata: m, wantedEndpoints: w, existing: existing}
}

func (p *planner) halfEmpty(s *plannedSlice) bool { return s.size > 0 && 2*s.size <= p.template.Max }

func (p *planner) sortByFailureDomain(list []int32) {
	slices.SortFunc(list, func(a, b int32) int { return compareByFailureDomain(&p.desired[a], &p.desired[b]) })
}

// compareByFailureDomain puts endpoints that are likely to change together next to each other: it
// orders them by zone, then target, then SRV rank.
func compareByFailureDomain(a, b *Endpoint) int {
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

// changes sorts the writes, so that their order does not depend on that of the input.
func (p *planner) changes() Changes {
	byName := func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(p.create, byName)
	slices.SortFunc(p.delete, byName)
	slices.SortFunc(p.update, func(a, b sliceUpdate) int {
		return cmp.Or(a.phase-b.phase, byName(a.slice, b.slice))
	})

	c := Changes{Create: p.create, Delete: p.delete}
	for _, u := range p.update {
		c.Update = append(c.Update, u.slice)
	}
	return c
}
