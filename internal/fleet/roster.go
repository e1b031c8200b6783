package fleet

import (
	"maps"
	"slices"
	"time"
)

const (
	// leaseDuration is how long a replica counts as live after its Lease was seen to change.
	leaseDuration = 15 * time.Second
	// renewPeriod is how often a replica renews its Lease.
	renewPeriod = 5 * time.Second
	// retryPeriod is how soon it tries again after a renewal that failed.
	retryPeriod = 500 * time.Millisecond
	// writePeriod is how long after the start of its last renewal a replica may write. Others wait for
	// leaseDuration, so the difference is what a write may take.
	writePeriod = 10 * time.Second
	// contactPeriod is how long after a replica saw its own renewal it still judges others. After that
	// it can't tell a member that is dead from an API server that is away.
	contactPeriod = renewPeriod * 3 / 2
	// handover is how long a replica waits before it works or writes, after it has joined or was lost.
	// So the others see it, and stop, before it begins.
	handover = 500 * time.Millisecond
	// maxClockError is by how much the clocks of two replicas may differ. A Lease that is seen for the
	// first time longer after its end is that of a replica that is gone.
	maxClockError = time.Minute
)

// record is what the Lease of a replica says.
type record struct {
	holder  string // the process; "" where it has ended in order
	renewed time.Time
	// duration is how long the Lease is held after renewed.
	duration time.Duration
	// aside reports whether the replica has given its share away.
	aside   bool
	contact Contact
}

// sighting is a record, and when it was seen to change last.
type sighting struct {
	record
	at time.Time // zero where the record was too old when it was seen first
	// renews reports whether the Lease was seen to change, or was fresh when it was seen first.
	renews bool
}

// see notes what a Lease says now.
func (s *sighting) see(r record, now time.Time) {
	first := *s == sighting{}
	switch {
	case first && now.Sub(r.renewed) > r.duration+maxClockError:
		s.at = time.Time{}
	case first:
		s.at, s.renews = now, now.Sub(r.renewed).Abs() < contactPeriod
	case s.holder != r.holder || !s.renewed.Equal(r.renewed):
		s.at, s.renews = now, true
	}
	s.record = r
}

// held reports whether the Lease is held at a moment.
func (s *sighting) held(at time.Time) bool {
	return s.holder != "" && !s.at.IsZero() && at.Sub(s.at) < s.duration
}

// roster is what one replica knows of the fleet. It judges others by when it saw their Leases
// change, so the clocks of the replicas need not agree. It does no I/O, and each method takes the
// time.
type roster struct {
	self   string // the name of the own Lease
	holder string // of this process

	others map[string]*sighting
	leader sighting // the Lease of a manager that works alone

	looked    bool      // it has seen the Leases that were there when it started
	attempted time.Time // when the last renewal began
	renewing  bool      // it has not ended
	failed    bool      // it has failed
	renewed   time.Time // when the last renewal that succeeded began
	worksFrom time.Time // zero before the first renewal, and after a pause
	writeFrom time.Time
	seen      time.Time // what the own Lease said last
	contact   time.Time // when it was seen to say so
	pauses    int       // how often the process did not run for long

	aside   bool // it gives its share away
	told    bool // aside as the Lease says it, which has to be renewed if it differs
	telling bool // aside as the renewal under way says it
}

func newRoster(self, holder string) *roster {
	return &roster{self: self, holder: holder, others: map[string]*sighting{}}
}

// seeOther notes what the Lease of another replica says.
func (r *roster) seeOther(name string, is record, now time.Time) {
	s, known := r.others[name]
	if !known {
		s = &sighting{}
		r.others[name] = s
	}
	s.see(is, now)
	s.renews = s.renews || !known && r.looked // it has just been made
}

// seeLeader notes what the Lease says by which one manager works alone.
func (r *roster) seeLeader(is record, now time.Time) { r.leader.see(is, now) }

