package endpointslice

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// histories is how many random lives of an ExternalBackend the normal test run looks at.
const histories = 20_000

// TestSliceHistories leads ExternalBackends through random changes, crashes and other people's
// edits, and holds every plan against what Slices promises.
func TestSliceHistories(t *testing.T) {
	const shards = 4
	for shard := range shards {
		t.Run(fmt.Sprint(shard), func(t *testing.T) {
			t.Parallel()
			for i := range histories / shards {
				seed := uint64(i*shards + shard)
				newHistory(t, seed).live()
				if t.Failed() {
					t.Fatalf("history %d", seed)
				}
			}
		})
	}
}

func FuzzSliceHistory(f *testing.F) {
	f.Add(uint64(histories))
	f.Fuzz(func(t *testing.T, seed uint64) { newHistory(t, seed).live() })
}

// history is one ExternalBackend's life: what is wanted of it and what the API server holds.
type history struct {
	t        *testing.T
	random   *rand.Rand
	template Template
	wanted   map[ipPorts]Endpoint
	stored   cluster
	next     int // number of the next address
	// regular: all slices are as a finished plan left them, so that the bounds of a single step hold.
	regular bool
	ports   [][]Port
}

// cluster is the slices that the API server holds, by name.
type cluster map[string]*discoveryv1.EndpointSlice

func (c cluster) list() []*discoveryv1.EndpointSlice { return slices.Collect(maps.Values(c)) }

type write struct {
	verb  string
	slice *discoveryv1.EndpointSlice
}

func writesOf(c Changes) (list []write) {
	for _, s := range c.Create {
		list = append(list, write{"create", s})
	}
	for _, s := range c.Update {
		list = append(list, write{"update", s})
	}
	for _, s := range c.Delete {
		list = append(list, write{"delete", s})
	}
	return list
}

func (c cluster) apply(t *testing.T, w write) {
	_, exists := c[w.slice.Name]
	if exists != (w.verb != "create") {
		t.Errorf("%s of %s, which exists: %v", w.verb, w.slice.Name, exists)
	}
	if w.verb == "delete" {
		delete(c, w.slice.Name)
		return
	}
	c[w.slice.Name] = w.slice
}

func newHistory(t *testing.T, seed uint64) *history {
	r := rand.New(rand.NewPCG(seed, 7))
	h := &history{t: t, random: r, wanted: map[ipPorts]Endpoint{}, stored: cluster{}, regular: true}
	h.template = Template{
		Namespace: "shop", Service: "orders", Backend: "orders-db", Headless: r.IntN(4) == 0, ZoneHints: r.IntN(2) == 0, NodeHints: r.IntN(4) == 0,
		Max: []int{1, 2, 3, 4, 5, 7, 10}[r.IntN(7)],
		Owner: &metav1.OwnerReference{
			APIVersion:         "v1",
			Kind:               "Service",
			Name:               "orders",
			UID:                "u-1",
			Controller:         new(true),
			BlockOwnerDeletion: new(true),
		},
	}
	h.ports = [][]Port{
		{{Name: "", Port: 80, Protocol: corev1.ProtocolTCP}},
		{{Name: "a", Port: 80, Protocol: corev1.ProtocolTCP, AppProtocol: new("http")}, {Name: "b", Port: 53, Protocol: corev1.ProtocolUDP}},
	}[:1+r.IntN(2)]
	return h
}

func (h *history) live() {
	for range 2 + h.random.IntN(5) {
		h.change()
		if h.random.IntN(8) == 0 {
			h.meddle()
		}
		h.sync()
		if h.t.Failed() {
			return
		}
	}
}

// ipPorts is an endpoint as consumers tell it from others: an address, and which list of h.ports.
type ipPorts struct {
	addr  netip.Addr
	ports int
}

func (k ipPorts) String() string { return fmt.Sprintf("%s with ports %d", k.addr, k.ports) }

func (k ipPorts) compare(other ipPorts) int {
	return cmp.Or(k.addr.Compare(other.addr), k.ports-other.ports)
}

func (h *history) key(e *Endpoint) ipPorts { return ipPorts{e.Addr, h.portList(e.Ports)} }

// portList tells which of h.ports a list is, -1 for none of them.
func (h *history) portList(ports []Port) int {
	return slices.IndexFunc(h.ports, func(p []Port) bool { return slices.EqualFunc(p, ports, SamePort) })
}

// groupKey is the group of a slice.
type groupKey struct {
	family discoveryv1.AddressType
	ports  int
}

