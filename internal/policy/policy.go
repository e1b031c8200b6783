// Package policy decides which addresses, names, ports and nameservers the ExternalBackends of a
// namespace may use. It is pure: the same Input gives the same decisions, and a Set never changes.
//
// # Selection
//
// The rules of all policies add up, as with NetworkPolicy. A namespace that no policy selects may
// use whatever is not forbidden (with DefaultDeny: nothing). A namespace that a policy selects may
// use only what some rule allows.
//
// Only policies in mode Enforce take part in that. A policy in mode Audit neither restricts nor
// allows, does not open a guarded range, and does not count as selection against DefaultDeny. So
// adding or removing it never changes what is allowed. It answers one question: what would be
// refused if the Audit policies that select the namespace were the only policies, in mode Enforce?
// So a narrower policy can be tried beside the wide one that is in force. The answer is WouldDeny
// if those policies alone refuse the target, whether it is allowed now or not.
//
// # Rules
//
// A rule allows a target on a port if its cidrs contain the address, its hostnames cover the name
// as written in spec, and its ports contain the port. A list that is absent fits everything.
// anyTarget stands for the absence of both cidrs and hostnames: a rule with none of the three
// allows nothing. A literal address has no name, so a rule with hostnames never covers it. Every
// target and probe port needs a rule, but not all of them the same one.
//
// An entry that can't be read allows nothing, and its rule does not count as a rule without that
// list. A rule with a field that this version does not know allows nothing, because the field may
// narrow the rule. The same holds for a policy with an unknown field beside its rules, or with an
// unknown mode.
//
// # Ranges
//
// Some addresses are always forbidden. Others are guarded: only a rule whose cidrs contain the
// address allows it (see Kind). An IPv6 address that embeds IPv4 addresses is of their kinds, too.
// A rule opens it if its cidrs contain it and every guarded address in it. A Node object that
// claims too large a range must not take down what is published. So an address is marked
// ByDiscoveryAlone if it is refused only because of a guarded range that discovery alone knows.
//
// # Nameservers
//
// In a selected namespace only the nameservers that a policy's allowNameservers list may be named.
// A guarded nameserver needs to be listed in any namespace. The manager's own resolv.conf is not
// subject to policy.
package policy

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/external-backend/operator/api/v1alpha1"
)

// DefaultClusterDomain applies if Input.ClusterDomain is empty.
const DefaultClusterDomain = "cluster.local"

// Input is all that decisions depend on.
type Input struct {
	Policies      []v1alpha1.ExternalBackendPolicy
	ClusterRanges ClusterRanges
	DefaultDeny   bool   // --default-target-policy=Deny
	ClusterDomain string // --cluster-domain
}

// A Set is a compiled Input. It is immutable and safe for concurrent use.
type Set struct {
	defaultDeny   bool
	clusterDomain string
	policies      []compiledPolicy
	classifier    classifier

	nothing     set                       // no rule; as long as every set of rules
	everything  set                       // all rules
	targets     set                       // the rules that cover targets of some name, or of none
	addresses   addrTable                 // the rules whose cidrs contain an address
	anyAddress  set                       // the rules without cidrs
	names       names                     // the rules that cover a name
	ports       map[corev1.Protocol]table // the rules that cover a port
	nameservers map[netip.AddrPort]set    // the policies that list a nameserver; port 0: any port
}

type compiledPolicy struct {
	name     string
	selector labels.Selector
	audit    bool
	from, to int // its rules: from <= id < to
}

// A Port is a target or probe port.
type Port struct {
	Protocol corev1.Protocol // TCP, UDP or SCTP
	Port     uint16
}

// A Decision says whether something may be used.
type Decision struct {
	Allowed bool
	// WouldDeny means that policies in mode Audit would refuse it, Allowed or not.
	WouldDeny bool
	// ByDiscoveryAlone means that it is not Allowed only because of a cluster range that
	// discovery alone knows. A published endpoint stays, and is reported.
	ByDiscoveryAlone bool
	// Kind is why it is refused, or if it is Allowed, why it would be; None if it would not.
	Kind Kind
	// Port is the port that is refused if Kind is PortNotAllowed.
	Port Port
}

// Keep reports whether something that is published already may stay.
func (d Decision) Keep(published bool) bool { return d.Allowed || published && d.ByDiscoveryAlone }

// A View is a Set as one namespace sees it, safe for concurrent use.
type View struct {
	set            *Set
	enforce, audit side
}

// side is what the policies of one mode say about a namespace.
type side struct {
	selected bool
	rules    set
}

// For returns the view of a namespace with these labels. The API server ensures that they include
// kubernetes.io/metadata.name.
func (s *Set) For(namespaceLabels map[string]string) *View {
	words := len(s.nothing)
	v := &View{set: s, enforce: side{rules: make(set, words)}, audit: side{rules: make(set, words)}}
	for _, p := range s.policies {
		if !p.selector.Matches(labels.Set(namespaceLabels)) {
			continue
		}
		side := &v.enforce
		if p.audit {
			side = &v.audit
		}
		side.selected = true
		for id := p.from; id < p.to; id++ {
			side.rules.add(id)
		}
	}
	return v
}

// Target decides about one address of a target: its literal one or one that its
// name resolved to. The name is the hostname or srvName as written in spec, ""
// for a literal; ports are all its target and probe ports. The dialler asks the
// same question with the one port it is about to dial.
func (v *View) Target(name string, a netip.Addr, ports ...Port) Decision {
	return v.decide(v.target(name, a, ports))
}

// Unnamed decides about an address if nobody remembers which name led to it, if any. It refuses an
// address only if no name could allow it.
func (v *View) Unnamed(a netip.Addr, ports ...Port) Decision {
	return v.decide(v.unnamed(a, ports))
}

// Lookup decides whether a name needs to be resolved at all. It refuses a name only if no rule
// could allow it, whatever its addresses.
func (v *View) Lookup(name string, ports ...Port) Decision {
	return v.decide(v.lookup(name, ports))
}

// Name decides about a name that is published as such (Passthrough and ExternalName). Nobody checks
// its addresses, so only rules without cidrs allow it, and the cluster's own names are forbidden.
func (v *View) Name(name string, ports ...Port) Decision {
	if under(name, v.set.clusterDomain) {
		return Decision{Kind: ClusterName, WouldDeny: v.audit.selected}
	}
	return v.decide(v.alias(name, ports))
}

// SameKinds reports whether an address, and every address that it embeds, has the same kind in both
// sets. With the same rules both decide alike about it.
func (s *Set) SameKinds(other *Set, a netip.Addr) bool {
	a = a.WithZone("")
	var buf [maxEmbedded]netip.Addr
	for _, e := range append(embedded(a, buf[:0]), a) {
		if s.classifier.own(e) != other.classifier.own(e) {
			return false
		}
	}
	return true
}

// Nameserver decides about one of spec.dns.nameservers.
func (v *View) Nameserver(ns netip.AddrPort) Decision {
	listing := func(a netip.Addr) set {
		for _, port := range [...]uint16{ns.Port(), 0} {
			if rules, ok := v.set.nameservers[netip.AddrPortFrom(a, port)]; ok {
				return rules
			}
		}
		return v.set.nothing
	}
	return v.decide(question{reach: v.set.reach(ns.Addr(), listing, v.set.nothing), names: v.set.everything})
}
