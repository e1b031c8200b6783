package plan

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// Input is everything that candidates are planned from.
type Input struct {
	Backend  *v1alpha1.ExternalBackend
	Families Families
	// Headless reports whether endpoints carry the name of their target as hostname.
	Headless bool
	// ServesPort reports whether the Service has the port, by name and protocol.
	ServesPort func(*v1alpha1.Port) bool
	// Answers holds the answers for targets with a DNS name, by target name. The planner keeps the
	// map.
	Answers map[string]Answer
	Permit  Permit
	// Rules identifies what Permit decides by. Its type is comparable, such as a pointer to compiled
	// policies. While it is the same, Permit decides the same.
	Rules any
	// Published is what the slices hold now, and what other publishers are about to hand over.
	Published *endpointslice.PublishedEndpoints
	// Status is the status written last.
	Status v1alpha1.ExternalBackendStatus
	// Siblings are the siblings now, and FormerSiblings those of the previous plan. An address that
	// moves from a sibling to this ExternalBackend keeps its health.
	Siblings, FormerSiblings []Sibling
	// Probes are the probes of the previous plan. Addresses that are leaving go on being probed by
	// them.
	Probes []Probe
	// NamedAddrs are the addresses of the previous plan. Policy goes on judging leaving addresses by
	// the names in it. It is nil after a restart.
	NamedAddrs []NamedAddr
	// Override is the override that the spec of Backend is subject to.
	Override AppliedOverride
	// Max is the largest number of endpoints to publish.
	Max int
	Now time.Time
}

type (
	// Endpoint is the type of package endpointslice.
	Endpoint = endpointslice.Endpoint
	// Conditions is the type of package endpointslice.
	Conditions = endpointslice.Conditions
	// Port is the type of package endpointslice.
	Port = endpointslice.Port
)

// AnswerStatus says how good a DNS answer is.
type AnswerStatus string

const (
	// AnswerPending means that the name has had no answer yet.
	AnswerPending AnswerStatus = "Pending"
	// AnswerCurrent means that the answer is good and its TTL is not over.
	AnswerCurrent AnswerStatus = "Current"
	// AnswerStale means that resolution fails and the last good answer is still used (RFC 8767).
	AnswerStale AnswerStatus = "Stale"
	// AnswerFailed means that there is no answer to use: the name never resolved, its last answer
	// is too old, or it does not exist.
	AnswerFailed AnswerStatus = "Failed"
)

// Answer is what DNS says now about the name of a target.
type Answer struct {
	Status AnswerStatus
	Addrs  []Addr
	// Reason is the fixed word for status, and Cause the fixed phrase for messages. Both are "" if
	// the answer is current.
	Reason, Cause string
	// Omitted is the number of addresses above the bound on the addresses of one name.
	Omitted int
	// Refusal is what policy says about the name itself. A denied name is not resolved.
	Refusal Refusal
}

// unknown reports whether nothing is known about the name, not even whether it exists.
func (a *Answer) unknown() bool {
	return a.Status == AnswerPending || a.Status == AnswerFailed && a.Reason == v1alpha1.ReasonResolutionFailed
}

// Addr is one address of an answer. Port and Rank come from an SRV record and are 0 without one.
type Addr struct {
	IP   netip.Addr
	Port uint16
	Rank uint8
}

// NamedAddr is an address that may be published, and the DNS name that led to it.
type NamedAddr struct {
	Addr netip.Addr
	Name string
}

// Sibling is another ExternalBackend that publishes behind the same Service.
type Sibling struct {
	Name string
	// Older reports whether it was created before this ExternalBackend.
	Older     bool
	Endpoints []Endpoint
}

// Permit asks policy about an address and the ports that are published and probed there. name is
// the DNS name of the target, or "" for a literal address.
type Permit func(name string, addr netip.Addr, ports []Port) Refusal

// Refusal is what policy says about one address. The zero value allows it.
type Refusal struct {
	// Denied reports whether the address may be neither published nor probed. WouldDeny reports
	// whether a policy in mode Audit would deny it.
	Denied, WouldDeny bool
	// KeepPublished reports whether only discovery denies the address. One that is published
	// already then stays published, and status reports it.
	KeepPublished bool
	// Kind is the fixed phrase for the rule that denies.
	Kind string
	// Port is the port that no policy allows; zero if the address is denied for another reason.
	Port Port
	// OfCheck reports whether Port is probed and not published.
	OfCheck bool
}

// Text returns for people why the address is denied.
func (r *Refusal) Text() string {
	if r.Port.Port == 0 {
		return r.Kind
	}

	field := ""
	if r.OfCheck {
		field = " of spec.healthCheck"
	}
	return fmt.Sprintf("port %d/%s%s is not allowed by any policy", r.Port.Port, r.Port.Protocol, field)
}
