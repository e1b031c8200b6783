package plan

import (
	"strconv"
	"strings"
	"time"

	"github.com/external-backend/operator/api/v1alpha1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// runEncoder writes the annotation external-backend.io/endpoints: what an EndpointSlice has no fields for, in runs of endpoints that agree in it.
//
//	primary~06b2,pool/1*12~9f3e,pool/1@1763683200*3~1c40
//
// says: one endpoint of target primary, twelve of pool with SRV rank 1, and three more that drain until that second (Unix time). What follows "~" is a checksum
// of the run and of its addresses, so that a list edited by hand is not attributed to targets that it isn't of. With target names of 63 characters and no two
// endpoints alike an annotation of 1000 endpoints has 90 KiB.
type runEncoder struct {
	text []byte

	target string
	rank   uint8
	until  int64
	count  int
	sum    uint32
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
	until := drainSeconds(e.DrainUntil)
	if r.count > 0 && (r.target != e.Target || r.rank != e.Rank || r.until != until) {
		r.flush()
	}
	if r.count == 0 {
		r.target, r.rank, r.until, r.sum = e.Target, e.Rank, until, fnvOffset
	}
	r.count++
	r.sum = checksum(r.sum, address)
}

func (r *runEncoder) flush() {
	if len(r.text) > 0 {
		r.text = append(r.text, ',')
	}
	begin := len(r.text)
	r.text = append(r.text, r.target...)
	if r.rank > 0 {
		r.text = strconv.AppendUint(append(r.text, '/'), uint64(r.rank), 10)
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
	target       string
	rank         uint8
	until        time.Time
	first, count int // which endpoints of the slice
	body, sum    string
}

// parseRun reads one run; false where it isn't one.
func parseRun(text string) (r run, ok bool) {
	r.count = 1
	if r.body, r.sum, ok = strings.Cut(text, "~"); !ok {
		return r, false
	}
	rest, count, counted := strings.Cut(r.body, "*")
	rest, until, drains := strings.Cut(rest, "@")
	target, rank, ranked := strings.Cut(rest, "/")
	r.target = target
	number := func(s string, bits int) uint64 {
		n, err := strconv.ParseUint(s, 10, bits)
		if err != nil || n == 0 {
			ok = false
		}
		return n
	}
	if counted {
		r.count = int(number(count, 16))
	}
	if drains {
		r.until = time.Unix(int64(number(until, 40)), 0).UTC()
	}
	if ranked {
		r.rank = uint8(number(rank, 8))
	}
	return r, ok
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
	first := 0
	for text := range strings.SplitSeq(s.Annotations[v1alpha1.AnnotationEndpoints], ",") {
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
	return out, true
}

// conditionsOf reads the conditions of an endpoint. Missing ones mean what the API says of them: ready, and serving as it is ready.
func conditionsOf(e *discoveryv1.Endpoint) (ready, serving, terminating bool) {
	ready = orTrue(e.Conditions.Ready)
	if serving = ready; e.Conditions.Serving != nil {
		serving = *e.Conditions.Serving
	}
	return ready, serving, isTrue(e.Conditions.Terminating)
}
