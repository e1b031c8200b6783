package resolve

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// model states what an owner sees of a name in another way: it goes on second by second and counts,
// where the code compares times.
type model struct {
	settings
	families Families
	family   [2]modelFamily
}

type modelFamily struct {
	kind     kind
	cause    string
	absent   map[netip.Addr]int // seconds of good answers without the address; 0 = present
	good     bool               // there is a last good answer
	ttl      int                // seconds left of its TTL
	stale    int                // seconds left of its staleness
	denial   int                // seconds left of the TTL of the latest denial, or answer
	nx       int                // seconds of NXDOMAIN in a row
	straight bool               // the denial came straight after a good answer, or was the first result
	empty    int                // seconds of NODATA in a row
	denied   int                // seconds of this denial in a row
	gone     bool               // it was believed to be empty beside the other family
}

// second lets a second pass.
func (m *model) second() {
	for i := range m.family {
		f := &m.family[i]
		if f.good {
			if f.ttl > 0 {
				f.ttl--
			} else if f.stale > 0 {
				f.stale--
			}
		}
		if f.denial > 0 {
			f.denial--
		}
		switch f.kind {
		case kindGood:
			for a, n := range f.absent {
				if n > 0 {
					f.absent[a] = n + 1
				}
			}
		case kindNXDomain:
			f.nx++
			f.denied++
		case kindNoData:
			f.empty++
			f.denied++
		}
	}
	m.latch()
}

// latch remembers that a denial beside a good family was believed.
func (m *model) latch() {
	for i := range m.family {
		f, other := &m.family[i], &m.family[1-i]
		if m.families == IPv4|IPv6 && f.empty >= 30 && other.kind == kindGood && f.kind != kindGood {
			f.gone = true
		}
	}
}

// seconds returns a TTL within the bounds.
func (m *model) seconds(ttl time.Duration) int {
	return int(m.clamp(ttl) / time.Second)
}

func (m *model) result(i int, r result) {
	f := &m.family[i]
	if f.kind == kindNXDomain && f.nx >= 30 {
		f.absent, f.good = nil, false
	}
	if r.kind != kindFailed {
		f.denial = m.seconds(r.ttl)
	}
	if r.kind != f.kind {
		f.straight = f.kind == kindGood || f.kind == kindNone
		f.nx, f.denied = 0, 0
		if r.kind == kindNoData && f.empty < 30 {
			f.empty = 0
		}
	}
	if r.kind == kindGood {
		m.good(f, r)
	}
	f.kind, f.cause = r.kind, r.cause
	m.latch()
}

func (m *model) good(f *modelFamily, r result) {
	if f.absent == nil {
		f.absent = map[netip.Addr]int{}
	}
	present := map[netip.Addr]bool{}
	for _, d := range r.data {
		present[d.ip] = true
		f.absent[d.ip] = 0
	}
	for a, n := range f.absent {
		if !present[a] && n == 0 {
			f.absent[a] = 1 // gone for 0 s, counted from 1
		}
	}
	f.good, f.ttl, f.stale = true, m.seconds(r.ttl), int(m.stale/time.Second)
	f.empty, f.gone = 0, false
}

// addrs returns the addresses that a family may publish.
func (m *model) addrs(i int) (all []netip.Addr) {
	f := &m.family[i]
	serving := f.ttl > 0 || f.stale > 0
	switch f.kind {
	case kindGood:
		serving = true
	case kindNXDomain:
		serving = f.denied < 30 && (f.straight || serving)
	case kindNoData:
		serving = !f.gone && (serving || m.otherHas(i) && f.straight && f.denied < 30)
	case kindFailed:
		serving = serving && !f.gone
	}
	if !serving || !f.good {
		return nil
	}
	for a, n := range f.absent {
		if n == 0 || n-1 < int(m.removalDelay/time.Second) {
			all = append(all, a)
		}
	}
	return all
}

// otherHas reports whether the other family is asked for and has addresses.
func (m *model) otherHas(i int) bool {
	f := &m.family[1-i]
	if m.families != IPv4|IPv6 {
		return false
	}
	return f.kind == kindGood || f.kind == kindFailed && f.good && (f.ttl > 0 || f.stale > 0)
}

// ill reports whether a family keeps the name from being current.
func (m *model) ill(i int) bool {
	f := &m.family[i]
	inTTL := f.good && f.ttl > 0
	switch f.kind {
	case kindNXDomain:
		return !m.otherHas(i)
	case kindNoData:
		return !m.otherHas(i) && !inTTL
	case kindFailed:
		return !inTTL && !(m.otherHas(i) && f.denial > 0)
	}
	return false
}

