package security

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// hostileDNS is a nameserver over UDP and TCP whose answers a test chooses.
type hostileDNS struct {
	*lab.Machine
	resolvConf string // path of a file that names this nameserver

	mu      sync.Mutex
	answers map[string]answerFunc
	asked   map[string]int
}

// answerFunc gives the answer to question n about a name, from 0 on: it adds records to the reply
// and may change its code.
type answerFunc func(a *dnsReply, n int)

// dnsReply is a reply that an answerFunc fills in.
type dnsReply struct {
	dnsmessage.Message
	name string
	kind dnsmessage.Type
}

func newHostileDNS(h *harness.Test) *hostileDNS {
	h.T.Helper()
	machine, err := h.AddMachine("hostile-dns")
	if err != nil {
		h.T.Fatal(err)
	}
	d := &hostileDNS{
		Machine:    machine,
		answers:    map[string]answerFunc{},
		asked:      map[string]int{},
		resolvConf: filepath.Join(h.Logs, "resolv.conf"),
	}
	if err := os.WriteFile(d.resolvConf, fmt.Appendf(nil, "nameserver %s\n", machine.V4), 0o600); err != nil {
		h.T.Fatal(err)
	}
	d.serve(h.T)
	return d
}

// tell has the nameserver answerFunc about a name.
func (d *hostileDNS) setAnswer(name string, answer answerFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answers[name] = answer
}

// questions returns how often a name was asked for with a record type.
func (d *hostileDNS) questions(name string, kind dnsmessage.Type) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked[name+kind.String()]
}

// serve answers until the program ends.
func (d *hostileDNS) serve(t testing.TB) {
	t.Helper()
	packets, err := d.ListenPacket("udp", "[::]:53")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := d.Listen("tcp", "[::]:53")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		query := make([]byte, 4096)
		for {
			n, from, err := packets.ReadFrom(query)
			if err != nil {
				return
			}
			if answer := d.answer(query[:n]); answer != nil {
				_, _ = packets.WriteTo(answer, from)
			}
		}
	}()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go d.stream(conn)
		}
	}()
}

func (d *hostileDNS) stream(conn net.Conn) {
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Minute))
	for {
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		query := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, query); err != nil {
			return
		}
		answer := d.answer(query)
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// answer returns nil if query is not a DNS query.
func (d *hostileDNS) answer(query []byte) []byte {
	var p dnsmessage.Parser
	header, err := p.Start(query)
	if err != nil {
		return nil
	}
	question, err := p.Question()
	if err != nil {
		return nil
	}
	a := &dnsReply{name: strings.TrimSuffix(strings.ToLower(question.Name.String()), "."), kind: question.Type}
	a.Header = dnsmessage.Header{
		ID:                 header.ID,
		Response:           true,
		Authoritative:      true,
		RecursionDesired:   header.RecursionDesired,
		RecursionAvailable: true,
	}
	a.Questions = []dnsmessage.Question{question}
	d.mu.Lock()
	give, n := d.answers[a.name], d.asked[a.name+a.kind.String()]
	d.asked[a.name+a.kind.String()]++
	d.mu.Unlock()
	if give == nil {
		a.RCode = dnsmessage.RCodeNameError
	} else {
		give(a, n)
	}
	packed, err := a.Pack()
	if err != nil {
		return nil
	}
	return packed
}

// add adds the addresses of the family that was asked for, under a name.
func (a *dnsReply) add(name string, addrs ...netip.Addr) {
	for _, addr := range addrs {
		header := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name + "."), Class: dnsmessage.ClassINET}
		switch {
		case addr.Is4() && a.kind == dnsmessage.TypeA:
			a.Answers = append(a.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AResource{A: addr.As4()}})
		case addr.Is6() && a.kind == dnsmessage.TypeAAAA:
			a.Answers = append(a.Answers, dnsmessage.Resource{Header: header, Body: &dnsmessage.AAAAResource{AAAA: addr.As16()}})
		}
	}
}

// alias makes the name that was asked for an alias of another name.
func (a *dnsReply) alias(of string) {
	header := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(a.name + "."), Class: dnsmessage.ClassINET}
	a.Answers = append(a.Answers,
		dnsmessage.Resource{Header: header, Body: &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(of + ".")}})
}

// service adds an SRV record, and an address of its host that the question did not ask for.
func (a *dnsReply) service(host string, port uint16, glue netip.Addr) {
	if a.kind != dnsmessage.TypeSRV {
		return
	}
	header := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(a.name + "."), Class: dnsmessage.ClassINET}
	a.Answers = append(a.Answers, dnsmessage.Resource{
		Header: header,
		Body:   &dnsmessage.SRVResource{Port: port, Target: dnsmessage.MustNewName(host + ".")},
	})
	header.Name = dnsmessage.MustNewName(host + ".")
	body := dnsmessage.ResourceBody(&dnsmessage.AAAAResource{AAAA: glue.As16()})
	if glue.Is4() {
		body = &dnsmessage.AResource{A: glue.As4()}
	}
	a.Additionals = append(a.Additionals, dnsmessage.Resource{Header: header, Body: body})
}

// addressAnswer always gives these addresses.
func addressAnswer(addrs ...netip.Addr) answerFunc {
	return func(a *dnsReply, _ int) { a.add(a.name, addrs...) }
}

// failLookup answers with SERVFAIL.
func failLookup(a *dnsReply, _ int) { a.RCode = dnsmessage.RCodeServerFailure }
