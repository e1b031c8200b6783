package endpointslice

import (
	"iter"
	"strconv"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// run is what the annotation says of some consecutive endpoints.
type run struct {
	attributes
	first, count int // which endpoints of the slice
	body, sum    string
}

// parseRun reads one run; ok is false if text is not a run.
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

// applyTo sets what the run says of an endpoint.
func (r *run) applyTo(e *Endpoint) {
	e.Target, e.Tier, e.Rank = r.target, r.tier, r.rank
	if r.until > 0 {
		e.DrainUntil = time.Unix(r.until, 0).UTC()
	}
	if r.health != healthAsServing {
		e.Healthy = r.health == healthyStandby
	}
}

// matches reports whether the run was written for exactly these addresses.
func (r *run) matches(endpoints []discoveryv1.Endpoint) bool {
	sum := uint32(fnvOffset)
	for i := range endpoints {
		if len(endpoints[i].Addresses) > 0 {
			sum = checksum(sum, endpoints[i].Addresses[0])
		}
	}
	var text [4]byte
	return r.sum == string(appendSum(text[:0], checksum(sum, r.body)))
}

// readRuns returns those runs of the slice's annotation that can be relied on.
func readRuns(s *discoveryv1.EndpointSlice) (runs []run) {
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
		if r.matches(s.Endpoints[r.first:first]) {
			runs = append(runs, r)
		}
	}
	return runs
}

// readEndpoints yields the endpoints that s and its annotation publish, each with its index in s.
// Endpoints that no consumer could use are left out. The next endpoint overwrites the one before.
func readEndpoints(s *discoveryv1.EndpointSlice) iter.Seq2[int, *Endpoint] {
	return func(yield func(int, *Endpoint) bool) {
		runs := readRuns(s)
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
				runs[0].applyTo(&e)
			}
			e.Unread = e.Target == ""
			if !yield(i, &e) {
				return
			}
		}
	}
}
