package resolve

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"time"
)

// settings is what of an owner's Config the view depends on.
type settings struct {
	minTTL, maxTTL time.Duration
	stale          time.Duration
	removalDelay   time.Duration
}

// clamp bounds a TTL by the owner's settings.
func (o settings) clamp(ttl time.Duration) time.Duration {
	return max(min(ttl, o.maxTTL), o.minTTL)
}

// indices lists the index of each family of the set: 0 for IPv4, 1 for IPv6.
func (f Families) indices() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range 2 {
			if f&(1<<i) != 0 && !yield(i) {
				return
			}
		}
	}
}

func familyOf(ip netip.Addr) int {
	if ip.Is4() {
		return 0
	}
	return 1
}

// standing is what a history is worth at a time to an owner.
type standing struct {
	serving bool      // what was last known may be published
	fresh   bool      // the latest answer is good, and removal delays run
	settled bool      // the seed, if any, has been superseded
	waiting bool      // there was no result yet
	cause   string    // why it is not current; "" = it is
	expiry  time.Time // of the last good answer's TTL
	next    time.Time // when this changes by time alone; zero = never
}

// sibling is what the other family of a name adds to the judgement of a denial.
type sibling struct {
	has    bool      // it has addresses
	goodTo time.Time // until when its answers were good; zero = never
}

func (h *history) asSibling(o settings, now time.Time) sibling {
	if h == nil {
		return sibling{}
	}
	s := sibling{has: h.kind == kindGood || h.kind == kindFailed && len(h.entries) > 0 && now.Before(h.expiry(time.Time{}, o).Add(o.stale))}
	switch {
	case h.kind == kindGood:
		s.goodTo = now
	case h.wasGood:
		s.goodTo = h.badSince
	}
	return s
}

// expiry is the end of the TTL of the last good answer; where there is none, the seed's.
func (h *history) expiry(seed time.Time, o settings) time.Time {
	if h.goodAt.IsZero() {
		return seed
	}
	return h.goodAt.Add(o.clamp(h.goodTTL))
}

// standing judges the history at a time, for an owner whose seed's TTL expired at seed:
//   - a failure, and an empty answer where no family has addresses, leave the last good answer
//     serving until Stale
//     behind its expiry;
//   - NXDOMAIN leaves it serving for the belief delay;
//   - an empty answer beside a family that has addresses is good, and what the family had leaves
//     as after NXDOMAIN.
func (h *history) standing(other sibling, seed time.Time, o settings, now time.Time) standing {
	s := standing{settled: h.settled, expiry: h.expiry(seed, o)}
	end := s.expiry.Add(o.stale)
	believed := h.since.Add(beliefDelay)
	grace := h.since.Equal(h.badSince) && now.Before(believed) // a denial straight behind a good answer
	switch h.kind {
	case kindNone:
		s.waiting, s.serving = true, true
	case kindGood:
		s.serving, s.fresh = true, true
	case kindNXDomain:
		s.serving = grace || now.Before(believed) && now.Before(end)
		s.settled = s.settled || !now.Before(believed)
		s.next = soonest(now, believed, end)
		if !other.has {
			s.cause = h.cause
		}
	case kindNoData:
		left := h.left(other, now)
		s.serving = !left && (now.Before(end) || other.has && grace)
		s.settled = s.settled || left
		s.next = soonest(now, s.expiry, end, believed, h.noDataFrom.Add(beliefDelay))
		if !other.has && !now.Before(s.expiry) {
			s.cause = h.cause
		}
	case kindFailed:
		left := h.left(other, now)
		s.serving = !left && now.Before(end)
		s.settled = s.settled || left
		due := s.expiry
		if denied := h.saidAt.Add(o.clamp(h.ttl)); other.has && !h.saidAt.IsZero() && denied.After(due) {
			due = denied // that there is nothing here was a good answer, too
		}
		s.next = soonest(now, due, end)
		if !now.Before(due) {
			s.cause = h.cause
		}
	}
	return s
}

// left says whether this family was denied for the belief delay while the other one was good.
func (h *history) left(other sibling, now time.Time) bool {
	to := h.noDataTo
	if h.kind == kindNoData {
		to = now
	}
	if h.noDataFrom.IsZero() || other.goodTo.IsZero() {
		return false
	}
	if other.goodTo.Before(to) {
		to = other.goodTo
	}
	return to.Sub(h.noDataFrom) >= beliefDelay
}

// visible returns the entries that are present or inside their removal delay, and when time alone
// will change that. While no good answers come, delays stand still.
func (h *history) visible(o settings, now time.Time) (entries []entry, next time.Time) {
	clock := now
	if h.kind != kindGood {
		clock = h.badSince
	}
	entries = make([]entry, 0, len(h.entries))
	for _, e := range h.entries {
		if e.gone.IsZero() || clock.Before(e.gone.Add(o.removalDelay)) {
			entries = append(entries, e)
		}
		if !e.gone.IsZero() && h.kind == kindGood {
			next = soonest(now, next, e.gone.Add(o.removalDelay))
		}
	}
	return entries, next
}

