package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// Filtered is what becomes of what stood, where there is no spec that could be acted on.
type Filtered struct {
	// Kept may stay, or come back; Refused has to go, or to stay away. Changed: they are not what
	// stands, and what does not.
	Kept, Refused []Endpoint
	Changed       bool
	// Reasons says of the targets of Refused why policy refuses them.
	Reasons map[string]string
}

// FilterPublished parts what stands, and what had to go before, by what policy says now. It is for a spec that
// can't be acted on, of which it believes the names of targets alone, and these only where no plan
// has been made before. Of an address whose name nobody knows any more it asks unnamed, which
// refuses what no name could allow.
func FilterPublished(b *v1alpha1.ExternalBackend, standing, withdrawn []Endpoint, named []NamedAddr, permit Permit, unnamed func(netip.Addr, []Port) Refusal) Filtered {
	lookup := newDrainingLookup(b, nil, named)
	h := Filtered{Reasons: map[string]string{}}
	judged := make(map[netip.Addr][]*Endpoint, len(standing))
	judge := func(e *Endpoint, stands bool) {
		if slices.ContainsFunc(judged[e.Addr], e.SameAddressAndPorts) {
			return
		}
		judged[e.Addr] = append(judged[e.Addr], e)
		var r Refusal
		if name, known := lookup.nameOf(e); known {
			r = permit(name, e.Addr, e.Ports)
		} else {
			r = unnamed(e.Addr, e.Ports)
		}
		kept := !r.Denied || stands && r.KeepPublished
		h.Changed = h.Changed || kept != stands
		if kept {
			h.Kept = append(h.Kept, *e)
			return
		}
		h.Refused = append(h.Refused, *e)
		h.Reasons[e.Target] = cmp.Or(h.Reasons[e.Target], r.text())
	}
	for i := range standing {
		judge(&standing[i], true)
	}
	for i := range withdrawn {
		judge(&withdrawn[i], false)
	}
	return h
}

// refusedTargets names the targets that policy refuses, each once; "" where there are none.
func (h *Filtered) refusedTargets() string {
	var list targetList
	told := map[string]bool{}
	for i := range h.Refused {
		if target := h.Refused[i].Target; !told[target] {
			told[target] = true
			list.add(target, h.Reasons[target])
		}
	}
	return list.String()
}

// held tells what stands where there is no spec to act on. What is not known stays as it was said.
func (w *statusWriter) held() {
	c := v1alpha1.EndpointCounts{Total: int32(len(w.Filtered.Kept))}
	for i := range w.Filtered.Kept {
		e := &w.Filtered.Kept[i]
		c.Ready += int32(count(e.Ready))
		c.Healthy += int32(count(e.Healthy))
		c.Unhealthy += int32(count(!e.Healthy))
	}
	c.ReadyOfTotal = fmt.Sprintf("%d/%d", c.Ready, c.Total)
	w.out.Endpoints = &c
	w.heldTargets()
	denied := func(t v1alpha1.TargetStatus) bool { return t.State == v1alpha1.TargetStateDenied }
	if refused := w.Filtered.refusedTargets(); refused != "" {
		w.set(v1alpha1.ConditionPermitted, metav1.ConditionFalse, v1alpha1.ReasonTargetDenied, sentence("Refused by policy: %s.", refused))
	} else if !slices.ContainsFunc(w.out.Targets, denied) { // else nobody knows any more what it was
		w.set(v1alpha1.ConditionPermitted, metav1.ConditionTrue, v1alpha1.ReasonPermitted, "No target is refused.")
	}
}

// heldTargets mends the targets of which policy refuses something, or refuses it no more.
func (w *statusWriter) heldTargets() {
	kept := map[string][]*Endpoint{}
	for i := range w.Filtered.Kept {
		e := &w.Filtered.Kept[i]
		kept[e.Target] = append(kept[e.Target], e)
	}
	all := slices.Clone(w.Previous.Targets)
	for name := range w.Filtered.Reasons {
		if name != "" && !slices.ContainsFunc(all, func(t v1alpha1.TargetStatus) bool { return t.Name == name }) {
			all = append(all, v1alpha1.TargetStatus{Name: name})
		}
	}
	for i := range all {
		t := &all[i]
		if w.Filtered.Reasons[t.Name] != "" || t.Reason == v1alpha1.ReasonTargetDenied && kept[t.Name] != nil {
			w.heldTarget(t, kept[t.Name])
		}
	}
	known := len(w.Previous.Targets) + int(w.Previous.OmittedTargets)
	w.listWorst(all)
	w.out.OmittedTargets = max(w.out.OmittedTargets, int32(known-len(w.out.Targets)))
}

// heldTarget tells of t, as it was told last, that kept is what stands of it.
func (w *statusWriter) heldTarget(t *v1alpha1.TargetStatus, kept []*Endpoint) {
	before := t.State
	t.Reason, t.Message = "", w.Filtered.Reasons[t.Name]
	if t.Message != "" {
		t.Reason = v1alpha1.ReasonTargetDenied
	}
	t.Health = w.heldHealth(kept)
	switch {
	case len(kept) == 0:
		t.State = v1alpha1.TargetStateDenied
	case before == v1alpha1.TargetStateDenied, before == "":
		t.State = v1alpha1.TargetState(t.Health)
	}
	if t.State != before {
		t.LastTransitionTime = new(metav1.NewTime(w.Now).Rfc3339Copy())
	}
	t.Endpoints = v1alpha1.TargetEndpointCounts{Total: int32(len(kept))}
	t.Addresses = nil
	for _, e := range kept {
		t.Endpoints.Ready += int32(count(e.Ready))
		t.Addresses = append(t.Addresses, e.Addr.String())
	}
	slices.Sort(t.Addresses)
	t.Addresses = slices.Compact(t.Addresses)
	t.Addresses = t.Addresses[:min(len(t.Addresses), v1alpha1.MaxStatusAddresses)]
}

// heldHealth is the worst health that kept are published with.
func (w *statusWriter) heldHealth(kept []*Endpoint) v1alpha1.TargetHealth {
	switch {
	case len(kept) == 0:
		return ""
	case w.Backend.Spec.HealthCheck == nil:
		return v1alpha1.TargetHealthUnprobed
	case slices.ContainsFunc(kept, func(e *Endpoint) bool { return !e.Healthy }):
		return v1alpha1.TargetHealthUnhealthy
	}
	return v1alpha1.TargetHealthHealthy
}
