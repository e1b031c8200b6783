package resolve

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// This file alone knows the DNS library: names, records and packing come from it, the judgement of
// what an answer may say is made here.

// qtype is a DNS record type that is asked for.
type qtype uint16

const (
	typeA    = qtype(dns.TypeA)
	typeAAAA = qtype(dns.TypeAAAA)
	typeSRV  = qtype(dns.TypeSRV)
)

const (
	headerBytes = 12
	ednsBytes   = 1232 // what passes any path unfragmented (DNS flag day 2020)
	maxAliases  = 16   // CNAMEs from a name to its records

	// noSOATTL is for denials that don't say how long they hold (RFC 2308 section 5).
	noSOATTL = 30 * time.Second
)

// Errors of decode.
var (
	// errNotOurs: the bytes answer another query, or are no answer. A forger can send such; over
	// UDP the wait goes on.
	errNotOurs   = errors.New("not an answer to this query")
	errMalformed = errors.New("malformed answer")
	errAliasLoop = errors.New("alias loop")
)

// answer is what one message says about one name and type.
type answer struct {
	rcode     int
	truncated bool
	data      []datum       // records of the type at the end of the alias chain; sorted, each once
	ttl       time.Duration // smallest of the chain; of a denial: how long that holds (RFC 2308)
	alias     string        // the chain ends here, and the message doesn't say what is there: ask on
}

// datum is the content of one record: an address, or a host and port of a service.
type datum struct {
	ip       netip.Addr // A, AAAA
	host     string     // SRV: lower case, no trailing dot
	port     uint16
	priority uint16
}

// compareData orders by all that tells two records of a set apart; a service's priority does not.
func compareData(a, b datum) int {
	if c := a.ip.Compare(b.ip); c != 0 {
		return c
	}
	if c := strings.Compare(a.host, b.host); c != 0 {
		return c
	}
	return int(a.port) - int(b.port)
}

// pack builds a query. Without edns it is one that the oldest servers understand.
func pack(name string, t qtype, edns bool) (msg []byte, id uint16, err error) {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), uint16(t))
	if edns {
		m.SetEdns0(ednsBytes, false)
	}
	msg, err = m.Pack()
	return msg, m.Id, err
}

// rcodeName is the word for a response code, of a bounded set.
func rcodeName(rcode int) string {
	if rcode == dns.RcodeBadVers { // its number means something else in signatures, and the library's table
		return "BADVERS"
	}
	if s, ok := dns.RcodeToString[rcode]; ok {
		return s
	}
	return "unknown response code"
}

// decode reads the answer to a query (id, name, t) from raw bytes, which may come from anyone:
//  1. header and question must be those of the query;
//  2. every record of every section must lie inside the message, and the message end with the last;
//  3. records of the answer section that lie on the alias chain of the name count, others don't;
//  4. what the chain leads to is data, a denial, or the next name to ask.
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
		return a, nil // nothing in it can be relied on (RFC 2181 section 9)
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

// checkQuestion returns the offset behind the question section.
func checkQuestion(raw []byte, name string, t qtype, rcode int) (int, error) {
	switch binary.BigEndian.Uint16(raw[4:]) {
	case 1:
	case 0: // some servers refuse without repeating what they were asked
		if !decisive(rcode) {
			return headerBytes, nil
		}
		return 0, errMalformed
	default:
		return 0, errMalformed
	}
	asked, off, err := dns.UnpackDomainName(raw, headerBytes)
	if err != nil || off+4 > len(raw) {
		return 0, errMalformed
	}
	if plain(asked) != name || binary.BigEndian.Uint16(raw[off:]) != uint16(t) || binary.BigEndian.Uint16(raw[off+2:]) != dns.ClassINET {
		return 0, errNotOurs
	}
	return off + 4, nil
}

// plain turns a name of the wire into the form of this package: lower case, no trailing dot.
func plain(name string) string {
	return strings.ToLower(strings.TrimSuffix(name, "."))
}

// sections holds what of a message's sections can matter.
type sections struct {
	t             qtype
	records       []owned // of the asked type
	aliases       []owned // CNAMEs: datum.host is the target
	stray         bool    // an address, service or alias of another type or class
	soa           []owned // of the authority section; ttl is the denial's
	extendedRcode int
}

// owned is a datum with the name it was given for.
type owned struct {
	name string
	datum
	ttl time.Duration
}

func (s *sections) read(raw []byte, off int) error {
	options := 0
	for section := range 3 {
		for range binary.BigEndian.Uint16(raw[6+2*section:]) {
			h, err := readHeader(raw, off)
			if err != nil {
				return err
			}
			switch {
			case section == 0 && relevant(h.rrtype), section == 1 && h.rrtype == dns.TypeSOA, section == 2 && h.rrtype == dns.TypeOPT:
				rr, end, err := dns.UnpackRR(raw[:h.end], off)
				if err != nil || end != h.end {
					return errMalformed
				}
				if err := s.add(section, rr, h); err != nil {
					return err
				}
			}
			if h.rrtype == dns.TypeOPT {
				if options++; options > 1 || section != 2 || raw[off] != 0 { // RFC 6891 section 6.1.1
					return errMalformed
				}
			}
			off = h.end
		}
	}
	if off != len(raw) {
		return fmt.Errorf("%w: bytes behind the last record", errMalformed)
	}
	return nil
}

