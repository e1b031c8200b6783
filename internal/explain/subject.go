package explain

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
)

// subject is the endpoint that is explained.
type subject struct {
	// name is the name of its target. target is that one in spec, nil if it is not there, and status
	// is what status says of it, nil if status does not list it.
	name   string
	target *v1alpha1.Target
	status *v1alpha1.TargetStatus
	// addr is invalid if the target has no address now.
	addr netip.Addr
	// published is the endpoint in a slice of ours; nil if there is none.
	published *publishedEndpoint
	remark    string
}

// publishedEndpoint is an endpoint and the slice that it is in.
type publishedEndpoint struct {
	endpointslice.Endpoint
	slice *discoveryv1.EndpointSlice
}

func (s *subject) address() string {
	switch {
	case s.addr.IsValid():
		return s.addr.String()
	case s.published != nil:
		return s.published.slice.Endpoints[0].Addresses[0] // a name
	}
	return ""
}

// publishedBy returns the endpoints of the slices that owns accepts. A name that is published
// itself is an endpoint without an address.
func publishedBy(all []*discoveryv1.EndpointSlice, owns func(*discoveryv1.EndpointSlice) bool) []*publishedEndpoint {
	var out []*publishedEndpoint
	for _, s := range all {
		if !owns(s) {
			continue
		}
		if s.AddressType == discoveryv1.AddressTypeFQDN && len(s.Endpoints) > 0 && len(s.Endpoints[0].Addresses) > 0 {
			out = append(out, &publishedEndpoint{fqdnEndpoint(s), s})
		}
		for _, e := range endpointslice.Published([]*discoveryv1.EndpointSlice{s}).Endpoints() {
			out = append(out, &publishedEndpoint{e, s})
		}
	}
	return out
}

// fqdnEndpoint reads the one endpoint of a slice that publishes a name.
func fqdnEndpoint(s *discoveryv1.EndpointSlice) endpointslice.Endpoint {
	isTrue := func(p *bool) bool { return p != nil && *p }
	c := s.Endpoints[0].Conditions
	var e endpointslice.Endpoint
	e.Ready, e.Serving, e.Terminating = isTrue(c.Ready), isTrue(c.Serving), isTrue(c.Terminating)
	e.Healthy = true
	if s.Endpoints[0].Hostname != nil {
		e.Target = *s.Endpoints[0].Hostname
	}
	return e
}

// writtenFor reports whether a slice is one of b's.
func writtenFor(b *v1alpha1.ExternalBackend) func(*discoveryv1.EndpointSlice) bool {
	return func(s *discoveryv1.EndpointSlice) bool {
		return s.Labels[discoveryv1.LabelManagedBy] == v1alpha1.ManagedBy && s.Labels[v1alpha1.LabelName] == b.Name
	}
}

// find finds the endpoint that what names.
func find(in *Input, what string) (*subject, error) {
	b := in.Backend
	own := publishedBy(in.Slices, writtenFor(b))
	for _, p := range own {
		attribute(b, p)
	}
	if what == "" {
		name := worstTarget(b)
		if name == "" {
			return nil, fmt.Errorf("ExternalBackend %q has no targets", b.Name)
		}
		s := findTarget(b, own, name)
		if n := len(b.Spec.Targets); n > 1 {
			s.remark = joinRemarks(fmt.Sprintf("It is the worst of %d targets; name another one to see its chain.", n), s.remark)
		}
		return s, nil
	}
	if targetOf(b, what) != nil || slices.ContainsFunc(own, func(p *publishedEndpoint) bool { return p.Target == what }) {
		return findTarget(b, own, what), nil
	}
	return findAddress(in, own, what)
}

// attribute finds the target of an endpoint that the annotation of its slice says nothing about:
// the one with that address in spec or status. The tier is that of the target then.
func attribute(b *v1alpha1.ExternalBackend, p *publishedEndpoint) {
	if !p.Unread {
		return
	}
	address, name := p.Addr.String(), ""
	for i := range b.Status.Targets {
		if slices.Contains(b.Status.Targets[i].Addresses, address) {
			name = b.Status.Targets[i].Name
		}
	}
	for i := range b.Spec.Targets {
		if t := &b.Spec.Targets[i]; t.Address == address || t.Name == name {
			p.Target, p.Tier = t.Name, t.EffectiveTier()
			return
		}
	}
}

