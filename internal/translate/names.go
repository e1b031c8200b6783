package translate

import (
	"cmp"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/resolve"
)

// Names are the names by which targets are given.
type Names struct {
	backend *v1alpha1.ExternalBackend
	// published is what the slices publish.
	published *endpointslice.PublishedEndpoints
	// questions are to be looked up, by target. refusals are what policy says about the names
	// themselves. A name that it refuses is not looked up, because a query, too, reaches somebody.
	questions map[string]resolve.Question
	refusals  map[string]plan.Refusal
}

// NamesOf returns the names of b's targets, and what policy says about each. published is what the
// slices publish.
func NamesOf(
	b *v1alpha1.ExternalBackend, view *policy.View, f plan.Families, published *endpointslice.PublishedEndpoints,
) Names {
	out := Names{
		backend: b, published: published,
		questions: map[string]resolve.Question{}, refusals: map[string]plan.Refusal{},
	}
	for i := range b.Spec.Targets {
		t := &b.Spec.Targets[i]
		name := cmp.Or(t.Hostname, t.SRVName)
		if name == "" || t.AdminState == v1alpha1.AdminStateDisabled {
			continue
		}
		var ports []policy.Port
		if t.SRVName == "" { // else the SRV records have the ports
			ports = TargetPorts(b, t)
		}
		refusal := RefusalOf(view.Lookup(name, ports...))
		out.refusals[t.Name] = refusal
		if !refusal.Denied {
			out.questions[t.Name] = resolve.Question{Name: name, SRV: t.SRVName != "", Families: Families(f)}
		}
	}
	return out
}

// publishedAddrs returns the published addresses of the targets that choose accepts, by target.
func (n *Names) publishedAddrs(choose func(target string) bool) map[string][]resolve.Addr {
	out := map[string][]resolve.Addr{}
	for target, addrs := range plan.PublishedAddrs(n.backend, n.published) {
		if _, asked := n.questions[target]; !asked || !choose(target) {
			continue
		}
		for _, a := range addrs {
			out[target] = append(out[target], resolve.Addr(a))
		}
	}
	return out
}

// Wanted returns the names that the resolver is to keep current. Only at the start do the published
// addresses count as the last good answer of a name. Later the resolver knows better, and a target
// whose name was changed must not keep the addresses of the former name.
func (n *Names) Wanted(start bool) []resolve.Wanted {
	var published map[string][]resolve.Addr
	if start {
		published = n.publishedAddrs(func(string) bool { return true })
	}
	out := make([]resolve.Wanted, 0, len(n.questions))
	for target, question := range n.questions {
		out = append(out, resolve.Wanted{Question: question, Seed: published[target]})
	}
	return out
}

// Answers turns the snapshot of the resolver into one answer for each target. Until a changed name
// has its first answer, its target keeps its published addresses.
func (n *Names) Answers(snapshot map[resolve.Question]resolve.Answer) map[string]plan.Answer {
	out := make(map[string]plan.Answer, len(n.refusals))
	for target, refusal := range n.refusals {
		if refusal.Denied {
			out[target] = plan.Answer{Status: plan.AnswerCurrent, Refusal: refusal}
		}
	}

	waiting := map[string]bool{}
	for target, question := range n.questions {
		a, ok := snapshot[question]
		if !ok || a.Status == resolve.Pending && len(a.Addrs) == 0 {
			waiting[target] = true
			a = resolve.Answer{Status: resolve.Pending}
		}
		out[target] = Answer(&a, n.refusals[target])
	}
	if len(waiting) == 0 {
		return out
	}

	for target, addrs := range n.publishedAddrs(func(target string) bool { return waiting[target] }) {
		out[target] = Answer(&resolve.Answer{Status: resolve.Pending, Addrs: addrs}, n.refusals[target])
	}
	return out
}
