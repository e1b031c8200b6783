package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
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

// text returns for people why the address is denied.
func (r *Refusal) text() string {
	if r.Port.Port == 0 {
		return r.Kind
	}

	field := ""
	if r.OfCheck {
		field = " of spec.healthCheck"
	}
	return fmt.Sprintf("port %d/%s%s is not allowed by any policy", r.Port.Port, r.Port.Protocol, field)
}

// Permit asks policy about an address and the ports that are published and probed there. name is
// the DNS name of the target, or "" for a literal address.
type Permit func(name string, addr netip.Addr, ports []Port) Refusal

// NamedAddr is an address that may be published, and the DNS name that led to it.
type NamedAddr struct {
	Addr netip.Addr
	Name string
}

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
	// Max is the largest number of endpoints to publish.
	Max int
	Now time.Time
}

// Sibling is another ExternalBackend that publishes behind the same Service.
type Sibling struct {
	Name string
	// Older reports whether it was created before this ExternalBackend.
	Older     bool
	Endpoints []Endpoint
}

// Candidates are the endpoints that may be published, with their probes, and the reasons why other
// addresses may not.
type Candidates struct {
	// Endpoints are in the order of the names of their targets. Leaving ones come last. They never
	// change: Publish returns their conditions apart.
	Endpoints []Endpoint
	origins   []origin // parallel to Endpoints
	// Notes are parallel to spec.targets.
	Notes []TargetNotes
	// nextDrainEnd is when the first leaving endpoint has drained; zero if none is leaving.
	nextDrainEnd time.Time
	// layout is the layout of the slices that hold these candidates, if they are those of the
	// previous plan; else nil.
	layout *endpointslice.Layout
	// keepsPublished reports whether an endpoint stays exactly as it is published.
	keepsPublished bool
	// attributed are the published endpoints, in which unread ones have the target and tier that lead
	// to their address and ports; nil if there are no such ones.
	attributed []Endpoint
}

// publishedEndpoints returns what pub holds, with a target for as many endpoints as possible.
func (c *Candidates) publishedEndpoints(pub *endpointslice.PublishedEndpoints) []Endpoint {
	if c.attributed != nil {
		return c.attributed
	}
	return pub.Endpoints()
}

// WithConditions returns copies of the endpoints that have these conditions.
func (c *Candidates) WithConditions(conditions []Conditions) []Endpoint {
	out := slices.Clone(c.Endpoints)
	for i := range out {
		out[i].Conditions = conditions[i]
	}
	return out
}

// keptHealth reports whether candidate i keeps the health of a published endpoint, whether that
// endpoint counts as healthy, and whether it is unread. See [origin].
func (c *Candidates) keptHealth(i int) (keeps, healthy, unread bool) {
	o := &c.origins[i]
	if c.layout != nil {
		return o.probed(), c.layout.Healthy(i), false
	}
	return o.keepsHealth, o.healthy, o.unread
}

// origin says where a candidate comes from.
type origin struct {
	// name is the DNS name that led to the address, or "".
	name string
	// host is the hostname that probes use, and probePort the port they go to; 0 without probes.
	host      string
	probePort uint16
	// terminating reports whether the target is Draining or the address is leaving.
	terminating bool
	// rejected reports whether the candidate is not published, because of a conflict or of Max.
	rejected bool
	// keepsHealth reports whether the candidate has, until there is a verdict, the health of an
	// endpoint that we or a sibling publish at its address, and healthy is that health. Both are set
	// only for candidates that are probed or leaving. unread reports whether one of our slices holds
	// the candidate, but its annotation says nothing about it.
	keepsHealth, healthy, unread bool
	// asPublished reports whether the endpoint stays exactly as it is published, because a name that
	// may have led to it has no answer yet.
	asPublished bool
	// seed is the verdict until the first probe.
	seed Verdict
	// target is the index in spec.targets, or -1.
	target int32
	// address is the number of the address in Published.
	address int32
}

func (o *origin) probed() bool { return o.probePort != 0 }

// TargetNotes are the decisions about one target that its endpoints do not show.
type TargetNotes struct {
	Answer Answer
	// Denied says why policy denies an address of the target, and Audited why it would. Both are ""
	// if it does not.
	Denied, Audited string
	// Duplicates, OtherFamily and Truncated count the addresses that are not published for these
	// reasons.
	Duplicates, OtherFamily, Truncated int
	// Winner names for people who publishes the first of the duplicates.
	Winner string
}

func (n *TargetNotes) addRefusal(r Refusal) {
	if r.WouldDeny {
		n.Audited = r.text()
	}
	if r.Denied {
		n.Denied = r.text()
	}
}
