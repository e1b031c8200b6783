package resolve

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
)

const testID = 0x1234

// message builds an answer to (testID, question) with records in zone-file form. A line "--" begins
// the next section.
func message(t testing.TB, question string, qt qtype, code int, lines ...string) *dns.Msg {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(question, uint16(qt))
	m.Id, m.Response, m.Rcode = testID, true, code
	sections := []*[]dns.RR{&m.Answer, &m.Ns, &m.Extra}
	for _, line := range lines {
		if line == "--" {
			sections = sections[1:]
			continue
		}
		rr, err := dns.NewRR(line)
		if err != nil {
			t.Fatal(err)
		}
		*sections[0] = append(*sections[0], rr)
	}
	return m
}

func packed(t testing.TB, m *dns.Msg) []byte {
	t.Helper()
	m.Compress = true
	raw, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// An answer is the data, the denial or the alias at the end of the alias chain, or an error.
func TestDecodeReadsAnswers(t *testing.T) {
	const q = "a.example.com."
	chain := func(n int) (lines []string) {
		name := q
		for i := range n {
			next := fmt.Sprintf("c%d.example.com.", i)
			lines = append(lines, fmt.Sprintf("%s %d CNAME %s", name, 100+n-i, next))
			name = next
		}
		return lines
	}
	soa := "example.com. 60 SOA ns. host. 1 2 3 4 20"
	for _, c := range []struct {
		desc  string
		qt    qtype
		code  int
		lines []string
		want  string // addresses or services, TTL in seconds, alias; or the error
	}{
		{"records in any order", typeA, 0, []string{q + " 30 A 192.0.2.2", q + " 20 A 192.0.2.1", q + " 40 A 192.0.2.2"},
			"192.0.2.1 192.0.2.2 ttl 20"},
		{"IPv6", typeAAAA, 0, []string{q + " 30 AAAA 2001:db8::1", q + " 30 AAAA ::ffff:192.0.2.1"},
			"::ffff:192.0.2.1 2001:db8::1 ttl 30"},
		{"another case", typeA, 0, []string{"A.eXample.COM. 30 A 192.0.2.1"}, "192.0.2.1 ttl 30"},
		{"alias", typeA, 0, []string{"B.example.com. 30 A 192.0.2.1", q + " 20 CNAME b.Example.com."}, "192.0.2.1 ttl 20"},
		{"sixteen aliases", typeA, 0, append(chain(16), "c15.example.com. 999 A 192.0.2.1"), "192.0.2.1 ttl 101"},
		{"seventeen aliases", typeA, 0, append(chain(17), "c16.example.com. 999 A 192.0.2.1"), "alias loop"},
		{"alias to itself", typeA, 0, []string{q + " 20 CNAME a.example.com."}, "alias loop"},
		{"aliases in a circle", typeA, 0, []string{q + " 20 CNAME b.", "b. 20 CNAME a.example.com."}, "alias loop"},
		{"two aliases of one name", typeA, 0, []string{q + " 20 CNAME b.", q + " 20 CNAME c.", "b. 20 A 192.0.2.1"},
			"malformed answer"},
		{"alias whose end another server knows", typeA, 0, []string{q + " 20 CNAME b.example.net."},
			" ttl 20 alias b.example.net"},
		{"the same with a foreign SOA", typeA, 0, []string{q + " 20 CNAME b.example.net.", "--", soa},
			" ttl 20 alias b.example.net"},
		{"alias to nothing", typeA, 0, []string{q + " 300 CNAME b.example.com.", "--", soa}, " ttl 20"},
		{"alias to a name that does not exist", typeA, 3, []string{q + " 10 CNAME b.example.com.", "--", soa},
			"NXDOMAIN ttl 10"},
		{"empty", typeA, 0, []string{"--", soa}, " ttl 20"},
		{"empty, TTL of the SOA itself", typeA, 0, []string{"--", "example.com. 5 SOA ns. host. 1 2 3 4 20"}, " ttl 5"},
		{"empty without SOA", typeA, 0, nil, " ttl 30"},
		{"NXDOMAIN", typeA, 3, []string{"--", soa}, "NXDOMAIN ttl 20"},
		{"NXDOMAIN with records", typeA, 3, []string{q + " 20 A 192.0.2.1"}, "malformed answer"},
		{"SERVFAIL with records", typeA, 2, []string{q + " 20 A 192.0.2.1"}, "SERVFAIL ttl 0"},
		{"another name", typeA, 0, []string{"b.example.com. 20 A 192.0.2.1"}, "malformed answer"},
		{"another name beside the right one", typeA, 0, []string{"b.example.com. 1 A 192.0.2.1", q + " 20 A 192.0.2.2"},
			"192.0.2.2 ttl 20"},
		{"another name in the additional section", typeA, 0,
			[]string{q + " 20 A 192.0.2.2", "--", "--", q + " 20 A 192.0.2.66"}, "192.0.2.2 ttl 20"},
		{"another type", typeAAAA, 0, []string{q + " 20 A 192.0.2.1"}, "malformed answer"},
		{"another class", typeA, 0, []string{q + " 20 CH A 192.0.2.1"}, "malformed answer"},
		{"signatures", typeA, 0,
			[]string{q + " 20 A 192.0.2.1", q + " 1 RRSIG A 8 2 20 20300101000000 20200101000000 1 example.com. aaaa"},
			"192.0.2.1 ttl 20"},
		{"TTL with the top bit", typeA, 0, []string{q + " 2147483648 A 192.0.2.1"}, "192.0.2.1 ttl 0"},
		{"services", typeSRV, 0, []string{q + " 20 SRV 2 9 81 B.example.com.", q + " 20 SRV 1 9 80 c.example.com.",
			q + " 20 SRV 1 9 81 b.example.com."}, "b.example.com:81/1 c.example.com:80/1 ttl 20"},
		{"no service here", typeSRV, 0, []string{q + " 20 SRV 0 0 0 ."}, "NXDOMAIN ttl 20"},
		{"no service here, with an SOA", typeSRV, 0,
			[]string{q + " 20 SRV 0 0 0 .", "--", "example.com. 60 SOA ns. host. 1 2 3 4 5"}, "NXDOMAIN ttl 20"},
		{"no service behind an alias", typeSRV, 0, []string{q + " 10 CNAME b.example.com.", "b.example.com. 20 SRV 0 0 0 ."},
			"NXDOMAIN ttl 10"},
		{"no service beside a service", typeSRV, 0, []string{q + " 20 SRV 0 0 0 .", q + " 20 SRV 1 9 80 b.example.com."},
			"b.example.com:80/1 ttl 20"},
		{"no service of a name that does not exist", typeSRV, 3, []string{q + " 20 SRV 0 0 0 ."}, "malformed answer"},
	} {
		t.Run(c.desc, func(t *testing.T) {
			raw := packed(t, message(t, q, c.qt, c.code, c.lines...))
			if got := inOneLine(decode(raw, testID, "a.example.com", c.qt)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// inOneLine returns an answer as one line of text.
func inOneLine(a answer, err error) string {
	if err != nil {
		for _, known := range []error{errMalformed, errNotOurs, errAliasLoop} {
			if errors.Is(err, known) {
				return known.Error()
			}
		}
		return err.Error()
	}
	if a.truncated {
		return "truncated"
	}
	var parts []string
	for _, d := range a.data {
		if d.ip.IsValid() {
			parts = append(parts, d.ip.String())
		} else {
			parts = append(parts, fmt.Sprintf("%s:%d/%d", d.host, d.port, d.priority))
		}
	}
	if a.rcode != 0 {
		parts = append(parts, rcodeName(a.rcode))
	}
	s := fmt.Sprintf("%s ttl %d", strings.Join(parts, " "), int(a.ttl/time.Second))
	if a.alias != "" {
		s += " alias " + a.alias
	}
	return s
}

// A message that is cut, extended or changed in one place is rejected, or means what it says.
func TestDecodeRejectsManipulatedMessages(t *testing.T) {
	good := func(t *testing.T) []byte {
		m := message(t, "a.example.com.", typeA, 0, "a.example.com. 30 A 192.0.2.1", "a.example.com. 30 A 192.0.2.2")
		m.SetEdns0(1232, false)
		return packed(t, m)
	}
	count := func(section, by int) func([]byte) []byte {
		return func(raw []byte) []byte {
			n := raw[4+2*section:]
			binary.BigEndian.PutUint16(n, uint16(int(binary.BigEndian.Uint16(n))+by))
			return raw
		}
	}
	at := func(i int, b ...byte) func([]byte) []byte {
		return func(raw []byte) []byte { return slices.Replace(raw, i, i+len(b), b...) }
	}
	const firstRecord = 12 + 15 + 4
	for _, c := range []struct {
		desc   string
		mangle func([]byte) []byte
		want   string
	}{
		{"none", func(raw []byte) []byte { return raw }, "192.0.2.1 192.0.2.2 ttl 30"},
		{"nothing", func([]byte) []byte { return nil }, errNotOurs.Error()},
		{"half a header", func(raw []byte) []byte { return raw[:11] }, errNotOurs.Error()},
		{"a header alone", func(raw []byte) []byte { return raw[:12] }, "malformed answer"},
		{"cut in a record", func(raw []byte) []byte { return raw[:len(raw)-20] }, "malformed answer"},
		{"another id", at(0, 0), errNotOurs.Error()},
		{"a query", at(2, 1), errNotOurs.Error()},
		{"another opcode", at(2, 0x80|2<<3), "malformed answer"},
		{"another name", at(13, 'b'), errNotOurs.Error()},
		{"another type", at(12+15, 0, 28), errNotOurs.Error()},
		{"another class", at(12+17, 0, 3), errNotOurs.Error()},
		{"the question in another case", at(13, 'A'), "192.0.2.1 192.0.2.2 ttl 30"},
		{"no question", count(0, -1), "malformed answer"},
		{"two questions", count(0, 1), "malformed answer"},
		{"more answers than there are", count(1, 1), "malformed answer"},
		{"fewer answers than there are", count(1, -1), "malformed answer"},
		{"65,000 answers", count(1, 65000), "malformed answer"},
		{"more in the additional section", count(3, 1), "malformed answer"},
		{"less in the additional section", count(3, -1), "malformed answer"},
		{"bytes behind the end", func(raw []byte) []byte { return append(raw, 0) }, "malformed answer"},
		{"truncated", at(2, 0x82), "truncated"},
		{"a pointer to itself", at(firstRecord, 0xC0, firstRecord), "malformed answer"},
		{"a pointer behind the end", at(firstRecord, 0xFF, 0xFF), "malformed answer"},
		{"a reserved label", at(firstRecord, 0x80, 0), "malformed answer"},
		{"an address of 3 bytes", at(firstRecord+11, 3), "malformed answer"},
		{"an address without bytes", func(raw []byte) []byte {
			return slices.Delete(at(firstRecord+11, 0)(raw), firstRecord+12, firstRecord+16)
		}, "malformed answer"},
		{"OPT with garbage", func(raw []byte) []byte { raw[len(raw)-1] = 3; return append(raw, 1, 2, 3) },
			"malformed answer"},
		{"OPT twice", func(raw []byte) []byte { return count(3, 1)(append(raw, raw[len(raw)-11:]...)) }, "malformed answer"},
		{"OPT with a name", func(raw []byte) []byte {
			return slices.Replace(raw, len(raw)-11, len(raw)-10, 1, 'x', 0)
		}, "malformed answer"},
		{"OPT among the answers", func(raw []byte) []byte { return count(1, 1)(count(3, -1)(raw)) }, "malformed answer"},
		{"BADVERS", func(raw []byte) []byte { raw[len(raw)-6] = 1; return raw }, "BADVERS ttl 0"},
		{"refused without repeating the question", func(raw []byte) []byte {
			return []byte{raw[0], raw[1], 0x80, refused, 0, 0, 0, 0, 0, 0, 0, 0}
		}, "REFUSED ttl 0"},
		{"success without repeating the question", func(raw []byte) []byte {
			return []byte{raw[0], raw[1], 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0}
		}, "malformed answer"},
	} {
		t.Run(c.desc, func(t *testing.T) {
			if got := inOneLine(decode(c.mangle(good(t)), testID, "a.example.com", typeA)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// As many records as 65,535 bytes hold are read, and names that unfold to a hundred times the
// message's size do no harm.
func TestDecodeReadsTheLargestMessages(t *testing.T) {
	m := message(t, "a.example.com.", typeA, 0)
	for i := range 4000 {
		m.Answer = append(m.Answer, &dns.A{
			Hdr: dns.RR_Header{Name: "a.example.com.", Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 30},
			A:   netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}).AsSlice(),
		})
	}
	raw := packed(t, m)
	a, err := decode(raw, testID, "a.example.com", typeA)
	if err != nil || len(a.data) != 4000 {
		t.Errorf("%d records, %v", len(a.data), err)
	}

	long := strings.Repeat(strings.Repeat("x", 60)+".", 4)
	bomb := packed(t, message(t, "a.example.com.", typeA, 0, "a.example.com. 30 CNAME "+long))
	target := len(bomb) - len(long) - 1
	for len(bomb) < 65535-12 { // each a long name for two bytes, and an alias to it
		pointer := []byte{0xC0 | byte(target>>8), byte(target)}
		bomb = slices.Concat(bomb, pointer, []byte{0, 5, 0, 1, 0, 0, 0, 30, 0, 2}, pointer)
		bomb = bomb[:min(len(bomb), 65535)]
		binary.BigEndian.PutUint16(bomb[6:], binary.BigEndian.Uint16(bomb[6:])+1)
	}
	if got := inOneLine(decode(bomb, testID, "a.example.com", typeA)); got != "alias loop" && got != "malformed answer" {
		t.Error(got)
	}
}

// A packed query asks the question with EDNS0, and each has a random id.
func TestPackedQueriesAreValid(t *testing.T) {
	raw, id, err := pack("a.example.com", typeSRV, true)
	if err != nil {
		t.Fatal(err)
	}
	var m dns.Msg
	if err := m.Unpack(raw); err != nil {
		t.Fatal(err)
	}
	if m.Id != id || !m.RecursionDesired ||
		m.Question[0] != (dns.Question{Name: "a.example.com.", Qtype: dns.TypeSRV, Qclass: dns.ClassINET}) ||
		m.IsEdns0().UDPSize() != 1232 {
		t.Errorf("packed %v", &m)
	}
	if _, _, err := pack(strings.Repeat("x", 64)+".example.com", typeA, true); err == nil {
		t.Error("a label of 64 bytes can be asked for")
	}
	ids := map[uint16]bool{}
	for range 100 {
		_, id, _ := pack("a.example.com", typeA, false)
		ids[id] = true
	}
	if len(ids) < 90 {
		t.Errorf("%d different ids in 100 queries", len(ids))
	}
}

// FuzzDecode gives raw bytes to decode. What decode accepts must be in the message as the library
// reads it, under the name of the question or of an alias.
func FuzzDecode(f *testing.F) {
	for _, lines := range [][]string{
		nil,
		{"a.example.com. 30 A 192.0.2.1", "a.example.com. 30 A 192.0.2.2"},
		{"a.example.com. 30 CNAME b.example.com.", "b.example.com. 30 A 192.0.2.1", "--",
			"example.com. 5 SOA ns. host. 1 2 3 4 20"},
		{"a.example.com. 30 CNAME b.", "b. 30 CNAME c.", "c. 30 CNAME a.example.com."},
		{"a.example.com. 30 AAAA 2001:db8::1"},
		{"a.example.com. 30 SRV 1 2 3 b.example.com.", "a.example.com. 30 SRV 1 2 3 .", "--", "--",
			"b.example.com. 30 A 192.0.2.1"},
	} {
		for i, qt := range []qtype{typeA, typeAAAA, typeSRV} {
			m := message(f, "a.example.com.", qt, 0, lines...)
			m.SetEdns0(1232, false)
			f.Add(packed(f, m), uint8(i))
		}
	}
	f.Fuzz(func(t *testing.T, raw []byte, which uint8) {
		qt := []qtype{typeA, typeAAAA, typeSRV}[which%3]
		if len(raw) >= 2 {
			binary.BigEndian.PutUint16(raw, testID)
		}
		a, err := decode(raw, testID, "a.example.com", qt)
		if again, err2 := decode(raw, testID, "a.example.com", qt); inOneLine(a, err) != inOneLine(again, err2) {
			t.Fatalf("%s, then %s", inOneLine(a, err), inOneLine(again, err2))
		}
		if err != nil || len(a.data) == 0 {
			return
		}
		if a.rcode != 0 || a.ttl < 0 || a.alias != "" || a.truncated || !slices.IsSortedFunc(a.data, compareData) {
			t.Fatalf("answer %+v", a)
		}
		var m dns.Msg
		if err := m.Unpack(raw); err != nil {
			return // the library also reads the contents of records that decode ignores
		}
		for _, d := range a.data {
			if !slices.ContainsFunc(m.Answer, func(rr dns.RR) bool { return isRecord(rr, d, &m) }) {
				t.Fatalf("%+v is not in %v", d, &m)
			}
		}
	})
}

// isRecord reports whether the record has this content, and the name of the question or of an
// alias.
func isRecord(rr dns.RR, d datum, m *dns.Msg) bool {
	led := plain(rr.Header().Name) == "a.example.com" || slices.ContainsFunc(m.Answer, func(c dns.RR) bool {
		cname, ok := c.(*dns.CNAME)
		return ok && plain(cname.Target) == plain(rr.Header().Name)
	})
	if !led || rr.Header().Class != dns.ClassINET {
		return false
	}
	switch rr := rr.(type) {
	case *dns.A:
		ip, _ := netip.AddrFromSlice(rr.A.To4())
		return ip == d.ip
	case *dns.AAAA:
		ip, _ := netip.AddrFromSlice(rr.AAAA.To16())
		return ip == d.ip
	case *dns.SRV:
		return plain(rr.Target) == d.host && rr.Port == d.port && rr.Priority == d.priority
	}
	return false
}
