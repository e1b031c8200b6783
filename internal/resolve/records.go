package resolve

import "time"

// This file ties questions to the records that they share, under the engine's lock.

// acquireAllLocked ties the question to its records: a service's hosts follow with its answer.
func (e *Engine) acquireAllLocked(q *question, now time.Time) {
	if q.SRV {
		q.service = e.acquireLocked(q, q.Name, typeSRV, now)
		q.hosts = map[string]*[2]*record{}
		return
	}
	q.names = e.acquireFamiliesLocked(q, q.Name, now)
}

func (e *Engine) acquireFamiliesLocked(q *question, name string, now time.Time) (records [2]*record) {
	for i := range q.Families.indices() {
		records[i] = e.acquireLocked(q, name, [2]qtype{typeA, typeAAAA}[i], now)
	}
	return records
}

// acquireLocked makes the question a user of the record, which is made where there is none.
func (e *Engine) acquireLocked(q *question, name string, t qtype, now time.Time) *record {
	up := q.owner.upstream
	key := recordKey{name: name, t: t, upstream: up.key}
	r := e.records[key]
	if r == nil {
		r = &record{recordKey: key, up: up, users: map[*question]struct{}{}}
		r.timer.record = r
		if up.silent {
			r.apply(result{kind: kindFailed, cause: causeSilent}, now, 0)
		}
		e.records[key] = r
	}
	r.users[q] = struct{}{}
	q.owner.kept += len(r.entries)
	e.rescheduleLocked(r, now)
	return r
}

func (e *Engine) releaseLocked(q *question, r *record, now time.Time) {
	if r == nil {
		return
	}
	delete(r.users, q)
	q.owner.kept -= len(r.entries)
	if len(r.users) == 0 {
		r.endLookups() // policy may have come to refuse the nameserver
	}
	if len(r.users) == 0 && !r.busy {
		e.retireLocked(r, now)
	} else {
		e.rescheduleLocked(r, now)
	}
}

// retention is how long a record that nobody wants is kept: an owner who comes back soon asks
// nothing anew.
const retention = 30 * time.Second

// retireLocked ends a record that nobody wants: at once where it knows nothing, else after the
// retention.
func (e *Engine) retireLocked(r *record, now time.Time) {
	if r.kind == kindNone || r.up.silent {
		e.schedule.set(&r.timer, time.Time{})
		delete(e.records, r.recordKey)
		return
	}
	e.scheduleLocked(&r.timer, now.Add(retention))
}

func (e *Engine) releaseAllLocked(q *question, now time.Time) {
	for r := range q.records() {
		e.releaseLocked(q, r, now)
	}
	q.owner.hosts -= len(q.hosts)
	q.names, q.service, q.hosts = [2]*record{}, nil, nil
}

// dropLocked ends a question.
func (e *Engine) dropLocked(q *question, now time.Time) {
	e.releaseAllLocked(q, now)
	e.schedule.set(&q.timer, time.Time{})
	e.countStaleLocked(q, q.answer.Status, Failed)
	delete(q.owner.questions, q.Question)
}

// moveLocked ties a question to the records of its owner's new upstream. What it publishes stays
// until that has answered.
func (e *Engine) moveLocked(q *question, now time.Time) {
	v := q.view(now)
	e.releaseAllLocked(q, now)
	e.acquireAllLocked(q, now)
	q.reseed(q.answer.Addrs, v.expiry)
}

// updateLocked brings a question's hosts and answer to now, and says whether the answer changed.
func (e *Engine) updateLocked(q *question, now time.Time) bool {
	if q.SRV {
		e.syncHostsLocked(q, now)
	}
	before := q.answer.Status
	changed, next := q.update(now, e.options.MaxAddresses)
	e.countStaleLocked(q, before, q.answer.Status)
	e.scheduleLocked(&q.timer, next)
	return changed
}

