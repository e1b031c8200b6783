package importer

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// endpoint is an address behind a Service, with its ports.
type endpoint struct {
	object, field        string // where it is written
	addr                 netip.Addr
	ports                map[string]int32 // by keyOfPort
	hostname, zone, node string
	adminState           v1alpha1.AdminState
	hinted               bool
}

func (e *endpoint) refuse(d *draft, field, why string) {
	d.Refusals = append(d.Refusals, Refusal{e.object, e.field + field, why})
}

// managedByMirroring is the label of slices that repeat an Endpoints object.
const managedByMirroring = "endpointslicemirroring-controller.k8s.io"

// collect returns the endpoints behind a Service, each once, in the order of slices.
func collect(d *draft, s *corev1.Service, p *published) []endpoint {
	var all []endpoint
	mirrored := p.endpoints != nil
	if mirrored && p.endpoints.Labels[discoveryv1.LabelSkipMirror] != "true" {
		all = readEndpoints(d, p.endpoints)
	}
	for _, slice := range p.slices {
		if slice.Labels[discoveryv1.LabelManagedBy] == managedByMirroring && mirrored {
			continue
		}
		all = append(all, readSlice(d, slice)...)
	}

	out := join(d, s, all)
	wantHints(d, s, out)
	return out
}

// join returns the endpoints that kube-proxy sends requests to, with all of their ports. People may
// write the ports of one address into several slices; kube-proxy reads every port on its own.
func join(d *draft, s *corev1.Service, all []endpoint) []endpoint {
	var joined []*endpoint
	byAddr := map[netip.Addr][]*endpoint{}
	for i := range all {
		e := &all[i]
		if e.hasFamily(d, s) && !e.joins(d, byAddr[e.addr]) {
			joined = append(joined, e)
			byAddr[e.addr] = append(byAddr[e.addr], e)
		}
	}

	var out []endpoint
	for _, e := range joined {
		if e.hasPorts(d, s) {
			out = append(out, *e)
		}
	}
	return out
}

// readSlice reads an EndpointSlice.
func readSlice(d *draft, s *discoveryv1.EndpointSlice) []endpoint {
	object := "EndpointSlice " + clip(s.Name)
	refuse := func(field, why string) { d.Refusals = append(d.Refusals, Refusal{object, field, why}) }
	if owner := metav1.GetControllerOf(s); owner != nil && s.Labels[discoveryv1.LabelManagedBy] != managedByMirroring {
		refuse("metadata.ownerReferences",
			clip(owner.Kind)+" "+clip(owner.Name)+" controls the slice, so it can't be replaced")
	}
	if s.AddressType == discoveryv1.AddressTypeFQDN {
		refuse("addressType", "kube-proxy ignores slices of host names; write a target with hostname")
		return nil
	}

	ports := map[string]int32{}
	for i, p := range s.Ports {
		field := fmt.Sprintf("ports[%d]", i)
		if p.Port == nil {
			refuse(field+".port", "an endpoint of all ports can't be expressed")
			continue
		}
		key := keyOfPort(deref(p.Name), deref(p.Protocol))
		if _, repeated := ports[key]; repeated {
			refuse(field, "another port of the slice has the same name and protocol")
			continue
		}
		ports[key] = *p.Port
		d.wantAppProtocol(refuse, field, key, p.AppProtocol)
	}
	var out []endpoint
	for i := range s.Endpoints {
		if e, ok := readEndpoint(d, object, fmt.Sprintf("endpoints[%d]", i), &s.Endpoints[i]); ok {
			e.ports = ports
			out = append(out, e)
		}
	}
	return out
}

