package policy

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
)

var (
	postgres = Port{corev1.ProtocolTCP, 5432}
	health   = Port{corev1.ProtocolTCP, 8008}

	allowed = Decision{Allowed: true}
)

func refused(k Kind) Decision { return Decision{Kind: k} }

// enforce is a policy for every namespace.
func enforce(rules ...v1alpha1.PolicyRule) v1alpha1.ExternalBackendPolicy {
	return v1alpha1.ExternalBackendPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec:       v1alpha1.ExternalBackendPolicySpec{Mode: v1alpha1.PolicyModeEnforce, Allow: rules},
	}
}

func audit(rules ...v1alpha1.PolicyRule) v1alpha1.ExternalBackendPolicy {
	p := enforce(rules...)
	p.Spec.Mode = v1alpha1.PolicyModeAudit
	return p
}

func forTeam(team string, p v1alpha1.ExternalBackendPolicy) v1alpha1.ExternalBackendPolicy {
	p.Spec.NamespaceSelector.MatchLabels = map[string]string{"team": team}
	return p
}

func cidrs(c ...string) v1alpha1.PolicyRule     { return v1alpha1.PolicyRule{CIDRs: c} }
func hostnames(h ...string) v1alpha1.PolicyRule { return v1alpha1.PolicyRule{Hostnames: h} }
func anyTarget() v1alpha1.PolicyRule            { return v1alpha1.PolicyRule{AnyTarget: &v1alpha1.AnyTarget{}} }
func ports(p ...v1alpha1.PolicyPort) v1alpha1.PolicyRule {
	r := anyTarget()
	r.Ports = p
	return r
}

// nameservers is a policy for every namespace that allows no target.
func nameservers(n ...string) v1alpha1.ExternalBackendPolicy {
	p := enforce()
	p.Spec.AllowNameservers = n
	return p
}

// inCluster returns the input of policies in a cluster with ranges of its own.
func inCluster(p ...v1alpha1.ExternalBackendPolicy) Input {
	return Input{ClusterRanges: thisCluster, Policies: p}
}

func policies(p ...v1alpha1.ExternalBackendPolicy) Input { return Input{Policies: p} }

type rules = []v1alpha1.PolicyRule

// view compiles in, which must be free of problems, for a namespace of team shop.
func view(t *testing.T, in Input) *View {
	t.Helper()
	s, problems := Compile(in)
	if len(problems) > 0 {
		t.Fatalf("problems: %v", problems)
	}
	return s.For(map[string]string{"team": "shop"})
}

func target(name, addr string, ports ...Port) modelQuestion {
	return modelQuestion{call: "Target", name: name, addr: netip.MustParseAddr(addr), ports: ports}
}

func lookup(name string, ports ...Port) modelQuestion {
	return modelQuestion{call: "Lookup", name: name, ports: ports}
}

func published(name string, ports ...Port) modelQuestion {
	return modelQuestion{call: "Name", name: name, ports: ports}
}

func nameserver(ns string) modelQuestion {
	a := netip.MustParseAddrPort(ns)
	return modelQuestion{call: "Nameserver", addr: a.Addr(), port: a.Port()}
}

var thisCluster = ClusterRanges{
	Declared: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")},
	Discovered: []netip.Prefix{
		netip.MustParsePrefix("10.96.0.0/12"),
		netip.MustParsePrefix("10.244.0.0/16"),
		netip.MustParsePrefix("fd00:244::/64"),
	},
	NodeAddresses: []netip.Addr{
		netip.MustParseAddr("192.0.2.10"),
		netip.MustParseAddr("2001:db8::10"),
		netip.MustParseAddr("::ffff:192.0.2.11"),
	},
}

// No policy allows a forbidden address, in any form that embeds it.
func TestForbiddenAddressesStayForbidden(t *testing.T) {
	everything := nameservers("127.0.0.1", "::1", "169.254.169.254", "fe80::1", "::ffff:127.0.0.1")
	everything.Spec.Allow = []v1alpha1.PolicyRule{cidrs("0.0.0.0/0", "::/0")}
	views := map[string]*View{
		"no policy":         view(t, Input{}),
		"all CIDRs allowed": view(t, policies(everything)),
		"any target":        view(t, policies(enforce(anyTarget()))),
	}
	for text, want := range map[string]Kind{
		"0.0.0.0": Unspecified, "0.1.2.3": Unspecified, "::": Unspecified, "::2": Unspecified,
		"127.0.0.1": Loopback, "127.255.255.254": Loopback, "::1": Loopback,
		"169.254.0.1": LinkLocal, "169.254.169.254": LinkLocal,
		"fe80::1": LinkLocal, "febf::1": LinkLocal, "fe80::a9fe:a9fe": LinkLocal,
		"224.0.0.1": Multicast, "239.255.255.255": Multicast, "ff02::1": Multicast, "ff0e::1": Multicast,
		"255.255.255.255":      Broadcast,
		"::ffff:203.0.113.1":   Mapped,
		"::ffff:127.0.0.1":     Loopback,
		"::127.0.0.1":          Loopback,
		"::ffff:0:127.0.0.1":   Loopback,
		"64:ff9b::127.0.0.1":   Loopback,
		"64:ff9b::a9fe:a9fe":   LinkLocal,
		"64:ff9b:1::127.0.0.1": Loopback,
		// RFC 6052, 2.2: prefixes of 48, 56 and 64 bits, with and without a suffix.
		"64:ff9b:1:7f00:0:100::":           Loopback,
		"64:ff9b:1:7f00:0:100:dead:beef":   Loopback,
		"64:ff9b:1:12a9:fe:a9fe::":         LinkLocal,
		"64:ff9b:1:1234:a9:fea9:fe00:0":    LinkLocal,
		"64:ff9b:1:1234:a9:fea9:fe12:3456": LinkLocal,
		"2002:7f00:1::1":                   Loopback,
		"2002:a9fe:a9fe::":                 LinkLocal,
		"2002:e000:1::":                    Multicast,
		"2002::1":                          Unspecified,
		// Teredo: the server is in clear, the client inverted.
		"2001:0:7f00:1::1":                    Loopback,
		"2001:0:cb00:7101:0:0:80ff:fffe":      Loopback,
		"2001:0:cb00:7101:0:0:5601:5601":      LinkLocal,
		"2001:db8::5efe:127.0.0.1":            Loopback,
		"2001:db8::200:5efe:169.254.169.254":  LinkLocal,
		"2001:db8:1:2:0:5efe:255.255.255.255": Broadcast,
	} {
		addr := netip.MustParseAddr(text)
		for name, v := range views {
			for _, zoned := range []netip.Addr{addr, addr.WithZone("eth0")} {
				if got := v.Target("", zoned, postgres); got != refused(want) {
					t.Errorf("%s, Target %s: %+v, want %q", name, zoned, got, want)
				}
				if got := v.Target("db.example.com", zoned); got.Allowed {
					t.Errorf("%s, resolved to %s: %+v", name, zoned, got)
				}
				if got := v.Nameserver(netip.AddrPortFrom(zoned, 53)); got != refused(want) {
					t.Errorf("%s, Nameserver %s: %+v, want %q", name, zoned, got, want)
				}
			}
		}
	}
	for name, v := range views {
		if got := v.Target("", netip.Addr{}); got != refused(NotAnAddress) {
			t.Errorf("%s, no address: %+v", name, got)
		}
	}
}

