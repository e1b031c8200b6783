package probe

import (
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// blindWindow is how long a silence that has outlasted maxPatience waits for evidence from other
	// endpoints. So it waits for about 11 s in all.
	blindWindow = 10 * time.Second

	// minSilent is how many endpoints have to be silent, at least, for the prober to be blind.
	minSilent = 5

	// seeingPercent is the percentage of the endpoints that were silent when the blindness began,
	// which have to answer before it ends.
	seeingPercent = 10
)

// sight tells silent endpoints from a blind prober: see docs/design/blind-prober.md. It counts
// Healthy endpoints only, by the last thing that the prober heard from each. The cost of one
// probe is constant.
type sight struct {
	blindPercent int // the prober is blind when this percentage of the endpoints is silent; 0: it never is

	healthy, silent crowd
	answers         timeline // Healthy endpoints that answered last, by the time of the answer
	silences        timeline // silent Healthy endpoints, by the start of the first unanswered probe
	doubted         instant  // when it was last in doubt whether the prober is blind

	blind     bool
	ended     instant // when the prober was blind last
	blindness uint32  // the number of the last blindness
	since     instant // since when nearly all endpoints are silent
	unheard   int     // how many had not answered after since when the blindness began
	returned  int     // how many of these have answered in the blindness
}

// evidence is what sight knows of one endpoint.
type evidence struct {
	healthy   bool
	last      heard
	at        instant // the time of the last answer, or the start of the first unanswered probe
	blindness uint32  // the number of the last blindness in which it answered
}

// heard is the last thing that the prober heard from an endpoint.
type heard uint8

const (
	nothingYet heard = iota
	anAnswer
	silence
)

// failureDomain is what an endpoint has in common with others that may fail together with it.
type failureDomain struct {
	owner types.NamespacedName
	net   netip.Prefix // /24, or /64 of IPv6
}

// judged notes that an endpoint has become Healthy, or is no longer Healthy.
func (s *sight) judged(w *evidence, d failureDomain, healthy bool) {
	if w.healthy == healthy {
		return
	}
	s.count(w, d, false)
	w.healthy = healthy
	s.count(w, d, true)
	s.healthy.add(d, healthy)
}

// remove forgets an endpoint.
func (s *sight) remove(w *evidence, d failureDomain) {
	if s.awaits(w) {
		s.unheard--
	}
	s.judged(w, d, false)
	*w = evidence{}
}

// answered notes an answer of an endpoint. A refusal is one.
func (s *sight) answered(w *evidence, d failureDomain, now instant) {
	if s.awaits(w) {
		w.blindness = s.blindness
		s.returned++
	}
	s.hear(w, d, anAnswer, now)
}

// awaits reports whether an endpoint was silent when this blindness began, and is still silent.
func (s *sight) awaits(w *evidence) bool {
	return s.blind && w.healthy && w.blindness != s.blindness && (w.last != anAnswer || w.at <= s.since)
}

// unanswered notes that a probe that began at started has no answer so far.
func (s *sight) unanswered(w *evidence, d failureDomain, started instant) {
	if w.last == silence || w.last == anAnswer && started < w.at || started <= s.ended {
		return
	}
	s.hear(w, d, silence, started)
}

// clearHeard drops what the prober has heard from an endpoint.
func (s *sight) clearHeard(w *evidence, d failureDomain) { s.hear(w, d, nothingYet, 0) }

func (s *sight) hear(w *evidence, d failureDomain, last heard, at instant) {
	s.count(w, d, false)
	w.last, w.at = last, at
	s.count(w, d, true)
}

// count adds a Healthy endpoint to the counts of answers and silences, or removes it from them.
func (s *sight) count(w *evidence, d failureDomain, add bool) {
	switch {
	case !w.healthy:
	case w.last == anAnswer:
		s.answers.add(w.at, add)
	case w.last == silence:
		s.silences.add(w.at, add)
		s.silent.add(d, add)
	}
}

