package policy

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// A generator draws inputs and questions from pools that are so small that rules and questions
// match often.
type generator struct{ *rand.Rand }

func newGenerator(seed uint64) generator { return generator{rand.New(rand.NewPCG(seed, 7))} }

func pick[T any](w generator, from ...T) T { return from[w.IntN(len(from))] }

// some draws up to most values, often none.
func some[T any](w generator, most int, draw func() T) []T {
	var out []T
	for range w.IntN(most + 1) {
		out = append(out, draw())
	}
	return out
}

// v4 draws an address of any kind, or a neighbour of one.
func (w generator) v4() netip.Addr {
	a := netip.MustParseAddr(pick(
		w, "203.0.113.1", "203.0.113.7", "198.51.100.53", "10.96.0.1", "10.96.0.255", "10.244.1.1", "172.16.0.1",
		"172.16.0.2", "100.100.100.200", "168.63.129.16", "192.0.0.192", "100.80.80.80", "100.96.0.96", "127.0.0.1",
		"126.255.255.255", "128.0.0.0", "0.0.0.0", "0.1.2.3", "169.254.169.254", "169.253.255.255", "224.0.0.1",
		"239.255.255.255", "240.0.0.0", "255.255.255.255", "255.255.255.254",
	))
	if next := a.Next(); next.IsValid() && w.IntN(4) == 0 {
		return next
	}
	return a
}

// around embeds an IPv4 address in a form that may lead to it, or nearly so.
func (w generator) around(v4 netip.Addr) netip.Addr {
	b := netip.MustParseAddr(pick(
		w, "::", "::ffff:0:0", "::ffff:0:0:0", "64:ff9b::", "64:ff9b:1::", "64:ff9b:1:a::", "64:ff9b:2::", "2002::", "2001::",
		"2001:db8::", "2001:db8::5efe:0:0", "2001:db8:0:0:200:5efe::", "2001:db8:0:0:100:5efe::", "fe80::5efe:0:0",
	)).
		As16()
	v := v4.As4()
	at := pick(
		w,
		[4]int{12, 13, 14, 15},
		[4]int{2, 3, 4, 5},
		[4]int{4, 5, 6, 7},
		[4]int{6, 7, 9, 10},
		[4]int{7, 9, 10, 11},
		[4]int{9, 10, 11, 12},
	)
	flip := pick(w, byte(0), byte(0), byte(0xff))
	for i, j := range at {
		b[j] = v[i] ^ flip
	}
	return netip.AddrFrom16(b)
}

func (w generator) addr() netip.Addr {
	switch w.IntN(4) {
	case 0:
		return w.v4()
	case 1:
		return w.around(w.v4())
	case 2:
		return netip.MustParseAddr(
			pick(
				w, "2001:db8::1", "2001:db8:1::1", "fd00:96::1", "fd00:244::1", "::", "::1", "::2", "fe80::1", "febf::1", "fec0::1",
				"ff02::1", "fd00:ec2::254", "fd00:ec2::23", "fd00:ec2::253", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42",
				"fd00:a9fe:a9fe::1", "fd00:100::100:200",
			),
		)
	}
	return pick(w, netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("10.244.1.1"))
}

func (w generator) prefix() netip.Prefix {
	a := w.addr()
	for a.Is4In6() {
		a = w.addr()
	}
	bits := pick(w, a.BitLen(), a.BitLen(), a.BitLen()-8, a.BitLen()/2, 8, 0)
	return netip.PrefixFrom(a, bits).Masked()
}

// targetNames has a name for every hostname that a rule may have.
var targetNames = []string{
	"db.example.com", "a.db.example.com", "example.com", "xexample.com", "_pg._tcp.db.example.com",
	"db.svc.cluster.local", "cluster.local", "notcluster.local",
}

func (w generator) name() string { return pick(w, targetNames...) }

func (w generator) port() Port {
	return Port{
		pick(w, corev1.ProtocolTCP, corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP),
		pick(w, uint16(1), 53, 5431, 5432, 5440, 5441, 65535),
	}
}

func (w generator) rule() v1alpha1.PolicyRule {
	var r v1alpha1.PolicyRule
	r.CIDRs = some(w, 3, func() string { return w.prefix().String() })
	if w.IntN(2) == 0 {
		r.Hostnames = some(w, 2, func() string {
			return pick(w, w.name(), "*.example.com", "*.db.example.com", "*.com", "*._tcp.db.example.com", "*.cluster.local")
		})
	}
	r.Ports = some(w, 2, func() v1alpha1.PolicyPort {
		p := v1alpha1.PolicyPort{
			Protocol: pick(w, "", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP),
			Port:     int32(w.port().Port),
		}
		switch w.IntN(4) {
		case 0:
			p.Port, p.EndPort = 1, 65535
		case 1, 2:
			p.EndPort = min(65535, p.Port+int32(w.IntN(9)))
		}
		return p
	})
	if len(r.CIDRs)+len(r.Hostnames) == 0 {
		r.AnyTarget = &v1alpha1.AnyTarget{}
	}
	return r
}