// Addresses beside the forbidden and guarded ranges are free.
func TestOtherAddressesAreFree(t *testing.T) {
	v := view(t, Input{ClusterRanges: thisCluster})
	for _, text := range []string{
		"1.0.0.0", "126.255.255.255", "128.0.0.0", "169.253.255.255", "169.255.0.0", "223.255.255.255", "240.0.0.1",
		"255.255.255.254",
		"10.1.2.3", "192.168.1.1", "100.64.0.1", "100.100.100.199", "192.0.0.193", "168.63.129.17",
		"fd00:ec2::253", "fd12:3456::1", "fec0::1", "2001:db8::1", "2001:db8::11",
		"64:ff9b::203.0.113.1", "64:ff9b:1::203.0.113.1", "64:ff9b:1:12::203.0.113.1", "2002:cb00:7101::1", "::203.0.113.1",
		"64:ff9b:2::127.0.0.1", "2001:db8::7f00:1", "2001:db8::100:5efe:127.0.0.1", "2001:db8::5eff:127.0.0.1",
		"2003:7f00:1::",
		"2001:0:cb00:7101:0:0:34ff:8efe",
	} {
		if got := v.Target("", netip.MustParseAddr(text), postgres); got != allowed {
			t.Errorf("%s: %+v", text, got)
		}
	}
}

// guardedCases: an address, its kind, and rules' cidrs that name it.
var guardedCases = []struct {
	addr  string
	kind  Kind
	cidrs []string
}{
	{"10.96.0.1", ClusterRange, []string{"10.96.0.0/24"}},
	{"10.97.0.1", DiscoveredRange, []string{"10.97.0.1/32"}},
	{"10.244.3.4", DiscoveredRange, []string{"10.0.0.0/8"}},
	{"fd00:96::1", ClusterRange, []string{"fd00:96::/64"}},
	{"fd00:244::77", DiscoveredRange, []string{"fd00::/8"}},
	{"192.0.2.10", DiscoveredRange, []string{"192.0.2.0/24"}},
	{"192.0.2.11", DiscoveredRange, []string{"192.0.2.0/24"}},
	{"2001:db8::10", DiscoveredRange, []string{"2001:db8::10/128"}},
	{"100.100.100.200", Metadata, []string{"100.100.100.200/32"}},
	{"100.80.80.80", Metadata, []string{"100.64.0.0/10"}},
	{"100.96.0.96", Metadata, []string{"100.96.0.0/24"}},
	{"168.63.129.16", Metadata, []string{"168.63.129.16/32"}},
	{"192.0.0.192", Metadata, []string{"192.0.0.0/24"}},
	{"fd00:ec2::254", Metadata, []string{"fd00:ec2::/32"}},
	{"fd00:ec2::23", Metadata, []string{"fd00:ec2::/32"}},
	{"fd20:ce::254", Metadata, []string{"fd20:ce::254/128"}},
	{"fd00:c1::a9fe:a9fe", Metadata, []string{"fd00:c1::/32"}},
	{"fd00:42::42", Metadata, []string{"fd00:42::42/128"}},
	{"fd00:a9fe:a9fe::1", Metadata, []string{"fd00:a9fe:a9fe::1/128"}},
	{"fd00:100::100:200", Metadata, []string{"fd00:100::/32"}},
	// A form that embeds a guarded address: the rule must contain both.
	{"64:ff9b::10.96.0.1", ClusterRange, []string{"64:ff9b::/96", "10.96.0.1/32"}},
	{"64:ff9b:1:a60:0:100::", Unspecified, nil}, // its last four bytes are 0.0.0.0
	{"64:ff9b:1:a60:0:100:0:cb01", Unspecified, nil},
	{"64:ff9b:1:a60:0:100:cb00:7101", ClusterRange, []string{"64:ff9b:1::/48", "10.96.0.0/16"}},
	{"2002:a60:1::1", ClusterRange, []string{"2002::/16", "10.96.0.0/16"}},
	{"2002:6464:64c8::1", Metadata, []string{"2002::/16", "100.100.100.200/32"}},
	{"2001:db8::5efe:192.0.2.10", DiscoveredRange, []string{"2001:db8::/32", "192.0.2.10/32"}},
	{"::10.244.1.1", DiscoveredRange, []string{"::/96", "10.244.0.0/16"}},
	// The server of Teredo is a node, its client is in the declared range.
	{"2001:0:c000:20a:0:0:f59f:fffe", ClusterRange, []string{"2001::/32", "192.0.2.10/32", "10.96.0.0/16"}},
}

