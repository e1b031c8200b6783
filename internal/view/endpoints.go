package view

import (
	"cmp"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// endpoints are the published endpoints of an ExternalBackend.
type endpoints struct {
	// known reports whether the slices were read.
	known        bool
	byTarget     map[string][]Endpoint
	unattributed []Endpoint
}

// readEndpoints reads the published endpoints back from the slices, as the operator does.
func readEndpoints(o *Objects) *endpoints {
	out := &endpoints{known: o.WhyUnread(PartSlices) == nil, byTarget: map[string][]Endpoint{}}
	own := o.OwnSlices()
	holders := findHolders(own)
	targets := map[string]*v1alpha1.TargetStatus{}
	for i := range o.Backend.Status.Targets {
		targets[o.Backend.Status.Targets[i].Name] = &o.Backend.Status.Targets[i]
	}
	specified := map[string]bool{}
	for i := range o.Backend.Spec.Targets {
		specified[o.Backend.Spec.Targets[i].Name] = true
	}

	published := endpointslice.Published(own).Endpoints()
	for i := range published {
		e := buildEndpoint(o.Backend, &published[i], targets[published[i].Target])
		e.Slice = holders[holderKey{e.Address, strings.Join(e.Ports, ",")}]
		if target := published[i].Target; specified[target] {
			out.byTarget[target] = append(out.byTarget[target], e)
		} else {
			out.unattributed = append(out.unattributed, e)
		}
	}
	for _, s := range own {
		out.addNames(o.Backend, s)
	}

	for _, list := range out.byTarget {
		slices.SortStableFunc(list, compareEndpoints)
	}
	slices.SortStableFunc(out.unattributed, compareEndpoints)
	return out
}

// holderKey is an address and its ports, as text.
type holderKey struct{ address, ports string }

// findHolders returns the slice that holds each endpoint.
func findHolders(own []*discoveryv1.EndpointSlice) map[holderKey]string {
	holders := map[holderKey]string{}
	for _, s := range own {
		for _, e := range endpointslice.Published([]*discoveryv1.EndpointSlice{s}).Endpoints() {
			holders[holderKey{e.Addr.String(), strings.Join(portTexts(e.Ports), ",")}] = s.Name
		}
	}
	return holders
}

func portTexts(ports []endpointslice.Port) []string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = portText(p.Name, p.Port, p.Protocol)
	}
	return texts
}

// buildEndpoint makes what is shown of a published endpoint. target is the status of its target, or
// nil.
func buildEndpoint(b *v1alpha1.ExternalBackend, e *endpointslice.Endpoint, target *v1alpha1.TargetStatus) Endpoint {
	out := Endpoint{
		Address: e.Addr.String(), Ports: portTexts(e.Ports), Tier: e.Tier, Zone: e.Zone, Node: e.NodeName,
		Ready: e.Ready, Serving: e.Serving, Terminating: e.Terminating, Verdict: verdictOf(b, e, target),
	}
	if e.Leaving() {
		out.DrainUntil = new(metav1.NewTime(e.DrainUntil))
	}
	if target != nil && out.Verdict != v1alpha1.TargetHealthHealthy {
		out.Reason, out.Message, out.Since = target.Reason, target.Message, target.LastTransitionTime
	}
	return out
}

// verdictOf returns the verdict on an endpoint, as far as its slice and the status of its target
// show it. A check that only observes does not change slices. Then the status of the target alone
// knows, and says nothing about a single endpoint unless all are alike.
func verdictOf(
	b *v1alpha1.ExternalBackend, e *endpointslice.Endpoint, target *v1alpha1.TargetStatus,
) v1alpha1.TargetHealth {
	check := b.Spec.HealthCheck
	switch {
	case check == nil:
		return v1alpha1.TargetHealthUnprobed
	case e.Unread:
		return v1alpha1.TargetHealthUnknown
	case check.EffectiveMode() == v1alpha1.HealthCheckModeObserve:
		if target != nil && (target.Endpoints.Total == 1 || target.Health == v1alpha1.TargetHealthHealthy) {
			return cmp.Or(target.Health, v1alpha1.TargetHealthUnknown)
		}
		return v1alpha1.TargetHealthUnknown
	case e.Healthy:
		return v1alpha1.TargetHealthHealthy
	case target != nil && target.Health == v1alpha1.TargetHealthUnknown:
		return v1alpha1.TargetHealthUnknown
	}
	return v1alpha1.TargetHealthUnhealthy
}

// addNames adds the names that a slice of addressType FQDN passes on. Its only target is theirs.
func (out *endpoints) addNames(b *v1alpha1.ExternalBackend, s *discoveryv1.EndpointSlice) {
	if s.AddressType != discoveryv1.AddressTypeFQDN {
		return
	}
	ports := slicePortTexts(s)
	for i := range s.Endpoints {
		if len(s.Endpoints[i].Addresses) == 0 {
			continue
		}
		ready, serving, terminating := conditionsOf(&s.Endpoints[i])
		e := Endpoint{
			Address: s.Endpoints[i].Addresses[0], Ports: ports, Slice: s.Name,
			Ready: ready, Serving: serving, Terminating: terminating, Verdict: v1alpha1.TargetHealthUnprobed,
		}
		if len(b.Spec.Targets) != 1 {
			out.unattributed = append(out.unattributed, e)
			continue
		}
		t := &b.Spec.Targets[0]
		e.Tier = t.EffectiveTier()
		out.byTarget[t.Name] = append(out.byTarget[t.Name], e)
	}
}

// conditionsOf returns the conditions of an endpoint, with the API's defaults for those it lacks.
func conditionsOf(e *discoveryv1.Endpoint) (ready, serving, terminating bool) {
	ready = e.Conditions.Ready == nil || *e.Conditions.Ready
	serving = ready
	if e.Conditions.Serving != nil {
		serving = *e.Conditions.Serving
	}
	return ready, serving, e.Conditions.Terminating != nil && *e.Conditions.Terminating
}

// compareEndpoints sorts the worst endpoints first.
func compareEndpoints(a, b Endpoint) int {
	return cmp.Or(
		cmp.Compare(slices.Index(healthWorstFirst, a.Verdict), slices.Index(healthWorstFirst, b.Verdict)),
		compareBool(a.Ready, b.Ready),
		cmp.Compare(a.Tier, b.Tier),
	)
}

// healthWorstFirst is the order in which people want to see healths.
var healthWorstFirst = []v1alpha1.TargetHealth{
	v1alpha1.TargetHealthUnhealthy, v1alpha1.TargetHealthUnknown, v1alpha1.TargetHealthUnprobed,
	v1alpha1.TargetHealthHealthy,
}

// count counts endpoints. One that is not probed counts as healthy, as in status.
func count(lists ...[]Endpoint) Counts {
	var c Counts
	for _, list := range lists {
		for i := range list {
			c.add(&list[i])
		}
	}
	return c
}

func (c *Counts) add(e *Endpoint) {
	c.Total++
	if e.Ready {
		c.Ready++
	}
	if e.Verdict == v1alpha1.TargetHealthHealthy || e.Verdict == v1alpha1.TargetHealthUnprobed {
		c.Healthy++
	}
}
