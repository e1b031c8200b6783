package endpointslice

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestWritesAreAsFewAsPossible goes through changes whose fewest writes are known.
func TestWritesAreAsFewAsPossible(t *testing.T) {
	zones := slices.Concat(pool("a", "z1", 0, 10), pool("b", "z2", 100, 10), pool("c", "z3", 200, 10))
	tests := []struct {
		name  string
		limit int
		steps [][]Endpoint
		want  []string
		sizes []int
	}{
		{"nothing", 5, [][]Endpoint{nil}, []string{"+0 ~0 -0"}, nil},
		{"a zone goes and comes back", 5,
			[][]Endpoint{zones, zones[10:], zones},
			[]string{"+6 ~0 -0", "+0 ~0 -2", "+2 ~0 -0"}, []int{5, 5, 5, 5, 5, 5}},
		{"replacement, the oldest first", 4,
			[][]Endpoint{
				pool("a", "", 0, 12), pool("a", "", 2, 12), pool("a", "", 4, 12), pool("a", "", 6, 12), pool("a", "", 8, 12),
			},
			[]string{"+3 ~0 -0", "+0 ~1 -0", "+0 ~1 -0", "+0 ~1 -0", "+0 ~1 -0"}, []int{4, 4, 4}},
		{"an addition fills a slice up", 4,
			[][]Endpoint{pool("a", "", 0, 5), pool("a", "", 0, 7)},
			[]string{"+2 ~0 -0", "+0 ~1 -0"}, []int{4, 3}},
		{"a piece is not spread over several slices", 4,
			[][]Endpoint{pool("a", "", 0, 7), slices.Concat(pool("a", "", 0, 7), pool("b", "", 50, 2))},
			[]string{"+2 ~0 -0", "+1 ~0 -0"}, []int{4, 3, 2}},
		{"an addition goes to the slice of its zone", 4,
			[][]Endpoint{
				slices.Concat(pool("a", "z1", 0, 3), pool("b", "z2", 50, 3)),
				slices.Concat(pool("a", "z1", 0, 3), pool("b", "z2", 50, 4)),
			},
			[]string{"+2 ~0 -0", "+0 ~1 -0"}, []int{3, 4}},
		{"most endpoints go", 4,
			[][]Endpoint{pool("a", "", 0, 16), everyNth(pool("a", "", 0, 16), 4)},
			[]string{"+4 ~0 -0", "+0 ~1 -3"}, []int{4}},
		{"a third half-empty slice is compacted", 10,
			[][]Endpoint{
				pool("a", "z1", 0, 30),
				slices.Concat(pool("a", "z1", 0, 3), pool("a", "z1", 10, 20)),
				slices.Concat(pool("a", "z1", 0, 3), pool("a", "z1", 10, 3), pool("a", "z1", 20, 10)),
				slices.Concat(pool("a", "z1", 0, 3), pool("a", "z1", 10, 3), pool("a", "z1", 20, 3)),
			},
			[]string{"+3 ~0 -0", "+0 ~1 -0", "+0 ~1 -0", "+0 ~1 -1"}, []int{3, 6}},
		{"the last endpoint goes", 5,
			[][]Endpoint{pool("a", "", 0, 1), nil},
			[]string{"+1 ~0 -0", "+0 ~0 -1"}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			stored := cluster{}
			var got []string
			for _, desired := range test.steps {
				got = append(got, verbs(stored.plan(t, testTemplate(test.limit), desired)))
			}
			if diff := gocmp.Diff(test.want, got); diff != "" {
				t.Errorf("writes (-want +got):\n%s", diff)
			}
			if diff := gocmp.Diff(test.sizes, sizes(stored)); diff != "" {
				t.Errorf("slices (-want +got):\n%s", diff)
			}
		})
	}
}

