package endpointslice

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

var httpPorts = []Port{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}

// pool returns n healthy endpoints of one target, from the given number on.
func pool(target, zone string, first, n int) []Endpoint {
	list := make([]Endpoint, 0, n)
	for i := first; i < first+n; i++ {
		list = append(list, Endpoint{
			Target:     target,
			Addr:       netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}),
			Ports:      httpPorts,
			Zone:       zone,
			Conditions: Conditions{Ready: true, Serving: true, Healthy: true},
		})
	}
	return list
}

// at returns one healthy endpoint.
func at(target, addr string) Endpoint {
	return Endpoint{
		Target: target, Addr: netip.MustParseAddr(addr), Ports: httpPorts,
		Conditions: Conditions{Ready: true, Serving: true, Healthy: true},
	}
}

func inSlices(endpoints ...Endpoint) []*discoveryv1.EndpointSlice {
	return changesOf(testTemplate(100), endpoints, nil).Create
}

func testTemplate(limit int) Template {
	owner := metav1.OwnerReference{
		APIVersion:         "v1",
		Kind:               "Service",
		Name:               "orders",
		UID:                "u-1",
		Controller:         new(true),
		BlockOwnerDeletion: new(true),
	}
	return Template{Namespace: "shop", Service: "orders", Backend: "orders-db", Owner: &owner, Max: limit}
}

// changesOf is Plan without the layout.
func changesOf(t Template, desired []Endpoint, existing []*discoveryv1.EndpointSlice) Changes {
	_, changes := Plan(t, desired, nil, existing)
	return changes
}

// plan applies a plan to the cluster and returns it.
func (c cluster) plan(t *testing.T, template Template, desired []Endpoint) Changes {
	t.Helper()
	changes := changesOf(template, desired, c.list())
	for _, w := range writesOf(changes) {
		c.apply(t, w)
	}
	return changes
}

// verbs tells a plan in short: how many slices are created, updated and deleted.
func verbs(c Changes) string {
	return fmt.Sprintf("+%d ~%d -%d", len(c.Create), len(c.Update), len(c.Delete))
}

func sizes(c cluster) []int {
	var list []int
	for _, name := range slices.Sorted(maps.Keys(c)) {
		list = append(list, len(c[name].Endpoints))
	}
	return list
}

