package resolve

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// This file takes what owners want, and ties questions to the records that they share, under the
// engine's lock.

// Sync replaces what the owner wants, and its settings. It never waits for DNS. Changed settings
// show in the next Snapshot.
func (e *Engine) Sync(key types.NamespacedName, cfg Config, wanted []Wanted) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()

	o, known := e.owners[key]
	if !known {
		o = &owner{key: key, questions: map[Question]*question{}}
		e.owners[key] = o
	}
	before, up := *o, upstreamOf(cfg)
	moved := known && up.key != before.upstream.key
	if !known || moved {
		o.upstream = up
	}
	o.settings = settings{
		minTTL: cfg.MinTTL, maxTTL: cfg.MaxTTL, stale: cfg.Stale, removalDelay: cfg.RemovalDelay,
	}

	for q, isNew := range e.syncQuestionsLocked(o, wanted, now) {
		if !isNew && !moved && o.settings == before.settings {
			continue
		}
		if moved && !isNew {
			e.moveLocked(q, now)
		}
		e.updateLocked(q, now)
		for _, r := range q.records() {
			e.rescheduleLocked(r, now)
		}
	}
}

// syncQuestionsLocked makes the owner's questions the wanted ones. For each it returns whether it
// is new.
func (e *Engine) syncQuestionsLocked(o *owner, wanted []Wanted, now time.Time) map[*question]bool {
	isNew := make(map[*question]bool, len(wanted))
	for _, w := range wanted {
		q, ok := o.questions[w.Question]
		if !ok {
			q = &question{Question: w.Question, owner: o, seedExpiry: now}
			q.timer.question = q
			o.questions[w.Question] = q
			e.acquireAllLocked(q, now)
		}
		isNew[q] = isNew[q] || !ok
		if isNew[q] {
			q.addSeeds(w.Seed)
		}
	}
	for _, q := range o.questions {
		if _, ok := isNew[q]; !ok {
			e.dropLocked(q, now)
		}
	}
	return isNew
}

// Forget removes the owner and all that it wants.
func (e *Engine) Forget(key types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	o := e.owners[key]
	if o == nil {
		return
	}
	now := time.Now()
	for _, q := range o.questions {
		e.dropLocked(q, now)
	}
	delete(e.owners, key)
}

// acquireAllLocked ties the question to its records. The hosts of a service follow with its answer.
func (e *Engine) acquireAllLocked(q *question, now time.Time) {
	if q.SRV {
		q.service = e.acquireLocked(q, q.Name, typeSRV, now)
		q.hosts = map[string]*[2]*record{}
		return
	}
	q.names = e.acquireFamiliesLocked(q, q.Name, now)
}

func (e *Engine) acquireFamiliesLocked(q *question, name string, now time.Time) (records [2]*record) {
	for i, t := range [...]qtype{typeA, typeAAAA} {
		if q.Families.has(i) {
			records[i] = e.acquireLocked(q, name, t, now)
		}
	}
	return records
}

// acquireLocked makes the question a user of the record, and makes the record where there is none.
func (e *Engine) acquireLocked(q *question, name string, t qtype, now time.Time) *record {
	up := q.owner.upstream
	key := recordKey{name: name, t: t, upstream: up.key}
	r := e.records[key]
	if r == nil {
		r = &record{recordKey: key, up: up, users: map[*question]struct{}{}}
		r.timer.record = r
		if up.forbidden {
			r.apply(result{kind: kindFailed, cause: causeForbidden}, now, 0)
		}
		e.records[key] = r
	}
	r.users[q] = struct{}{}
	q.owner.data += len(r.entries)
	e.rescheduleLocked(r, now)
	return r
}

// releaseLocked ends the question's use of the record, which may be nil.
func (e *Engine) releaseLocked(q *question, r *record, now time.Time) {
	if r == nil {
		return
	}
	delete(r.users, q)
	q.owner.data -= len(r.entries)
	if len(r.users) == 0 {
		r.endLookups() // a policy may refuse the nameserver now
	}
	e.rescheduleLocked(r, now)
}