// Only a rule whose cidrs contain a guarded address, and all that it embeds, allows it.
func TestGuardedAddressNeedsARuleThatNamesIt(t *testing.T) {
	for _, c := range guardedCases {
		in := Input{ClusterRanges: thisCluster}
		decide := func(rules ...v1alpha1.PolicyRule) Decision {
			in.Policies = nil
			if rules != nil {
				in.Policies = []v1alpha1.ExternalBackendPolicy{enforce(rules...)}
			}
			return view(t, in).Target("db.example.com", netip.MustParseAddr(c.addr), postgres)
		}
		discovered := Decision{Kind: c.kind, ByDiscoveryAlone: c.kind == DiscoveredRange}
		for what, got := range map[string]Decision{
			"no policy":               decide(),
			"a rule for any target":   decide(anyTarget()),
			"a rule for its hostname": decide(hostnames("db.example.com")),
			"a rule for its port":     decide(ports(v1alpha1.PolicyPort{Port: 5432})),
		} {
			if got != discovered {
				t.Errorf("%s, %s: %+v, want %+v", c.addr, what, got, discovered)
			}
		}
		if got := decide(cidrs("203.0.113.0/24")); got != refused(c.kind) {
			t.Errorf("%s, another CIDR: %+v, want %q", c.addr, got, c.kind)
		}
		if c.cidrs == nil {
			continue
		}
		both := cidrs(c.cidrs...)
		both.Hostnames = []string{"*.example.com"}
		if got := decide(both); got != allowed {
			t.Errorf("%s, named by %v: %+v", c.addr, c.cidrs, got)
		}
		both.Ports = []v1alpha1.PolicyPort{{Port: 1}}
		if got := decide(both); got.Kind != PortNotAllowed || got.Allowed {
			t.Errorf("%s, named on another port: %+v", c.addr, got)
		}
		for i := range c.cidrs {
			if len(c.cidrs) == 1 {
				break
			}
			without := append(append([]string{}, c.cidrs[:i]...), c.cidrs[i+1:]...)
			if got := decide(cidrs(without...)); got.Allowed {
				t.Errorf("%s, %s missing: %+v", c.addr, c.cidrs[i], got)
			}
			if got := decide(cidrs(without...), cidrs(c.cidrs[i])); got.Allowed {
				t.Errorf("%s, named by two rules: %+v", c.addr, got)
			}
		}
	}
}

// A published address stays where nothing but a discovered range refuses it.
func TestDiscoveryAloneWithdrawsNothing(t *testing.T) {
	for _, c := range []struct {
		what string
		in   Input
		addr string
		kept bool
	}{
		{"nobody selects", inCluster(), "10.244.1.1", true},
		{"default deny", Input{ClusterRanges: thisCluster, DefaultDeny: true}, "10.244.1.1", false},
		{"a rule would allow", inCluster(enforce(hostnames("db.example.com"))), "10.244.1.1", true},
		{"no rule would allow", inCluster(enforce(hostnames("other.example.com"))), "10.244.1.1", false},
		{"no rule would allow the port", inCluster(enforce(ports(v1alpha1.PolicyPort{Port: 1}))), "10.244.1.1", false},
		{"declared too", inCluster(), "10.96.1.1", false},
		{"discovered around the declared range", inCluster(), "10.97.1.1", true},
		{"metadata", inCluster(), "100.100.100.200", false},
		{"loopback", inCluster(), "127.0.0.1", false},
		{"not allowed", inCluster(enforce()), "203.0.113.1", false},
		{"discovered and declared in one address", inCluster(), "2001:0:c000:20a:0:0:f59f:fffe", false},
		{"an Audit policy selects", inCluster(audit()), "10.244.1.1", true},
	} {
		d := view(t, c.in).Target("db.example.com", netip.MustParseAddr(c.addr), postgres)
		if d.Allowed || d.Keep(false) || d.Keep(true) != c.kept {
			t.Errorf("%s: %+v, kept %t, want %t", c.what, d, d.Keep(true), c.kept)
		}
	}
	if !allowed.Keep(false) || !allowed.Keep(true) {
		t.Error("what is allowed is not kept")
	}
}