// seeOwn notes what the own Lease says. What another process has written there tells nothing.
func (r *roster) seeOwn(is record, now time.Time) {
	if is.holder != r.holder || is.renewed.Equal(r.seen) {
		return
	}
	// While this replica saw nothing, the others may have renewed their Leases.
	if !r.contact.IsZero() && now.Sub(r.contact) > contactPeriod {
		for _, s := range append(slices.Collect(maps.Values(r.others)), &r.leader) {
			if s.held(r.horizon(now)) {
				s.at = now
			}
		}
	}
	r.seen, r.contact = is.renewed, now
}

// lose notes that the Lease of another replica, or of the leader, is gone.
func (r *roster) lose(name string) { delete(r.others, name) }

// loseLeader notes that the Lease of the leader is gone.
func (r *roster) loseLeader() { r.leader = sighting{} }

// beginRenewal reports whether to renew the own Lease now. If so, the renewal counts as begun. It
// notices when the process has not run for so long that others may have taken over what it had.
func (r *roster) beginRenewal(now time.Time) bool {
	wait := renewPeriod
	if r.failed {
		wait = retryPeriod
	}
	since := now.Sub(r.attempted)
	r.looked = true
	if r.attempted.IsZero() && !r.knowsOthers(now) {
		return false
	}
	if r.aside != r.told && !r.failed {
		wait = 0
	}
	if r.renewing || !r.attempted.IsZero() && since < wait {
		return false
	}
	if !r.worksFrom.IsZero() && since > writePeriod {
		r.worksFrom = time.Time{}
		r.pauses++
	}
	r.attempted, r.renewing, r.telling = now, true, r.aside
	return true
}

// knowsOthers reports whether the replica knows of each Lease whether its replica lives. It joins
// only then. Else it would leave to one that is gone what the others leave to it.
func (r *roster) knowsOthers(now time.Time) bool {
	for _, s := range r.others {
		if s.held(now) && !s.renews {
			return false
		}
	}
	return true
}

// endRenewal notes how the renewal that began last has ended.
func (r *roster) endRenewal(ok bool, now time.Time) {
	r.renewing, r.failed = false, !ok
	if !ok {
		return
	}
	if r.attempted.Sub(r.renewed) >= writePeriod || r.worksFrom.IsZero() {
		r.writeFrom = now.Add(handover)
	}
	if r.told && !r.telling { // it takes a share again once the others have seen that
		r.writeFrom = now.Add(handover)
		r.worksFrom = r.writeFrom
	}
	if r.worksFrom.IsZero() {
		r.worksFrom = r.writeFrom
	}
	r.renewed, r.told = r.attempted, r.telling
}

// setAside makes the replica give its share away, or take one again.
func (r *roster) setAside(aside bool) { r.aside = aside }

// mayWrite reports whether the replica may write. If it has not renewed its Lease for long, others
// may soon take over what it has.
func (r *roster) mayWrite(now time.Time) bool {
	return !r.renewed.IsZero() && now.Sub(r.renewed) < writePeriod && !now.Before(r.writeFrom)
}

// horizon returns the moment up to which the replica can judge others.
func (r *roster) horizon(now time.Time) time.Time {
	if end := r.contact.Add(contactPeriod); end.Before(now) {
		return end
	}
	return now
}

// share returns who works for what, as this replica sees it. While a leader works alone, nobody
// else works.
func (r *roster) share(now time.Time) *Share {
	led := r.leader.held(r.horizon(now))
	works := !led && !r.worksFrom.IsZero() && !now.Before(r.worksFrom)
	var members, aside []string
	add := func(name string, isAside bool) {
		if isAside {
			aside = append(aside, name)
		} else {
			members = append(members, name)
		}
	}
	add(r.self, r.aside || r.told)
	for name, s := range r.others {
		if s.held(r.horizon(now)) {
			add(name, s.aside)
		}
	}
	if len(members) == 0 { // all are set aside, so none gives its share away
		members = aside
	}
	return newShare(r.self, works, r.pauses, members)
}
