package resolve

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
)

// This file alone knows the DNS library. The library packs queries and unpacks names and records;
// what a message may say is decided here and in answer.go.

// qtype is a DNS record type that is asked for.
type qtype uint16

const (
	typeA    = qtype(dns.TypeA)
	typeAAAA = qtype(dns.TypeAAAA)
	typeSRV  = qtype(dns.TypeSRV)
)

const (
	headerBytes = 12
	ednsBytes   = 1232 // a message of this size passes any path unfragmented (DNS flag day 2020)

	rcodeNameError = dns.RcodeNameError // NXDOMAIN
)

// Errors of decode.
var (
	// errNotOurs means that the bytes answer another query, or are no answer. Such a datagram may be
	// forged.
	errNotOurs   = errors.New("not an answer to this query")
	errMalformed = errors.New("malformed answer")
	errAliasLoop = errors.New("alias loop")
)

// query is what a server is asked for.
type query struct {
	name string
	t    qtype
}

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

// pack builds a query. Servers that don't know EDNS0 understand one without edns.
func pack(name string, t qtype, edns bool) (msg []byte, id uint16, err error) {
	m := new(dns.Msg)
	m.SetQuestion(dns.Fqdn(name), uint16(t))
	if edns {
		m.SetEdns0(ednsBytes, false)
	}
	msg, err = m.Pack()
	return msg, m.Id, err
}

// rcodeName returns the name of a response code. The set of names is bounded.
func rcodeName(rcode int) string {
	if rcode == dns.RcodeBadVers { // the library's table has the meaning that its number has in signatures
		return "BADVERS"
	}
	if s, ok := dns.RcodeToString[rcode]; ok {
		return s
	}
	return "unknown response code"
}

// checkQuestion checks that the message repeats the question, and returns the offset behind the
// question section.
func checkQuestion(raw []byte, name string, t qtype, rcode int) (int, error) {
	questions := binary.BigEndian.Uint16(raw[4:])
	if questions == 0 && !decisive(rcode) { // some servers refuse without repeating the question
		return headerBytes, nil
	}
	if questions != 1 {
		return 0, errMalformed
	}

	asked, off, err := dns.UnpackDomainName(raw, headerBytes)
	if err != nil || off+4 > len(raw) {
		return 0, errMalformed
	}
	rrtype, rrclass := binary.BigEndian.Uint16(raw[off:]), binary.BigEndian.Uint16(raw[off+2:])
	if plain(asked) != name || rrtype != uint16(t) || rrclass != dns.ClassINET {
		return 0, errNotOurs
	}
	return off + 4, nil
}

// plain returns a name of a message in the form of this package: lower case, no trailing dot.
func plain(name string) string {
	return strings.ToLower(strings.TrimSuffix(name, "."))
}

// read reads all records from the offset behind the question section.
func (s *sections) read(raw []byte, off int) (err error) {
	for section := range 3 {
		for range binary.BigEndian.Uint16(raw[6+2*section:]) {
			if off, err = s.readRecord(raw, off, section); err != nil {
				return err
			}
		}
	}
	if off != len(raw) {
		return fmt.Errorf("%w: bytes behind the last record", errMalformed)
	}
	return nil
}

// readRecord reads one record and returns the offset behind it.
func (s *sections) readRecord(raw []byte, off, section int) (end int, err error) {
	h, err := readHeader(raw, off)
	if err != nil {
		return 0, err
	}
	if h.rrtype == dns.TypeOPT {
		if s.hasOptions || section != 2 || raw[off] != 0 { // RFC 6891 section 6.1.1
			return 0, errMalformed
		}
		s.hasOptions = true
	}
	if !relevant(section, h.rrtype) {
		return h.end, nil
	}
	rr, end, err := dns.UnpackRR(raw[:h.end], off)
	if err != nil || end != h.end {
		return 0, errMalformed
	}
	return end, s.add(section, rr, h)
}

// relevant reports whether records of the type matter in the section.
func relevant(section int, rrtype uint16) bool {
	switch rrtype {
	case dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypeCNAME:
		return section == 0
	case dns.TypeSOA:
		return section == 1
	}
	return rrtype == dns.TypeOPT
}

// recordHeader holds a record's type and class, and where it ends.
type recordHeader struct {
	rrtype, rrclass uint16
	bytes           int // of its data
	end             int
}

func readHeader(raw []byte, off int) (recordHeader, error) {
	for { // the name: labels up to the root or a pointer
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
		rrtype:  binary.BigEndian.Uint16(raw[off:]),
		rrclass: binary.BigEndian.Uint16(raw[off+2:]),
		bytes:   int(binary.BigEndian.Uint16(raw[off+8:])),
	}
	h.end = off + 10 + h.bytes
	if h.end > len(raw) {
		return recordHeader{}, errMalformed
	}
	return h, nil
}

// add notes a record.
func (s *sections) add(section int, rr dns.RR, h recordHeader) error {
	if h.bytes == 0 && section < 2 { // the library takes this for the placeholder of a dynamic update
		return errMalformed
	}

	r := owned{name: plain(rr.Header().Name), ttl: ttlOf(rr.Header().Ttl)}
	switch rr := rr.(type) {
	case *dns.OPT:
		s.extendedRcode = rr.ExtendedRcode()
		return nil
	case *dns.SOA:
		r.ttl = min(r.ttl, ttlOf(rr.Minttl)) // RFC 2308 section 5
		s.soa = append(s.soa, r)
		return nil
	case *dns.CNAME:
		r.host = plain(rr.Target)
	case *dns.A:
		r.ip = netip.AddrFrom4([4]byte(rr.A.To4()))
	case *dns.AAAA:
		r.ip = netip.AddrFrom16([16]byte(rr.AAAA.To16()))
	case *dns.SRV:
		r.host, r.port, r.priority = plain(rr.Target), rr.Port, rr.Priority
	}

	switch {
	case h.rrclass == dns.ClassINET && h.rrtype == dns.TypeCNAME:
		s.aliases = append(s.aliases, r)
	case h.rrclass == dns.ClassINET && h.rrtype == uint16(s.t):
		s.records = append(s.records, r)
	default:
		s.stray = true
	}
	return nil
}

// ttlOf reads a TTL. One with the top bit set is zero (RFC 2181 section 8).
func ttlOf(seconds uint32) time.Duration {
	if seconds > 1<<31-1 {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// decisive reports whether a server with this response code has answered the question.
func decisive(rcode int) bool { return rcode == dns.RcodeSuccess || rcode == dns.RcodeNameError }

// exists reports whether a decisive response code means that the name exists.
func exists(rcode int) bool { return rcode == dns.RcodeSuccess }

// intolerant reports whether a server that doesn't know EDNS0 may have this response code for it
// (RFC 6891 section 7).
func intolerant(rcode int) bool {
	return rcode == dns.RcodeFormatError || rcode == dns.RcodeNotImplemented || rcode == dns.RcodeBadVers
}

// nameserverLines returns the first argument of each nameserver line of a resolv.conf(5).
func nameserverLines(r io.Reader) []string {
	config, err := dns.ClientConfigFromReader(r)
	if err != nil {
		return nil
	}
	return config.Servers
}
