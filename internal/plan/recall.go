package plan

import (
	"maps"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// Recall is what one plan hands on to the next one of the same ExternalBackend. As long as nothing
// changes but verdicts, the candidates stay as they are, and so do the slices that hold them: a
// plan is then a look at every endpoint's conditions, and builds the slices that it writes.
// Whatever else changes is planned from the beginning. What comes out is the same either way. The
// zero Recall recalls nothing.
type Recall struct {
	basis      *basis // nil: nothing can be recalled
	template   SliceTemplate
	metadata   sliceMetadata
	candidates Candidates
	// held are the slices that hold the candidates, each of these once, and nothing else, by their
	// names; nil where this is not so.
	held map[string]*heldSlice
	// existing is for Slices to plan on.
	existing []*discoveryv1.EndpointSlice
}

// basis is what candidates follow from, beside what stands.
type basis struct {
	generation int64 // of the spec
	families   Families
	headless   bool
	serves     []bool // by spec.ports
	answers    map[string]Answer
	rules      any
	max        int
}

// heldSlice is a slice whose endpoints are candidates.
type heldSlice struct {
	// slice says just what it should, but for conditions; nil where nobody has looked yet.
	slice   *discoveryv1.EndpointSlice
	members []int32      // into the candidates, one for each endpoint
	marks   []healthMark // what its annotation tells of their health; parallel to members
}

// Candidates decides which endpoints may be published.
//
//  1. Every target that is not Disabled yields an endpoint for each of its addresses that policy
//     allows and whose family the Service serves.
//  2. A published endpoint whose address has left spec or DNS stays for drainSeconds, unless policy
//     refuses it. After a restart one that is Unread stays as it is while a name has no answer that
//     may have led to it.
//  3. Of two claimants of one ip:port for one Service port one wins whole: an older
//     ExternalBackend's, then the lower tier,
//     then Active before Draining, then the target's name. A leaving address loses to all others, a younger
//     ExternalBackend's included.
//  4. At most Max endpoints are published: first what is published already, then what is new,
//     last what is leaving.
//
// Slices of the template are to hold them. They are good until the next call: Publish writes their
// conditions, be they recalled or new.
func (r *Recall) Candidates(in Input, t SliceTemplate) Candidates {
	b := basisOf(&in)
	if r.candidates.again = r.stands(&in, b, &t); r.candidates.again {
		return r.candidates
	}
	*r = Recall{existing: in.Published.slices}
	c := findCandidates(in)
	if alone(&in) && c.next.IsZero() && !c.keeps {
		r.basis, r.candidates = b, c
	}
	r.template, r.metadata = t, newSliceMetadata(&t)
	return c
}

// Slices is [Slices] for the candidates of the last call, in their order, with conditions.
func (r *Recall) Slices(desired []Endpoint) SliceChanges {
	p := newPlanner(r.template, r.metadata, desired, r.existing)
	r.existing = nil
	if r.candidates.again {
		for _, h := range r.held {
			p.flip(h)
		}
		return p.changes()
	}
	if groups := p.plan(); r.basis != nil {
		r.held = p.layout(groups)
	}
	if r.held == nil { // the next plan begins from the beginning
		r.basis, r.candidates = nil, Candidates{}
	}
	return p.changes()
}

// alone: nobody else decides what the ExternalBackend may publish. What stands beside it says
// something only of addresses that it does not publish yet.
func alone(in *Input) bool { return len(in.OlderSiblings)+len(in.Published.elsewhere) == 0 }

func basisOf(in *Input) *basis {
	b := &basis{
		generation: in.Backend.Generation, families: in.Families, headless: in.Headless, answers: in.Answers, rules: in.Rules, max: in.Max,
	}
	for i := range in.Backend.Spec.Ports {
		b.serves = append(b.serves, in.ServesPort(&in.Backend.Spec.Ports[i]))
	}
	return b
}

func (b *basis) equal(o *basis) bool {
	return b.generation == o.generation && b.families == o.families && b.headless == o.headless && b.max == o.max && b.rules == o.rules &&
		slices.Equal(b.serves, o.serves) && maps.EqualFunc(b.answers, o.answers, sameAnswer)
}

func sameAnswer(a, b Answer) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Cause == b.Cause && a.Omitted == b.Omitted && a.Refusal == b.Refusal && slices.Equal(a.Addrs, b.Addrs)
}