func (h *history) group(s *discoveryv1.EndpointSlice) groupKey {
	return groupKey{s.AddressType, h.portList(portsOf(s, nil))}
}

func (h *history) newEndpoint() Endpoint {
	r := h.random
	h.next++
	n := h.next*7919%60000 + 256 // scattered, so that the order of arrival is not that of addresses
	e := Endpoint{
		Target:     fmt.Sprintf("t%d", r.IntN(5)),
		Ports:      h.ports[r.IntN(len(h.ports))],
		Conditions: Conditions{Ready: true, Serving: true, Healthy: true},
	}
	e.Addr = netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)})
	if r.IntN(8) == 0 {
		e.Addr = netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 14: byte(n >> 8), 15: byte(n)})
	}
	if zone := e.Target[1] - '0'; zone > 0 {
		e.Zone = fmt.Sprintf("zone-%d", zone%3)
	}
	if r.IntN(4) == 0 {
		e.Hostname, e.NodeName = e.Target, "node-"+e.Target
	}
	if r.IntN(6) == 0 {
		e.Rank = uint8(r.IntN(3))
	}
	return e
}

// change makes something else wanted.
func (h *history) change() {
	r := h.random
	some := func(share int, f func(key ipPorts, e Endpoint)) {
		for _, key := range slices.SortedFunc(maps.Keys(h.wanted), ipPorts.compare) {
			if r.IntN(100) < share {
				f(key, h.wanted[key])
			}
		}
	}
	remove := func(key ipPorts, _ Endpoint) { delete(h.wanted, key) }
	flip := func(key ipPorts, e Endpoint) {
		e.Healthy = !e.Healthy
		e.Ready, e.Serving = e.Healthy && !e.Terminating, e.Healthy
		h.wanted[key] = e
	}
	add := func(n int) {
		for range n {
			e := h.newEndpoint()
			h.wanted[h.key(&e)] = e
		}
	}
	zone := fmt.Sprintf("zone-%d", r.IntN(3))
	switch r.IntN(14) {
	case 0:
		add(r.IntN(4 * h.template.Max))
	case 1:
		add(1 + r.IntN(3))
	case 2:
		some(10, remove)
		add(r.IntN(4))
	case 3:
		some([]int{20, 50, 90}[r.IntN(3)], remove)
	case 4:
		some(15, flip)
	case 5: // a zone out
		some(100, func(key ipPorts, e Endpoint) {
			if e.Zone == zone {
				remove(key, e)
			}
		})
	case 6: // everything at once
		some(60, remove)
		some(60, flip)
		add(r.IntN(5))
	case 7:
		some(30, func(key ipPorts, e Endpoint) {
			e.Terminating, e.Ready, e.Serving, e.DrainUntil = true, false, e.Healthy, time.Unix(1_763_683_200+int64(r.IntN(3)), 0).
				UTC()
			h.wanted[key] = e
		})
	case 8: // other target, other zone, other ports
		some(20, func(key ipPorts, e Endpoint) {
			delete(h.wanted, key)
			e.Target, e.Zone, e.Ports = "t9", "zone-1", h.ports[r.IntN(len(h.ports))]
			h.wanted[h.key(&e)] = e
		})
	case 9:
		h.template.Labels = map[string]string{fmt.Sprintf("team-%d", r.IntN(2)): "shop"}
		h.template.Headless = r.IntN(2) == 0
	case 10: // another tier is active
		tier := byte('0' + r.IntN(5))
		some(100, func(key ipPorts, e Endpoint) {
			e.Serving = e.Healthy && e.Target[1] == tier
			e.Ready = e.Serving && !e.Terminating
			h.wanted[key] = e
		})
	case 11: // the Service fails open
		some(100, func(key ipPorts, e Endpoint) {
			e.Serving, e.Ready = true, !e.Terminating
			h.wanted[key] = e
		})
	case 12: // health that changes nothing else
		some(15, func(key ipPorts, e Endpoint) {
			e.Healthy = !e.Healthy
			h.wanted[key] = e
		})
	case 13: // another tier in spec
		some(20, func(key ipPorts, e Endpoint) {
			e.Tier = int32(r.IntN(3))
			h.wanted[key] = e
		})
	}
}