// judgeSilence judges a silence that has lasted as long as an endpoint's thresholds ask for. It
// reports whether the endpoint may become Unhealthy. Where nearly all others are silent, too, it
// makes the prober blind. Where it can't decide yet, it notes the time of the doubt. started is
// when the endpoint's last probe began.
func (s *sight) judgeSilence(w *evidence, started, now instant) bool {
	if s.blind {
		return false
	}
	if s.blindPercent == 0 || !s.healthy.diverse() {
		return true
	}
	silent, answered := s.silences.from(w.at), s.answers.after(w.at)
	asked := silent + answered
	enough := s.silent.diverse() && silent >= minSilent
	late := now >= w.at+maxPatience+blindWindow
	if all := s.blindPercent * s.healthy.n; enough && (silent*100 >= all || late && silent*100 >= s.blindPercent*asked) {
		s.turnBlind(w.at)
		return false
	}
	rest := 100 - s.blindPercent
	switch {
	case late:
		return true
	case answered*100 > rest*s.healthy.n,
		answered*100 > rest*asked && answered*3 > asked,
		answered >= minSilent && !s.silent.diverse():
		return started > s.doubted
	case enough:
		s.doubted = now
	}
	return false
}

// turnBlind begins a blindness in which nearly all endpoints have been silent since then.
func (s *sight) turnBlind(since instant) {
	s.blind, s.since = true, since
	s.blindness++
	s.unheard, s.returned = s.healthy.n-s.answers.after(since), 0
}

// endIfSeen ends the blindness if enough endpoints have answered in it. It reports whether it has
// ended one.
func (s *sight) endIfSeen(now instant) bool {
	if !s.blind || s.returned*100 < seeingPercent*s.unheard {
		return false
	}
	s.blind, s.doubted, s.ended = false, now, now
	return true
}

// discounts reports whether the silence of a probe that began at started says nothing about its
// endpoint.
func (s *sight) discounts(started instant) bool { return s.blind || started <= s.ended }

// crowd counts endpoints by their failure domains.
type crowd struct {
	n          int
	owners     map[types.NamespacedName]int
	namespaces map[string]int
	nets       map[netip.Prefix]int
}

func (c *crowd) add(d failureDomain, add bool) {
	by := sign(add)
	c.n += by
	tally(&c.owners, d.owner, by)
	tally(&c.namespaces, d.owner.Namespace, by)
	tally(&c.nets, d.net, by)
}

// diverse reports whether the endpoints have too little in common to fail together.
func (c *crowd) diverse() bool {
	return c.n >= minSilent && len(c.owners) > 1 && (len(c.namespaces) > 1 || len(c.nets) > 1)
}

// sign returns 1 for an addition and -1 for a removal.
func sign(add bool) int {
	if add {
		return 1
	}
	return -1
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
	bucketWidth = 100 * time.Millisecond
	bucketCount = 640 // 64 s
)

// timeline counts events by time, in buckets. It knows the times of the last 64 s.
type timeline struct {
	total  int
	newest int64 // the newest bucket
	counts [bucketCount]int32
}

func bucketOf(at instant) int64 { return int64(at / bucketWidth) }

// add adds or removes an event that happened at an instant, which may be long ago.
func (l *timeline) add(at instant, add bool) {
	by, bucket := sign(add), bucketOf(at)
	if bucket-l.newest >= bucketCount {
		l.newest, l.counts = bucket, [bucketCount]int32{}
	}
	for l.newest < bucket {
		l.newest++
		l.counts[l.newest%bucketCount] = 0
	}
	if bucket > l.newest-bucketCount {
		l.counts[bucket%bucketCount] += int32(by)
	}
	l.total += by
}

// from returns how many events have happened from an instant on, with the whole bucket of that
// instant. Where the instant is too long ago, it returns the number of all events.
func (l *timeline) from(at instant) int {
	bucket := bucketOf(at)
	if bucket <= l.newest-bucketCount {
		return l.total
	}
	return l.sum(bucket)
}

// after returns how many events have happened after the bucket of an instant, as far as their
// times are known.
func (l *timeline) after(at instant) int {
	return l.sum(max(bucketOf(at)+1, l.newest-bucketCount+1))
}

func (l *timeline) sum(bucket int64) (n int) {
	for ; bucket <= l.newest; bucket++ {
		n += int(l.counts[bucket%bucketCount])
	}
	return n
}