// sameTemplate compares what can change in the life of one ExternalBackend.
func sameTemplate(a, b *SliceTemplate) bool {
	owners := a.Owner == b.Owner || a.Owner != nil && b.Owner != nil && sameOwner(a.Owner, b.Owner)
	return owners && maps.Equal(a.Labels, b.Labels) && a.Headless == b.Headless && a.ZoneHints == b.ZoneHints && a.NodeHints == b.NodeHints && a.Max == b.Max
}

// stands reports whether the candidates of the plan before are those of this one: nothing that they
// follow from has changed, and just they are published, by slices of the template. It takes the
// slices of today over; where it reports false, half of them, and the Recall is good for nothing
// more.
func (r *Recall) stands(in *Input, b *basis, t *SliceTemplate) bool {
	existing := in.Published.slices
	if r.held == nil || len(existing) != len(r.held) || !alone(in) || !sameTemplate(&r.template, t) || !r.basis.equal(b) {
		return false
	}
	for _, s := range existing {
		if h := r.held[s.Name]; h == nil || !r.holds(h, s) {
			return false
		}
	}
	return true
}

// holds takes s over for h, and reports whether it is the slice that it was, or says the same, but
// for conditions.
func (r *Recall) holds(h *heldSlice, s *discoveryv1.EndpointSlice) bool {
	was := h.slice
	h.slice = s
	if was != nil && s.ResourceVersion != "" && s.ResourceVersion == was.ResourceVersion && s.UID == was.UID {
		return true
	}
	if !r.says(s, h.members) {
		return false
	}
	if h.marks == nil {
		h.marks = make([]healthMark, 0, len(h.members))
	}
	h.marks = h.marks[:0]
	for i, j := range h.members {
		e, o := &r.candidates.Endpoints[j], &r.candidates.origins[j]
		mark := e.healthMark()
		h.marks = append(h.marks, mark)
		o.published, o.unread = o.probed(), false
		_, o.healthy, _ = conditionsOf(&s.Endpoints[i])
		if mark != healthAsServing {
			o.healthy = e.Healthy
		}
	}
	return true
}

// says reports whether s says just what it should of members, but for conditions. What its
// annotation says of their health is to be what the plan before wanted.
func (r *Recall) says(s *discoveryv1.EndpointSlice, members []int32) bool {
	first := &r.candidates.Endpoints[members[0]]
	if s.DeletionTimestamp != nil || len(s.Endpoints) != len(members) || s.AddressType != addressFamily(first.Addr) ||
		!slices.EqualFunc(portsOf(s, nil), sortedPorts(first.Ports), samePort) {
		return false
	}
	var annotation runEncoder
	for i, j := range members {
		have, want := &s.Endpoints[i], &r.candidates.Endpoints[j]
		if !sameEndpoint(have, want, &r.template) {
			return false
		}
		annotation.add(want, have.Addresses[0])
	}
	return r.metadata.in(&s.ObjectMeta, annotation.bytes())
}

// layout tells which slices hold what, where they hold all that is wanted and nothing else, and
// none is left to be folded. What no slice can hold is of no account.
func (p *planner) layout(groups []*group) map[string]*heldSlice {
	held := make(map[string]*heldSlice, len(p.existing))
	for _, g := range groups {
		if p.lights(g) > maxLight {
			return nil
		}
		for _, s := range g.slots {
			if s.slice == nil || s.size == 0 || s.size != len(s.slice.Endpoints) {
				return nil
			}
			members := g.match[s.first : s.first+s.size]
			if slices.Contains(members, -1) {
				return nil
			}
			held[s.slice.Name] = &heldSlice{members: members}
		}
	}
	return held
}

// flip rewrites a slice that holds what it should where conditions have changed, or health that its
// annotation tells.
func (p *planner) flip(h *heldSlice) {
	s := slot{slice: h.slice}
	for i, j := range h.members {
		s.compare(&h.slice.Endpoints[i], &p.desired[j])
		s.written = s.written || p.desired[j].healthMark() != h.marks[i]
	}
	if s.written || s.flipped {
		s.members = slices.Clone(h.members)
		p.rewrite(&group{family: h.slice.AddressType}, &s, false)
	}
}