// One rule must cover the address, the name and the port; a list that is absent covers everything.
func TestRuleAllowsWhatItCovers(t *testing.T) {
	range5432 := v1alpha1.PolicyPort{Protocol: corev1.ProtocolTCP, Port: 5432, EndPort: 5440}
	sctp := ports(v1alpha1.PolicyPort{Protocol: corev1.ProtocolSCTP, Port: 1, EndPort: 65535})
	inBoth := v1alpha1.PolicyRule{CIDRs: []string{"203.0.113.0/24"}, Hostnames: []string{"db.example.com"}}
	for _, c := range []struct {
		what  string
		rules rules
		q     modelQuestion
		want  Decision
	}{
		{"no rules", nil, target("", "203.0.113.1", postgres), refused(NotAllowed)},
		{"any target", rules{anyTarget()}, target("", "203.0.113.1", postgres), allowed},
		{"any target, a name", rules{anyTarget()}, target("db.example.com", "2001:db8::1", postgres), allowed},

		{"literal in cidrs", rules{cidrs("203.0.113.0/24")}, target("", "203.0.113.255", postgres), allowed},
		{"literal outside cidrs", rules{cidrs("203.0.113.0/24")}, target("", "203.0.114.0", postgres), refused(NotAllowed)},
		{"resolved in cidrs", rules{cidrs("203.0.113.0/24")}, target("db.example.com", "203.0.113.1", postgres), allowed},
		{"resolved outside cidrs", rules{cidrs("203.0.113.0/24")}, target("db.example.com", "203.0.112.255", postgres),
			refused(NotAllowed)},
		{"one address", rules{cidrs("203.0.113.1/32")}, target("", "203.0.113.1", postgres), allowed},
		{"every IPv4 address is no IPv6 address", rules{cidrs("0.0.0.0/0")}, target("", "2001:db8::1", postgres),
			refused(NotAllowed)},
		{"every IPv6 address is no IPv4 address", rules{cidrs("::/0")}, target("", "203.0.113.1", postgres),
			refused(NotAllowed)},
		{"the last addresses", rules{cidrs("255.255.255.254/31", "ffff::/16", "8000::/1")},
			target("", "255.255.255.254", postgres), allowed},
		{"nested cidrs of two rules", rules{cidrs("203.0.112.0/22"), cidrs("203.0.113.0/24")},
			target("", "203.0.114.1", postgres), allowed},

		{"hostname", rules{hostnames("db.example.com")}, target("db.example.com", "203.0.113.1", postgres), allowed},
		{"another hostname", rules{hostnames("db.example.com")}, target("xdb.example.com", "203.0.113.1", postgres),
			refused(NotAllowed)},
		{"below the hostname", rules{hostnames("db.example.com")}, target("a.db.example.com", "203.0.113.1", postgres),
			refused(NotAllowed)},
		{"a literal has no hostname", rules{hostnames("db.example.com")}, target("", "203.0.113.1", postgres),
			refused(NotAllowed)},
		{"wildcard, one label", rules{hostnames("*.example.com")}, target("db.example.com", "203.0.113.1", postgres),
			allowed},
		{"wildcard, more labels", rules{hostnames("*.example.com")}, target("a.b.c.example.com", "203.0.113.1", postgres),
			allowed},
		{"wildcard, no label", rules{hostnames("*.example.com")}, target("example.com", "203.0.113.1", postgres),
			refused(NotAllowed)},
		{"wildcard, half a label", rules{hostnames("*.example.com")}, target("badexample.com", "203.0.113.1", postgres),
			refused(NotAllowed)},
		{"wildcard below another", rules{
			hostnames("*.example.com"),
			{Hostnames: []string{"*.db.example.com"}, Ports: []v1alpha1.PolicyPort{{Port: 1}}},
		}, target("a.db.example.com", "203.0.113.1", postgres), allowed},
		{"a name beside a wildcard", rules{
			hostnames("*.example.com"),
			{Hostnames: []string{"db.example.com"}, Ports: []v1alpha1.PolicyPort{{Port: 1}}},
		}, target("db.example.com", "203.0.113.1", postgres), allowed},
		{"srvName as written", rules{hostnames("_postgres._tcp.db.example.com")},
			target("_postgres._tcp.db.example.com", "203.0.113.1", postgres), allowed},
		{"srvName below a wildcard", rules{hostnames("*.db.example.com")},
			target("_postgres._tcp.db.example.com", "203.0.113.1", postgres), allowed},
		{"upper case is the same name", rules{hostnames("db.example.com")},
			target("DB.Example.com.", "203.0.113.1", postgres), allowed},

		{"both fit", rules{inBoth}, target("db.example.com", "203.0.113.1", postgres), allowed},
		{"only the name fits", rules{inBoth}, target("db.example.com", "198.51.100.1", postgres), refused(NotAllowed)},
		{"only the address fits", rules{inBoth}, target("other.example.com", "203.0.113.1", postgres), refused(NotAllowed)},
		{"a literal in a rule of both", rules{inBoth}, target("", "203.0.113.1", postgres), refused(NotAllowed)},
		{"halves of two rules", rules{
			{CIDRs: []string{"203.0.113.0/24"}, Hostnames: []string{"other.example.com"}},
			{CIDRs: []string{"198.51.100.0/24"}, Hostnames: []string{"db.example.com"}},
		}, target("db.example.com", "203.0.113.1", postgres), refused(NotAllowed)},

		{"the first port", rules{ports(range5432)}, target("", "203.0.113.1", postgres), allowed},
		{"the last port", rules{ports(range5432)}, target("", "203.0.113.1", Port{corev1.ProtocolTCP, 5440}), allowed},
		{"below the range", rules{ports(range5432)}, target("", "203.0.113.1", Port{corev1.ProtocolTCP, 5431}),
			refused(PortNotAllowed)},
		{"above the range", rules{ports(range5432)}, target("", "203.0.113.1", Port{corev1.ProtocolTCP, 5441}),
			refused(PortNotAllowed)},
		{"another protocol", rules{ports(range5432)}, target("", "203.0.113.1", Port{corev1.ProtocolUDP, 5432}),
			refused(PortNotAllowed)},
		{"no such protocol", rules{anyTarget()}, target("", "203.0.113.1", Port{"ICMP", 1}), refused(PortNotAllowed)},
		{"the default protocol is TCP", rules{ports(v1alpha1.PolicyPort{Port: 5432})}, target("", "203.0.113.1", postgres),
			allowed},
		{"every port of a protocol", rules{sctp}, target("", "203.0.113.1", Port{corev1.ProtocolSCTP, 65535}), allowed},
		{"of that protocol only", rules{sctp}, target("", "203.0.113.1", postgres), refused(PortNotAllowed)},
		{"no ports: all", rules{cidrs("203.0.113.0/24")},
			target("", "203.0.113.1", Port{corev1.ProtocolUDP, 1}, Port{corev1.ProtocolSCTP, 65535}), allowed},
		{"a denied probe port denies the target", rules{ports(range5432)}, target("", "203.0.113.1", postgres, health),
			refused(PortNotAllowed)},
		{"a rule each", rules{ports(range5432), ports(v1alpha1.PolicyPort{Port: 8008})},
			target("", "203.0.113.1", postgres, health), allowed},
		{"a rule each, for other addresses", rules{
			{CIDRs: []string{"203.0.113.1/32"}, Ports: []v1alpha1.PolicyPort{range5432}},
			{CIDRs: []string{"203.0.113.2/32"}, Ports: []v1alpha1.PolicyPort{{Port: 8008}}},
		}, target("", "203.0.113.1", postgres, health), refused(PortNotAllowed)},

		{"a name to resolve", rules{inBoth}, lookup("db.example.com", postgres), allowed},
		{"a name that no rule covers", rules{inBoth}, lookup("other.example.com", postgres), refused(NotAllowed)},
		{"a name that only cidrs may cover", rules{cidrs("203.0.113.0/24")}, lookup("any.example.com", postgres), allowed},
		{"a name on a port that no rule covers", rules{ports(range5432)}, lookup("db.example.com", health),
			refused(PortNotAllowed)},

		{"published name, rule with hostnames", rules{hostnames("db.example.com")}, published("db.example.com", postgres),
			allowed},
		{"published name, another", rules{hostnames("db.example.com")}, published("other.example.com", postgres),
			refused(NotAllowed)},
		{"published name, rule with cidrs", rules{inBoth, cidrs("0.0.0.0/0", "::/0")}, published("db.example.com", postgres),
			refused(NotAllowed)},
		{"published name, any target", rules{anyTarget()}, published("db.example.com", postgres), allowed},
		{"published name, port", rules{ports(range5432)}, published("db.example.com", health), refused(PortNotAllowed)},

		{"cidrs list no nameserver", rules{cidrs("198.51.100.0/24")}, nameserver("198.51.100.53:53"), refused(NotAllowed)},
		{"nor does any target", rules{anyTarget()}, nameserver("198.51.100.53:53"), refused(NotAllowed)},
	} {
		if got := c.q.ask(view(t, policies(enforce(c.rules...)))); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
		// What the rules of one policy allow, as many policies allow.
		var split []v1alpha1.ExternalBackendPolicy
		for _, r := range c.rules {
			split = append(split, enforce(r))
		}
		if got := c.q.ask(view(t, policies(append(split, enforce())...))); got != c.want {
			t.Errorf("%s, a policy each: %+v, want %+v", c.what, got, c.want)
		}
	}
}

