package resolve

import (
	"iter"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// owner is one Sync caller's wishes.
type owner struct {
	key       types.NamespacedName
	upstream  *upstream
	settings  settings
	questions map[Question]*question
	hosts     int // of all service questions
	kept      int // data of all records that they are tied to
}

// question is one owner's question, with what has to be remembered of its earlier views: what was
// published before the records knew better.
type question struct {
	Question
	owner *owner
	timer timer // when time alone changes the view

	names   [2]*record             // of the name's families; without SRV
	service *record                // SRV
	hosts   map[string]*[2]*record // SRV: the families of each host

	seeds    []seed
	seedFrom time.Time // the end of the seeds' TTL
	gapFrom  time.Time // SRV: since when an answer's hosts are not known, while earlier ones were
	settled  bool      // SRV: all hosts of an answer were known once
	begun    bool      // the status was something else than Pending
	answer   Answer
}

// seed is an address published before, until the records have superseded it.
type seed struct {
	Addr
	gone time.Time // since when good answers lack it; zero = no good answer came, or none comes
}

// reseed makes addresses of the asked families the seeds.
func (q *question) reseed(addrs []Addr, expiry time.Time) {
	q.seeds, q.seedFrom, q.settled, q.gapFrom = nil, expiry, false, time.Time{}
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
		if a.IP.IsValid() && q.Families&(1<<familyOf(a.IP)) != 0 && !known.has(a) && len(q.seeds) < maxKept {
			known.add(a)
			q.seeds = append(q.seeds, seed{Addr: a})
		}
	}
}

// view asks the records.
func (q *question) view(now time.Time) view {
	if !q.SRV {
		return viewName(histories(q.names), q.seedFrom, q.owner.settings, now)
	}
	hosts := make(map[string]pair, len(q.hosts))
	for name, records := range q.hosts {
		hosts[name] = histories(*records)
	}
	return viewService(&q.service.history, hosts, q.seedFrom, q.owner.settings, now)
}

func histories(records [2]*record) (p pair) {
	for i, r := range records {
		if r != nil {
			p[i] = &r.history
		}
	}
	return p
}

// update brings the answer to now and says whether it changed and when time alone may change it
// again:
//  1. the records' view;
//  2. with it the seeds that it has not superseded, and for a service whose new hosts are not
//     known yet what was
//     published before;
//  3. of these at most limit, those published before first.
func (q *question) update(now time.Time, limit int) (changed bool, next time.Time) {
	v := q.view(now)
	addrs := q.withSeeds(&v, now)
	addrs = q.withGap(&v, addrs, now)
	addrs, omitted := q.limit(addrs, limit)
	a := Answer{Addrs: addrs, Omitted: v.omitted + omitted}
	a.Status, a.Reason, a.Cause = q.status(&v, len(addrs))
	q.begun = q.begun || a.Status != Pending
	changed = !equalAnswers(a, q.answer)
	q.answer = a
	return changed, v.next
}

func equalAnswers(a, b Answer) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Cause == b.Cause && a.Omitted == b.Omitted && slices.Equal(a.Addrs, b.Addrs)
}

// status of a view that publishes so many addresses. What waits for its first result leaves the
// status as it is.
func (q *question) status(v *view, addrs int) (s Status, reason, cause string) {
	switch {
	case v.waiting && (!q.begun || (q.answer.Status == Failed) != (addrs == 0)):
		return Pending, "", ""
	case v.waiting:
		return q.answer.Status, q.answer.Reason, q.answer.Cause
	case v.cause == "":
		return Current, "", ""
	case addrs > 0:
		return Stale, ReasonServingStale, v.cause
	case v.cause == causeNXDOMAIN:
		return Failed, ReasonNameNotFound, v.cause
	default:
		return Failed, ReasonResolutionFailed, v.cause
	}
}