// meddle does what crashes, other people and flags do.
func (h *history) meddle() {
	r := h.random
	h.regular = false
	if r.IntN(3) == 0 {
		h.template.Max = 1 + r.IntN(8)
	}
	names := slices.Sorted(maps.Keys(h.stored))
	if len(names) == 0 {
		return
	}
	name := names[r.IntN(len(names))]
	s := h.stored[name].DeepCopy()
	other := h.stored[names[r.IntN(len(names))]]
	h.stored[name] = s
	switch r.IntN(12) {
	case 0:
		s.Annotations[annotationEndpoints] = []string{"", "~", "a*9999999~0000", "v1:t1*2~0000,,", "v1:t1^1/300!@x~~", "v2:t1~0000"}[r.IntN(6)]
	case 1:
		s.Labels["kubernetes.io/service-name"], s.OwnerReferences = "other", nil
	case 2:
		s.Endpoints = append(s.Endpoints, other.DeepCopy().Endpoints...) // twice, and perhaps of the wrong family
	case 3:
		s.Endpoints = nil
	case 4:
		s.Endpoints = append(
			s.Endpoints,
			discoveryv1.Endpoint{Addresses: []string{"300.0.0.1"}},
			discoveryv1.Endpoint{Addresses: []string{"fe80::1%eth0", "10.9.9.9"}},
			discoveryv1.Endpoint{},
		)
	case 5:
		delete(h.stored, name)
	case 6:
		s.Ports = nil
	case 7:
		s.DeletionTimestamp, s.Finalizers = new(metav1.Now()), []string{"example.com/hold"}
	case 8:
		clone := s.DeepCopy()
		clone.Name = "by-hand"
		h.stored[clone.Name] = clone
	case 9:
		s.Endpoints = s.Endpoints[:len(s.Endpoints)/2]
	case 10:
		slices.Reverse(s.Endpoints)
	case 11:
		s.AddressType = discoveryv1.AddressTypeFQDN
	}
}