// Only allowNameservers allow a nameserver, and they allow nothing else.
func TestAllowNameserversIsForNameserversOnly(t *testing.T) {
	both := nameservers("198.51.100.53")
	both.Spec.Allow = []v1alpha1.PolicyRule{cidrs("203.0.113.0/24")}
	for _, c := range []struct {
		what   string
		policy v1alpha1.ExternalBackendPolicy
		q      modelQuestion
		want   Decision
	}{
		{"listed", nameservers("198.51.100.53"), nameserver("198.51.100.53:53"), allowed},
		{"listed for every port", nameservers("198.51.100.53"), nameserver("198.51.100.53:853"), allowed},
		{"listed for this port", nameservers("198.51.100.53:853"), nameserver("198.51.100.53:853"), allowed},
		{"listed for another port", nameservers("198.51.100.53:853"), nameserver("198.51.100.53:53"), refused(NotAllowed)},
		{"listed with and without port", nameservers("198.51.100.53:853", "198.51.100.53"), nameserver("198.51.100.53:53"),
			allowed},
		{"listed IPv6", nameservers("[2001:db8::53]:53"), nameserver("[2001:db8::53]:53"), allowed},
		{"not listed", nameservers("198.51.100.53"), nameserver("198.51.100.54:53"), refused(NotAllowed)},
		{"listed beside rules", both, nameserver("198.51.100.53:53"), allowed},
		{"a nameserver is no target", both, target("", "198.51.100.53", postgres), refused(NotAllowed)},
		{"a target is no nameserver", both, nameserver("203.0.113.1:53"), refused(NotAllowed)},
		{"no rules, a target", nameservers("198.51.100.53"), target("", "203.0.113.1", postgres), refused(NotAllowed)},
		{"no rules, a name", nameservers("198.51.100.53"), target("db.example.com", "203.0.113.1", postgres),
			refused(NotAllowed)},
		{"no rules, a name to resolve", nameservers("198.51.100.53"), lookup("db.example.com"), refused(NotAllowed)},
		{"no rules, a published name", nameservers("198.51.100.53"), published("db.example.com", postgres),
			refused(NotAllowed)},
		{"no rules, an unnamed address", nameservers("198.51.100.53"),
			modelQuestion{call: "Unnamed", addr: netip.MustParseAddr("198.51.100.53")}, refused(NotAllowed)},
	} {
		if got := c.q.ask(view(t, policies(c.policy))); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
	for _, text := range []string{"dns.example.com", "198.51.100.0/24", "198.51.100.53:0", "198.51.100.53:65536"} {
		s, problems := Compile(policies(nameservers(text)))
		if got := nameserver("198.51.100.53:53").ask(s.For(nil)); got.Allowed {
			t.Errorf("%s: %+v", text, got)
		}
		if len(problems) != 1 || !strings.HasPrefix(problems[0].String(), "p: spec.allowNameservers[0]: ") {
			t.Errorf("%s: problems %v", text, problems)
		}
	}
}

// A field that this version does not know may narrow the policy, so its rule allows nothing, and
// the policy still selects.
func TestUnknownFieldsAllowNothing(t *testing.T) {
	for what, spec := range map[string]string{
		"an empty rule":                `{allow: [{}]}`,
		"empty lists":                  `{allow: [{cidrs: [], hostnames: []}]}`,
		"ports alone":                  `{allow: [{ports: [{port: 5432}]}]}`,
		"a member beside known ones":   `{allow: [{cidrs: [203.0.113.0/24], serviceAccounts: [a]}]}`,
		"a member beside anyTarget":    `{allow: [{anyTarget: {}, serviceAccounts: [a]}]}`,
		"a member of anyTarget":        `{allow: [{anyTarget: {except: [203.0.113.0/24]}}]}`,
		"a member alone":               `{allow: [{tags: [a]}]}`,
		"a member of a port":           `{allow: [{anyTarget: {}, ports: [{port: 5432, appProtocol: h2c}]}]}`,
		"a field beside the rules":     `{allow: [{anyTarget: {}}], notBefore: tomorrow}`,
		"a field of the selector":      `{allow: [{anyTarget: {}}], namespaceSelector: {matchNames: [a]}}`,
		"an unknown mode":              `{allow: [{anyTarget: {}}], mode: Deny}`,
		"nameservers of a former rule": `{allow: [{nameservers: [203.0.113.1]}]}`,
		"nothing":                      `{}`,
	} {
		p := enforce()
		if err := yaml.Unmarshal([]byte(spec), &p.Spec); err != nil {
			t.Fatal(err)
		}
		s, problems := Compile(policies(p))
		for _, q := range []modelQuestion{
			target("", "203.0.113.1", postgres), target("db.example.com", "203.0.113.1", postgres),
			lookup("db.example.com", postgres), published("db.example.com", postgres),
			nameserver("203.0.113.1:53"), {call: "Unnamed", addr: netip.MustParseAddr("203.0.113.1")},
		} {
			if got := q.ask(s.For(nil)); got.Allowed {
				t.Errorf("%s: %+v allows %+v", what, got, q)
			}
		}
		if (len(problems) == 0) != (what == "nothing") {
			t.Errorf("%s: problems %v", what, problems)
		}
	}
	// An unknown mode narrows nobody else's rules, and widens nothing.
	unknown := enforce(anyTarget())
	unknown.Spec.Mode = "Deny"
	s, _ := Compile(policies(unknown, enforce(cidrs("203.0.113.1/32"))))
	if got := target("", "203.0.113.1", postgres).ask(s.For(nil)); got != allowed {
		t.Errorf("beside a policy that allows: %+v", got)
	}
	if got := target("", "203.0.113.2", postgres).ask(s.For(nil)); got != refused(NotAllowed) {
		t.Errorf("what only the unknown one allows: %+v", got)
	}
}

// Policies in mode Enforce that select the namespace decide, those in mode Audit only say what they
// would refuse.
func TestOnlyEnforcePoliciesThatSelectDecide(t *testing.T) {
	one, two := cidrs("203.0.113.1/32"), cidrs("203.0.113.2/32")
	wouldDeny := Decision{Allowed: true, WouldDeny: true, Kind: NotAllowed}
	deny := func(in Input) Input { in.DefaultDeny = true; return in }
	q := target("", "203.0.113.1", postgres)
	noMode := enforce(two)
	noMode.Spec.Mode = ""
	for _, c := range []struct {
		what string
		in   Input
		q    modelQuestion
		want Decision
	}{
		{"no policy", Input{}, q, allowed},
		{"no policy, default Deny", deny(Input{}), q, refused(NotAllowed)},
		{"another team's policy", policies(forTeam("other", enforce(two))), q, allowed},
		{"another team's policy, default Deny", deny(policies(forTeam("other", enforce(one)))), q, refused(NotAllowed)},
		{"selected, allowed", policies(forTeam("shop", enforce(one))), q, allowed},
		{"selected, allowed, default Deny", deny(policies(forTeam("shop", enforce(one)))), q, allowed},
		{"selected, refused", policies(forTeam("shop", enforce(two))), q, refused(NotAllowed)},
		{"policies add up", policies(enforce(two), forTeam("shop", enforce(one))), q, allowed},
		{"another team's rules don't", policies(enforce(two), forTeam("other", enforce(one))), q, refused(NotAllowed)},
		{"no mode is Enforce", policies(noMode), q, refused(NotAllowed)},

		{"Audit would allow", policies(audit(one)), q, allowed},
		{"Audit would refuse", policies(audit(two)), q, wouldDeny},
		{"Audit without rules", policies(audit()), q, wouldDeny},
		{"Audit policies add up", policies(audit(one), audit(two)), q, allowed},
		{"another team's Audit", policies(forTeam("other", audit(two))), q, allowed},
		{"Audit beside Enforce, narrower", policies(enforce(one), audit(two)), q, wouldDeny},
		{"Audit beside Enforce, as wide", policies(enforce(one), audit(one)), q, allowed},
		{"Audit without a guarded address that Enforce opens", inCluster(enforce(cidrs("10.96.0.0/16")), audit(anyTarget())),
			target("", "10.96.0.1", postgres), Decision{Allowed: true, WouldDeny: true, Kind: ClusterRange}},
		{"Audit allows nothing that Enforce refuses", policies(enforce(two), audit(one)), q, refused(NotAllowed)},
		{"Audit is no selection against default Deny", deny(policies(audit(one))), q, refused(NotAllowed)},
		{"Audit tells a port", policies(audit(ports(v1alpha1.PolicyPort{Port: 1}))), q,
			Decision{Allowed: true, WouldDeny: true, Kind: PortNotAllowed}},
		{"Audit and a forbidden address", policies(audit(cidrs("0.0.0.0/0"))), target("", "127.0.0.1", postgres),
			Decision{WouldDeny: true, Kind: Loopback}},
		{"Audit opens no guarded address", inCluster(audit(cidrs("10.96.0.0/16"))), target("", "10.96.0.1", postgres),
			refused(ClusterRange)},
		{"Audit would refuse what Enforce refuses", policies(enforce(two), audit(ports(v1alpha1.PolicyPort{Port: 1}))), q,
			Decision{WouldDeny: true, Kind: NotAllowed}},
		{"Audit and a name of the cluster", policies(audit(hostnames("*.cluster.local"))),
			published("db.svc.cluster.local"), Decision{WouldDeny: true, Kind: ClusterName}},
		{"Audit and a name", policies(audit(hostnames("*.example.com"))), published("db.example.org"), wouldDeny},
		{"Audit and a name to resolve", policies(audit(hostnames("*.example.com"))), lookup("db.example.org"), wouldDeny},
		{"Audit and a nameserver", policies(audit(one)), nameserver("198.51.100.53:53"), wouldDeny},

		{"nameserver without policy", Input{}, nameserver("198.51.100.53:53"), allowed},
		{"nameserver, default Deny", deny(Input{}), nameserver("198.51.100.53:53"), refused(NotAllowed)},
		{"nameserver in a cluster range", inCluster(), nameserver("10.96.0.10:53"), refused(ClusterRange)},
		{"nameserver in a cluster range, listed", inCluster(nameservers("10.96.0.10")), nameserver("10.96.0.10:53"), allowed},
		{"nameserver in a cluster range, in cidrs", inCluster(enforce(cidrs("10.96.0.0/16"))), nameserver("10.96.0.10:53"),
			refused(ClusterRange)},
		{"nameserver that embeds one", inCluster(nameservers("64:ff9b::10.96.0.10")), nameserver("[64:ff9b::10.96.0.10]:53"),
			refused(ClusterRange)},
		{"both listed", inCluster(nameservers("64:ff9b::10.96.0.10", "10.96.0.10:53")),
			nameserver("[64:ff9b::10.96.0.10]:53"), allowed},
		{"nameserver on loopback, listed", policies(nameservers("127.0.0.53")), nameserver("127.0.0.53:53"),
			refused(Loopback)},

		{"published name without policy", Input{}, published("db.example.com", postgres), allowed},
		{"published name, default Deny", deny(Input{}), published("db.example.com", postgres), refused(NotAllowed)},
		{"the cluster's name", Input{}, published("cluster.local"), refused(ClusterName)},
		{"a name of the cluster", Input{}, published("kubernetes.default.svc.cluster.local"), refused(ClusterName)},
		{"in any case", Input{}, published("kubernetes.default.svc.Cluster.Local."), refused(ClusterName)},
		{"a name of the cluster that a rule covers", policies(enforce(hostnames("*.cluster.local"))),
			published("db.svc.cluster.local"), refused(ClusterName)},
		{"not a name of the cluster", Input{}, published("notcluster.local"), allowed},
		{"another cluster domain", Input{ClusterDomain: "K8s.example.org."}, published("db.svc.k8s.example.org"),
			refused(ClusterName)},
		{"then cluster.local is none", Input{ClusterDomain: "k8s.example.org"}, published("db.svc.cluster.local"), allowed},
		{"resolving a name of the cluster", Input{}, lookup("db.svc.cluster.local"), allowed},
	} {
		if got := c.q.ask(view(t, c.in)); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.what, got, c.want)
		}
	}
}