func randomResult(r *rand.Rand, family int) result {
	ttl := time.Duration(r.IntN(40)) * time.Second
	switch r.IntN(7) {
	case 0:
		return result{kind: kindNXDomain, cause: causeNXDOMAIN, ttl: ttl}
	case 1, 2:
		return result{kind: kindNoData, cause: causeEmpty, ttl: ttl}
	case 3, 4:
		return result{kind: kindFailed, cause: []string{"SERVFAIL", causeTimeout}[r.IntN(2)]}
	}
	var data []datum
	for range 1 + r.IntN(4) {
		if n := byte(r.IntN(6)); family == 0 {
			data = append(data, datum{ip: netip.AddrFrom4([4]byte{192, 0, 2, n})})
		} else {
			data = append(data, datum{ip: netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 15: n})})
		}
	}
	return result{kind: kindGood, data: unique(data), ttl: ttl}
}

// Three owners with different settings see one pair of records through random results. Each second
// each of them sees what the model says, and nothing changes at a second that next did not
// announce.
func TestAnswersAreThoseOfTheModel(t *testing.T) {
	for n := range 60 {
		r := rand.New(rand.NewPCG(uint64(n), 5))
		var shared [2]history
		models := make([]model, 3)
		keep := time.Duration(0)
		for i := range models {
			models[i] = model{families: []Families{IPv4 | IPv6, IPv4 | IPv6, IPv4, IPv6}[r.IntN(4)], settings: settings{
				minTTL: 5 * time.Second, maxTTL: time.Duration(10+r.IntN(40)) * time.Second,
				stale: time.Duration(r.IntN(3)*40) * time.Second, removalDelay: time.Duration(r.IntN(3)*25) * time.Second,
			}}
			keep = max(keep, models[i].removalDelay)
		}
		start := time.Unix(1000, 0)
		seen := make([]string, len(models))
		next := make([]time.Time, len(models))
		pace := 1 + r.IntN(40)
		for second := range 400 {
			now := start.Add(time.Duration(second) * time.Second)
			news := false
			for f := range 2 {
				if r.IntN(pace) > 0 && second > 0 {
					continue
				}
				news = true
				result := randomResult(r, f)
				shared[f].apply(result, now, keep)
				for i := range models {
					models[i].result(f, result)
				}
			}
			for i := range models {
				m := &models[i]
				v := summarizeName(pairOf(&shared, m.families), time.Time{}, m.settings, now)
				got, want := describe(&v), m.describe()
				if got != want {
					t.Fatalf("run %d, second %d, owner %d (%+v):\n got %s\nwant %s", n, second, i, m.settings, got, want)
				}
				if got != seen[i] && !news && (next[i].IsZero() || next[i].After(now)) {
					t.Fatalf("run %d, second %d, owner %d: %s became %s at a time not announced (%v)",
						n, second, i, seen[i], got, next[i])
				}
				seen[i], next[i] = got, v.next
				m.second()
			}
		}
	}
}

func pairOf(h *[2]history, f Families) (p pair) {
	for i := range p {
		if f.has(i) {
			p[i] = &h[i]
		}
	}
	return p
}

func describe(v *summary) string { return fmt.Sprint(v.addrs, v.cause != "") }

func (m *model) describe() string {
	var all []Addr
	ill := false
	for i := range 2 {
		if !m.families.has(i) {
			continue
		}
		for _, a := range m.addrs(i) {
			all = append(all, Addr{IP: a})
		}
		ill = ill || m.ill(i)
	}
	slices.SortFunc(all, compareAddrs)
	return fmt.Sprint(all, ill)
}

// The same records in another order, or twice, are no change.
func TestOrderOfRecordsDoesNotMatter(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		a := randomResult(r, 0)
		if a.kind != kindGood {
			continue
		}
		var h history
		h.apply(a, time.Unix(0, 0), time.Minute)
		shuffled := append(slices.Clone(a.data), a.data...)
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		a.data = unique(shuffled)
		if h.apply(a, time.Unix(10, 0), time.Minute) {
			t.Fatal("the same records in another order are a change")
		}
	}
}

// A history drops the data that have been absent longest, and keeps all that are present.
func TestHistoryIsBounded(t *testing.T) {
	var h history
	for round := range 20 {
		var data []datum
		for i := range 1000 {
			data = append(data, datum{ip: netip.AddrFrom4([4]byte{10, byte(round), byte(i >> 8), byte(i)})})
		}
		h.apply(result{kind: kindGood, data: unique(data)}, time.Unix(int64(round), 0), time.Hour)
		present := 0
		for _, e := range h.entries {
			if e.absentSince.IsZero() {
				present++
			}
		}
		if len(h.entries) > maxEntries || present != 1000 {
			t.Fatalf("%d entries, %d present", len(h.entries), present)
		}
	}
	if len(h.entries) < maxEntries-1000 {
		t.Errorf("only %d entries", len(h.entries))
	}
}