// retention is how long a record that nobody wants is kept, so that an owner who comes back soon
// needs no new query.
const retention = 30 * time.Second

// retireLocked deletes a record that nobody wants, at once where it knows nothing, else after the
// retention.
func (e *Engine) retireLocked(r *record, now time.Time) {
	if r.kind == kindNone || r.up.forbidden {
		e.schedule.Remove(&r.timer)
		delete(e.records, r.recordKey)
		return
	}
	e.scheduleLocked(&r.timer, now.Add(retention))
}

func (e *Engine) releaseAllLocked(q *question, now time.Time) {
	for _, r := range q.records() {
		e.releaseLocked(q, r, now)
	}
	q.owner.hosts -= len(q.hosts)
	q.names, q.service, q.hosts = [2]*record{}, nil, nil
}

// dropLocked removes a question from its owner.
func (e *Engine) dropLocked(q *question, now time.Time) {
	e.releaseAllLocked(q, now)
	e.schedule.Remove(&q.timer)
	e.countStaleLocked(q, q.answer.Status, Failed)
	delete(q.owner.questions, q.Question)
}

// moveLocked ties a question to the records of its owner's new upstream. The published addresses
// stay until that upstream has answered.
func (e *Engine) moveLocked(q *question, now time.Time) {
	expiry := q.summarize(now).expiry
	e.releaseAllLocked(q, now)
	e.acquireAllLocked(q, now)
	q.reseed(q.answer.Addrs, expiry)
}

// updateLocked brings a question's hosts and answer to now, and reports whether the answer changed.
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

// The bounds of one owner. Without them, the zones of others would decide what one object costs.
const (
	maxOwnerHosts = 10_000            // behind all services
	maxOwnerData  = 2 * maxOwnerHosts // of all records that it wants; each record may hold one beyond it
)

// applyLocked takes over a lookup's result, up to the capacity that the record's owners have left.
// The owner that has most left decides.
func (e *Engine) applyLocked(r *record, found result, now time.Time) (changed bool) {
	before := len(r.entries)
	r.capacity = 1
	var keep time.Duration // how long an absent datum can matter to any user of the record
	for q := range r.users {
		keep = max(keep, q.owner.settings.removalDelay)
		r.capacity = max(r.capacity, max(maxOwnerData, e.options.MaxAddresses)-q.owner.data+before)
	}
	changed = r.apply(found, now, keep)
	for q := range r.users {
		q.owner.data += len(r.entries) - before
	}
	return changed
}

// syncHostsLocked ties a service question to the hosts that may be published. Where these are too
// many, known hosts come first.
func (e *Engine) syncHostsLocked(q *question, now time.Time) {
	var entries []entry
	if q.service.assess(otherFamily{}, q.seedExpiry, q.owner.settings, now).serves {
		entries, _ = q.service.visible(q.owner.settings, now)
	}
	wanted := map[string]struct{}{}
	bound := min(e.options.MaxAddresses, maxOwnerHosts-q.owner.hosts+len(q.hosts))
	for _, known := range []bool{true, false} {
		for _, service := range entries {
			if _, ok := q.hosts[service.host]; ok == known && len(wanted) < bound {
				wanted[service.host] = struct{}{}
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

// countStaleLocked keeps the number of names that serve stale answers.
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

// rescheduleLocked sets the record's next lookup to the earliest time that any of its users wants.
// It retires a record without users.
func (e *Engine) rescheduleLocked(r *record, now time.Time) {
	switch {
	case r.busy:
		return
	case len(r.users) == 0:
		e.retireLocked(r, now)
		return
	case r.up.forbidden:
		return
	}
	var first time.Time
	jitter := r.jitter()
	for q := range r.users {
		if at := r.refreshAt(q.owner.settings, q.needs(r, now), jitter); first.IsZero() || at.Before(first) {
			first = at
		}
	}
	if first.Before(now) {
		first = now
	}
	e.scheduleLocked(&r.timer, first)
}
