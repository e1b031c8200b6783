package plan

import (
	"maps"
	"slices"

	"github.com/external-backend/operator/internal/endpointslice"
)

// Cache is what one plan hands on to the next one of the same ExternalBackend. As long as nothing
// but verdicts changes, the candidates stay as they are, and so does the layout of the slices that
// hold them. Then a plan only compares conditions, and builds the slices that it writes. Everything
// else is planned from the beginning. The result is the same either way. The zero Cache is empty.
type Cache struct {
	inputs     *inputs // nil: nothing is cached
	template   endpointslice.Template
	candidates Candidates
	// layout is that of the slices that hold the candidates; nil if they hold anything else.
	layout *endpointslice.Layout
	// published is what Slices plans from.
	published *endpointslice.PublishedEndpoints
}

// inputs are everything that candidates depend on, except the published endpoints.
type inputs struct {
	generation int64 // of the spec
	override   AppliedOverride
	families   Families
	headless   bool
	serves     []bool // by spec.ports
	answers    map[string]Answer
	rules      any
	max        int
}

// Candidates decides which endpoints may be published, by the rules of [buildCandidates]. Slices of
// the template will hold them.
func (pc *Cache) Candidates(in Input, t endpointslice.Template) Candidates {
	now := inputsOf(&in)
	if layout := pc.stillValid(&in, now, &t); layout != nil {
		c := pc.candidates
		c.layout = layout
		return c
	}
	*pc = Cache{template: t, published: in.Published}
	c := buildCandidates(in)
	if alone(&in) && c.nextDrainEnd.IsZero() && !c.keepsPublished {
		pc.inputs, pc.candidates = now, c
		pc.candidates.attributed = nil
	}
	return c
}

// Slices plans the slices that hold the candidates of the last call, with these conditions. The
// cache then describes them.
func (pc *Cache) Slices(c *Candidates, conditions []Conditions) endpointslice.Changes {
	if c.layout != nil {
		layout, changes := c.layout.UpdateConditions(conditions)
		pc.layout = layout
		return changes
	}
	layout, changes := endpointslice.Plan(pc.template, c.Endpoints, conditions, pc.published.Slices())
	pc.published = nil
	if pc.layout = layout; pc.inputs == nil || layout == nil { // the next plan begins from the beginning
		pc.inputs, pc.candidates, pc.layout = nil, Candidates{}, nil
	}
	return changes
}

// alone reports whether nobody else decides what the ExternalBackend may publish. Younger siblings
// don't matter: they win only over leaving endpoints, and candidates with these are not cached. The
// other endpoints of siblings only lend their health to addresses that are published for the first
// time.
func alone(in *Input) bool {
	claims := func(s Sibling) bool { return s.Older && len(s.Endpoints) > 0 }
	return !slices.ContainsFunc(in.Siblings, claims) && !in.Published.HasHandover()
}

func inputsOf(in *Input) *inputs {
	now := &inputs{
		generation: in.Backend.Generation, override: in.Override, families: in.Families, headless: in.Headless,
		answers: in.Answers, rules: in.Rules, max: in.Max,
	}
	for i := range in.Backend.Spec.Ports {
		now.serves = append(now.serves, in.ServesPort(&in.Backend.Spec.Ports[i]))
	}
	return now
}

func (a *inputs) equal(b *inputs) bool {
	return a.generation == b.generation && a.override == b.override &&
		a.families == b.families && a.headless == b.headless &&
		a.max == b.max && a.rules == b.rules &&
		slices.Equal(a.serves, b.serves) && maps.EqualFunc(a.answers, b.answers, sameAnswer)
}

func sameAnswer(a, b Answer) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Cause == b.Cause && a.Omitted == b.Omitted &&
		a.Refusal == b.Refusal && slices.Equal(a.Addrs, b.Addrs)
}

// stillValid returns the layout of the published slices where the candidates of the plan before are
// those of this one: nothing that they follow from has changed, and the slices publish them and
// nothing else. It returns nil where that is not so.
func (pc *Cache) stillValid(in *Input, now *inputs, t *endpointslice.Template) *endpointslice.Layout {
	if pc.layout == nil || !alone(in) || !pc.inputs.equal(now) {
		return nil
	}
	layout, _ := pc.layout.Refresh(t, in.Published.Slices())
	return layout
}
