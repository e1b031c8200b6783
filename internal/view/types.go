package view

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// State sums up an ExternalBackend in one word.
type State string

const (
	// StateHealthy means that traffic can flow, and every condition is as it should be.
	StateHealthy State = "Healthy"
	// StateDegraded means that traffic can flow, and a condition is not as it should be.
	StateDegraded State = "Degraded"
	// StateDown means that no traffic can flow.
	StateDown State = "Down"
	// StateUnknown means that the operator has not said yet.
	StateUnknown State = "Unknown"
)

// Backend is what people are shown of one ExternalBackend.
type Backend struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	State     State  `json:"state"`
	// Summary says in a sentence why State is what it is.
	Summary string    `json:"summary,omitempty"`
	Created time.Time `json:"created"`
	// Outdated reports whether status is about an older spec.
	Outdated bool    `json:"outdated,omitempty"`
	Service  Service `json:"service"`
	// Endpoints are the counts in status; nil before the first one.
	Endpoints  *v1alpha1.EndpointCounts `json:"endpoints,omitempty"`
	Check      string                   `json:"check"`
	Tiers      []Tier                   `json:"tiers,omitempty"`
	Targets    []Target                 `json:"targets,omitempty"` // worst first
	Names      []Name                   `json:"names,omitempty"`
	Slices     Slices                   `json:"slices"`
	Policy     Policy                   `json:"policy"`
	Override   string                   `json:"override,omitempty"`  // the applied one, by status
	Overrides  []Override               `json:"overrides,omitempty"` // the applied one first
	Conditions []metav1.Condition       `json:"conditions,omitempty"`
	Events     []Event                  `json:"events,omitempty"` // newest first
	// Unattributed are published endpoints that belong to no target of the spec.
	Unattributed []Endpoint `json:"unattributed,omitempty"`
	Siblings     []string   `json:"siblings,omitempty"`
	// Replica is the replica of the manager that works for it; nil where nobody has looked.
	Replica *Replica `json:"replica,omitempty"`
	Unread  []Unread `json:"unread,omitempty"`
}

// Replica is a replica of the manager.
type Replica struct {
	// Name is that of its Pod; "" if it is unknown.
	Name string `json:"name,omitempty"`
	// Namespace is where the Leases of the replicas were looked for.
	Namespace string `json:"namespace"`
}

// Service is the Service that an ExternalBackend publishes behind.
type Service struct {
	Name string               `json:"name"`
	Type v1alpha1.ServiceType `json:"type,omitempty"`
	// Known reports whether the Service was read. Exists is then whether there is one.
	Known  bool `json:"known"`
	Exists bool `json:"exists"`
	// Referenced reports whether spec.serviceRef names it.
	Referenced bool     `json:"referenced,omitempty"`
	ClusterIPs []string `json:"clusterIPs,omitempty"`
	Ports      []string `json:"ports,omitempty"`
}

// Tier is one tier of an ExternalBackend.
type Tier struct {
	Number int32 `json:"number"`
	Active bool  `json:"active"`
	Pinned bool  `json:"pinned,omitempty"`
	// Counts are those of the published endpoints of the tier; nil if the slices could not be read.
	Counts *Counts `json:"counts,omitempty"`
}

// Counts counts endpoints.
type Counts struct {
	Total   int `json:"total"`
	Ready   int `json:"ready"`
	Healthy int `json:"healthy"`
}

// Target is one target of an ExternalBackend.
type Target struct {
	Name string `json:"name"`
	// Source is the field that says where the target is: address, hostname or srvName. Value is what
	// it says.
	Source string `json:"source"`
	Value  string `json:"value"`
	Tier   int32  `json:"tier"`
	Zone   string `json:"zone,omitempty"`
	// AdminState is the one in force. Override names the override that sets it, if one does.
	AdminState v1alpha1.AdminState `json:"adminState"`
	Override   string              `json:"override,omitempty"`
	// State, Health, Reason, Message and Since are those in status. If status omits the target,
	// Omitted is true, and State and Health say what the slices show.
	State   v1alpha1.TargetState  `json:"state,omitempty"`
	Health  v1alpha1.TargetHealth `json:"health,omitempty"`
	Reason  string                `json:"reason,omitempty"`
	Message string                `json:"message,omitempty"`
	Since   *metav1.Time          `json:"since,omitempty"`
	Omitted bool                  `json:"omitted,omitempty"`
	Total   int32                 `json:"total"`
	Ready   int32                 `json:"ready"`
	// Addresses are those in status: the first few.
	Addresses []string `json:"addresses,omitempty"`
	// Endpoints are those that the slices publish, worst first.
	Endpoints []Endpoint `json:"endpoints,omitempty"`
}

