package endpointslice

import (
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// PlanFQDN plans the one slice, of addressType FQDN, that publishes hostname with what e says of
// it. Without e there is no slice.
func PlanFQDN(t Template, hostname string, e *Endpoint, existing []*discoveryv1.EndpointSlice) Changes {
	var c Changes
	var current *discoveryv1.EndpointSlice
	name := slicePrefix(t.Backend, discoveryv1.AddressTypeFQDN, string(discoveryv1.AddressTypeFQDN)) + "0"
	for _, s := range existing {
		if e != nil && s.Name == name && s.AddressType == discoveryv1.AddressTypeFQDN {
			current = s
		} else {
			c.Delete = append(c.Delete, s)
		}
	}
	if e == nil {
		return c
	}

	next := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: t.Namespace}}
	if current != nil {
		next = current.DeepCopy()
	}
	next.AddressType, next.Ports = discoveryv1.AddressTypeFQDN, endpointPorts(e.Ports)
	next.Endpoints = []discoveryv1.Endpoint{{
		Addresses:  []string{hostname},
		Hostname:   &e.Hostname,
		Zone:       optional(e.Zone),
		NodeName:   optional(e.NodeName),
		Conditions: discoveryv1.EndpointConditions{Ready: &e.Ready, Serving: &e.Serving, Terminating: &e.Terminating},
	}}
	var annotation annotationEncoder
	annotation.add(e, &e.Conditions, hostname)
	m := newMetadata(&t)
	m.applyTo(&next.ObjectMeta, annotation.bytes())

	switch {
	case current == nil:
		c.Create = append(c.Create, next)
	case !equality.Semantic.DeepEqual(current, next):
		c.Update = append(c.Update, next)
	}
	return c
}
