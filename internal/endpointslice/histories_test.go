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

// histories is how many random histories a normal test run tries.
const histories = 20_000

// TestPlansKeepTheirPromisesInRandomHistories leads ExternalBackends through random changes,
// crashes and other people's edits, and checks every plan against what the package comment
// promises.
func TestPlansKeepTheirPromisesInRandomHistories(t *testing.T) {
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

// FuzzSliceHistory is TestPlansKeepTheirPromisesInRandomHistories with seeds of the fuzzer.
func FuzzSliceHistory(f *testing.F) {
	f.Add(uint64(histories))
	f.Fuzz(func(t *testing.T, seed uint64) { newHistory(t, seed).live() })
}

// history is what one ExternalBackend wants over time, and what the API server holds of it.
type history struct {
	t        *testing.T
	random   *rand.Rand
	template Template
	wanted   map[ipPorts]Endpoint
	stored   cluster
	next     int // number of the next address
	// regular means that all slices are as a finished plan left them. Only then the bounds of a single
	// step hold.
	regular bool
	ports   [][]Port
}

// newHistory returns a history that seed determines.
func newHistory(t *testing.T, seed uint64) *history {
	r := rand.New(rand.NewPCG(seed, 7))
	h := &history{t: t, random: r, wanted: map[ipPorts]Endpoint{}, stored: cluster{}, regular: true}
	h.template = Template{
		Namespace: "shop", Service: "orders", Backend: "orders-db",
		Headless: r.IntN(4) == 0, ZoneHints: r.IntN(2) == 0, NodeHints: r.IntN(4) == 0,
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
		{
			{Name: "a", Port: 80, Protocol: corev1.ProtocolTCP, AppProtocol: "http"},
			{Name: "b", Port: 53, Protocol: corev1.ProtocolUDP},
		},
	}[:1+r.IntN(2)]
	return h
}

// live goes through some changes, each followed by a plan.
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

// ipPorts identifies an endpoint as consumers do: by its address and by an index into h.ports.
type ipPorts struct {
	addr  netip.Addr
	ports int
}

func (k ipPorts) String() string { return fmt.Sprintf("%s with ports %d", k.addr, k.ports) }

func (k ipPorts) compare(other ipPorts) int {
	return cmp.Or(k.addr.Compare(other.addr), k.ports-other.ports)
}

func (h *history) key(e *Endpoint) ipPorts { return ipPorts{e.Addr, h.portList(e.Ports)} }

// portList returns the index of ports in h.ports, or -1.
func (h *history) portList(ports []Port) int {
	return slices.IndexFunc(h.ports, func(p []Port) bool { return slices.Equal(p, ports) })
}

// groupKey is the group of a slice.
type groupKey struct {
	family discoveryv1.AddressType
	ports  int
}

func (h *history) group(s *discoveryv1.EndpointSlice) groupKey {
	return groupKey{s.AddressType, h.portList(portsOf(s))}
}

// newEndpoint returns an endpoint with an address of its own.
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

// change changes what is wanted.
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
			e.Terminating, e.Ready, e.Serving = true, false, e.Healthy
			e.DrainUntil = time.Unix(1_763_683_200+int64(r.IntN(3)), 0).UTC()
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
		s.Annotations[annotationEndpoints] = []string{
			"", "~", "a*9999999~0000", "v1:t1*2~0000,,", "v1:t1^1/300!@x~~", "v2:t1~0000",
		}[r.IntN(6)]
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

// desired returns the wanted endpoints in random order.
func (h *history) desired() []Endpoint {
	list := slices.Collect(maps.Values(h.wanted))
	h.random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// sync plans, checks the plan, and applies it or, as if the process crashed, a part of it.
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
	defer func() {
		if h.t.Failed() {
			h.t.Logf("write phases: %v", phasesOf(h.template, desired, existing))
		}
	}()
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
