package probe

import (
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// blindWindow is how long an endpoint's silence waits for what the others say.
	blindWindow = 10 * time.Second

	// blindLeast is how many endpoints have to be silent at least for the prober to be blind.
	blindLeast = 5

	// sightReturns is the percentage of the endpoints that were not heard when blindness began, which
	// have to answer for its end.
	sightReturns = 10
)

// sight tells silent endpoints from a prober that sees nothing: see docs/design/blind-prober.md. It
// counts Healthy endpoints alone, by what was heard of each last. What one probe costs is constant.
type sight struct {
	threshold int // percent of the endpoints that are silent where the prober is blind; 0: it never is

	healthy, silent crowd
	answers         recent  // healthy endpoints that answered last, by when
	silences        recent  // healthy endpoints that are silent, by when the first unanswered probe began
	doubted         instant // when it was last in doubt whether it is blind

	blind    bool
	ended    instant // when it was blind last
	episode  uint32  // tells one blindness from another
	heard    instant
	unheard  int // how many had not answered since heard when the blindness began
	returned int // how many of these have answered since
}

// witness is what sight knows of one endpoint.
type witness struct {
	healthy bool
	last    heard
	at      instant // of the last answer, or of the start of the first probe that was not answered
	episode uint32  // of the last blindness in which it answered
}

// heard is what was heard of an endpoint last.
type heard uint8

const (
	nothingYet heard = iota
	anAnswer
	silence
)

// origin is where an endpoint belongs.
type origin struct {
	owner types.NamespacedName
	net   netip.Prefix // /24, or /64 of IPv6
}

func originOf(owner types.NamespacedName, addr netip.Addr) origin {
	addr = addr.Unmap().WithZone("")
	bits := 64
	if addr.Is4() {
		bits = 24
	}
	net, _ := addr.Prefix(bits) // an invalid address has the zero one
	return origin{owner, net}
}

// judged notes that an endpoint has come to be Healthy, or is so no longer.
func (s *sight) judged(w *witness, o origin, healthy bool) {
	if w.healthy == healthy {
		return
	}
	s.take(w, o)
	w.healthy = healthy
	s.put(w, o)
	s.healthy.count(o, healthy)
}

// gone forgets an endpoint.
func (s *sight) gone(w *witness, o origin) {
	if s.misses(w) {
		s.unheard--
	}
	s.judged(w, o, false)
	*w = witness{}
}

// answered notes that an endpoint has said something, be it a refusal.
func (s *sight) answered(w *witness, o origin, now instant) {
	if s.misses(w) {
		w.episode = s.episode
		s.returned++
	}
	s.hear(w, o, anAnswer, now)
}

// misses reports whether an endpoint has not answered since this blindness began.
func (s *sight) misses(w *witness) bool {
	return s.blind && w.healthy && w.episode != s.episode && (w.last != anAnswer || w.at <= s.heard)
}

// unanswered notes that a probe which began at started has not been answered, or not yet.
func (s *sight) unanswered(w *witness, o origin, started instant) {
	if w.last == silence || w.last == anAnswer && started < w.at || started <= s.ended {
		return
	}
	s.hear(w, o, silence, started)
}

// forget drops what was heard of an endpoint.
func (s *sight) forget(w *witness, o origin) { s.hear(w, o, nothingYet, 0) }

func (s *sight) hear(w *witness, o origin, what heard, at instant) {
	s.take(w, o)
	w.last, w.at = what, at
	s.put(w, o)
}

// take and put keep the counts of what was heard of Healthy endpoints.
func (s *sight) take(w *witness, o origin) {
	switch {
	case !w.healthy:
	case w.last == anAnswer:
		s.answers.count(w.at, -1)
	case w.last == silence:
		s.silences.count(w.at, -1)
		s.silent.count(o, false)
	}
}

func (s *sight) put(w *witness, o origin) {
	switch {
	case !w.healthy:
	case w.last == anAnswer:
		s.answers.count(w.at, 1)
	case w.last == silence:
		s.silences.count(w.at, 1)
		s.silent.count(o, true)
	}
}