func (h *history) desired() []Endpoint {
	list := slices.Collect(maps.Values(h.wanted))
	h.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// sync plans, looks at the plan, and applies it, or a part of it where the process dies in between.
func (h *history) sync() {
	desired, existing := h.desired(), h.stored.list()
	slices.SortFunc(existing, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	var before []*discoveryv1.EndpointSlice
	if h.random.IntN(8) == 0 {
		for _, s := range existing {
			before = append(before, s.DeepCopy())
		}
	}
	changes := changesOf(h.template, desired, existing)
	if before != nil && !equality.Semantic.DeepEqual(before, existing) {
		h.t.Errorf("existing slices were mutated: %s", gocmp.Diff(before, existing))
	}
	if h.random.IntN(8) == 0 {
		h.random.Shuffle(len(existing), func(i, j int) { existing[i], existing[j] = existing[j], existing[i] })
		if again := changesOf(h.template, h.desired(), existing); !equality.Semantic.DeepEqual(again, changes) {
			h.t.Errorf("another order of the input makes another plan: %s", gocmp.Diff(again, changes))
		}
	}
	if h.regular {
		h.checkPrice(existing, changes)
	}
	writes := writesOf(changes)
	if len(writes) > 0 && h.random.IntN(6) == 0 {
		h.checkCrash(writes)
		h.walk(writes[:h.random.IntN(len(writes))])
		h.regular = false
		return
	}
	h.walk(writes)
	h.checkRest()
}

// checkCrash lets the process die after every write, and plan anew with what it then finds.
func (h *history) checkCrash(writes []write) {
	stored := maps.Clone(h.stored)
	for _, w := range writes {
		stored.apply(h.t, w)
		restarted := *h
		restarted.stored, restarted.regular = maps.Clone(stored), false
		restarted.walk(writesOf(changesOf(h.template, h.desired(), stored.list())))
		restarted.checkRest()
	}
}

// walk applies writes and looks at what consumers see after each.
func (h *history) walk(writes []write) {
	start := h.seen()
	for i, w := range writes {
		if w.verb != "create" && h.stored[w.slice.Name] != nil &&
			w.slice.ResourceVersion != h.stored[w.slice.Name].ResourceVersion {
			h.t.Errorf("resourceVersion of %s lost", w.slice.Name)
		}
		h.stored.apply(h.t, w)
		if len(w.slice.Endpoints) > h.template.Max && w.verb != "delete" {
			h.t.Errorf("%s writes %d endpoints to a slice", w.verb, len(w.slice.Endpoints))
		}
		now := h.seen()
		if h.regular && someReady(start) && h.wantsReady() && !someReady(now) {
			h.t.Errorf("write %d of %d: nothing is ready, which was so before and will be again", i+1, len(writes))
		}
		for key, said := range start {
			if _, ok := h.wanted[key]; !ok {
				continue
			}
			if len(now[key]) == 0 {
				h.t.Errorf("write %d of %d: %s is missing", i+1, len(writes), key)
			}
			if !h.regular || len(said) > 1 {
				continue
			}
			for _, c := range now[key] {
				if c != now[key][0] {
					h.t.Errorf("write %d of %d: %s says %v", i+1, len(writes), key, now[key])
				}
			}
		}
	}
}

func someReady(seen map[ipPorts][]conditions) bool {
	for _, said := range seen {
		if slices.ContainsFunc(said, func(c conditions) bool { return c.ready }) {
			return true
		}
	}
	return false
}

func (h *history) wantsReady() bool {
	for _, e := range h.wanted {
		if e.Ready {
			return true
		}
	}
	return false
}

// lightAndChanged counts the slices of the fullest group that will be light and whose endpoints
// change their conditions: what may become a donor all the same.
func (h *history) lightAndChanged() (most int) {
	count := map[groupKey]int{}
	for _, s := range h.stored {
		kept, changed := 0, false
		ports := portsOf(s, nil)
		for i := range s.Endpoints {
			e, ok := readEndpoint(&s.Endpoints[i], s.AddressType)
			e.Ports = ports
			want, wanted := h.wanted[h.key(&e)]
			if !ok || !wanted {
				continue
			}
			kept++
			changed = changed || !sameConditions(&s.Endpoints[i].Conditions, &want.Conditions)
		}
		if changed && 2*kept <= h.template.Max {
			group := h.group(s)
			count[group]++
			most = max(most, count[group])
		}
	}
	return most
}

type conditions struct{ ready, serving, terminating bool }

// seen is what consumers are told of each ip:port.
func (h *history) seen() map[ipPorts][]conditions {
	seen := make(map[ipPorts][]conditions, len(h.wanted))
	for _, s := range h.stored {
		ports := h.portList(portsOf(s, nil))
		for i := range s.Endpoints {
			if e, ok := readEndpoint(&s.Endpoints[i], s.AddressType); ok {
				key := ipPorts{e.Addr, ports}
				seen[key] = append(seen[key], conditions{e.Ready, e.Serving, e.Terminating})
			}
		}
	}
	return seen
}

// checkRest holds the state after a whole plan against what was wanted.
func (h *history) checkRest() {
	want := h.wanted
	found := 0
	groups := map[groupKey][3]int{} // slices, endpoints, light slices
	for _, s := range h.stored {
		if s.DeletionTimestamp != nil {
			if len(s.Endpoints) > 0 {
				h.t.Errorf("%s, which is being deleted, still has endpoints", s.Name)
			}
			continue
		}
		if n := len(s.Endpoints); n == 0 || n > h.template.Max {
			h.t.Errorf("%s holds %d endpoints", s.Name, n)
		}
		h.checkMetadata(s)
		ports := portsOf(s, nil)
		group := h.group(s)
		n := groups[group]
		n[0], n[1] = n[0]+1, n[1]+len(s.Endpoints)
		if 2*len(s.Endpoints) <= h.template.Max {
			n[2]++
		}
		groups[group] = n
		for i := range s.Endpoints {
			have, ok := readEndpoint(&s.Endpoints[i], s.AddressType)
			have.Ports = ports
			e, wanted := want[h.key(&have)]
			if !ok || !wanted {
				h.t.Errorf("%s publishes %v, which is not wanted", s.Name, s.Endpoints[i].Addresses)
				continue
			}
			found++
			if !sameEndpoint(&s.Endpoints[i], &e, &h.template) || !sameConditions(&s.Endpoints[i].Conditions, &e.Conditions) {
				h.t.Errorf("%s publishes %+v, wanted is %+v", s.Name, s.Endpoints[i], e)
			}
		}
	}
	if found != len(want) {
		h.t.Errorf("%d endpoints published, %d wanted", found, len(want))
	}
	for group, n := range groups {
		if ideal := ceilDiv(n[1], h.template.Max); n[0] > 2*ideal+1 {
			h.t.Errorf("%d slices for %d endpoints, %d to a slice, in group %v", n[0], n[1], h.template.Max, group)
		}
		if h.regular && n[2] > 2 {
			h.t.Errorf("%d light slices in group %v", n[2], group)
		}
	}
	h.checkPublished()
	if again := changesOf(h.template, h.desired(), h.stored.list()); len(writesOf(again)) > 0 {
		h.t.Errorf("a finished plan is followed by another: %+v", again)
	}
}

func (h *history) checkMetadata(s *discoveryv1.EndpointSlice) {
	want := map[string]string{
		"kubernetes.io/service-name":             "orders",
		"endpointslice.kubernetes.io/managed-by": "external-backend.io",
		"external-backend.io/name":               "orders-db",
	}
	maps.Copy(want, h.template.Labels)
	if h.template.Headless {
		want["service.kubernetes.io/headless"] = ""
	}
	if !maps.Equal(s.Labels, want) {
		h.t.Errorf("labels of %s: %s", s.Name, gocmp.Diff(want, s.Labels))
	}
	if len(s.OwnerReferences) != 1 || !sameOwner(&s.OwnerReferences[0], h.template.Owner) {
		h.t.Errorf("owners of %s: %v", s.Name, s.OwnerReferences)
	}
}

// checkPublished holds what is read back against what was wanted.
func (h *history) checkPublished() {
	published := Published(h.stored.list()).Endpoints()
	if len(published) != len(h.wanted) {
		h.t.Errorf("%d endpoints read back, %d wanted", len(published), len(h.wanted))
	}
	for i := range published {
		want := h.wanted[h.key(&published[i])]
		if got := published[i]; !slices.EqualFunc(got.Ports, want.Ports, SamePort) || !sameButPorts(got, want) {
			h.t.Errorf("read back: %+v, wanted: %+v", got, want)
		}
	}
}

func sameButPorts(a, b Endpoint) bool {
	return a.Target == b.Target && a.Addr == b.Addr && a.Hostname == b.Hostname && a.Zone == b.Zone && a.NodeName == b.NodeName &&
		a.Ready == b.Ready && a.Serving == b.Serving && a.Terminating == b.Terminating && a.Healthy == b.Healthy &&
		a.Tier == b.Tier &&
		a.Rank == b.Rank &&
		a.DrainUntil.Equal(b.DrainUntil)
}

func ceilDiv(a, b int) int { return (a + b - 1) / b }

// checkPrice holds the number of writes against W*, worked out here from its definition, group by
// group.
func (h *history) checkPrice(existing []*discoveryv1.EndpointSlice, changes Changes) {
	type tally struct{ written, room, added, writes, untouchedDeleted, twice int }
	tallies := map[groupKey]*tally{}
	of := func(key groupKey) *tally {
		if tallies[key] == nil {
			tallies[key] = &tally{}
		}
		return tallies[key]
	}
	for _, e := range h.wanted {
		of(groupKey{addressFamily(e.Addr), h.portList(e.Ports)}).added++
	}
	clean := map[string]bool{}
	for _, s := range existing {
		group := of(h.group(s))
		kept, changed := 0, h.drifted(s)
		for _, e := range Published([]*discoveryv1.EndpointSlice{s}).Endpoints() {
			want, ok := h.wanted[h.key(&e)]
			if ok {
				kept++
			}
			changed = changed || !ok || !sameButPorts(e, want)
		}
		group.added -= kept
		if changed {
			group.written++
			group.room += h.template.Max - kept
		} else {
			clean[s.Name] = true
		}
	}
	updated := map[string]bool{}
	for _, w := range writesOf(changes) {
		group := of(h.group(w.slice))
		group.writes++
		if updated[w.slice.Name] {
			group.twice++
		}
		updated[w.slice.Name] = w.verb == "update"
		if w.verb == "delete" && clean[w.slice.Name] {
			group.untouchedDeleted++
		}
	}
	for key, n := range tallies {
		least := n.written + ceilDiv(max(0, n.added-n.room), h.template.Max)
		if n.writes != least+n.untouchedDeleted+n.twice || n.untouchedDeleted > 1 {
			h.t.Errorf(
				"%d writes where W* is %d, %d of them for compaction, in group %v",
				n.writes,
				least,
				n.untouchedDeleted,
				key,
			)
		}
		if n.twice > 0 && n.twice > h.lightAndChanged()-2 {
			h.t.Errorf("%d slices are written twice, of %d that are light and change", n.twice, h.lightAndChanged())
		}
	}
}

// drifted reports whether a slice's metadata or hints have to change.
func (h *history) drifted(s *discoveryv1.EndpointSlice) bool {
	_, headless := s.Labels["service.kubernetes.io/headless"]
	for key, value := range h.template.Labels {
		if s.Labels[key] != value {
			return true
		}
	}
	return headless != h.template.Headless || len(s.Labels) != 3+len(h.template.Labels)+map[bool]int{true: 1}[headless]
}