func (w generator) policy(mode v1alpha1.PolicyMode) v1alpha1.ExternalBackendPolicy {
	p := v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("p", w.Uint32())}}
	p.Spec.Mode = mode
	p.Spec.NamespaceSelector = pick(
		w,
		metav1.LabelSelector{},
		metav1.LabelSelector{MatchLabels: map[string]string{"team": "shop"}},
		metav1.LabelSelector{
			MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "team", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"shop"}},
			},
		},
	)
	p.Spec.Allow = some(w, 4, w.rule)
	if w.IntN(2) == 0 {
		p.Spec.AllowNameservers = some(w, 2, func() string {
			a := w.addr()
			if w.IntN(2) == 0 {
				return a.String()
			}
			return netip.AddrPortFrom(a, 53).String()
		})
	}
	return p
}

func (w generator) input() Input {
	in := Input{DefaultDeny: w.IntN(4) == 0, ClusterDomain: "cluster.local"}
	in.Policies = some(w, 4, func() v1alpha1.ExternalBackendPolicy {
		return w.policy(pick(w, "", v1alpha1.PolicyModeEnforce, v1alpha1.PolicyModeAudit))
	})
	prefix := func(texts ...string) func() netip.Prefix {
		return func() netip.Prefix { return netip.MustParsePrefix(pick(w, texts...)) }
	}
	in.ClusterRanges.Declared = some(w, 2, prefix("10.96.0.0/16", "10.0.0.0/8", "fd00:96::/112"))
	in.ClusterRanges.Discovered = some(
		w,
		4,
		prefix("10.96.0.0/24", "10.244.1.0/24", "fd00:244::/64", "203.0.113.0/30", "2001:db8::/120"),
	)
	in.ClusterRanges.NodeAddresses = some(w, 3, w.v4)
	return in
}

func (w generator) question() modelQuestion {
	q := modelQuestion{
		call: pick(w, "Target", "Target", "Target", "Unnamed", "Lookup", "Name", "Nameserver"),
		addr: w.addr(),
		port: pick(w, uint16(53), 853),
	}
	if q.call != "Nameserver" {
		q.ports = some(w, 2, w.port)
	}
	if q.call == "Name" || q.call == "Lookup" || q.call != "Unnamed" && w.IntN(2) == 0 {
		q.name = w.name()
	}
	return q
}

var namespaces = []map[string]string{{"team": "shop"}, {"team": "other"}, nil}

// checkDecisions compares a Set with the model over questions drawn from w, and notes the decisions
// in seen.
func checkDecisions(t *testing.T, w generator, seen map[Decision]bool) {
	t.Helper()
	in := w.input()
	s, problems := Compile(in)
	if len(problems) > 0 {
		t.Fatalf("problems in a valid input: %v", problems)
	}
	for range 20 {
		ns, q := pick(w, namespaces...), w.question()
		got, want := q.ask(s.For(ns)), modelDecide(in, ns, q)
		if got != want {
			t.Fatalf("%+v of %v:\n got %+v\nwant %+v\ninput %+v", q, ns, got, want, in)
		}
		seen[got] = true
	}
}

// Decisions over random inputs are those of the model.
func TestDecisionsAreThoseOfTheModel(t *testing.T) {
	seen := map[Decision]bool{}
	for seed := range uint64(400) {
		checkDecisions(t, newGenerator(seed), seen)
	}
	// A case that no draw reaches is not tested.
	want := []Decision{
		{Allowed: true}, {Kind: DiscoveredRange, ByDiscoveryAlone: true}, {Kind: PortNotAllowed, ByDiscoveryAlone: true},
		{Allowed: true, WouldDeny: true, Kind: NotAllowed}, {Allowed: true, WouldDeny: true, Kind: PortNotAllowed},
	}
	for k := Loopback; k < kinds; k++ {
		want = append(want, Decision{Kind: k})
	}
	for _, d := range want {
		if !seen[d] {
			t.Errorf("no question was decided as %+v", d)
		}
	}
}

func FuzzDecisions(f *testing.F) {
	f.Add(uint64(1))
	f.Fuzz(func(t *testing.T, seed uint64) { checkDecisions(t, newGenerator(seed), map[Decision]bool{}) })
}

