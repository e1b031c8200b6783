package view

import (
	"cmp"
	"fmt"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// buildSlices lists the slices, and compares the own ones with status.
func buildSlices(o *Objects, e *endpoints) Slices {
	out := Slices{Known: e.known}
	if !e.known {
		return out
	}
	for _, s := range o.Slices {
		shown := buildSlice(s)
		if shown.Backend == o.Backend.Name {
			out.Own = append(out.Own, shown)
		} else {
			out.Others = append(out.Others, shown)
		}
	}
	byName := func(a, b Slice) int { return cmp.Compare(a.Name, b.Name) }
	slices.SortFunc(out.Own, byName)
	slices.SortFunc(out.Others, byName)

	out.Counts = count(e.unattributed)
	for _, list := range e.byTarget {
		c := count(list)
		out.Counts.Total += c.Total
		out.Counts.Ready += c.Ready
		out.Counts.Healthy += c.Healthy
	}
	out.Differences = compareWithStatus(o.Backend, &out)
	return out
}

func buildSlice(s *discoveryv1.EndpointSlice) Slice {
	out := Slice{
		Name: s.Name, Backend: publisherOf(s), ManagedBy: s.Labels[discoveryv1.LabelManagedBy],
		AddressType: s.AddressType, Ports: slicePortTexts(s),
	}
	for i := range s.Endpoints {
		ready, serving, _ := conditionsOf(&s.Endpoints[i])
		out.Counts.Total++
		if ready {
			out.Counts.Ready++
		}
		if serving {
			out.Counts.Healthy++
		}
	}
	return out
}

// slicePortTexts returns the ports of a slice as text. Fields that are absent have the API's
// defaults.
func slicePortTexts(s *discoveryv1.EndpointSlice) []string {
	var texts []string
	for _, p := range s.Ports {
		texts = append(texts, portText(valueOr(p.Name), valueOr(p.Port), valueOr(p.Protocol)))
	}
	return texts
}

// valueOr returns what p points to, or else the zero value.
func valueOr[T any](p *T) T {
	if p == nil {
		return *new(T)
	}
	return *p
}

// compareWithStatus says in sentences where slices and status differ. Slices change before status
// does, so a difference that stays is what matters.
func compareWithStatus(b *v1alpha1.ExternalBackend, s *Slices) []string {
	counts := b.Status.Endpoints
	if counts == nil {
		counts = &v1alpha1.EndpointCounts{}
	}
	var out []string
	if int(counts.Total) != s.Counts.Total {
		out = append(out, fmt.Sprintf("Status counts %d endpoints.", counts.Total))
	}
	if int(counts.Ready) != s.Counts.Ready {
		out = append(out, fmt.Sprintf("Status counts %d that are ready.", counts.Ready))
	}
	return out
}