func relevant(rrtype uint16) bool {
	switch rrtype {
	case dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeCNAME:
		return true
	}
	return false
}

// recordHeader is where a record ends and what it is.
type recordHeader struct {
	rrtype, class uint16
	bytes         int // of its data
	end           int
}

func readHeader(raw []byte, off int) (recordHeader, error) {
	for { // the owner's name: labels up to a root or a pointer
		if off >= len(raw) {
			return recordHeader{}, errMalformed
		}
		n := int(raw[off])
		if n >= 0xC0 {
			off += 2
			break
		}
		if n >= 0x40 { // reserved
			return recordHeader{}, errMalformed
		}
		off += 1 + n
		if n == 0 {
			break
		}
	}
	if off+10 > len(raw) {
		return recordHeader{}, errMalformed
	}
	h := recordHeader{
		rrtype: binary.BigEndian.Uint16(raw[off:]),
		class:  binary.BigEndian.Uint16(raw[off+2:]),
		bytes:  int(binary.BigEndian.Uint16(raw[off+8:])),
	}
	h.end = off + 10 + h.bytes
	if h.end > len(raw) {
		return recordHeader{}, errMalformed
	}
	return h, nil
}

func (s *sections) add(section int, rr dns.RR, h recordHeader) error {
	if h.bytes == 0 && section < 2 { // the library reads it as an update's placeholder
		return errMalformed
	}
	if opt, ok := rr.(*dns.OPT); ok {
		s.extendedRcode = opt.ExtendedRcode()
		return nil
	}
	r := owned{name: plain(rr.Header().Name), ttl: ttlOf(rr.Header().Ttl)}
	if soa, ok := rr.(*dns.SOA); ok {
		r.ttl = min(r.ttl, ttlOf(soa.Minttl)) // RFC 2308 section 5
		s.soa = append(s.soa, r)
		return nil
	}
	if cname, ok := rr.(*dns.CNAME); ok && h.class == dns.ClassINET {
		r.host = plain(cname.Target)
		s.aliases = append(s.aliases, r)
		return nil
	}
	if h.rrtype != uint16(s.t) || h.class != dns.ClassINET {
		s.stray = true
		return nil
	}
	switch rr := rr.(type) {
	case *dns.A:
		r.ip = netip.AddrFrom4([4]byte(rr.A.To4()))
	case *dns.AAAA:
		r.ip = netip.AddrFrom16([16]byte(rr.AAAA.To16()))
	case *dns.SRV:
		r.host, r.port, r.priority = plain(rr.Target), rr.Port, rr.Priority
	}
	s.records = append(s.records, r)
	return nil
}

// ttlOf reads a TTL; one with the top bit set is zero (RFC 2181 section 8).
func ttlOf(seconds uint32) time.Duration {
	if seconds > 1<<31-1 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// conclude follows the aliases from name and fills a with what they lead to.
func (s *sections) conclude(name string, a *answer) error {
	end, ttl, hops, err := s.follow(name)
	if err != nil {
		return err
	}
	a.ttl = ttl
	unavailable := false
	for _, r := range s.records {
		if r.name != end {
			s.stray = true
			continue
		}
		a.ttl = min(a.ttl, r.ttl)
		if r.host == "" && s.t == typeSRV { // target ".": the service is decidedly not available (RFC 2782)
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
		a.rcode = dns.RcodeNameError
		return nil
	}
	if hops == 0 && s.stray {
		return errMalformed // it answers something, but not what was asked
	}
	for _, soa := range s.soa {
		if within(end, soa.name) {
			a.ttl = min(a.ttl, soa.ttl)
			return nil
		}
	}
	if hops > 0 && exists(a.rcode) {
		a.alias = end
		return nil
	}
	a.ttl = min(a.ttl, noSOATTL)
	return nil
}

// follow walks the aliases from name to their end and tells the smallest TTL on the way.
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

// within says whether name is zone or below it.
func within(name, zone string) bool {
	return zone == "" || name == zone || strings.HasSuffix(name, "."+zone)
}

// unique sorts records and leaves one of each; of a host and port with several priorities the
// first.
func unique(data []datum) []datum {
	slices.SortFunc(data, func(a, b datum) int {
		if c := compareData(a, b); c != 0 {
			return c
		}
		return int(a.priority) - int(b.priority)
	})
	return slices.CompactFunc(data, func(a, b datum) bool { return compareData(a, b) == 0 })
}

// decisive says whether a server with this response code has answered the question.
func decisive(rcode int) bool { return rcode == dns.RcodeSuccess || rcode == dns.RcodeNameError }

// exists says whether a decisive response code speaks of a name that exists.
func exists(rcode int) bool { return rcode == dns.RcodeSuccess }

// intolerant says whether a server that doesn't know EDNS0 would answer with this response code to
// it (RFC 6891 section 7).
func intolerant(rcode int) bool {
	return rcode == dns.RcodeFormatError || rcode == dns.RcodeNotImplemented || rcode == dns.RcodeBadVers
}
