package endpointslice

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Port is one port of an EndpointSlice. The name and protocol are those of the Service port that it
// serves; the number is the one that traffic goes to.
type Port struct {
	Name        string
	Port        int32
	Protocol    corev1.Protocol
	AppProtocol string // "" if it is not set
}

// Endpoint is an endpoint that is published or shall be: one address and one list of ports.
type Endpoint struct {
	// Target is the name of the target in spec.targets. It is "" if a published endpoint can't be
	// attributed to a target.
	Target string
	Addr   netip.Addr
	// Ports are the ports of its slice. They are in the order of [ComparePorts], and each has a
	// protocol: the planner compares lists as they are. Endpoints with equal lists and one address
	// family form one group of slices.
	Ports []Port

	Hostname, Zone, NodeName string

	Conditions

	// Rank is the rank of its SRV record's priority; 0 without SRV. Tier is the target's tier plus the
	// rank.
	Rank uint8
	Tier int32
	// DrainUntil is when an address that left spec or DNS stops being published, in whole seconds. It
	// is zero unless the endpoint is leaving.
	DrainUntil time.Time
}

// Conditions are what changes about an endpoint while it stays in its slice.
type Conditions struct {
	Ready, Serving, Terminating bool
	// Healthy is the endpoint's health. It differs from Serving in a standby tier and where the
	// Service fails open.
	Healthy bool
	// Unread means that the annotation of its slice does not say which target it belongs to, and that
	// there is no verdict on it yet. See [Published].
	Unread bool
}

// Leaving reports whether the address has left spec or DNS and stays until DrainUntil.
func (e *Endpoint) Leaving() bool { return !e.DrainUntil.IsZero() }

// FromHandover reports whether another publisher hands this published endpoint over to us.
func (e *Endpoint) FromHandover() bool { return e.Target == "" && !e.Unread }

// SameAddressAndPorts reports whether both endpoints have the same address and the same ports.
func (e *Endpoint) SameAddressAndPorts(other *Endpoint) bool {
	return e.Addr == other.Addr && slices.Equal(e.Ports, other.Ports)
}

// Template is what all slices of one ExternalBackend have in common.
type Template struct {
	Namespace string
	// Service is the name of the Service that the slices serve. Backend is the name of the
	// ExternalBackend that writes them.
	Service, Backend string
	// Labels are spec.service.labels: kube-proxy and others select slices by the labels of their
	// Service.
	Labels map[string]string
	// Owner is the owner reference that every slice carries. If it is nil, slices keep the references
	// that they have.
	Owner *metav1.OwnerReference
	// Headless slices carry the label service.kubernetes.io/headless, so that kube-proxy ignores them.
	Headless bool
	// ZoneHints gives every endpoint with a zone that zone as its hint. NodeHints does the same with
	// nodes (KEP-4444, KEP-3015).
	ZoneHints, NodeHints bool
	// Taken are names that no new slice can have, because other objects have them.
	Taken map[string]bool
	// Max is the number of endpoints that a slice may hold, 1 to 1000.
	Max int
}

// Changes are the writes that turn the published slices into the wanted ones. They are applied in
// this order: Create, Update, Delete, each from first to last.
type Changes struct {
	Create, Update, Delete []*discoveryv1.EndpointSlice
}