// worstTarget returns the first target of status, else of spec.
func worstTarget(b *v1alpha1.ExternalBackend) string {
	for i := range b.Status.Targets {
		if targetOf(b, b.Status.Targets[i].Name) != nil {
			return b.Status.Targets[i].Name
		}
	}
	if len(b.Spec.Targets) > 0 {
		return b.Spec.Targets[0].Name
	}
	return ""
}

func targetOf(b *v1alpha1.ExternalBackend, name string) *v1alpha1.Target {
	for i := range b.Spec.Targets {
		if b.Spec.Targets[i].Name == name {
			return &b.Spec.Targets[i]
		}
	}
	return nil
}

func newSubject(b *v1alpha1.ExternalBackend, name string) *subject {
	s := &subject{name: name, target: targetOf(b, name)}
	for i := range b.Status.Targets {
		if b.Status.Targets[i].Name == name {
			s.status = &b.Status.Targets[i]
		}
	}
	return s
}

// findTarget returns the worst endpoint of a target.
func findTarget(b *v1alpha1.ExternalBackend, own []*publishedEndpoint, name string) *subject {
	s := newSubject(b, name)
	var theirs []*publishedEndpoint
	for _, p := range own {
		if p.Target == name {
			theirs = append(theirs, p)
		}
	}
	slices.SortStableFunc(theirs, func(a, b *publishedEndpoint) int {
		return cmp.Or(rankOf(a)-rankOf(b), a.Addr.Compare(b.Addr))
	})
	if len(theirs) > 0 {
		s.published, s.addr = theirs[0], theirs[0].Addr
	} else if s.target != nil {
		s.addr, _ = netip.ParseAddr(s.target.Address)
	}
	if len(theirs) > 1 {
		s.remark = fmt.Sprintf("It is the worst of %d endpoints of the target; name another address to see its chain.",
			len(theirs))
	}
	return s
}

// rankOf orders endpoints, the worst first.
func rankOf(p *publishedEndpoint) int {
	switch {
	case p.Leaving():
		return 2 // it has to go, and is nothing to repair
	case !p.Healthy:
		return 0
	case !p.Ready:
		return 1
	}
	return 3
}

// findAddress returns the endpoint at an address or address:port.
func findAddress(in *Input, own []*publishedEndpoint, what string) (*subject, error) {
	addr, err := netip.ParseAddr(what)
	var port uint16
	if err != nil {
		withPort, portErr := netip.ParseAddrPort(what)
		if portErr != nil {
			return nil, fmt.Errorf("ExternalBackend %q has no target %q: its targets are %s", in.Backend.Name, what,
				targetNames(in.Backend))
		}
		addr, port = withPort.Addr(), withPort.Port()
	}

	for _, p := range own {
		if p.Addr == addr && (port == 0 || hasPort(p, port)) {
			s := newSubject(in.Backend, p.Target)
			s.published, s.addr = p, addr
			return s, nil
		}
	}
	for i := range in.Backend.Spec.Targets {
		if t := &in.Backend.Spec.Targets[i]; t.Address == addr.String() {
			s := newSubject(in.Backend, t.Name)
			s.addr = addr
			return s, nil
		}
	}
	unread := ""
	if in.SlicesUnread != "" {
		unread = "; the slices are unknown: " + in.SlicesUnread
	}
	return nil, fmt.Errorf("no target of ExternalBackend %q has the address %s, and no slice of it publishes it%s",
		in.Backend.Name, what, unread)
}

func hasPort(p *publishedEndpoint, port uint16) bool {
	return slices.ContainsFunc(p.Ports, func(q endpointslice.Port) bool { return q.Port == int32(port) })
}

func targetNames(b *v1alpha1.ExternalBackend) string {
	names := make([]string, len(b.Spec.Targets))
	for i := range names {
		names[i] = b.Spec.Targets[i].Name
	}
	return plan.FirstFew(names, 8)
}

func joinRemarks(remarks ...string) string {
	return strings.Join(slices.DeleteFunc(remarks, func(s string) bool { return s == "" }), " ")
}
