package endpointslice

import (
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Port is one port of an EndpointSlice: the name and protocol are those of the Service port that it
// serves, the number is the one that traffic goes to.
type Port struct {
	Name        string
	Port        int32
	Protocol    corev1.Protocol
	AppProtocol *string
}

// Endpoint is one endpoint as it is, or is to be, published: one address, one list of ports.
type Endpoint struct {
	// Target is the name of the target in spec.targets; "" where a published endpoint can't be
	// attributed to one.
	Target string
	Addr   netip.Addr
	// Ports is what its slice says, sorted by name. Endpoints with equal lists (and one address
	// family) form one group of slices.
	Ports []Port

	Hostname, Zone, NodeName string

	Ready, Serving, Terminating bool
	// Healthy is its health, which differs from Serving in a standby tier and where the Service fails
	// open.
	Healthy bool
	// Unread: the annotation of its slice does not tell whose it is, and there is no verdict on it
	// yet. See [Published].
	Unread bool

	// Rank is the rank of its SRV record's priority; 0 for everything but SRV. Tier is the target's,
	// with the rank added.
	Rank uint8
	Tier int32
	// DrainUntil is when an address that left spec or DNS stops being published, in whole seconds;
	// zero where it is not leaving.
	DrainUntil time.Time
}

// Leaving reports whether the address has left spec or DNS and stays until DrainUntil.
func (e *Endpoint) Leaving() bool { return !e.DrainUntil.IsZero() }

// SameAddressAndPorts reports whether both are the same address with the same ports.
func (e *Endpoint) SameAddressAndPorts(other *Endpoint) bool {
	return e.Addr == other.Addr && slices.EqualFunc(e.Ports, other.Ports, SamePort)
}

// Template is what every slice of one ExternalBackend shares.
type Template struct {
	Namespace string
	// Service is the name of the Service that the slices serve, Backend that of the ExternalBackend
	// that writes them.
	Service, Backend string
	// Labels are spec.service.labels: kube-proxy and others select slices by the labels of their
	// Service.
	Labels map[string]string
	// Owner is the owner reference that every slice carries; nil: those that it has stay.
	Owner *metav1.OwnerReference
	// Headless slices carry the label service.kubernetes.io/headless, so that kube-proxy passes them
	// over.
	Headless bool
	// ZoneHints gives every endpoint with a zone that zone as hint; NodeHints its node likewise
	// (KEP-4444, KEP-3015).
	ZoneHints, NodeHints bool
	// Taken are names that no new slice can have, because other objects have them.
	Taken map[string]bool
	// Max is the number of endpoints that a slice may hold, 1 to 1000.
	Max int
}

// Changes are the writes that turn the published slices into the wanted ones, to be applied in
// this order: Create, Update, Delete, each from first to last.
type Changes struct {
	Create, Update, Delete []*discoveryv1.EndpointSlice
}
