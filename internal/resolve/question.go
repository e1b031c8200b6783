package resolve

import (
	"slices"
	"time"
)

// reseed makes the addresses of the asked families the seeds.
func (q *question) reseed(addrs []Addr, expiry time.Time) {
	q.seeds, q.seedExpiry, q.conclusive, q.hostsMissingSince = nil, expiry, false, time.Time{}
	q.addSeeds(addrs)
}

func (q *question) addSeeds(addrs []Addr) {
	known := units{}
	for _, s := range q.seeds {
		known.add(s.Addr)
	}
	for _, a := range addrs {
		if !q.SRV {
			a.Port, a.Rank = 0, 0
		}
		asked := a.IP.IsValid() && q.Families.has(familyOf(a.IP))
		if asked && len(q.seeds) < maxEntries && known.add(a) {
			q.seeds = append(q.seeds, seed{Addr: a})
		}
	}
}

// summarize returns what the records say now.
func (q *question) summarize(now time.Time) summary {
	if !q.SRV {
		return summarizeName(histories(q.names), q.seedExpiry, q.owner.settings, now)
	}
	hosts := make(map[string]pair, len(q.hosts))
	for name, records := range q.hosts {
		hosts[name] = histories(*records)
	}
	return summarizeService(&q.service.history, hosts, q.seedExpiry, q.owner.settings, now)
}

func histories(records [2]*record) (p pair) {
	for i, r := range records {
		if r != nil {
			p[i] = &r.history
		}
	}
	return p
}

// update brings the answer to now. It reports whether the answer changed, and when time alone may
// change it again:
//  1. take the addresses that the records give;
//  2. add the seeds that these do not supersede, and for a service whose new hosts are not known
//     yet what was published before;
//  3. keep at most limit of them, those that were published before first.
func (q *question) update(now time.Time, limit int) (changed bool, next time.Time) {
	s := q.summarize(now)
	earlier := append(q.servingSeeds(&s, now), q.bridge(&s, now)...)
	addrs, omitted := q.limit(merge(s.addrs, earlier), limit)
	a := Answer{Addrs: addrs, Omitted: s.omitted + omitted}
	a.Status, a.Reason, a.Cause = q.status(&s, len(addrs))
	q.resulted = q.resulted || a.Status != Pending
	changed = !equalAnswers(a, q.answer)
	q.answer = a
	return changed, s.next
}

func equalAnswers(a, b Answer) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Cause == b.Cause && a.Omitted == b.Omitted &&
		slices.Equal(a.Addrs, b.Addrs)
}

// status returns the status of a summary that publishes so many addresses. While a part waits for
// its first result, the status stays as it is.
func (q *question) status(s *summary, addrs int) (status Status, reason, cause string) {
	switch {
	case s.waiting && (!q.resulted || (q.answer.Status == Failed) != (addrs == 0)):
		return Pending, "", ""
	case s.waiting:
		return q.answer.Status, q.answer.Reason, q.answer.Cause
	case s.cause == "":
		return Current, "", ""
	case addrs > 0:
		return Stale, ReasonServingStale, s.cause
	case s.cause == causeNXDOMAIN:
		return Failed, ReasonNameNotFound, s.cause
	default:
		return Failed, ReasonResolutionFailed, s.cause
	}
}

// servingSeeds returns the seeds that still serve, and forgets the others. Once answers supersede
// the seeds, those that a good answer lacks stay for the removal delay.
func (q *question) servingSeeds(s *summary, now time.Time) (serving []Addr) {
	if len(q.seeds) == 0 {
		return nil
	}

	current := unitsOf(s.addrs)
	kept := q.seeds[:0]
	for _, seed := range q.seeds {
		family := s.family[familyOf(seed.IP)]
		superseded := family.conclusive || q.conclusive
		if !family.serves || superseded && current.has(seed.Addr) {
			continue
		}
		switch {
		case !superseded || family.phase != phaseGood:
			seed.absentSince = time.Time{}
		case seed.absentSince.IsZero():
			seed.absentSince = now
		}
		if !seed.absentSince.IsZero() {
			end := seed.absentSince.Add(q.owner.settings.removalDelay)
			if !now.Before(end) {
				continue
			}
			s.next = soonest(now, s.next, end)
		}
		kept = append(kept, seed)
		serving = append(serving, seed.Addr)
	}
	q.seeds = kept
	return serving
}

// bridge returns what was published before, while the hosts of a service's new answer have no
// addresses yet: an answer that replaces all hosts must not leave the service without any address.
func (q *question) bridge(s *summary, now time.Time) []Addr {
	q.conclusive = q.conclusive || q.SRV && s.family[0].conclusive
	if !q.conclusive || !s.hostsMissing {
		q.hostsMissingSince = time.Time{}
		return nil
	}
	if q.hostsMissingSince.IsZero() {
		q.hostsMissingSince = now
	}
	end := q.hostsMissingSince.Add(q.owner.settings.stale)
	if !s.waiting && !now.Before(end) {
		return nil
	}
	s.next = soonest(now, s.next, end)
	return q.answer.Addrs
}

// limit returns at most n addresses, those published before first, and how many it left out.
func (q *question) limit(addrs []Addr, n int) ([]Addr, int) {
	if len(addrs) <= n {
		return addrs, 0
	}
	before := unitsOf(q.answer.Addrs)
	var stay, others []Addr
	for _, a := range addrs {
		if before.has(a) {
			stay = append(stay, a)
		} else {
			others = append(others, a)
		}
	}
	kept := append(stay, others...)[:n]
	return sorted(kept), len(addrs) - n
}

// records returns all records that the question is tied to.
func (q *question) records() []*record {
	all := []*record{q.names[0], q.names[1], q.service}
	for _, records := range q.hosts {
		all = append(all, records[:]...)
	}
	return slices.DeleteFunc(all, func(r *record) bool { return r == nil })
}

// familiesOf returns the records of both families of an address record's name, and none for a
// service's record.
func (q *question) familiesOf(r *record) (records [2]*record) {
	switch host := q.hosts[r.name]; {
	case r == q.service:
		return records
	case host != nil:
		return *host
	default:
		return q.names
	}
}

// otherFamilyOf returns the record of the other family of an address record's name, or nil.
func (q *question) otherFamilyOf(r *record) *record {
	for _, other := range q.familiesOf(r) {
		if other != nil && other != r {
			return other
		}
	}
	return nil
}

// needs reports whether what the record lacks should be looked for again soon, because nothing of
// the name resolves without it or because it is about to take addresses away.
func (q *question) needs(r *record, now time.Time) bool {
	if q.doubts(r) {
		return true
	}
	other := q.otherFamilyOf(r)
	return other == nil || !other.asOtherFamily(q.owner.settings, now).has
}

// doubts reports whether the record denies a family that has addresses, and is not believed yet.
func (q *question) doubts(r *record) bool {
	if r.kind != kindNoData || r.at.Sub(r.noData.from) >= beliefDelay {
		return false
	}
	families := q.familiesOf(r)
	family := slices.Index(families[:], r)
	return len(r.entries) > 0 ||
		slices.ContainsFunc(q.seeds, func(s seed) bool { return familyOf(s.IP) == family })
}
