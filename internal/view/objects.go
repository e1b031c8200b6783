// Package view turns what was read about one ExternalBackend into what people are shown: tiers,
// targets worst first, endpoints, names, slices, policies, overrides and events. It reads nothing
// and decides nothing. What could not be read is shown as unknown.
package view

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// Part is a part of Objects that may be unread.
type Part string

// The parts of Objects.
const (
	PartService   Part = "Service"
	PartSlices    Part = "EndpointSlices"
	PartOverrides Part = "ExternalBackendOverrides"
	PartSiblings  Part = "ExternalBackends"
	PartPolicies  Part = "ExternalBackendPolicies"
	PartNamespace Part = "Namespace"
	PartEvents    Part = "Events"
	PartLeases    Part = "Leases"
)

// Unread tells what could not be read, and why.
type Unread struct {
	Part Part `json:"part"`
	// Right is the right that the user lacks, such as "list endpointslices.discovery.k8s.io in
	// namespace shop"; "" if rights are not the cause.
	Right string `json:"right,omitempty"`
	// Why is the error for people.
	Why string `json:"why"`
}

// Objects is what was read about one ExternalBackend. A part that Unread names is empty because it
// could not be read. Any other part that is empty does not exist.
type Objects struct {
	Backend *v1alpha1.ExternalBackend
	// Service is the Service that the ExternalBackend publishes behind.
	Service *corev1.Service
	// Slices are all slices of that Service, and those that have the ExternalBackend's label.
	Slices []*discoveryv1.EndpointSlice
	// Overrides are those that name the ExternalBackend.
	Overrides []v1alpha1.ExternalBackendOverride
	// Siblings are the other ExternalBackends behind the same Service.
	Siblings []v1alpha1.ExternalBackend
	// Policies are all policies of the cluster. Namespace is that of the ExternalBackend, whose labels
	// policies select by.
	Policies  []v1alpha1.ExternalBackendPolicy
	Namespace *corev1.Namespace
	// Events are about the ExternalBackend, in any order.
	Events []eventsv1.Event

	Unread []Unread
}

// WhyUnread returns why a part is unread; nil if it was read.
func (o *Objects) WhyUnread(part Part) *Unread {
	for i := range o.Unread {
		if o.Unread[i].Part == part {
			return &o.Unread[i]
		}
	}
	return nil
}

// OwnSlices returns the slices that the operator writes for the ExternalBackend.
func (o *Objects) OwnSlices() []*discoveryv1.EndpointSlice {
	var own []*discoveryv1.EndpointSlice
	for _, s := range o.Slices {
		if publisherOf(s) == o.Backend.Name {
			own = append(own, s)
		}
	}
	return own
}

// publisherOf returns the name of the ExternalBackend that a slice is written for; "" if it is
// written by somebody else.
func publisherOf(s *discoveryv1.EndpointSlice) string {
	if s.Labels[discoveryv1.LabelManagedBy] != v1alpha1.ManagedBy {
		return ""
	}
	return s.Labels[v1alpha1.LabelName]
}
