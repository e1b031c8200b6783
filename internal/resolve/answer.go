package resolve

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"
	"time"
)

const (
	maxAliases = 16 // CNAMEs from a name to its records

	// noSOATTL is the TTL of denials that don't come with one (RFC 2308 section 5).
	noSOATTL = 30 * time.Second
)

// decode reads the answer to a query (id, name, t) from raw bytes, which anyone may have sent:
//  1. Check that header and question are those of the query.
//  2. Read the records. Each one must lie inside the message, and the message must end with the
//     last one.
//  3. Follow the aliases of the answer section from the name to their end. Records of other names
//     don't count.
//  4. At the end there is data, a denial, or the next name to ask.
func decode(raw []byte, id uint16, name string, t qtype) (answer, error) {
	if len(raw) < headerBytes || binary.BigEndian.Uint16(raw) != id || raw[2]&0x80 == 0 {
		return answer{}, errNotOurs
	}
	if raw[2]>>3&0xF != 0 { // opcode
		return answer{}, errMalformed
	}
	a := answer{rcode: int(raw[3] & 0xF), truncated: raw[2]&0x02 != 0}
	off, err := checkQuestion(raw, name, t, a.rcode)
	if err != nil {
		return answer{}, err
	}
	if a.truncated {
		return a, nil // its records are not reliable (RFC 2181 section 9)
	}

	s := sections{t: t}
	if err := s.read(raw, off); err != nil {
		return answer{}, err
	}
	a.rcode |= s.extendedRcode
	if !decisive(a.rcode) {
		return a, nil
	}
	return a, s.conclude(name, &a)
}

// conclude follows the aliases from name and fills a with the records or the denial at their end.
func (s *sections) conclude(name string, a *answer) error {
	end, ttl, hops, err := s.follow(name)
	if err != nil {
		return err
	}
	a.ttl = ttl

	unavailable := false // a service says so with the target "." (RFC 2782)
	for _, r := range s.records {
		if r.name != end {
			s.stray = true
			continue
		}
		a.ttl = min(a.ttl, r.ttl)
		if r.host == "" && s.t == typeSRV {
			unavailable = true
			continue
		}
		a.data = append(a.data, r.datum)
	}
	if (len(a.data) > 0 || unavailable) && !exists(a.rcode) {
		return errMalformed // a name that does not exist has no records
	}
	if len(a.data) > 0 {
		a.data = unique(a.data)
		return nil
	}
	if unavailable {
		a.rcode = rcodeNameError
		return nil
	}
	if hops == 0 && s.stray {
		return errMalformed // it answers another question
	}
	s.denial(end, hops, a)
	return nil
}

// denial fills a where there are no records at the end of the aliases.
func (s *sections) denial(end string, hops int, a *answer) {
	for _, soa := range s.soa {
		if within(end, soa.name) {
			a.ttl = min(a.ttl, soa.ttl)
			return
		}
	}
	if hops > 0 && exists(a.rcode) {
		a.alias = end
		return
	}
	a.ttl = min(a.ttl, noSOATTL)
}

// follow follows the aliases from name to their end, and returns that, the smallest TTL on the way,
// and their number.
func (s *sections) follow(name string) (end string, ttl time.Duration, hops int, err error) {
	ttl = ttlOf(1<<31 - 1)
	for ; hops <= maxAliases; hops++ {
		next := ""
		for _, c := range s.aliases {
			if c.name != name {
				continue
			}
			if next != "" && next != c.host {
				return "", 0, 0, errMalformed // two targets for one name (RFC 2181 section 10.1)
			}
			next, ttl = c.host, min(ttl, c.ttl)
		}
		if next == "" {
			return name, ttl, hops, nil
		}
		name = next
	}
	return "", 0, 0, errAliasLoop
}

// within reports whether name is zone or below it.
func within(name, zone string) bool {
	return zone == "" || name == zone || strings.HasSuffix(name, "."+zone)
}

// unique sorts data and keeps one of each. Of a host and port with several priorities it keeps the
// lowest.
func unique(data []datum) []datum {
	slices.SortFunc(data, func(a, b datum) int {
		return cmp.Or(compareData(a, b), cmp.Compare(a.priority, b.priority))
	})
	return slices.CompactFunc(data, func(a, b datum) bool { return compareData(a, b) == 0 })
}