func deref[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

// wantAppProtocol remembers a port whose application protocol the Service does not have.
func (d *draft) wantAppProtocol(refuse func(field, why string), field, key string, protocol *string) {
	if protocol != nil && *protocol != "" && d.appProtocols[key] != *protocol {
		refuse(field+".appProtocol", "it must be that of the Service's port: both get spec.ports[].appProtocol")
	}
}

// readEndpoint reads one endpoint of a slice.
func readEndpoint(d *draft, object, field string, in *discoveryv1.Endpoint) (endpoint, bool) {
	e := endpoint{
		object: object, field: field, hostname: deref(in.Hostname), zone: deref(in.Zone), node: deref(in.NodeName),
	}
	if len(in.Addresses) == 0 {
		e.refuse(d, ".addresses", "it has no address")
		return e, false
	}
	if len(in.Addresses) > 1 {
		e.refuse(d, ".addresses[1]", "kube-proxy uses only the first address; give each one an endpoint of its own")
	}
	if in.TargetRef != nil {
		e.refuse(d, ".targetRef", "an endpoint of an ExternalBackend refers to no object")
	}
	for _, key := range slices.Sorted(maps.Keys(in.DeprecatedTopology)) {
		e.refuse(d, ".deprecatedTopology."+clip(key), "use zone and nodeName")
	}
	var err error
	if e.addr, err = netip.ParseAddr(in.Addresses[0]); err != nil {
		e.refuse(d, ".addresses[0]", "it must be an IP address")
		return e, false
	}
	if !usable(e.addr) {
		e.refuse(d, ".addresses[0]", unusable)
		return e, false
	}
	e.readHints(d, in.Hints)
	e.readConditions(d, in.Conditions)
	return e, true
}

// readHints compares hints with those that an ExternalBackend writes.
func (e *endpoint) readHints(d *draft, h *discoveryv1.EndpointHints) {
	if h == nil || len(h.ForZones)+len(h.ForNodes) == 0 {
		return
	}
	e.hinted = true
	if len(h.ForZones) != 1 || h.ForZones[0].Name != e.zone || len(h.ForNodes) > 0 {
		e.refuse(d, ".hints", "the only hint of an endpoint is its own zone")
	}
}

// readConditions finds the adminState that gives an endpoint the conditions that it has. Absent
// conditions mean what they mean to kube-proxy.
func (e *endpoint) readConditions(d *draft, c discoveryv1.EndpointConditions) {
	ready := c.Ready == nil || *c.Ready
	serving := ready
	if c.Serving != nil {
		serving = *c.Serving
	}
	terminating := deref(c.Terminating)
	switch {
	case ready && serving && !terminating:
	case !ready && serving && terminating:
		e.adminState = v1alpha1.AdminStateDraining
	case !ready && !serving:
		e.adminState = v1alpha1.AdminStateDisabled
	default:
		e.adminState = v1alpha1.AdminStateActive
		if !ready {
			e.adminState = v1alpha1.AdminStateDisabled
		}
		e.refuse(d, ".conditions", fmt.Sprintf(
			"ready %t, serving %t, terminating %t: an ExternalBackend publishes no endpoint with these conditions",
			ready, serving, terminating))
	}
}

// hasFamily reports whether the Service has the family of an endpoint's address.
func (e *endpoint) hasFamily(d *draft, s *corev1.Service) bool {
	family := corev1.IPv4Protocol
	if e.addr.Is6() {
		family = corev1.IPv6Protocol
	}
	if len(s.Spec.IPFamilies) > 0 && !slices.Contains(s.Spec.IPFamilies, family) {
		e.refuse(d, ".addresses[0]", "the Service has no "+string(family))
		return false
	}
	return true
}

// hasPorts reports whether an endpoint has all ports of the Service.
func (e *endpoint) hasPorts(d *draft, s *corev1.Service) bool {
	for i := range s.Spec.Ports {
		key := keyOfPort(s.Spec.Ports[i].Name, s.Spec.Ports[i].Protocol)
		if _, has := e.ports[key]; !has {
			e.refuse(d, "", fmt.Sprintf("it has no port %s; every target has all ports of the Service, "+
				"with the same conditions, zone and node", clip(key)))
			return false
		}
	}
	if len(e.ports) > len(s.Spec.Ports) {
		e.refuse(d, "", "it has ports that the Service does not have")
	}
	return true
}

// joins reports whether an endpoint belongs to one of others, which have its address. Then that one
// has the ports of both. An endpoint that shares some of its ports, or differs in its conditions,
// is refused: an ExternalBackend publishes an address and port once. One with other numbers for the
// same ports is another server on the same machine.
func (e *endpoint) joins(d *draft, others []*endpoint) bool {
	for _, other := range others {
		shared, differs := "", false
		for _, key := range slices.Sorted(maps.Keys(e.ports)) {
			switch n, has := other.ports[key]; {
			case has && n == e.ports[key]:
				shared = cmp.Or(shared, key)
			case has:
				differs = true
			}
		}
		at := other.field + " of " + other.object
		switch same := e.sameTraits(d, other); {
		case shared != "" && differs:
			e.refuse(d, "", fmt.Sprintf("it shares %s with %s, and not all ports", clip(shared), at))
			return true
		case shared != "" && !same:
			e.refuse(d, "", fmt.Sprintf("it differs from %s, which has the same address", at))
			return true
		case !differs && same:
			other.ports = maps.Clone(other.ports) // endpoints of a slice share them
			maps.Copy(other.ports, e.ports)
			other.hostname = cmp.Or(other.hostname, e.hostname)
			return true
		}
	}
	return false
}

// sameTraits reports whether two endpoints can be one target. A host name matters in DNS, for a
// headless Service.
func (e *endpoint) sameTraits(d *draft, other *endpoint) bool {
	sameHost := d.spec.Service.Type != v1alpha1.ServiceTypeHeadless ||
		e.hostname == "" || other.hostname == "" || e.hostname == other.hostname
	return sameHost && e.adminState == other.adminState && e.zone == other.zone && e.node == other.node &&
		e.hinted == other.hinted
}

// wantHints refuses hints, or their absence, unless an ExternalBackend writes the same ones.
func wantHints(d *draft, s *corev1.Service, found []endpoint) {
	for i := range found {
		e := &found[i]
		switch wants := s.Spec.TrafficDistribution != nil && e.zone != ""; {
		case e.hinted && !wants:
			e.refuse(d, ".hints", "an ExternalBackend writes hints only with trafficDistribution")
		case !e.hinted && wants:
			e.refuse(d, ".hints", "with trafficDistribution an endpoint with a zone gets a hint, and this one has none")
		}
	}
}

// readEndpoints reads an Endpoints object as the mirroring controller does.
//
//nolint:staticcheck // Endpoints are deprecated, and are there.
func readEndpoints(d *draft, in *corev1.Endpoints) []endpoint {
	object := "Endpoints " + clip(in.Name)
	refuse := func(field, why string) { d.Refusals = append(d.Refusals, Refusal{object, field, why}) }
	var out []endpoint
	for i, subset := range in.Subsets {
		path := fmt.Sprintf("subsets[%d]", i)
		ports := map[string]int32{}
		for j, p := range subset.Ports {
			key := keyOfPort(p.Name, p.Protocol)
			ports[key] = p.Port
			d.wantAppProtocol(refuse, fmt.Sprintf("%s.ports[%d]", path, j), key, p.AppProtocol)
		}
		add := func(list []corev1.EndpointAddress, field string, ready bool) {
			for j := range list {
				a := &list[j]
				e, ok := readEndpoint(d, object, fmt.Sprintf("%s.%s[%d]", path, field, j), &discoveryv1.Endpoint{
					Addresses: []string{a.IP}, Hostname: &a.Hostname, NodeName: a.NodeName, TargetRef: a.TargetRef,
					Conditions: discoveryv1.EndpointConditions{Ready: &ready},
				})
				if ok {
					e.ports = ports
					out = append(out, e)
				}
			}
		}
		add(subset.Addresses, "addresses", true)
		add(subset.NotReadyAddresses, "notReadyAddresses", false)
	}
	return out
}
