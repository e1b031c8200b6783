package policy

import (
	"cmp"
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"
)

// A set holds small numbers, one bit each: rules of a Set, or kinds of range.
// All sets of one pool have the same length and are never written once pooled.
type set []uint64

func (s set) add(id int)    { s[id/64] |= 1 << (id % 64) }
func (s set) remove(id int) { s[id/64] &^= 1 << (id % 64) }

func (s set) union(o set) set {
	u := slices.Clone(s)
	for i := range u {
		u[i] |= o[i]
	}
	return u
}

// first is the smallest member, or -1.
func (s set) first() int {
	for i, w := range s {
		if w != 0 {
			return i*64 + bits.TrailingZeros64(w)
		}
	}
	return -1
}

// A pool makes sets that can hold the numbers below size, and keeps equal ones
// once: a table has many intervals and few different sets.
type pool struct {
	size  int
	known map[string]set
	buf   []byte
}

func newPool(size int) *pool { return &pool{size: size, known: map[string]set{}} }

func (p *pool) empty() set { return make(set, (p.size+63)/64) }

// keep returns the pooled set equal to s. The caller may change s afterwards.
func (p *pool) keep(s set) set {
	p.buf = p.buf[:0]
	for _, w := range s {
		p.buf = binary.LittleEndian.AppendUint64(p.buf, w)
	}
	kept, ok := p.known[string(p.buf)]
	if !ok {
		kept = slices.Clone(s)
		p.known[string(p.buf)] = kept
	}
	return kept
}

// A key is an address of one family, or a port, as a 128-bit number.
type key struct{ hi, lo uint64 }

func (k key) compare(o key) int {
	return cmp.Or(cmp.Compare(k.hi, o.hi), cmp.Compare(k.lo, o.lo))
}

func keyOf(a netip.Addr) key {
	if a.Is4() {
		b := a.As4()
		return key{lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}
	b := a.As16()
	return key{hi: binary.BigEndian.Uint64(b[:8]), lo: binary.BigEndian.Uint64(b[8:])}
}

// A span says that every key from first to last, both included, belongs to id.
type span struct {
	first, last key
	id          int
}

func prefixSpan(p netip.Prefix, id int) span {
	first := keyOf(p.Masked().Addr())
	last := first
	// A shift by 64 or more gives 0, so each half gets its own share of host bits.
	host := p.Addr().BitLen() - p.Bits()
	last.lo |= 1<<min(host, 64) - 1
	last.hi |= 1<<max(host-64, 0) - 1
	return span{first, last, id}
}

func portSpan(first, last uint16, id int) span {
	return span{key{lo: uint64(first)}, key{lo: uint64(last)}, id}
}

// A table knows for every key which ids cover it. The keys are cut into the
// intervals between which the answer changes (the bit-vector scheme of packet
// classifiers: Lakshman and Stiliadis, SIGCOMM 1998), so that a look-up is one
// binary search, however many spans overlap.
type table struct {
	starts []key // ascending, the first is 0
	sets   []set
}

// newTable sweeps over the ends of the spans in order:
//  1. cut every span into the edge where it begins and the edge behind its last key;
//  2. count per id how many of its spans are open;
//  3. behind the last edge at one key, note the ids with a count as the set from there on.
func newTable(spans []span, p *pool) table {
	type edge struct {
		at   key
		id   int
		step int
	}
	edges := make([]edge, 0, 2*len(spans))
	for _, s := range spans {
		edges = append(edges, edge{s.first, s.id, +1})
		if end, more := s.last.next(); more {
			edges = append(edges, edge{end, s.id, -1})
		}
	}
	slices.SortFunc(edges, func(a, b edge) int { return a.at.compare(b.at) })

	open := make([]int, p.size)
	current := p.empty()
	t := table{starts: []key{{}}, sets: []set{p.keep(current)}}
	for i, e := range edges {
		if open[e.id] += e.step; open[e.id] > 0 {
			current.add(e.id)
		} else {
			current.remove(e.id)
		}
		if i+1 < len(edges) && edges[i+1].at == e.at {
			continue
		}
		if last := len(t.starts) - 1; t.starts[last] == e.at {
			t.sets[last] = p.keep(current)
		} else {
			t.starts = append(t.starts, e.at)
			t.sets = append(t.sets, p.keep(current))
		}
	}
	return t
}

// next is the key behind k; false when there is none.
func (k key) next() (key, bool) {
	lo, carry := bits.Add64(k.lo, 1, 0)
	hi, over := bits.Add64(k.hi, 0, carry)
	return key{hi, lo}, over == 0
}

// at returns the ids that cover k. The caller must not change the set.
func (t table) at(k key) set {
	from, to := 0, len(t.starts) // starts[from] <= k < starts[to]
	for to-from > 1 {
		mid := int(uint(from+to) / 2)
		if s := t.starts[mid]; s.hi < k.hi || s.hi == k.hi && s.lo <= k.lo {
			from = mid
		} else {
			to = mid
		}
	}
	return t.sets[from]
}

// An addrTable is a table per family: ::/0 covers no IPv4 address.
type addrTable struct{ v4, v6 table }

// A claim says that every address of prefix belongs to id.
type claim struct {
	prefix netip.Prefix
	id     int
}

func newAddrTable(claims []claim, p *pool) addrTable {
	var v4, v6 []span
	for _, c := range claims {
		if c.prefix.Addr().Is4() {
			v4 = append(v4, prefixSpan(c.prefix, c.id))
		} else {
			v6 = append(v6, prefixSpan(c.prefix, c.id))
		}
	}
	return addrTable{newTable(v4, p), newTable(v6, p)}
}

// at returns the ids whose prefixes contain a, which must be valid.
func (t addrTable) at(a netip.Addr) set {
	if a.Is4() {
		return t.v4.at(keyOf(a))
	}
	return t.v6.at(keyOf(a))
}
