package resolve

import (
	"cmp"
	"slices"
	"time"
)

// pair holds the histories of a name's two families; nil = not asked for.
type pair [2]*history

// summary is what the records of a question amount to at one time, for its owner.
type summary struct {
	addrs        []Addr        // sorted, each address and port once
	family       [2]assessment // of the seeds in each family
	waiting      bool          // something has no first result yet
	hostsMissing bool          // SRV: hosts of the answer have no addresses yet
	cause        string
	omitted      int
	expiry       time.Time // the latest one
	next         time.Time
	unsorted     []ranked
}

// ranked is an address on its way into a summary.
type ranked struct {
	Addr
	absent bool // the latest answer lacks its service record
}

// add takes up what a part of the summary says. "empty answer" as a cause gives way to any other.
func (s *summary) add(waiting bool, cause string, expiry time.Time) {
	s.waiting = s.waiting || waiting
	if s.cause == "" || s.cause == causeEmpty && cause != "" {
		s.cause = cause
	}
	if expiry.After(s.expiry) {
		s.expiry = expiry
	}
}

// addHistory takes up what a history says. It returns its assessment, and its entries that may be
// published.
func (s *summary) addHistory(
	h *history, other otherFamily, seedExpiry time.Time, o settings, now time.Time,
) (assessment, []entry) {
	a := h.assess(other, seedExpiry, o, now)
	s.add(a.phase == phaseNew, a.cause, a.expiry)
	s.next = soonest(now, s.next, a.next)
	if !a.serves {
		return a, nil
	}
	entries, next := h.visible(o, now)
	s.next = soonest(now, s.next, next)
	s.omitted += h.omitted
	return a, entries
}

// sort orders the addresses and keeps one per address and port: that of a present record rather
// than that of an absent one, then that of the lowest rank.
func (s *summary) sort() {
	slices.SortFunc(s.unsorted, func(a, b ranked) int {
		if c := compareUnits(a.Addr, b.Addr); c != 0 {
			return c
		}
		if a.absent != b.absent {
			if b.absent {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.Rank, b.Rank)
	})
	for i, r := range s.unsorted {
		if i == 0 || compareUnits(s.unsorted[i-1].Addr, r.Addr) != 0 {
			s.addrs = append(s.addrs, r.Addr)
		}
	}
	s.unsorted = nil
	slices.SortFunc(s.addrs, compareAddrs)
}

// summarizeName summarizes the addresses of a name.
func summarizeName(p pair, seedExpiry time.Time, o settings, now time.Time) summary {
	var s summary
	for i, h := range p {
		if h == nil {
			continue
		}
		var entries []entry
		s.family[i], entries = s.addHistory(h, p[1-i].asOtherFamily(o, now), seedExpiry, o, now)
		for _, e := range entries {
			s.unsorted = append(s.unsorted, ranked{Addr: Addr{IP: e.ip}})
		}
	}
	s.sort()
	return s
}

// summarizeService summarizes the hosts and ports behind a service name. Entries whose host is not
// among hosts are omitted.
func summarizeService(
	service *history, hosts map[string]pair, seedExpiry time.Time, o settings, now time.Time,
) summary {
	var s summary
	a, entries := s.addHistory(service, otherFamily{}, seedExpiry, o, now)
	unknown := s.addHosts(entries, hosts, o, now)
	s.sort()

	s.hostsMissing = s.hostsMissing || unknown && len(s.addrs) == 0
	if unknown { // an answer whose hosts are not all known does not supersede the seed
		seedEnd := seedExpiry.Add(o.stale)
		a.phase, a.conclusive = phaseFailing, false
		a.serves = a.serves && (s.waiting || now.Before(seedEnd))
		s.next = soonest(now, s.next, seedEnd)
	}
	s.family = [2]assessment{a, a}
	return s
}

// addHosts adds the addresses behind a service's entries. It reports whether some host of the
// latest answer never had an answer of its own.
func (s *summary) addHosts(entries []entry, hosts map[string]pair, o settings, now time.Time) (unknown bool) {
	ranks := rankPriorities(entries)
	for _, e := range entries {
		p, ok := hosts[e.host]
		// One host with many addresses may have many ports.
		if !ok || e.port == 0 || len(s.unsorted) >= maxEntries {
			s.omitted++
			continue
		}

		host := summarizeName(p, time.Time{}, o, now)
		s.next = soonest(now, s.next, host.next)
		s.omitted += host.omitted
		absent := !e.absentSince.IsZero()
		for _, a := range host.addrs {
			a.Port, a.Rank = e.port, ranks[e.priority]
			s.unsorted = append(s.unsorted, ranked{Addr: a, absent: absent})
		}
		if absent {
			continue
		}
		s.add(host.waiting, host.cause, host.expiry)
		s.hostsMissing = s.hostsMissing || host.waiting
		unknown = unknown || !host.answered(p)
	}
	return unknown
}

// answered reports whether every family asked of the name has had an answer.
func (s *summary) answered(p pair) bool {
	for i, h := range p {
		if a := s.family[i]; h != nil && !a.conclusive && (a.phase == phaseNew || a.cause != "") {
			return false
		}
	}
	return true
}

const maxRank = 127 // the last priority of a target

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