// soonest returns the first of the times behind now; zero = none is.
func soonest(now time.Time, times ...time.Time) (first time.Time) {
	for _, t := range times {
		if t.After(now) && (first.IsZero() || t.Before(first)) {
			first = t
		}
	}
	return first
}

// pair is the histories of a name's two families; nil = not asked for.
type pair [2]*history

// sibling of the family i.
func (p pair) sibling(i int, o settings, now time.Time) sibling {
	return p[1-i].asSibling(o, now)
}

// view is what the records say to one owner at one time.
type view struct {
	addrs    []Addr      // sorted, each address and port once
	family   [2]standing // of the seeds in each family
	waiting  bool        // something had no first result yet
	gap      bool        // SRV: hosts of the answer are not known yet
	cause    string
	omitted  int
	expiry   time.Time // the last of all
	next     time.Time
	unsorted []ranked
}

// ranked is an address on its way into a view.
type ranked struct {
	Addr
	gone bool // its service record is absent from the latest answer
}

func (v *view) add(s standing, now time.Time) {
	v.waiting = v.waiting || s.waiting
	v.next = soonest(now, v.next, s.next)
	if s.expiry.After(v.expiry) {
		v.expiry = s.expiry
	}
	if v.cause == "" || v.cause == causeEmpty && s.cause != "" {
		v.cause = s.cause
	}
}

// sort orders the addresses and leaves one per address and port: that of a present record before
// that of a gone one, then that of the lowest rank.
func (v *view) sort() {
	slices.SortFunc(v.unsorted, func(a, b ranked) int {
		if c := compareUnits(a.Addr, b.Addr); c != 0 {
			return c
		}
		if a.gone != b.gone {
			if b.gone {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Rank, b.Rank)
	})
	for i, r := range v.unsorted {
		if i == 0 || compareUnits(v.unsorted[i-1].Addr, r.Addr) != 0 {
			v.addrs = append(v.addrs, r.Addr)
		}
	}
	v.unsorted = nil
	slices.SortFunc(v.addrs, compareAddrs)
}

// viewName is the view of a name's addresses.
func viewName(p pair, seed time.Time, o settings, now time.Time) view {
	var v view
	for i, h := range p {
		if h == nil {
			continue
		}
		s := h.standing(p.sibling(i, o, now), seed, o, now)
		v.family[i] = s
		v.add(s, now)
		if s.serving {
			entries, next := h.visible(o, now)
			v.next = soonest(now, v.next, next)
			v.omitted += h.omitted
			for _, e := range entries {
				v.unsorted = append(v.unsorted, ranked{Addr: Addr{IP: e.ip}})
			}
		}
	}
	v.sort()
	return v
}

// viewService is the view of the hosts and ports behind a service name. Entries whose host is not
// among hosts are omitted.
func viewService(service *history, hosts map[string]pair, seed time.Time, o settings, now time.Time) view {
	var v view
	s := service.standing(sibling{}, seed, o, now)
	v.add(s, now)
	unknown := false // some host of the answer never had an answer of its own
	if s.serving {
		entries, next := service.visible(o, now)
		v.next = soonest(now, v.next, next)
		v.omitted += service.omitted
		ranks := rankPriorities(entries)
		for _, e := range entries {
			p, ok := hosts[e.host]
			if !ok || e.port == 0 || len(v.unsorted) >= maxKept { // many ports of one host with many addresses
				v.omitted++
				continue
			}
			present := e.gone.IsZero()
			h := viewName(p, time.Time{}, o, now)
			v.next = soonest(now, v.next, h.next)
			v.omitted += h.omitted
			for _, a := range h.addrs {
				v.unsorted = append(v.unsorted, ranked{Addr: Addr{IP: a.IP, Port: e.port, Rank: ranks[e.priority]}, gone: !present})
			}
			if present {
				v.add(standing{waiting: h.waiting, cause: h.cause, expiry: h.expiry}, now)
				v.gap = v.gap || h.waiting
				unknown = unknown || !h.known(p)
			}
		}
	}
	v.sort()
	v.gap = v.gap || unknown && len(v.addrs) == 0
	if unknown {
		s.settled, s.fresh = false, false
		s.serving = s.serving && (v.waiting || now.Before(seed.Add(o.stale)))
		v.next = soonest(now, v.next, seed.Add(o.stale))
	}
	v.family = [2]standing{s, s}
	return v
}

// known says whether every family asked of the name has had an answer.
func (v *view) known(p pair) bool {
	for i, h := range p {
		if s := v.family[i]; h != nil && !s.settled && (s.waiting || s.cause != "") {
			return false
		}
	}
	return true
}

const maxRank = 127 // priorities of targets end there

// rankPriorities numbers the distinct priorities from 0 on.
func rankPriorities(entries []entry) map[uint16]uint8 {
	priorities := make([]uint16, 0, len(entries))
	for _, e := range entries {
		priorities = append(priorities, e.priority)
	}
	slices.Sort(priorities)
	ranks := map[uint16]uint8{}
	for i, p := range slices.Compact(priorities) {
		ranks[p] = uint8(min(i, maxRank))
	}
	return ranks
}