// believes reports whether the silence of an endpoint, as long as its threshold asks for, is its
// own. started is when its last probe began. Where the others are silent, too, the prober is blind
// from then on.
func (s *sight) believes(w *witness, started, now instant) bool {
	if s.blind {
		return false
	}
	if s.threshold == 0 || !s.healthy.diverse() {
		return true
	}
	silent, answered := s.silences.from(w.at), s.answers.after(w.at)
	asked := silent + answered
	enough := s.silent.diverse() && silent >= blindLeast
	late := now >= w.at+slow+blindWindow
	if all := s.threshold * s.healthy.n; enough && (silent*100 >= all || late && silent*100 >= s.threshold*asked) {
		s.lose(w.at)
		return false
	}
	rest := 100 - s.threshold
	switch {
	case late:
		return true
	case answered*100 > rest*s.healthy.n,
		answered*100 > rest*asked && answered*3 > asked,
		answered >= blindLeast && !s.silent.diverse():
		return started > s.doubted
	case enough:
		s.doubted = now
	}
	return false
}

// lose begins a blindness in which little was heard since.
func (s *sight) lose(since instant) {
	s.blind, s.heard = true, since
	s.episode++
	s.unheard, s.returned = s.healthy.n-s.answers.after(since), 0
}

// returns ends a blindness in which enough endpoints have answered, and reports whether it does.
func (s *sight) returns(now instant) bool {
	if !s.blind || s.returned*100 < sightReturns*s.unheard {
		return false
	}
	s.blind, s.doubted, s.ended = false, now, now
	return true
}

// discounts reports whether the silence of a probe that began at started says nothing of its
// endpoint.
func (s *sight) discounts(started instant) bool { return s.blind || started <= s.ended }

// crowd counts endpoints by where they belong.
type crowd struct {
	n          int
	owners     map[types.NamespacedName]int
	namespaces map[string]int
	nets       map[netip.Prefix]int
}

func (c *crowd) count(o origin, joins bool) {
	by := -1
	if joins {
		by = 1
	}
	c.n += by
	tally(&c.owners, o.owner, by)
	tally(&c.namespaces, o.owner.Namespace, by)
	tally(&c.nets, o.net, by)
}

// diverse reports whether a failure of none of these endpoints alone makes them all silent.
func (c *crowd) diverse() bool {
	return c.n >= blindLeast && len(c.owners) > 1 && (len(c.namespaces) > 1 || len(c.nets) > 1)
}

func tally[K comparable](counts *map[K]int, key K, by int) {
	if *counts == nil {
		*counts = map[K]int{}
	}
	if (*counts)[key] += by; (*counts)[key] == 0 {
		delete(*counts, key)
	}
}

const (
	slotWidth = 100 * time.Millisecond
	slotCount = 640 // 64 s
)

// recent counts what happened of late, by slots of time.
type recent struct {
	total  int
	newest int64 // slot
	counts [slotCount]int32
}

func slotOf(at instant) int64 { return int64(at / slotWidth) }

// count adds by to what happened at an instant, which may have happened long ago.
func (r *recent) count(at instant, by int32) {
	slot := slotOf(at)
	if slot-r.newest >= slotCount {
		r.newest, r.counts = slot, [slotCount]int32{}
	}
	for r.newest < slot {
		r.newest++
		r.counts[r.newest%slotCount] = 0
	}
	if slot > r.newest-slotCount {
		r.counts[slot%slotCount] += by
	}
	r.total += int(by)
}

// from counts what has happened from an instant on, and a part of a slot before. Where that is too
// long ago, it counts all.
func (r *recent) from(at instant) int {
	slot := slotOf(at)
	if slot <= r.newest-slotCount {
		return r.total
	}
	return r.sum(slot)
}

// after counts what has happened after an instant, but for a part of a slot, and of what is too
// long ago.
func (r *recent) after(at instant) int { return r.sum(max(slotOf(at)+1, r.newest-slotCount+1)) }

func (r *recent) sum(slot int64) (n int) {
	for ; slot <= r.newest; slot++ {
		n += int(r.counts[slot%slotCount])
	}
	return n
}