// Endpoint is a published endpoint.
type Endpoint struct {
	// Address is an IP address, or for Passthrough a name.
	Address string   `json:"address"`
	Ports   []string `json:"ports,omitempty"` // such as "http:8080/TCP"
	Tier    int32    `json:"tier"`
	Ready   bool     `json:"ready"`
	Serving bool     `json:"serving"`
	// Terminating and DrainUntil tell that it drains, and until when.
	Terminating bool         `json:"terminating,omitempty"`
	DrainUntil  *metav1.Time `json:"drainUntil,omitempty"`
	// Verdict is what its slice shows: Healthy, Unhealthy, Unknown or Unprobed.
	Verdict v1alpha1.TargetHealth `json:"verdict"`
	// Reason, Message and Since are those of its target. The API has none for a single endpoint.
	Reason  string       `json:"reason,omitempty"`
	Message string       `json:"message,omitempty"`
	Since   *metav1.Time `json:"since,omitempty"`
	Zone    string       `json:"zone,omitempty"`
	Node    string       `json:"node,omitempty"`
	Slice   string       `json:"slice"`
}

// Quality says how good the answer for a name is.
type Quality string

const (
	// QualityCurrent means that the name has a current answer.
	QualityCurrent Quality = "Current"
	// QualityStale means that resolution fails and the last good answer serves.
	QualityStale Quality = "Stale"
	// QualityFailed means that there is no answer to use.
	QualityFailed Quality = "Failed"
	// QualityPending means that there was no answer yet.
	QualityPending Quality = "Pending"
	// QualityNotAsked means that nobody asks for the name: its target is Disabled, or policy refuses
	// the name, or the Service passes the name on.
	QualityNotAsked Quality = "NotAsked"
	// QualityUnknown means that status does not say.
	QualityUnknown Quality = "Unknown"
)

// Name is what a DNS name of a target resolves to, and how good that is.
type Name struct {
	Target string `json:"target"`
	Name   string `json:"name"`
	// Type is what is asked for: "A/AAAA" or "SRV".
	Type    string       `json:"type"`
	Quality Quality      `json:"quality"`
	Reason  string       `json:"reason,omitempty"`
	Message string       `json:"message,omitempty"`
	Since   *metav1.Time `json:"since,omitempty"`
	// Addresses are those that are published and not leaving.
	Addresses []string `json:"addresses,omitempty"`
}

// Slices compares the slices with status.
type Slices struct {
	// Known reports whether the slices were read.
	Known bool    `json:"known"`
	Own   []Slice `json:"own,omitempty"`
	// Others are those of siblings, and of others.
	Others []Slice `json:"others,omitempty"`
	// Counts are those of the own slices together.
	Counts Counts `json:"counts"`
	// Differences say in sentences where slices and status differ.
	Differences []string `json:"differences,omitempty"`
}

// Slice is one EndpointSlice.
type Slice struct {
	Name string `json:"name"`
	// Backend is the ExternalBackend that it is written for. ManagedBy is who writes it.
	Backend     string                  `json:"backend,omitempty"`
	ManagedBy   string                  `json:"managedBy,omitempty"`
	AddressType discoveryv1.AddressType `json:"addressType"`
	Ports       []string                `json:"ports,omitempty"`
	Counts      Counts                  `json:"counts"`
}

// Policy is what policy says about an ExternalBackend.
type Policy struct {
	// Permitted is the condition's status, and Reason and Message are its others.
	Permitted metav1.ConditionStatus `json:"permitted"`
	Reason    string                 `json:"reason,omitempty"`
	Message   string                 `json:"message,omitempty"`
	// Known reports whether policies and the labels of the namespace were read. Selecting are then the
	// policies that select the namespace.
	Known     bool            `json:"known"`
	Selecting []PolicySummary `json:"selecting,omitempty"`
}

// PolicySummary is one policy.
type PolicySummary struct {
	Name     string                 `json:"name"`
	Mode     v1alpha1.PolicyMode    `json:"mode"`
	Accepted metav1.ConditionStatus `json:"accepted"`
	Rules    int                    `json:"rules"`
}

// Override is one ExternalBackendOverride.
type Override struct {
	Name string `json:"name"`
	// Effect says for people what it sets.
	Effect string      `json:"effect"`
	Until  metav1.Time `json:"until"`
	// Applied is the condition's status, and Reason and Message are its others.
	Applied metav1.ConditionStatus `json:"applied"`
	Reason  string                 `json:"reason,omitempty"`
	Message string                 `json:"message,omitempty"`
	Created metav1.Time            `json:"created"`
}

// Event is an event about an ExternalBackend.
type Event struct {
	Type    string      `json:"type"`
	Reason  string      `json:"reason"`
	Message string      `json:"message"`
	Count   int32       `json:"count"`
	Last    metav1.Time `json:"last"`
}

// Warning reports whether the event is a warning.
func (e *Event) Warning() bool { return e.Type == corev1.EventTypeWarning }