// TestSliceWrites walks through changes whose price is known.
func TestSliceWrites(t *testing.T) {
	zones := slices.Concat(pool("a", "z1", 0, 10), pool("b", "z2", 100, 10), pool("c", "z3", 200, 10))
	tests := []struct {
		name  string
		limit int
		steps [][]Endpoint
		want  []string
		sizes []int
	}{
		{"nothing", 5, [][]Endpoint{nil}, []string{"+0 ~0 -0"}, nil},
		{
			"a zone out and back",
			5,
			[][]Endpoint{zones, zones[10:], zones},
			[]string{"+6 ~0 -0", "+0 ~0 -2", "+2 ~0 -0"},
			[]int{5, 5, 5, 5, 5, 5},
		},
		{"replacement, oldest first", 4,
			[][]Endpoint{
				pool("a", "", 0, 12),
				pool("a", "", 2, 12),
				pool("a", "", 4, 12),
				pool("a", "", 6, 12),
				pool("a", "", 8, 12),
			},
			[]string{"+3 ~0 -0", "+0 ~1 -0", "+0 ~1 -0", "+0 ~1 -0", "+0 ~1 -0"}, []int{4, 4, 4}},
		{
			"an addition fills up",
			4,
			[][]Endpoint{pool("a", "", 0, 5), pool("a", "", 0, 7)},
			[]string{"+2 ~0 -0", "+0 ~1 -0"},
			[]int{4, 3},
		},
		{"a piece is not torn over several slices with room", 4,
			[][]Endpoint{
				pool("a", "", 0, 7),
				slices.Concat(pool("a", "", 0, 7), pool("b", "", 50, 2)),
			}, []string{"+2 ~0 -0", "+1 ~0 -0"}, []int{4, 3, 2}},
		{"a zone goes home", 4, [][]Endpoint{
			slices.Concat(
				pool("a", "z1", 0, 3),
				pool("b", "z2", 50, 3),
			), slices.Concat(pool("a", "z1", 0, 3), pool("b", "z2", 50, 4)),
		}, []string{"+2 ~0 -0", "+0 ~1 -0"}, []int{3, 4}},
		{
			"a great loss",
			4,
			[][]Endpoint{pool("a", "", 0, 16), everyNth(pool("a", "", 0, 16), 4)},
			[]string{"+4 ~0 -0", "+0 ~1 -3"},
			[]int{4},
		},
		{"a third light slice is one too many", 10, [][]Endpoint{
			pool(
				"a",
				"z1",
				0,
				30,
			), slices.Concat(pool("a", "z1", 0, 3), pool("a", "z1", 10, 20)), slices.Concat(pool("a", "z1", 0, 3), pool("a", "z1", 10, 3), pool("a", "z1", 20, 10)),
			slices.Concat(pool("a", "z1", 0, 3), pool("a", "z1", 10, 3), pool("a", "z1", 20, 3)),
		}, []string{"+3 ~0 -0", "+0 ~1 -0", "+0 ~1 -0", "+0 ~1 -1"}, []int{3, 6}},
		{"the last one leaves", 5, [][]Endpoint{pool("a", "", 0, 1), nil}, []string{"+1 ~0 -0", "+0 ~0 -1"}, nil},
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

func everyNth(list []Endpoint, n int) (some []Endpoint) {
	for i := 0; i < len(list); i += n {
		some = append(some, list[i])
	}
	return some
}

func TestSliceFamilies(t *testing.T) {
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

// TestSliceDefaults: what the API server fills in, and the order of ports, makes no difference.
func TestSliceDefaults(t *testing.T) {
	desired := pool("a", "", 0, 1)
	desired[0].Ports = []Port{
		{Name: "b", Port: 2},
		{Name: "a", Port: 1, Protocol: corev1.ProtocolTCP, AppProtocol: new("")},
	}
	stored := cluster{}
	stored.plan(t, testTemplate(5), desired)
	for _, s := range stored {
		if got := *s.Ports[0].Name + *s.Ports[1].Name + string(*s.Ports[1].Protocol); got != "abTCP" ||
			s.Ports[0].AppProtocol != nil {
			t.Errorf("ports %v", s.Ports)
		}
		slices.Reverse(s.Ports)
		s.Ports[0].Protocol = nil
		s.Endpoints[0].Zone, s.Endpoints[0].Hints = new(""), &discoveryv1.EndpointHints{}
	}
	if again := stored.plan(t, testTemplate(5), desired); verbs(again) != "+0 ~0 -0" {
		t.Errorf("%s for what says the same", verbs(again))
	}
}

func TestSliceNames(t *testing.T) {
	long := strings.Repeat("a", 62)
	used := map[string]string{}
	ipv6 := Endpoint{Addr: netip.MustParseAddr("2001:db8::1"), Ports: httpPorts}
	for _, backend := range []string{"a", "a-v4", long + "b", long + "c"} {
		template := testTemplate(1)
		template.Backend = backend
		for _, s := range changesOf(template, append(pool("t", "", 0, 12), ipv6), nil).Create {
			if problems := validation.IsDNS1123Label(s.Name); len(problems) > 0 {
				t.Errorf("%q: %v", s.Name, problems)
			}
			if other, ok := used[s.Name]; ok {
				t.Errorf("%q is a slice of %q and of %q", s.Name, other, backend)
			}
			used[s.Name] = backend
		}
	}
	if len(used) != 4*13 {
		t.Errorf("%d names", len(used))
	}
	for name := range used { // a backend that is named like another's slice
		if len(name) < 40 {
			template := testTemplate(1)
			template.Backend = strings.TrimSuffix(name, "-0")
			for _, s := range changesOf(template, pool("t", "", 0, 12), nil).Create {
				if used[s.Name] != "" {
					t.Errorf("%q is taken", s.Name)
				}
			}
		}
	}
}

// TestSliceNamesCollide: a plan made from a stale cache creates nothing twice, and a free number is
// used again.
func TestSliceNamesCollide(t *testing.T) {
	stored := cluster{}
	first := stored.plan(t, testTemplate(2), pool("a", "", 0, 6))
	if again := changesOf(testTemplate(2), pool("a", "", 0, 6), nil); gocmp.Diff(first, again) != "" {
		t.Error("the same plan creates slices of other names")
	}
	stored.plan(t, testTemplate(2), slices.Concat(pool("a", "", 0, 2), pool("a", "", 4, 2)))
	names := slices.Sorted(maps.Keys(stored))
	stored.plan(t, testTemplate(2), slices.Concat(pool("a", "", 0, 2), pool("a", "", 4, 4)))
	if len(names) != 2 || len(stored) != 3 ||
		!slices.Equal(
			slices.Sorted(maps.Keys(stored)),
			slices.Sorted(slices.Values([]string{first.Create[0].Name, first.Create[1].Name, first.Create[2].Name})),
		) {
		t.Errorf("%v, then %v", names, sizes(stored))
	}
}

// TestSliceMetadata: what is ours is enforced, what others added stays.
func TestSliceMetadata(t *testing.T) {
	template := testTemplate(5)
	template.Labels = map[string]string{
		"team":                           "shop",
		"tier":                           "db",
		"kubernetes.io/service-name":     "evil",
		"service.kubernetes.io/headless": "",
	}
	stored := cluster{}
	stored.plan(t, template, pool("a", "", 0, 1))
	foreign := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "u-2"}
	usurper := metav1.OwnerReference{APIVersion: "v1", Kind: "Service", Name: "y", UID: "u-3", Controller: new(true)}
	var name string
	for _, s := range stored {
		name = s.Name
		s.ResourceVersion = "17"
		s.Finalizers = []string{"example.com/hold"}
		s.Labels["example.com/theirs"], s.Annotations["example.com/theirs"] = "1", "1"
		s.Labels["kubernetes.io/service-name"] = "elsewhere"
		s.OwnerReferences = []metav1.OwnerReference{foreign, usurper}
	}
	template.Labels = map[string]string{"tier": "cache"}
	if got := verbs(stored.plan(t, template, pool("a", "", 0, 1))); got != "+0 ~1 -0" {
		t.Fatal(got)
	}
	s := stored[name]
	want := metav1.ObjectMeta{
		Name: name, Namespace: "shop", ResourceVersion: "17", Finalizers: []string{"example.com/hold"},
		Labels: map[string]string{
			"kubernetes.io/service-name": "orders", "endpointslice.kubernetes.io/managed-by": "external-backend.io", "external-backend.io/name": "orders-db",
			"tier": "cache", "example.com/theirs": "1",
		},
		Annotations: map[string]string{
			"external-backend.io/endpoints": s.Annotations["external-backend.io/endpoints"],
			"external-backend.io/labels":    "tier",
			"example.com/theirs":            "1",
		},
		OwnerReferences: []metav1.OwnerReference{foreign, *template.Owner},
	}
	if diff := gocmp.Diff(want, s.ObjectMeta); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	s.OwnerReferences = append(s.OwnerReferences, *template.Owner)
	if got := verbs(stored.plan(t, template, pool("a", "", 0, 1))); got != "+0 ~1 -0" ||
		len(stored[name].OwnerReferences) != 2 {
		t.Errorf("owners %v", stored[name].OwnerReferences)
	}
	template.Owner = nil
	if got := verbs(stored.plan(t, template, pool("a", "", 0, 1))); got != "+0 ~0 -0" {
		t.Errorf("%s without an owner to enforce", got)
	}
}

// TestSliceCrashInFold: a crash between a receiver's update and the donor's deletion leaves the
// deletion alone to be done.
func TestSliceCrashInFold(t *testing.T) {
	stored := cluster{}
	stored.plan(t, testTemplate(4), pool("a", "", 0, 8))
	left := slices.Concat(pool("a", "", 0, 1), pool("a", "", 4, 2))
	fold := changesOf(testTemplate(4), left, stored.list())
	if verbs(fold) != "+0 ~1 -1" {
		t.Fatal(verbs(fold))
	}
	stored.apply(t, write{"update", fold.Update[0]})
	again := changesOf(testTemplate(4), left, stored.list())
	if verbs(again) != "+0 ~0 -1" || again.Delete[0].Name != fold.Delete[0].Name {
		t.Errorf("%s after the crash", verbs(again))
	}
}

// TestSliceCap: a cap that changes is obeyed at once, and no slice grows out of the bound.
func TestSliceCap(t *testing.T) {
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

func TestWouldUnpublish(t *testing.T) {
	stored := cluster{}
	stored.plan(t, testTemplate(4), pool("a", "", 0, 8))
	fold := changesOf(testTemplate(4), slices.Concat(pool("a", "", 0, 1), pool("a", "", 4, 2)), stored.list())
	receiver, donor := fold.Update[0], fold.Delete[0]
	unrelated := changesOf(testTemplate(4), pool("a", "", 50, 1), nil).Create[0]
	otherPort := receiver.DeepCopy()
	otherPort.Ports[0].Port = new(int32(81))
	for _, test := range []struct {
		name   string
		next   *discoveryv1.EndpointSlice
		failed []*discoveryv1.EndpointSlice
		want   bool
	}{
		{"nothing failed", nil, nil, false},
		{"its receiver failed", nil, []*discoveryv1.EndpointSlice{unrelated, receiver}, true},
		{"another failed", nil, []*discoveryv1.EndpointSlice{unrelated}, false},
		{"its receiver has other ports", nil, []*discoveryv1.EndpointSlice{otherPort}, true},
		{"an update that keeps all", donor, []*discoveryv1.EndpointSlice{receiver}, false},
		{"an update that keeps nothing", unrelated, []*discoveryv1.EndpointSlice{receiver}, true},
	} {
		if got := WouldUnpublish(donor, test.next, test.failed); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

// TestSliceAllocations: what has not changed costs no memory of its own.
func TestSliceAllocations(t *testing.T) {
	perRun := func(n int) float64 {
		stored := cluster{}
		desired := pool("a", "z1", 0, n)
		stored.plan(t, testTemplate(100), desired)
		existing := stored.list()
		return testing.AllocsPerRun(5, func() { changesOf(testTemplate(100), desired, existing) })
	}
	if small, great := perRun(1000), perRun(10_000); (great-small)/9000 > 0.01 {
		t.Errorf("%v allocations for 1,000 endpoints, %v for 10,000", small, great)
	}
}

// TestSliceFate: what is likely to change together stands together.
func TestSliceFate(t *testing.T) {
	tests := []struct {
		name  string
		limit int
		steps [][]Endpoint
		want  []string // zones and targets in each slice
	}{
		{
			"a zone is not cut",
			4,
			[][]Endpoint{slices.Concat(pool("a", "z1", 0, 3), pool("a", "z2", 10, 3))},
			[]string{"z1a", "z2a"},
		},
		{
			"a target is not cut",
			4,
			[][]Endpoint{slices.Concat(pool("a", "", 0, 3), pool("b", "", 10, 3))},
			[]string{"a", "b"},
		},
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
		{"zones are not folded into each other", 10, [][]Endpoint{
			slices.Concat(pool("a", "z1", 0, 10), pool("a", "z2", 10, 10)),
			slices.Concat(pool("a", "z1", 0, 2), pool("a", "z2", 10, 6)),
		}, []string{"z1a", "z2a"}},
		{"but where both are light", 10, [][]Endpoint{
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
				fates := map[string]bool{}
				for _, e := range Published([]*discoveryv1.EndpointSlice{s}).Endpoints() {
					fates[e.Zone+e.Target] = true
				}
				got = append(got, strings.Join(slices.Sorted(maps.Keys(fates)), " "))
			}
			slices.Sort(got)
			if diff := gocmp.Diff(test.want, got); diff != "" {
				t.Errorf("fates (-want +got):\n%s", diff)
			}
		})
	}
}

// TestSliceDrift: whatever somebody adds to, changes in or takes from an endpoint is mended in one
// write.
func TestSliceDrift(t *testing.T) {
	template := testTemplate(5)
	template.ZoneHints, template.NodeHints = true, true
	desired := pool("a", "z1", 0, 2)
	desired[0].NodeName, desired[0].Hostname = "n1", "a"
	desired[1].Zone = ""
	for name, edit := range map[string]func(noded, bare *discoveryv1.Endpoint){
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
			noded := slices.IndexFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return e.NodeName != nil })
			edit(&s.Endpoints[noded], &s.Endpoints[1-noded])
			if got := verbs(stored.plan(t, template, desired)); got != "+0 ~1 -0" {
				t.Errorf("%s", got)
			}
			if diff := gocmp.Diff(want, stored[s.Name]); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestSliceMovesOnceTold: three slices become light in one step, in which all that they keep
// changes its conditions. One is folded into another, and no endpoint ever says two things at a
// time.
func TestSliceMovesOnceTold(t *testing.T) {
	stored := cluster{}
	before := pool("a", "", 0, 30)
	stored.plan(t, testTemplate(10), before)
	var after []Endpoint
	for i, e := range before {
		if i%10 < 3 {
			e.Ready, e.Serving, e.Healthy = false, false, false
			after = append(after, e)
		}
	}
	changes := changesOf(testTemplate(10), after, stored.list())
	if got := verbs(changes); got != "+0 ~3 -1" {
		t.Errorf("%s: want every slice written, and one of them deleted then", got)
	}
	for i, w := range writesOf(changes) {
		stored.apply(t, w)
		says := map[netip.Addr]bool{}
		for _, s := range stored {
			for j := range s.Endpoints {
				e, _ := readEndpoint(&s.Endpoints[j], s.AddressType)
				if ready, ok := says[e.Addr]; ok && ready != e.Ready {
					t.Errorf("after write %d %s is ready and not", i+1, e.Addr)
				}
				says[e.Addr] = e.Ready
			}
		}
	}
	if len(stored) != 2 {
		t.Errorf("%d slices are left", len(stored))
	}
}

// TestKeepReady: what was to hand over its traffic, and can't, goes on serving where it is healthy,
// and its annotation agrees.
func TestKeepReady(t *testing.T) {
	endpoints := func(ready bool) []Endpoint {
		healthy, dead, leaving := at("a", "203.0.113.1"), at("b", "203.0.113.2"), at("c", "203.0.113.3")
		dead.Healthy = ready
		for _, e := range []*Endpoint{&healthy, &dead, &leaving} {
			e.Ready, e.Serving = ready, ready
		}
		leaving.Terminating = !ready
		return []Endpoint{healthy, dead, leaving}
	}
	current, next := inSlices(endpoints(true)...)[0], inSlices(endpoints(false)...)[0]
	KeepReady(current, next)
	want := endpoints(false)
	want[0].Ready, want[0].Serving = true, true
	if diff := gocmp.Diff(want, Published([]*discoveryv1.EndpointSlice{next}).Endpoints(), equalAddrs); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if kept := inSlices(want...)[0]; kept.Annotations[annotationEndpoints] != next.Annotations[annotationEndpoints] {
		t.Errorf(
			"annotation %q, a plan would write %q",
			next.Annotations[annotationEndpoints],
			kept.Annotations[annotationEndpoints],
		)
	}
}

// TestHandingOver: a tier in one group of slices takes over from a tier in another without a moment
// in which none is ready, whatever else changes.
func TestHandingOver(t *testing.T) {
	in := func(target, addr string, port int32, ready bool) Endpoint {
		e := at(target, addr)
		e.Ports, e.Ready = []Port{{Name: "http", Port: port, Protocol: "TCP"}}, ready
		return e
	}
	// Three light slices of four that change, of which one has to be emptied.
	var light, lighter []Endpoint
	for i, zone := range []string{"a", "c", "d"} {
		for j := range 4 {
			e := in(zone, fmt.Sprintf("10.0.%d.%d", i, j+1), 1, i+j == 0)
			e.Zone = zone
			light = append(light, e)
			if j < 2 {
				e.Ready, e.Serving = false, e.Ready
				lighter = append(lighter, e)
			}
		}
	}
	for name, c := range map[string]struct{ before, after []Endpoint }{
		"one moves, the other loses one": {
			[]Endpoint{in("a", "203.0.113.1", 1, true), in("b", "203.0.113.2", 2, false), in("b", "203.0.113.3", 2, false)},
			[]Endpoint{in("a", "203.0.113.9", 1, false), in("b", "203.0.113.2", 2, true)},
		},
		"one grows, the other loses one": {
			[]Endpoint{in("a", "203.0.113.1", 1, true), in("b", "203.0.113.2", 2, false), in("b", "203.0.113.3", 2, false)},
			[]Endpoint{in("a", "203.0.113.1", 1, false), in("a", "203.0.113.9", 1, false), in("b", "203.0.113.2", 2, true)},
		},
		"one is folded, the other grows": {
			append(slices.Clone(light), in("b", "203.0.113.2", 2, false)),
			append(slices.Clone(lighter), in("b", "203.0.113.2", 2, true), in("b", "203.0.113.3", 2, true)),
		},
	} {
		t.Run(name, func(t *testing.T) {
			template, stored := testTemplate(4), cluster{}
			stored.plan(t, template, c.before)
			for i, w := range writesOf(changesOf(template, c.after, stored.list())) {
				stored.apply(t, w)
				if !slices.ContainsFunc(Published(stored.list()).Endpoints(), func(e Endpoint) bool { return e.Ready }) {
					t.Errorf("after write %d, %s %s, nothing is ready", i+1, w.verb, w.slice.Name)
				}
			}
		})
	}
}

// TestForRetainedWithoutPorts: a slice whose ports someone has taken away is kept true as any
// other.
func TestForRetainedWithoutPorts(t *testing.T) {
	want := at("a", "203.0.113.1")
	bare := want
	bare.Ports = nil
	for _, tt := range [][2]Endpoint{{bare, want}, {want, bare}} {
		got := ForRetained([]Endpoint{tt[0]}, []Endpoint{tt[1]})
		if len(got) != 1 || got[0].Addr != want.Addr || len(got[0].Ports) != len(tt[0].Ports) {
			t.Errorf("%v follows %v as %v", tt[0], tt[1], got)
		}
	}
}
