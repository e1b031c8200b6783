package plan

import (
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// PassthroughSlices plans the one slice, of addressType FQDN, that publishes b's target by its
// name: nothing resolves it, and nothing probes it. Where the target may not be published (allowed
// is false) or is Disabled there is none.
func PassthroughSlices(t SliceTemplate, b *v1alpha1.ExternalBackend, serves func(*v1alpha1.Port) bool, allowed bool, existing []*discoveryv1.EndpointSlice) (SliceChanges, Publication) {
	var c SliceChanges
	var current *discoveryv1.EndpointSlice
	target := &b.Spec.Targets[0]
	ports := slicePorts(b, target, serves, 0)
	wanted := allowed && target.AdminState != v1alpha1.AdminStateDisabled && len(ports) > 0
	name := slicePrefix(b.Name, &group{family: discoveryv1.AddressTypeFQDN, key: string(discoveryv1.AddressTypeFQDN)}) + "0"
	for _, s := range existing {
		if wanted && s.Name == name && s.AddressType == discoveryv1.AddressTypeFQDN {
			current = s
		} else {
			c.Delete = append(c.Delete, s)
		}
	}
	if !wanted {
		return c, Publication{}
	}
	e := Endpoint{
		Target: target.Name, Hostname: target.Name, Zone: target.Zone, NodeName: target.NodeName,
		Serving: true, Healthy: true, Terminating: target.AdminState == v1alpha1.AdminStateDraining,
	}
	e.Ready = !e.Terminating
	next := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: t.Namespace}}
	if current != nil {
		next = current.DeepCopy()
	}
	next.AddressType, next.Ports = discoveryv1.AddressTypeFQDN, endpointPorts(ports)
	next.Endpoints = []discoveryv1.Endpoint{{
		Addresses:  []string{target.Hostname},
		Hostname:   &e.Hostname,
		Conditions: discoveryv1.EndpointConditions{Ready: &e.Ready, Serving: &e.Serving, Terminating: &e.Terminating},
	}}
	if e.Zone != "" {
		next.Endpoints[0].Zone = &e.Zone
	}
	if e.NodeName != "" {
		next.Endpoints[0].NodeName = &e.NodeName
	}
	var runs runEncoder
	runs.add(&e, target.Hostname)
	metadata := newSliceMetadata(&t)
	metadata.enforce(&next.ObjectMeta, runs.bytes())
	switch {
	case current == nil:
		c.Create = append(c.Create, next)
	case !equality.Semantic.DeepEqual(current, next):
		c.Update = append(c.Update, next)
	}
	return c, Publication{Endpoints: []Endpoint{e}, States: make([]ProbeState, 1)}
}

// NoEndpoints are the candidates of a backend that publishes no addresses. notes are those of its
// targets.
func NoEndpoints(b *v1alpha1.ExternalBackend, notes TargetNotes) Candidates {
	c := Candidates{Notes: make([]TargetNotes, len(b.Spec.Targets))}
	for i := range c.Notes {
		c.Notes[i] = notes
	}
	return c
}