// maxOwnerHosts bounds the hosts behind all services of one owner, and maxOwnerData the data of all
// records that it wants, but that each holds one: what one object costs is not the decision of
// foreign zones.
const (
	maxOwnerHosts = 10_000
	maxOwnerData  = 2 * maxOwnerHosts
)

// applyLocked takes over a lookup's result, as far as the record's owners have room for it: the one
// that has most decides.
func (e *Engine) applyLocked(r *record, found result, now time.Time) (changed bool) {
	before := len(r.entries)
	r.room = 1
	for q := range r.users {
		r.room = max(r.room, max(maxOwnerData, e.options.MaxAddresses)-q.owner.kept+before)
	}
	changed = r.apply(found, now, r.keep())
	for q := range r.users {
		q.owner.kept += len(r.entries) - before
	}
	return changed
}

// syncHostsLocked ties a service question to the hosts that may be published; where there are too
// many, those it knows come first.
func (e *Engine) syncHostsLocked(q *question, now time.Time) {
	var entries []entry
	if q.service.standing(sibling{}, q.seedFrom, q.owner.settings, now).serving {
		entries, _ = q.service.visible(q.owner.settings, now)
	}
	wanted := map[string]struct{}{}
	bound := min(e.options.MaxAddresses, maxOwnerHosts-q.owner.hosts+len(q.hosts))
	for _, known := range []bool{true, false} {
		for _, en := range entries {
			if _, ok := q.hosts[en.host]; ok == known && len(wanted) < bound {
				wanted[en.host] = struct{}{}
			}
		}
	}
	for host, records := range q.hosts {
		if _, ok := wanted[host]; !ok {
			delete(q.hosts, host)
			q.owner.hosts--
			for _, r := range records {
				e.releaseLocked(q, r, now)
			}
		}
	}
	for host := range wanted {
		if _, ok := q.hosts[host]; !ok {
			records := e.acquireFamiliesLocked(q, host, now)
			q.hosts[host] = &records
			q.owner.hosts++
		}
	}
}

// countStaleLocked keeps the number of names that serve stale.
func (e *Engine) countStaleLocked(q *question, before, after Status) {
	switch {
	case before != Stale && after == Stale:
		e.stale[q.Name]++
	case before == Stale && after != Stale:
		if e.stale[q.Name]--; e.stale[q.Name] == 0 {
			delete(e.stale, q.Name)
		}
	default:
		return
	}
	e.metrics.stale.Set(float64(len(e.stale)))
}

// rescheduleLocked sets the record's next lookup to the earliest wish of its users.
func (e *Engine) rescheduleLocked(r *record, now time.Time) {
	if r.busy || r.up.silent {
		return
	}
	if len(r.users) == 0 {
		e.retireLocked(r, now)
		return
	}
	var first time.Time
	jitter := r.jitter()
	for q := range r.users {
		wish := r.refresh(q.owner.settings, q.needs(r, now), jitter)
		if first.IsZero() || wish.Before(first) {
			first = wish
		}
	}
	if first.Before(now) {
		first = now
	}
	e.scheduleLocked(&r.timer, first)
}

// rescheduleSiblingLocked lets the other family of a name follow what this one has become.
func (e *Engine) rescheduleSiblingLocked(q *question, r *record, now time.Time) {
	for _, s := range q.familiesOf(r) {
		if s != nil && s != r {
			e.rescheduleLocked(s, now)
		}
	}
}

func (e *Engine) rescheduleAllLocked(q *question, now time.Time) {
	for r := range q.records() {
		e.rescheduleLocked(r, now)
	}
}

// scheduleLocked sets a timer and wakes Start where that comes before it would wake.
func (e *Engine) scheduleLocked(t *timer, at time.Time) {
	e.schedule.set(t, at)
	if !at.IsZero() && at.Before(e.sleeps) {
		e.sleeps = at
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
}

// keep is how long an absent datum can matter to any user of the record.
func (r *record) keep() (longest time.Duration) {
	for q := range r.users {
		longest = max(longest, q.owner.settings.removalDelay)
	}
	return longest
}