// clusterOfTheFuzz has ranges of every kind.
var clusterOfTheFuzz = ClusterRanges{
	Declared: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112")},
	Discovered: []netip.Prefix{
		netip.MustParsePrefix("10.96.0.0/12"),
		netip.MustParsePrefix("10.244.0.0/16"),
		netip.MustParsePrefix("fd00:244::/64"),
	},
	NodeAddresses: []netip.Addr{netip.MustParseAddr("172.16.0.1"), netip.MustParseAddr("2001:db8::10")},
}

func FuzzClassifier(f *testing.F) {
	w := newGenerator(1)
	for range 200 {
		f.Add(w.addr().AsSlice())
	}
	s, _ := Compile(Input{ClusterRanges: clusterOfTheFuzz})
	naming := func(netip.Addr) set { return s.nothing }
	f.Fuzz(func(t *testing.T, raw []byte) {
		a, ok := netip.AddrFromSlice(raw)
		want := NotAnAddress
		if ok {
			want = modelKind(a, clusterOfTheFuzz)
		}
		if got := s.reach(a, naming, s.nothing).kind; got != want {
			t.Errorf("%s is %q, want %q", a, got, want)
		}
	})
}

// The classifier finds the kind of the model for random addresses around all ranges.
func TestClassifierAgreesWithTheModel(t *testing.T) {
	w := newGenerator(2)
	s, _ := Compile(Input{ClusterRanges: clusterOfTheFuzz})
	naming := func(netip.Addr) set { return s.nothing }
	for range 5_000 {
		a := w.addr()
		if got, want := s.reach(a, naming, s.nothing).kind, modelKind(a, clusterOfTheFuzz); got != want {
			t.Fatalf("%s is %q, want %q", a, got, want)
		}
	}
}

// One more rule in a policy that selects never refuses an allowed target.
func TestAnotherRuleNeverRefuses(t *testing.T) {
	for seed := range uint64(700) {
		w := newGenerator(seed)
		before := w.input()
		before.Policies = append(before.Policies, w.policy(v1alpha1.PolicyModeEnforce))
		after := before
		after.Policies = slices.Clone(before.Policies)
		last := len(after.Policies) - 1
		after.Policies[last].Spec.Allow = append(slices.Clone(after.Policies[last].Spec.Allow), w.rule())
		narrow, _ := Compile(before)
		wide, _ := Compile(after)
		for range 20 {
			ns, q := pick(w, namespaces...), w.question()
			if was, is := q.ask(narrow.For(ns)), q.ask(wide.For(ns)); was.Allowed && !is.Allowed {
				t.Fatalf("seed %d: %+v was allowed, is %+v", seed, q, is)
			}
		}
	}
}

// Policies in mode Audit change neither what is allowed or kept nor why a target is refused.
func TestAuditNeverChangesADecision(t *testing.T) {
	for seed := range uint64(700) {
		w := newGenerator(seed)
		with := w.input()
		with.Policies = append(with.Policies, w.policy(v1alpha1.PolicyModeAudit))
		without := with
		without.Policies = slices.DeleteFunc(slices.Clone(with.Policies), func(p v1alpha1.ExternalBackendPolicy) bool {
			return p.Spec.Mode == v1alpha1.PolicyModeAudit
		})
		audited, _ := Compile(with)
		plain, _ := Compile(without)
		for range 20 {
			ns, q := pick(w, namespaces...), w.question()
			got, want := q.ask(audited.For(ns)), q.ask(plain.For(ns))
			if got.WouldDeny = false; got.Allowed {
				got.Kind, got.Port = None, Port{}
			}
			if got != want {
				t.Fatalf("seed %d: %+v: %+v with Audit, %+v without", seed, q, got, want)
			}
		}
	}
}

// WouldDeny is true where the Audit policies, alone and in mode Enforce, would refuse.
func TestWouldDenyForetellsEnforce(t *testing.T) {
	for seed := range uint64(700) {
		w := newGenerator(seed)
		in := w.input()
		switched := in
		switched.Policies = slices.DeleteFunc(slices.Clone(in.Policies), func(p v1alpha1.ExternalBackendPolicy) bool {
			return p.Spec.Mode != v1alpha1.PolicyModeAudit
		})
		for i := range switched.Policies {
			switched.Policies[i].Spec.Mode = v1alpha1.PolicyModeEnforce
		}
		now, _ := Compile(in)
		then, _ := Compile(switched)
		for range 20 {
			ns, q := pick(w, namespaces...), w.question()
			is, will, selected := q.ask(now.For(ns)), q.ask(then.For(ns)), then.For(ns).enforce.selected
			if is.WouldDeny != (selected && !will.Allowed) {
				t.Fatalf("seed %d: %+v is %+v, will be %+v", seed, q, is, will)
			}
		}
	}
}

