package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/external-backend/operator/api/v1alpha1"
)

// The model decides in the most obvious way, however slow: addresses are strings of binary digits,
// and each question looks at every rule.

func digits(a netip.Addr) string {
	var b strings.Builder
	for _, octet := range a.AsSlice() {
		fmt.Fprintf(&b, "%08b", octet)
	}
	return b.String()
}

func inPrefix(a netip.Addr, prefix string) bool {
	p := netip.MustParsePrefix(prefix)
	return a.Is4() == p.Addr().Is4() && strings.HasPrefix(digits(a), digits(p.Addr())[:p.Bits()])
}

func inAny(a netip.Addr, prefixes ...string) bool {
	for _, p := range prefixes {
		if inPrefix(a, p) {
			return true
		}
	}
	return false
}

func fromDigits(d string) netip.Addr {
	n, err := strconv.ParseUint(d, 2, 32)
	if err != nil || len(d) != 32 {
		panic(fmt.Sprint("not 32 binary digits: ", d))
	}
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// modelEmbedded lists the IPv4 addresses that an IPv6 address may lead to.
func modelEmbedded(a netip.Addr) []netip.Addr {
	if !a.Is6() || inAny(a, "::/128", "::1/128") {
		return nil
	}
	d := digits(a)
	last := d[96:]
	var found []netip.Addr
	if inAny(a, "::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "64:ff9b::/96", "64:ff9b:1::/48") {
		found = append(found, fromDigits(last))
	}
	if inPrefix(a, "64:ff9b:1::/48") {
		withoutU := d[:64] + d[72:] // RFC 6052, 2.2: bits 64 to 71 are no part of the address
		for _, length := range []int{48, 56, 64} {
			if v4 := fromDigits(withoutU[length : length+32]); !inPrefix(v4, "0.0.0.0/8") {
				found = append(found, v4)
			}
		}
	}
	if inPrefix(a, "2002::/16") {
		found = append(found, fromDigits(d[16:48]))
	}
	if inPrefix(a, "2001::/32") {
		inverted := strings.NewReplacer("0", "1", "1", "0").Replace(last)
		found = append(found, fromDigits(d[32:64]), fromDigits(inverted))
	}
	if id := d[64:96]; id == digits(netip.MustParseAddr("0.0.94.254")) || id == digits(netip.MustParseAddr("2.0.94.254")) {
		found = append(found, fromDigits(last))
	}
	return found
}

// modelOwn returns the kind of the address itself.
func modelOwn(a netip.Addr, r ClusterRanges) Kind {
	texts := func(prefixes []netip.Prefix) (out []string) {
		for _, p := range prefixes {
			out = append(out, p.String())
		}
		return out
	}
	var nodes []string
	for _, n := range r.NodeAddresses {
		nodes = append(nodes, fmt.Sprintf("%s/%d", n, n.BitLen()))
	}
	switch {
	case inAny(a, "0.0.0.0/8") || a == netip.IPv6Unspecified():
		return Unspecified
	case a.Is4() && a.IsLoopback() || a == netip.IPv6Loopback():
		return Loopback
	case a.Is4In6():
		return Mapped
	case a.IsLinkLocalUnicast():
		return LinkLocal
	case a.IsMulticast():
		return Multicast
	case a == netip.MustParseAddr("255.255.255.255"):
		return Broadcast
	case inAny(a, "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32", "100.80.80.80/32", "100.96.0.96/32",
		"fd00:100::100:200/128", "fd00:ec2::254/128", "fd00:ec2::23/128", "fd20:ce::254/128",
		"fd00:a9fe:a9fe::1/128", "fd00:c1::a9fe:a9fe/128", "fd00:42::42/128"):
		return Metadata
	case inAny(a, texts(r.Declared)...):
		return ClusterRange
	case inAny(a, texts(r.Discovered)...) || inAny(a, nodes...):
		return DiscoveredRange
	}
	return None
}

// modelKind returns the strongest kind of the address and of all that it embeds.
func modelKind(a netip.Addr, r ClusterRanges) Kind {
	kind := modelOwn(a, r)
	for _, e := range modelEmbedded(a) {
		if k := modelOwn(e, r); k != None && (kind == None || k < kind) {
			kind = k
		}
	}
	return kind
}

// A modelQuestion is one call of Target, Unnamed, Lookup, Name or Nameserver.
type modelQuestion struct {
	call  string
	name  string
	addr  netip.Addr
	port  uint16 // Nameserver's
	ports []Port
}

// ask checks that a decision names a port where one is refused, and then leaves the port out.
func (q modelQuestion) ask(v *View) Decision {
	d := q.put(v)
	if (d.Kind == PortNotAllowed) != slices.Contains(q.ports, d.Port) {
		panic(fmt.Sprintf("%+v is decided as %+v", q, d))
	}
	d.Port = Port{}
	return d
}

func (q modelQuestion) put(v *View) Decision {
	switch q.call {
	case "Target":
		return v.Target(q.name, q.addr, q.ports...)
	case "Unnamed":
		return v.Unnamed(q.addr, q.ports...)
	case "Lookup":
		return v.Lookup(q.name, q.ports...)
	case "Name":
		return v.Name(q.name, q.ports...)
	case "Nameserver":
		return v.Nameserver(netip.AddrPortFrom(q.addr, q.port))
	}
	panic(q.call)
}

// modelDecide follows the package comment step by step.
func modelDecide(in Input, ns map[string]string, q modelQuestion) Decision {
	domain := in.ClusterDomain
	kind := None
	switch {
	case q.call == "Name" && (q.name == domain || strings.HasSuffix(q.name, "."+domain)):
		kind = ClusterName
	case q.call == "Target" || q.call == "Unnamed" || q.call == "Nameserver":
		kind = modelKind(q.addr, in.ClusterRanges)
	}
	var enforced, audited []v1alpha1.ExternalBackendPolicy
	for _, p := range in.Policies {
		selector, err := metav1.LabelSelectorAsSelector(&p.Spec.NamespaceSelector)
		if err != nil {
			panic(err)
		}
		switch {
		case !selector.Matches(labels.Set(ns)):
		case p.Spec.Mode == v1alpha1.PolicyModeAudit:
			audited = append(audited, p)
		default:
			enforced = append(enforced, p)
		}
	}
	always := kind != None && kind != Metadata && kind != ClusterRange && kind != DiscoveredRange
	if always {
		return Decision{Kind: kind, WouldDeny: len(audited) > 0}
	}
	d := modelJudge(in, enforced, q, kind)
	if len(audited) > 0 {
		would := modelJudge(in, audited, q, kind)
		if d.WouldDeny = !would.Allowed; d.Allowed {
			d.Kind = would.Kind
		}
	}
	return d
}

func modelJudge(in Input, selecting []v1alpha1.ExternalBackendPolicy, q modelQuestion, kind Kind) Decision {
	refusal := modelRefusal(in, selecting, q, kind != None)
	if refusal == None {
		return Decision{Allowed: true}
	}
	d := Decision{Kind: refusal}
	if kind != None && refusal == NotAllowed {
		d.Kind = kind
	}
	d.ByDiscoveryAlone = kind == DiscoveredRange && modelRefusal(in, selecting, q, false) == None
	return d
}

func modelRefusal(in Input, selecting []v1alpha1.ExternalBackendPolicy, q modelQuestion, guarded bool) Kind {
	if len(selecting) == 0 {
		if guarded || in.DefaultDeny {
			return NotAllowed
		}
		return None
	}
	anywhere, everyPort := false, true
	for _, port := range append([]Port{{}}, q.ports...) { // {} stands for "whatever port"
		allowed := false
		for _, p := range selecting {
			allowed = allowed || modelNameserver(in, p, q, guarded)
			for _, r := range p.Spec.Allow {
				if modelRule(in, r, q, guarded) && (port == Port{} || modelPort(r, port)) {
					allowed = true
				}
			}
		}
		if (port == Port{}) {
			anywhere = allowed
		} else if !allowed {
			everyPort = false
		}
	}
	switch {
	case !anywhere:
		return NotAllowed
	case !everyPort:
		return PortNotAllowed
	}
	return None
}

// modelRule reports whether the rule covers address and name.
func modelRule(in Input, r v1alpha1.PolicyRule, q modelQuestion, guarded bool) bool {
	if q.call == "Nameserver" || len(r.CIDRs)+len(r.Hostnames) == 0 && r.AnyTarget == nil {
		return false
	}
	if len(r.Hostnames) > 0 && q.call != "Unnamed" {
		covered := false
		for _, h := range r.Hostnames {
			if below, ok := strings.CutPrefix(h, "*"); ok {
				covered = covered || strings.HasSuffix(q.name, below)
			} else {
				covered = covered || q.name == h
			}
		}
		if !covered {
			return false
		}
	}
	switch q.call {
	case "Lookup":
		return true
	case "Name":
		return len(r.CIDRs) == 0
	}
	if len(r.CIDRs) == 0 {
		return !guarded
	}
	return modelNames(in, q.addr, guarded, func(a netip.Addr) bool { return inAny(a, r.CIDRs...) })
}

// modelNameserver reports whether the policy lists the nameserver.
func modelNameserver(in Input, p v1alpha1.ExternalBackendPolicy, q modelQuestion, guarded bool) bool {
	return q.call == "Nameserver" && modelNames(in, q.addr, guarded, func(a netip.Addr) bool {
		return slices.Contains(p.Spec.AllowNameservers, a.String()) ||
			slices.Contains(p.Spec.AllowNameservers, netip.AddrPortFrom(a, q.port).String())
	})
}

// modelNames reports whether the cidrs contain the address and every guarded one in it.
func modelNames(in Input, a netip.Addr, guarded bool, named func(netip.Addr) bool) bool {
	if guarded {
		for _, e := range modelEmbedded(a) {
			if modelOwn(e, in.ClusterRanges) != None && !named(e) {
				return false
			}
		}
	}
	return named(a)
}

func modelPort(r v1alpha1.PolicyRule, port Port) bool {
	for _, p := range r.Ports {
		protocol, first, last := p.Protocol, p.Port, p.EndPort
		if protocol == "" {
			protocol = corev1.ProtocolTCP
		}
		if last == 0 {
			last = first
		}
		if protocol == port.Protocol && first <= int32(port.Port) && int32(port.Port) <= last {
			return true
		}
	}
	return len(r.Ports) == 0
}
