package resolve

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"
)

const (
	maxAliases = 16 // CNAMEs from a name to its records

	// noSOATTL is the TTL of denials that don't come with one (RFC 2308 section 5).
	noSOATTL = 30 * time.Second
)

// answer is what one message says about one name and type.
type answer struct {
	rcode     int
	truncated bool
	data      []datum       // records of the type at the end of the alias chain; sorted, each once
	ttl       time.Duration // the smallest of the chain, the TTL of a denial included (RFC 2308)
	alias     string        // the end of the chain, where the message has neither records nor a denial for it
}

// datum is the content of one record: an address, or a host and port of a service.
type datum struct {
	ip       netip.Addr // A, AAAA
	host     string     // SRV: lower case, no trailing dot
	port     uint16
	priority uint16
}

// compareData orders by address, host and port. Two data of a set differ in at least one of these;
// a priority does not count.
func compareData(a, b datum) int {
	return cmp.Or(a.ip.Compare(b.ip), strings.Compare(a.host, b.host), cmp.Compare(a.port, b.port))
}

// sections holds the records of a message that can matter.
type sections struct {
	t             qtype
	records       []owned // of the asked type
	aliases       []owned // CNAMEs: datum.host is the target
	stray         bool    // there is an address, service or alias of another type, class or name
	soa           []owned // of the authority section; ttl is that of the denial
	hasOptions    bool    // there is an OPT record
	extendedRcode int
}

// owned is a datum and the name that has it.
type owned struct {
	name string
	datum
	ttl time.Duration
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