// An entry that cannot be read allows nothing and is reported, and the entries beside it count.
func TestUnreadableEntriesAllowNothing(t *testing.T) {
	q := target("db.example.com", "203.0.113.1", postgres)
	port := func(p v1alpha1.PolicyPort) v1alpha1.PolicyRule { return ports(p) }
	for _, c := range []struct {
		rule  v1alpha1.PolicyRule
		field string
	}{
		{cidrs("203.0.113.1"), "cidrs"},
		{cidrs(""), "cidrs"},
		{cidrs("203.0.113.0/33"), "cidrs"},
		{cidrs("203.0.113.77/24"), "cidrs"},
		{cidrs("203.0.113.0/24%eth0"), "cidrs"},
		{cidrs("::ffff:203.0.113.0/120"), "cidrs"},
		{hostnames("*"), "hostnames"},
		{hostnames(""), "hostnames"},
		{hostnames("db"), "hostnames"},
		{hostnames("*.*.example.com"), "hostnames"},
		{hostnames("db.*.com"), "hostnames"},
		{hostnames("*db.example.com"), "hostnames"},
		{hostnames("db.example.com."), "hostnames"},
		{hostnames("DB.example.com"), "hostnames"},
		{hostnames(strings.Repeat("a.", 130) + "com"), "hostnames"},
		{port(v1alpha1.PolicyPort{}), "ports"},
		{port(v1alpha1.PolicyPort{Protocol: corev1.ProtocolTCP}), "ports"},
		{port(v1alpha1.PolicyPort{Port: 0, EndPort: 6000}), "ports"},
		{port(v1alpha1.PolicyPort{Port: 5440, EndPort: 5432}), "ports"},
		{port(v1alpha1.PolicyPort{Port: -1}), "ports"},
		{port(v1alpha1.PolicyPort{Port: 1, EndPort: 65536}), "ports"},
		{port(v1alpha1.PolicyPort{Port: 5432, Protocol: "tcp"}), "ports"},
	} {
		s, problems := Compile(policies(enforce(v1alpha1.PolicyRule{CIDRs: []string{"192.0.2.0/24"}}, c.rule)))
		v := s.For(nil)
		if got := q.ask(v); got.Allowed {
			t.Errorf("%+v: %+v", c.rule, got)
		}
		if got := v.Unnamed(netip.MustParseAddr("203.0.113.1"), postgres); got.Allowed {
			t.Errorf("%+v: unnamed %+v", c.rule, got)
		}
		want := "p: spec.allow[1]." + c.field + "[0]: "
		if len(problems) != 1 || !strings.HasPrefix(problems[0].String(), want) {
			t.Errorf("%+v: problems %v, want one of %s", c.rule, problems, want)
		}
	}
	// A good entry beside a bad one holds.
	s, problems := Compile(policies(enforce(cidrs("bad", "203.0.113.0/24"))))
	if got := q.ask(s.For(nil)); got != allowed || len(problems) != 1 {
		t.Errorf("good beside bad: %+v, %v", got, problems)
	}
}

