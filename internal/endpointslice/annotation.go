package endpointslice

import (
	"iter"
	"strconv"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// annotationEndpoints is the annotation that tells of each endpoint what an EndpointSlice has no
// fields for.
const annotationEndpoints = "external-backend.io/endpoints"

// annotationVersion is what the annotation begins with. Only this version can read the rest.
const annotationVersion = "v1:"

// Annotated reports whether the slice has our annotation, be it readable or not.
func Annotated(s *discoveryv1.EndpointSlice) bool {
	_, ok := s.Annotations[annotationEndpoints]
	return ok
}

// runEncoder writes the annotation, in runs of endpoints that agree in it.
//
//	v1:primary~06b2,pool^2/1+*12~9f3e,pool^2/1@1763683200*3~1c40
//
// says: one endpoint of target primary; twelve of pool, in tier 2, which includes SRV rank 1,
// healthy though not serving; and three more that drain until that second (Unix time). "!" in place
// of "+" means unhealthy though serving; where there is neither, serving is their health. What
// follows "~" is a checksum of the run and of its addresses, so that a list edited by hand is not
// attributed to targets that it isn't of. With target names of 63 characters and no two endpoints
// alike an annotation of 1000 endpoints has 95 KiB.
type runEncoder struct {
	text []byte

	facts
	count int
	sum   uint32
}

// facts are what the annotation tells of an endpoint.
type facts struct {
	target string
	tier   int32
	rank   uint8
	health healthMark
	until  int64 // Unix time; 0 where it is not leaving
}

// healthMark tells health where it differs from serving.
type healthMark byte

const (
	healthAsServing   healthMark = 0
	healthyStandby    healthMark = '+'
	unhealthyFailOpen healthMark = '!'
)

func (e *Endpoint) healthMark() healthMark {
	switch {
	case e.Healthy == e.Serving:
		return healthAsServing
	case e.Healthy:
		return healthyStandby
	}
	return unhealthyFailOpen
}

func factsOf(e *Endpoint) facts {
	return facts{target: e.Target, tier: e.Tier, rank: e.Rank, health: e.healthMark(), until: drainSeconds(e.DrainUntil)}
}

const (
	fnvOffset = 2166136261
	fnvPrime  = 16777619
)

// checksum continues an FNV-1a hash.
func checksum[T string | []byte](sum uint32, text T) uint32 {
	for i := range len(text) {
		sum = (sum ^ uint32(text[i])) * fnvPrime
	}
	return (sum ^ ',') * fnvPrime
}

func drainSeconds(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return max(t.Unix(), 1)
}

// reset starts the annotation of another slice.
func (r *runEncoder) reset() { r.text, r.count = r.text[:0], 0 }

// add appends the next endpoint of the slice.
func (r *runEncoder) add(e *Endpoint, address string) {
	f := factsOf(e)
	if r.count > 0 && r.facts != f {
		r.flush()
	}
	if r.count == 0 {
		r.facts, r.sum = f, fnvOffset
	}
	r.count++
	r.sum = checksum(r.sum, address)
}

func (r *runEncoder) flush() {
	if len(r.text) > 0 {
		r.text = append(r.text, ',')
	} else {
		r.text = append(r.text, annotationVersion...)
	}
	begin := len(r.text)
	r.text = append(r.text, r.target...)
	if r.tier > 0 {
		r.text = strconv.AppendInt(append(r.text, '^'), int64(r.tier), 10)
	}
	if r.rank > 0 {
		r.text = strconv.AppendUint(append(r.text, '/'), uint64(r.rank), 10)
	}
	if r.health != healthAsServing {
		r.text = append(r.text, byte(r.health))
	}
	if r.until > 0 {
		r.text = strconv.AppendInt(append(r.text, '@'), r.until, 10)
	}
	if r.count > 1 {
		r.text = strconv.AppendInt(append(r.text, '*'), int64(r.count), 10)
	}
	r.text = appendSum(append(r.text, '~'), checksum(r.sum, r.text[begin:]))
	r.count = 0
}

// appendSum appends 16 bits of sum as four hexadecimal digits.
func appendSum(text []byte, sum uint32) []byte {
	const digits = "0123456789abcdef"
	sum ^= sum >> 16
	return append(text, digits[sum>>12&15], digits[sum>>8&15], digits[sum>>4&15], digits[sum&15])
}

// bytes returns the annotation; it is good until the next reset.
func (r *runEncoder) bytes() []byte {
	if r.count > 0 {
		r.flush()
	}
	return r.text
}

// run is what the annotation says of some endpoints that follow each other.
type run struct {
	facts
	first, count int // which endpoints of the slice
	body, sum    string
}

// parseRun reads one run; false where it isn't one.
func parseRun(text string) (r run, ok bool) {
	r.count = 1
	if r.body, r.sum, ok = strings.Cut(text, "~"); !ok {
		return r, false
	}
	number := func(s string, bits int) uint64 {
		n, err := strconv.ParseUint(s, 10, bits)
		if err != nil || n == 0 {
			ok = false
		}
		return n
	}
	rest, count, counted := strings.Cut(r.body, "*")
	if counted {
		r.count = int(number(count, 16))
	}
	rest, until, drains := strings.Cut(rest, "@")
	if drains {
		r.until = int64(number(until, 40))
	}
	for _, mark := range []healthMark{healthyStandby, unhealthyFailOpen} {
		if before, marked := strings.CutSuffix(rest, string(rune(mark))); marked {
			rest, r.health = before, mark
		}
	}
	rest, rank, ranked := strings.Cut(rest, "/")
	if ranked {
		r.rank = uint8(number(rank, 8))
	}
	target, tier, tiered := strings.Cut(rest, "^")
	if tiered {
		r.tier = int32(number(tier, 7))
	}
	r.target = target
	return r, ok
}

// tell adds to an endpoint what the run says of it.
func (r *run) tell(e *Endpoint) {
	e.Target, e.Tier, e.Rank = r.target, r.tier, r.rank
	if r.until > 0 {
		e.DrainUntil = time.Unix(r.until, 0).UTC()
	}
	if r.health != healthAsServing {
		e.Healthy = r.health == healthyStandby
	}
}

// holds reports whether the run was written for just these addresses.
func (r *run) holds(endpoints []discoveryv1.Endpoint) bool {
	sum := uint32(fnvOffset)
	for i := range endpoints {
		if len(endpoints[i].Addresses) > 0 {
			sum = checksum(sum, endpoints[i].Addresses[0])
		}
	}
	var text [4]byte
	return r.sum == string(appendSum(text[:0], checksum(sum, r.body)))
}

// attributions appends to runs those of the slice's annotation that can be relied on.
func attributions(s *discoveryv1.EndpointSlice, runs []run) []run {
	text, ok := strings.CutPrefix(s.Annotations[annotationEndpoints], annotationVersion)
	if !ok {
		return runs
	}
	first := 0
	for text := range strings.SplitSeq(text, ",") {
		r, ok := parseRun(text)
		if !ok || first+r.count > len(s.Endpoints) {
			break
		}
		r.first = first
		first += r.count
		if r.holds(s.Endpoints[r.first:first]) {
			runs = append(runs, r)
		}
	}
	return runs
}

// readEndpoints yields what s publishes, each with its place in s and with what runs, in their
// order, say of it. What no consumer could use is left out. The endpoint is overwritten by the next
// one.
func readEndpoints(s *discoveryv1.EndpointSlice, runs []run) iter.Seq2[int, *Endpoint] {
	return func(yield func(int, *Endpoint) bool) {
		var e Endpoint
		var ok bool
		for i := range s.Endpoints {
			if e, ok = readEndpoint(&s.Endpoints[i], s.AddressType); !ok {
				continue
			}
			for len(runs) > 0 && i >= runs[0].first+runs[0].count {
				runs = runs[1:]
			}
			if len(runs) > 0 && i >= runs[0].first {
				runs[0].tell(&e)
			}
			e.Unread = e.Target == ""
			if !yield(i, &e) {
				return
			}
		}
	}
}

// readEndpoint reads one endpoint; false where no consumer could use it as family.
func readEndpoint(e *discoveryv1.Endpoint, family discoveryv1.AddressType) (Endpoint, bool) {
	addr, ok := firstAddress(e)
	if !ok || addressFamily(addr) != family {
		return Endpoint{}, false
	}
	text := func(s *string) string {
		if s == nil {
			return ""
		}
		return *s
	}
	out := Endpoint{Addr: addr, Hostname: text(e.Hostname), Zone: text(e.Zone), NodeName: text(e.NodeName)}
	out.Ready, out.Serving, out.Terminating = conditionsOf(e)
	out.Healthy = out.Serving
	return out, true
}

// conditionsOf reads the conditions of an endpoint. Missing ones mean what the API says of them:
// ready, and serving as it is ready.
func conditionsOf(e *discoveryv1.Endpoint) (ready, serving, terminating bool) {
	ready = orTrue(e.Conditions.Ready)
	if serving = ready; e.Conditions.Serving != nil {
		serving = *e.Conditions.Serving
	}
	return ready, serving, isTrue(e.Conditions.Terminating)
}