// TestFailureDomainsStayTogether: endpoints of one zone or target share slices where that costs
// nothing.
func TestFailureDomainsStayTogether(t *testing.T) {
	tests := []struct {
		name  string
		limit int
		steps [][]Endpoint
		want  []string // zones and targets in each slice
	}{
		{"a zone is not cut", 4, [][]Endpoint{
			slices.Concat(pool("a", "z1", 0, 3), pool("a", "z2", 10, 3)),
		}, []string{"z1a", "z2a"}},
		{"a target is not cut", 4, [][]Endpoint{
			slices.Concat(pool("a", "", 0, 3), pool("b", "", 10, 3)),
		}, []string{"a", "b"}},
		{"additions go where their zone is", 4, [][]Endpoint{
			slices.Concat(pool("a", "z1", 0, 4), pool("a", "z2", 10, 4)),
			slices.Concat(pool("a", "z1", 2, 3), pool("a", "z2", 11, 4)),
		}, []string{"z1a", "z2a"}},
		{"additions go where their target is", 4, [][]Endpoint{
			slices.Concat(pool("a", "", 0, 4), pool("b", "", 10, 4)),
			slices.Concat(pool("a", "", 2, 3), pool("b", "", 11, 4)),
		}, []string{"a", "b"}},
		{"untouched slices of the zone come first", 10, [][]Endpoint{
			slices.Concat(pool("a", "z1", 0, 8), pool("a", "z2", 10, 7)),
			slices.Concat(pool("a", "z1", 0, 8), pool("a", "z2", 10, 8)),
		}, []string{"z1a", "z2a"}},
		{"zones stay apart", 10, [][]Endpoint{
			slices.Concat(pool("a", "z1", 0, 10), pool("a", "z2", 10, 10)),
			slices.Concat(pool("a", "z1", 0, 2), pool("a", "z2", 10, 6)),
		}, []string{"z1a", "z2a"}},
		{"half-empty slices of two zones are compacted", 10, [][]Endpoint{
			slices.Concat(pool("a", "z1", 0, 10), pool("a", "z2", 10, 10)),
			slices.Concat(pool("a", "z1", 0, 2), pool("a", "z2", 10, 5)),
		}, []string{"z1a z2a"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			stored := cluster{}
			for _, desired := range test.steps {
				stored.plan(t, testTemplate(test.limit), desired)
			}
			var got []string
			for _, s := range stored {
				domains := map[string]bool{}
				for _, e := range Published([]*discoveryv1.EndpointSlice{s}).Endpoints() {
					domains[e.Zone+e.Target] = true
				}
				got = append(got, strings.Join(slices.Sorted(maps.Keys(domains)), " "))
			}
			slices.Sort(got)
			if diff := gocmp.Diff(test.want, got); diff != "" {
				t.Errorf("domains (-want +got):\n%s", diff)
			}
		})
	}
}

// TestChangedMaximumIsObeyedAtOnce changes how many endpoints a slice may hold.
func TestChangedMaximumIsObeyedAtOnce(t *testing.T) {
	stored := cluster{}
	desired := pool("a", "", 0, 40)
	stored.plan(t, testTemplate(10), desired)
	stored.plan(t, testTemplate(4), desired)
	if got := sizes(stored); slices.Max(got) > 4 || len(got) != 10 {
		t.Errorf("lowered to 4: %v", got)
	}
	stored.plan(t, testTemplate(1000), desired)
	if got := sizes(stored); len(got) > 3 {
		t.Errorf("raised to 1000: %v", got)
	}
	for limit, want := range map[int]int{0: 40, 5000: 1} {
		stored := cluster{}
		stored.plan(t, testTemplate(limit), desired)
		if len(stored) != want {
			t.Errorf("%d slices with a cap of %d", len(stored), limit)
		}
	}
}

// TestUnholdableAddressesAreLeftOut: no slice publishes an address that its API forbids.
func TestUnholdableAddressesAreLeftOut(t *testing.T) {
	desired := []Endpoint{
		{Addr: netip.MustParseAddr("::ffff:10.0.0.1")},
		{Addr: netip.MustParseAddr("fe80::1%eth0")},
		{},
		{Addr: netip.MustParseAddr("2001:db8::1")},
	}
	stored := cluster{}
	stored.plan(t, testTemplate(5), desired)
	for _, s := range stored {
		if len(stored) != 1 || s.AddressType != discoveryv1.AddressTypeIPv6 || len(s.Endpoints) != 1 {
			t.Errorf("addresses that no slice can hold are published: %+v", s)
		}
	}
}

// TestDefaultsAreNoChange: neither what the API server fills in nor the order of ports is written
// again.
func TestDefaultsAreNoChange(t *testing.T) {
	desired := pool("a", "", 0, 1)
	desired[0].Ports = []Port{
		{Name: "a", Port: 1, Protocol: corev1.ProtocolTCP},
		{Name: "b", Port: 2, Protocol: corev1.ProtocolTCP},
	}
	stored := cluster{}
	stored.plan(t, testTemplate(5), desired)
	for _, s := range stored {
		if got := *s.Ports[0].Name + *s.Ports[1].Name + string(*s.Ports[1].Protocol); got != "abTCP" ||
			s.Ports[0].AppProtocol != nil {
			t.Errorf("ports %v", s.Ports)
		}
		slices.Reverse(s.Ports)
		s.Ports[0].Protocol, s.Ports[0].AppProtocol = nil, new("")
		s.Endpoints[0].Zone, s.Endpoints[0].Hints = new(""), &discoveryv1.EndpointHints{}
	}
	if again := stored.plan(t, testTemplate(5), desired); verbs(again) != "+0 ~0 -0" {
		t.Errorf("%s for what says the same", verbs(again))
	}
}