// A policy with an unreadable mode selects as in mode Enforce, and allows nothing.
func TestUnreadableModeEnforces(t *testing.T) {
	p := enforce(cidrs("192.0.2.0/24"))
	p.Spec.Mode = "enforce"
	s, problems := Compile(policies(p))
	want := []Problem{{"p", "spec.mode", "no such mode, taken as Enforce; the policy allows nothing"}}
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Error(diff)
	}
	if got := target("", "203.0.113.1").ask(s.For(nil)); got != refused(NotAllowed) {
		t.Errorf("%+v", got)
	}
}

// A selector with an error neither opens the namespaces that it means nor gives their rules to
// others.
func TestUnreadableSelectorOpensNothing(t *testing.T) {
	p := forTeam("shop", enforce(cidrs("203.0.113.0/24")))
	p.Spec.NamespaceSelector.MatchLabels["not a key"] = "x"
	p.Spec.NamespaceSelector.MatchExpressions = []metav1.LabelSelectorRequirement{
		{Key: "tier", Operator: metav1.LabelSelectorOpExists},
		{Key: "team", Operator: "Inn", Values: []string{"shop"}},
	}
	s, problems := Compile(policies(p))
	want := []Problem{
		{"p", "spec.namespaceSelector.matchLabels[not a key]", "not a selector requirement"},
		{"p", "spec.namespaceSelector.matchExpressions[1]", "not a selector requirement"},
	}
	if diff := cmp.Diff(want, problems); diff != "" {
		t.Error(diff)
	}
	q := target("", "203.0.113.1")
	if got := q.ask(s.For(map[string]string{"team": "shop", "tier": "x"})); got != refused(NotAllowed) {
		t.Errorf("the team meant: %+v", got)
	}
	if got := q.ask(s.For(map[string]string{"team": "other", "tier": "x"})); got != allowed {
		t.Errorf("another team: %+v", got)
	}
	if got := q.ask(s.For(map[string]string{"team": "shop"})); got != allowed {
		t.Errorf("another tier: %+v", got)
	}
}