// Where Lookup refuses a name, Target refuses it with every address. Where Unnamed refuses an
// address, Target refuses it with every name.
func TestLookupAndUnnamedRefuseOnlyHopelessTargets(t *testing.T) {
	for seed := range uint64(700) {
		w := newGenerator(seed)
		s, _ := Compile(w.input())
		for range 20 {
			v, q := s.For(pick(w, namespaces...)), w.question()
			if lookup, target := v.Lookup(q.name, q.ports...), v.Target(q.name, q.addr, q.ports...); !lookup.Allowed &&
				target.Keep(true) {
				t.Fatalf("seed %d: %+v: Lookup %+v, Target %+v", seed, q, lookup, target)
			}
			for _, name := range []string{q.name, ""} {
				if unnamed, target := v.Unnamed(q.addr, q.ports...), v.Target(name, q.addr, q.ports...); !unnamed.Keep(true) &&
					target.Keep(true) {
					t.Fatalf("seed %d: %+v: Unnamed %+v, Target %q %+v", seed, q, unnamed, name, target)
				}
			}
		}
	}
}

// Unnamed allows an address on a port if and only if Target allows it with some name or with none.
func TestUnnamedAllowsWhatSomeNameWould(t *testing.T) {
	names := append([]string{""}, targetNames...)
	for seed := range uint64(700) {
		w := newGenerator(seed)
		s, _ := Compile(w.input())
		for range 20 {
			v, addr, port := s.For(pick(w, namespaces...)), w.addr(), w.port()
			some := slices.ContainsFunc(names, func(name string) bool { return v.Target(name, addr, port).Allowed })
			if unnamed := v.Unnamed(addr, port); unnamed.Allowed != some {
				t.Fatalf("seed %d: %s on %v: Unnamed %+v, by some name %t", seed, addr, port, unnamed, some)
			}
		}
	}
}

// The order of policies, rules and ranges does not matter, and Compile changes no input.
func TestOrderDoesNotMatterAndInputsStay(t *testing.T) {
	for seed := range uint64(300) {
		w := newGenerator(seed)
		in := w.input()
		reversed := w.input()
		reversed.Policies = nil
		for _, p := range slices.Backward(in.Policies) {
			p = *p.DeepCopy()
			slices.Reverse(p.Spec.Allow)
			reversed.Policies = append(reversed.Policies, p)
		}
		reversed.ClusterRanges = ClusterRanges{
			slices.Clone(in.ClusterRanges.Declared),
			slices.Clone(in.ClusterRanges.Discovered),
			slices.Clone(in.ClusterRanges.NodeAddresses),
		}
		slices.Reverse(reversed.ClusterRanges.Discovered)
		reversed.DefaultDeny = in.DefaultDeny
		copied := make([]v1alpha1.ExternalBackendPolicy, len(in.Policies))
		for i := range in.Policies {
			copied[i] = *in.Policies[i].DeepCopy()
		}
		one, _ := Compile(in)
		other, _ := Compile(reversed)
		for range 20 {
			ns, q := pick(w, namespaces...), w.question()
			if a, b := q.ask(one.For(ns)), q.ask(other.For(ns)); a != b {
				t.Fatalf("seed %d: %+v: %+v, reversed %+v", seed, q, a, b)
			}
		}
		if diff := cmp.Diff(copied, append([]v1alpha1.ExternalBackendPolicy{}, in.Policies...)); diff != "" {
			t.Fatalf("seed %d: an input was written to:\n%s", seed, diff)
		}
	}
}

// A table finds the same ids as a scan over its spans.
func TestTableAgreesWithAScan(t *testing.T) {
	for seed := range uint64(300) {
		w := newGenerator(seed)
		edge := func() uint64 {
			return pick(w, 0, 1, w.Uint64N(8), 1<<63, ^uint64(0)-1, ^uint64(0))
		}
		draw := func() key { return key{edge(), edge()} }
		ids := 1 + w.IntN(70)
		spans := some(w, 40, func() span {
			s := span{draw(), draw(), w.IntN(ids)}
			if s.first.compare(s.last) > 0 {
				s.first, s.last = s.last, s.first
			}
			return s
		})
		p := newPool(ids)
		table := newTable(spans, p)
		for range 200 {
			k, want := draw(), p.empty()
			for _, s := range spans {
				if s.first.compare(k) <= 0 && k.compare(s.last) <= 0 {
					want.add(s.id)
				}
			}
			if got := table.at(k); !slices.Equal(got, want) {
				t.Fatalf("seed %d: %v: got %b, want %b of %v", seed, k, got, want, spans)
			}
		}
	}
}