// TestForeignEditsAreRepaired: whatever somebody changes in an endpoint is repaired with one write.
func TestForeignEditsAreRepaired(t *testing.T) {
	template := testTemplate(5)
	template.ZoneHints, template.NodeHints = true, true
	desired := pool("a", "z1", 0, 2)
	desired[0].NodeName, desired[0].Hostname = "n1", "a"
	desired[1].Zone = ""
	for name, edit := range map[string]func(withNode, withoutZone *discoveryv1.Endpoint){
		"a second address":    func(e, _ *discoveryv1.Endpoint) { e.Addresses = append(e.Addresses, "10.9.9.9") },
		"no condition":        func(e, _ *discoveryv1.Endpoint) { e.Conditions.Serving = nil },
		"another condition":   func(e, _ *discoveryv1.Endpoint) { e.Conditions.Terminating = new(true) },
		"a Pod":               func(e, _ *discoveryv1.Endpoint) { e.TargetRef = &corev1.ObjectReference{Kind: "Pod"} },
		"topology":            func(e, _ *discoveryv1.Endpoint) { e.DeprecatedTopology = map[string]string{"a": "b"} },
		"no hostname":         func(e, _ *discoveryv1.Endpoint) { e.Hostname = nil },
		"another node":        func(e, _ *discoveryv1.Endpoint) { e.NodeName = new("n2") },
		"another zone":        func(e, _ *discoveryv1.Endpoint) { e.Zone = new("z2") },
		"no hints":            func(e, _ *discoveryv1.Endpoint) { e.Hints = nil },
		"no hint for a node":  func(e, _ *discoveryv1.Endpoint) { e.Hints.ForNodes = nil },
		"another zone's hint": func(e, _ *discoveryv1.Endpoint) { e.Hints.ForZones[0].Name = "z2" },
		"two zones' hints": func(e, _ *discoveryv1.Endpoint) {
			e.Hints.ForZones = append(e.Hints.ForZones, discoveryv1.ForZone{Name: "z2"})
		},
		"a hint from nowhere": func(_, e *discoveryv1.Endpoint) {
			e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "z1"}}}
		},
		"a node's from nowhere": func(_, e *discoveryv1.Endpoint) {
			e.Hints = &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: "n1"}}}
		},
	} {
		t.Run(name, func(t *testing.T) {
			stored := cluster{}
			s := stored.plan(t, template, desired).Create[0]
			want := s.DeepCopy()
			withNode := slices.IndexFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return e.NodeName != nil })
			edit(&s.Endpoints[withNode], &s.Endpoints[1-withNode])
			if got := verbs(stored.plan(t, template, desired)); got != "+0 ~1 -0" {
				t.Errorf("%s", got)
			}
			if diff := gocmp.Diff(want, stored[s.Name]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestUnchangedEndpointsAllocateNothing compares plans without changes for 1,000 and 10,000
// endpoints. Only slices, of 100 endpoints each, cost a few allocations.
func TestUnchangedEndpointsAllocateNothing(t *testing.T) {
	perRun := func(n int) float64 {
		stored := cluster{}
		desired := pool("a", "z1", 0, n)
		stored.plan(t, testTemplate(100), desired)
		existing := stored.list()
		return testing.AllocsPerRun(5, func() { changesOf(testTemplate(100), desired, existing) })
	}
	if small, great := perRun(1000), perRun(10_000); (great-small)/9000 > 0.03 {
		t.Errorf("%v allocations for 1,000 endpoints, %v for 10,000", small, great)
	}
}

// TestLayoutHoldsAllEndpoints: as long as an endpoint is in no slice, there is no layout.
func TestLayoutHoldsAllEndpoints(t *testing.T) {
	stored := cluster{}
	desired := pool("a", "", 0, 4)
	stored.plan(t, testTemplate(5), desired)
	if layout, _ := Plan(testTemplate(5), desired, nil, stored.list()); layout == nil {
		t.Error("there is no layout, though the slices hold all endpoints")
	}
	unholdable := append(desired, Endpoint{Addr: netip.MustParseAddr("::ffff:10.0.0.1"), Ports: httpPorts})
	if layout, _ := Plan(testTemplate(5), unholdable, nil, stored.list()); layout != nil {
		t.Error("there is a layout, though no slice can hold one of the endpoints")
	}
}