// Every form that embeds a forbidden or guarded IPv4 address is refused too.
func TestEmbeddingAnAddressDoesNotHideIt(t *testing.T) {
	v := view(t, Input{ClusterRanges: thisCluster})
	for _, text := range []string{"0.0.0.0", "127.0.0.1", "127.9.8.7", "169.254.169.254", "224.0.0.9", "255.255.255.255",
		"100.100.100.200", "168.63.129.16", "192.0.0.192", "10.96.3.4", "10.244.5.6", "192.0.2.10"} {
		v4 := netip.MustParseAddr(text)
		b := v4.As4()
		hi, lo := fmt.Sprintf("%02x%02x", b[0], b[1]), fmt.Sprintf("%02x%02x", b[2], b[3])
		nhi, nlo := fmt.Sprintf("%02x%02x", 255-b[0], 255-b[1]), fmt.Sprintf("%02x%02x", 255-b[2], 255-b[3])
		for _, form := range []string{
			"::ffff:" + text, "::" + text, "::ffff:0:" + text, "64:ff9b::" + text, "64:ff9b:1::" + text, "64:ff9b:1:2::" + text,
			"2002:" + hi + ":" + lo + "::1", "2001:0:" + hi + ":" + lo + "::1", "2001:0:cb00:7101:0:f227:" + nhi + ":" + nlo,
			"2001:db8:9::5efe:" + text, "2001:db8:9:0:200:5efe:" + text,
		} {
			if got := v.Target("", netip.MustParseAddr(form), postgres); got.Allowed {
				t.Errorf("%s as %s: %+v", text, form, got)
			}
		}
	}
}

// Views of one Set decide the same in parallel as one after the other.
func TestSetIsSafeForConcurrentUse(t *testing.T) {
	w := newGenerator(3)
	in := w.input()
	in.Policies = append(in.Policies, w.policy(v1alpha1.PolicyModeEnforce), w.policy(v1alpha1.PolicyModeAudit))
	s, _ := Compile(in)
	shared := s.For(namespaces[0])
	var questions []modelQuestion
	var want []Decision
	for range 500 {
		q := w.question()
		questions, want = append(questions, q), append(want, q.ask(shared))
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			own := s.For(namespaces[0])
			for i, q := range questions {
				if got := q.ask(own); got != want[i] {
					t.Errorf("%+v: %+v, alone %+v", q, got, want[i])
				}
				if got := q.ask(shared); got != want[i] {
					t.Errorf("%+v: %+v, alone %+v", q, got, want[i])
				}
			}
		})
	}
	wg.Wait()
}

// A decision about a target allocates no memory.
func TestTargetAllocatesNothing(t *testing.T) {
	s, _ := Compile(benchInput())
	v, a := s.For(nil), netip.MustParseAddr("64:ff9b:1::203.0.113.1")
	if n := testing.AllocsPerRun(100, func() { v.Target("db.h998.example.com", a, postgres, health) }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// No two kinds have the same words, and no kind has none.
func TestEachKindHasItsOwnWords(t *testing.T) {
	seen := map[string]Kind{}
	for k := range kinds {
		if other, double := seen[k.String()]; double || k.String() == "" {
			t.Errorf("kind %d: %q, as kind %d", k, k, other)
		}
		seen[k.String()] = k
	}
}

// Of several ports, the decision names the first that no rule covers.
func TestFirstRefusedPortIsNamed(t *testing.T) {
	v := view(t, policies(enforce(v1alpha1.PolicyRule{
		AnyTarget: &v1alpha1.AnyTarget{}, Ports: []v1alpha1.PolicyPort{{Port: 5432}},
	})))
	health, metrics := Port{corev1.ProtocolTCP, 9999}, Port{corev1.ProtocolTCP, 9100}
	if d := v.Target("", netip.MustParseAddr("203.0.113.1"), postgres, health, metrics); d.Port != health || d.Allowed {
		t.Errorf("%+v, not for port %+v", d, health)
	}
}