// withSeeds adds the seeds that still serve, and forgets those that don't.
func (q *question) withSeeds(v *view, now time.Time) []Addr {
	if len(q.seeds) == 0 {
		return v.addrs
	}
	addrs, known := v.addrs, unitsOf(v.addrs)
	kept := q.seeds[:0]
	for _, s := range q.seeds {
		f := v.family[familyOf(s.IP)]
		superseded := f.settled || q.settled
		switch {
		case !superseded || !f.fresh:
			s.gone = time.Time{}
		case s.gone.IsZero():
			s.gone = now
		}
		end := s.gone.Add(q.owner.settings.removalDelay)
		if !f.serving || superseded && known.has(s.Addr) || !s.gone.IsZero() && !now.Before(end) {
			continue
		}
		kept = append(kept, s)
		if !s.gone.IsZero() {
			v.next = soonest(now, v.next, end)
		}
		if !known.has(s.Addr) {
			addrs = append(addrs, s.Addr)
		}
	}
	q.seeds = kept
	return sorted(addrs)
}

// withGap adds what was published before while the hosts of a service's new answer are not known:
// an answer that replaces all hosts must not leave a hole.
func (q *question) withGap(v *view, addrs []Addr, now time.Time) []Addr {
	q.settled = q.settled || q.SRV && v.family[0].settled
	if !q.settled || !v.gap {
		q.gapFrom = time.Time{}
		return addrs
	}
	if q.gapFrom.IsZero() {
		q.gapFrom = now
	}
	end := q.gapFrom.Add(q.owner.settings.stale)
	if !v.waiting && !now.Before(end) {
		return addrs
	}
	v.next = soonest(now, v.next, end)
	known := unitsOf(addrs)
	for _, a := range q.answer.Addrs {
		if !known.has(a) {
			addrs = append(addrs, a)
		}
	}
	return sorted(addrs)
}

// limit leaves at most n addresses, those published before first, and tells how many it took away.
func (q *question) limit(addrs []Addr, n int) ([]Addr, int) {
	if len(addrs) <= n {
		return addrs, 0
	}
	published := unitsOf(q.answer.Addrs)
	var before, rest []Addr
	for _, a := range addrs {
		if published.has(a) {
			before = append(before, a)
		} else {
			rest = append(rest, a)
		}
	}
	kept := append(before, rest...)[:n]
	return sorted(kept), len(addrs) - n
}

// units is a set of addresses and ports, whatever their ranks.
type units map[Addr]struct{}

func unitsOf(addrs []Addr) units {
	u := make(units, len(addrs))
	for _, a := range addrs {
		u.add(a)
	}
	return u
}

func (u units) add(a Addr) {
	a.Rank = 0
	u[a] = struct{}{}
}

func (u units) has(a Addr) bool {
	a.Rank = 0
	_, ok := u[a]
	return ok
}

// sorted orders addresses in place as answers list them.
func sorted(addrs []Addr) []Addr {
	slices.SortFunc(addrs, compareAddrs)
	return addrs
}

// records yields all records that the question is tied to.
func (q *question) records() iter.Seq[*record] {
	return func(yield func(*record) bool) {
		all := []*record{q.names[0], q.names[1], q.service}
		for _, records := range q.hosts {
			all = append(all, records[:]...)
		}
		for _, r := range all {
			if r != nil && !yield(r) {
				return
			}
		}
	}
}

// familiesOf returns the records of the same name as an address record; none for a service's.
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

// needs says whether what the record lacks should be looked for again soon: nothing of the name is
// resolved without it, or it is about to take addresses away.
func (q *question) needs(r *record, now time.Time) bool {
	if q.doubts(r) {
		return true
	}
	for _, s := range q.familiesOf(r) {
		if s != nil && s != r && s.asSibling(q.owner.settings, now).has {
			return false
		}
	}
	return true
}

// doubts says whether the record denies a family of which there are addresses, and is not believed
// yet.
func (q *question) doubts(r *record) bool {
	if r.kind != kindNoData || r.at.Sub(r.noDataFrom) >= beliefDelay {
		return false
	}
	families := q.familiesOf(r)
	family := slices.Index(families[:], r)
	return len(r.entries) > 0 || slices.ContainsFunc(q.seeds, func(s seed) bool { return familyOf(s.IP) == family })
}
