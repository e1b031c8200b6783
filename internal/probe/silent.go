package probe

// silentRoom is the half of the room that silent probes have. Namespaces share it as they ask for
// it: those who wait are served in the order of what their namespaces hold, fewest first, and by
// turns where that is equal. Where all of it is held, a namespace gets a place all the same while
// another one holds more than it would with that: the one that holds most gives its newest up.
//
// So nobody waits for how much another namespace has probed, nor for its timeouts, while one that
// is alone has it all. Of each namespace the oldest probes, as many as its equal share, run to
// their ends and are judged: what is given up lies beyond that. And since the one that gives still
// holds no less than the one that gets, no two take the same place from one another in turn.
type silentRoom struct {
	size, held int
	shares     map[string]*share // of the namespaces that hold a place or wait for one
	waiting    queue[waiter]     // whose turn it is
	holding    queue[holder]     // who holds most
	turns      instant
}

// share is a namespace's part. Taking one up, giving it back and waiting cost O(log namespaces).
type share struct {
	namespace string
	held      int
	newest    *attempt  // of those it holds
	waits     []*target // the longest waiting first
	turn      instant   // when the last of it came, counted in turns
	places    [2]int32  // in waiting and holding
}

type (
	waiter struct{ *share }
	holder struct{ *share }
)

func (w waiter) place() *int32 { return &w.places[0] }
func (h holder) place() *int32 { return &h.places[1] }

func newSilentRoom(size int) *silentRoom {
	return &silentRoom{size: size, shares: map[string]*share{}}
}

func (r *silentRoom) of(t *target) *share {
	namespace := t.owner.key.Namespace
	s := r.shares[namespace]
	if s == nil {
		s = &share{namespace: namespace, places: [2]int32{-1, -1}}
		r.shares[namespace] = s
	}
	return s
}

// changed puts s where it belongs by what it holds and who waits for it.
func (r *silentRoom) changed(s *share) {
	const turnBits = 40 // what is held needs less than the other 23
	wait, hold := never, never
	if len(s.waits) > 0 {
		wait = instant(s.held)<<turnBits + s.turn
	}
	if s.held > 0 {
		hold = -instant(s.held)
	}
	r.waiting.set(waiter{s}, wait)
	r.holding.set(holder{s}, hold)
	if wait == never && hold == never {
		delete(r.shares, s.namespace)
	}
}

// take gives a a place, which has to be free.
func (r *silentRoom) take(a *attempt) {
	s := r.of(a.target)
	if a.older = s.newest; a.older != nil {
		a.older.newer = a
	}
	a.silent, s.newest = true, a
	r.held++
	s.held++
	r.changed(s)
}

// leave takes the place of a back.
func (r *silentRoom) leave(a *attempt) {
	s := r.of(a.target)
	if a.newer != nil {
		a.newer.older = a.older
	} else {
		s.newest = a.older
	}
	if a.older != nil {
		a.older.newer = a.newer
	}
	a.silent, a.older, a.newer = false, nil, nil
	r.held--
	s.held--
	r.changed(s)
}

func (r *silentRoom) full() bool { return r.held >= r.size }

// giving returns the probe that gives its place up for one of t's namespace, nil where none has to.
func (r *silentRoom) giving(t *target) *attempt {
	held := 0
	if s := r.shares[t.owner.key.Namespace]; s != nil {
		held = s.held
	}
	if len(r.holding.items) == 0 {
		return nil
	}
	if most := r.holding.items[0].item; held+1 < most.held {
		return most.newest
	}
	return nil
}

// push lets t wait.
func (r *silentRoom) push(t *target) {
	s := r.of(t)
	if len(s.waits) == 0 {
		r.turns++
		s.turn = r.turns
	}
	s.waits = append(s.waits, t)
	r.changed(s)
}

// first returns the target whose turn it is, nil where none waits.
func (r *silentRoom) first() *target {
	if len(r.waiting.items) == 0 {
		return nil
	}
	return r.waiting.items[0].item.waits[0]
}

// pop takes the first target out of those who wait.
func (r *silentRoom) pop() {
	s := r.waiting.items[0].item.share
	s.waits[0] = nil
	s.waits = s.waits[1:]
	r.turns++
	s.turn = r.turns
	r.changed(s)
}
