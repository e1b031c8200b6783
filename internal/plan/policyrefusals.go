package plan

import (
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/external-backend/operator/api/v1alpha1"
)

// PolicyRefusals say whether policy refuses something that an ExternalBackend names.
type PolicyRefusals struct {
	// Refused reports whether it refuses a target or a nameserver. WouldRefuse reports whether
	// policies in mode Audit would refuse one, if they alone were in force. Both may be true.
	Refused, WouldRefuse bool
}

// RefusalsOf returns what a status says about them. One with Refused may hide WouldRefuse.
func RefusalsOf(s *v1alpha1.ExternalBackendStatus) PolicyRefusals {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionPermitted)
	return PolicyRefusals{
		Refused:     meta.IsStatusConditionFalse(s.Conditions, v1alpha1.ConditionPermitted),
		WouldRefuse: c != nil && c.Reason == v1alpha1.ReasonWouldDeny,
	}
}

// isAudited reports whether policies in mode Audit would refuse something.
func (w *statusWriter) isAudited() bool {
	return w.NameserverAudited != "" || w.listTargets(func(n *TargetNotes) string { return n.Audited }) != ""
}

// restoreRefusals takes over from the previous status why policy refuses a name that has no answer.
// It holds until there is an answer, as everything else about a name does after a restart.
func (w *statusWriter) restoreRefusals() {
	if w.Previous.ObservedGeneration != w.Backend.Generation {
		return
	}
	var notes []TargetNotes // a copy: those of the candidates may be cached
	for i := range w.Candidates.Notes {
		n := &w.Candidates.Notes[i]
		if n.Answer.Status != AnswerPending || n.Denied != "" {
			continue
		}
		before := w.previousTarget(w.Backend.Spec.Targets[i].Name)
		if before == nil || before.Reason != v1alpha1.ReasonTargetDenied {
			continue
		}
		if notes == nil {
			notes = slices.Clone(w.Candidates.Notes)
		}
		notes[i].Denied = before.Message
	}
	if notes != nil {
		restored := *w.Candidates
		restored.Notes = notes
		w.Candidates = &restored
	}
}

// RefusesPublished reports whether policy takes away an endpoint that is published. candidates and
// filtered are those of the status; at least one of them is nil. published is called only if policy
// refuses something.
func RefusesPublished(
	b *v1alpha1.ExternalBackend, published func() []Endpoint, candidates *Candidates, filtered *Filtered,
) bool {
	switch {
	case filtered != nil:
		return len(filtered.Refused) > 0 && slices.ContainsFunc(filtered.Refused, containedIn(published()))
	case candidates == nil:
		return false
	}

	denied := map[string]bool{}
	for i := range candidates.Notes {
		if candidates.Notes[i].Denied != "" {
			denied[b.Spec.Targets[i].Name] = true
		}
	}
	if len(denied) == 0 {
		return false
	}
	isKept := containedIn(candidates.Endpoints)
	return slices.ContainsFunc(published(), func(e Endpoint) bool { return denied[e.Target] && !isKept(e) })
}

// containedIn returns a function that reports whether an endpoint is in a list, by its address and
// ports.
func containedIn(list []Endpoint) func(Endpoint) bool {
	byAddr := make(map[netip.Addr][]*Endpoint, len(list))
	for i := range list {
		byAddr[list[i].Addr] = append(byAddr[list[i].Addr], &list[i])
	}
	return func(e Endpoint) bool { return slices.ContainsFunc(byAddr[e.Addr], e.SameAddressAndPorts) }
}
