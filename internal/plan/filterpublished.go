package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/external-backend/operator/api/v1alpha1"
)

// Filtered is the result of FilterPublished.
type Filtered struct {
	// Kept are endpoints to publish, and Refused are those to withdraw.
	Kept, Refused []Endpoint
	// Changed reports whether Kept differs from what is published.
	Changed bool
	// Reasons says why policy refuses endpoints, by target.
	Reasons map[string]string
}

// FilterInput is what FilterPublished decides from.
type FilterInput struct {
	// Backend has a spec that cannot be acted on. FilterPublished uses the names of its targets, and
	// these only if no plan has been made.
	Backend *v1alpha1.ExternalBackend
	// Published are the published endpoints, and Withdrawn are those that policy refused earlier.
	Published, Withdrawn []Endpoint
	// NamedAddrs are the addresses of the last plan; nil if none has been made.
	NamedAddrs []NamedAddr
	Permit     Permit
	// PermitUnnamed decides about addresses whose name nobody knows. It refuses what no name could
	// allow.
	PermitUnnamed func(netip.Addr, []Port) Refusal
}

// FilterPublished decides which endpoints stay published, or come back, while the spec cannot be
// acted on. Only policy decides.
func FilterPublished(in FilterInput) Filtered {
	lookup := newLeavingLookup(in.Backend, nil, in.NamedAddrs)
	out := Filtered{Reasons: map[string]string{}}
	seen := make(map[netip.Addr][]*Endpoint, len(in.Published))
	filter := func(e *Endpoint, isPublished bool) {
		if slices.ContainsFunc(seen[e.Addr], e.SameAddressAndPorts) {
			return
		}
		seen[e.Addr] = append(seen[e.Addr], e)

		var r Refusal
		if name, known := lookup.nameOf(e); known {
			r = in.Permit(name, e.Addr, e.Ports)
		} else {
			r = in.PermitUnnamed(e.Addr, e.Ports)
		}
		kept := !r.Denied || isPublished && r.KeepPublished
		out.Changed = out.Changed || kept != isPublished
		if kept {
			out.Kept = append(out.Kept, *e)
			return
		}
		out.Refused = append(out.Refused, *e)
		out.Reasons[e.Target] = cmp.Or(out.Reasons[e.Target], r.Text())
	}
	for i := range in.Published {
		filter(&in.Published[i], true)
	}
	for i := range in.Withdrawn {
		filter(&in.Withdrawn[i], false)
	}
	return out
}

// refusedTargets names each target that policy refuses once; "" if there are none.
func (f *Filtered) refusedTargets() string {
	var list targetList
	listed := map[string]bool{}
	for i := range f.Refused {
		if target := f.Refused[i].Target; !listed[target] {
			listed[target] = true
			list.add(target, f.Reasons[target])
		}
	}
	return list.String()
}
