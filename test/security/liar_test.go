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

// liar is a nameserver that answers what a test has it answer, over UDP and TCP.
type liar struct {
	*lab.Machine
	resolvConf string // a file that names it

	mu    sync.Mutex
	lies  map[string]lie
	asked map[string]int
}

// lie answers question n, from 0 on, about a name: it adds records to an answer, and may change its
// code.
type lie func(a *reply, n int)

// reply is an answer in the making.
type reply struct {
	dnsmessage.Message
	name string
	kind dnsmessage.Type
}

func newLiar(h *harness.Test) *liar {
	h.T.Helper()
	machine, err := h.AddMachine("liar")
	if err != nil {
		h.T.Fatal(err)
	}
	l := &liar{
		Machine:    machine,
		lies:       map[string]lie{},
		asked:      map[string]int{},
		resolvConf: filepath.Join(h.Logs, "resolv.conf"),
	}
	if err := os.WriteFile(l.resolvConf, fmt.Appendf(nil, "nameserver %s\n", machine.V4), 0o600); err != nil {
		h.T.Fatal(err)
	}
	l.serve(h.T)
	return l
}

// tell has the nameserver lie about a name.
func (l *liar) tell(name string, how lie) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lies[name] = how
}

// questions are how often a name was asked for with a type.
func (l *liar) questions(name string, kind dnsmessage.Type) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.asked[name+kind.String()]
}

// serve answers until the program ends.
func (l *liar) serve(t testing.TB) {
	t.Helper()
	packets, err := l.ListenPacket("udp", "[::]:53")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := l.Listen("tcp", "[::]:53")
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
			if answer := l.answer(query[:n]); answer != nil {
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
			go l.stream(conn)
		}
	}()
}

func (l *liar) stream(conn net.Conn) {
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
		answer := l.answer(query)
		if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(answer))), answer...)); err != nil {
			return
		}
	}
}

// answer is nil where the query is none.
func (l *liar) answer(query []byte) []byte {
	var p dnsmessage.Parser
	header, err := p.Start(query)
	if err != nil {
		return nil
	}
	question, err := p.Question()
	if err != nil {
		return nil
	}
	a := &reply{name: strings.TrimSuffix(strings.ToLower(question.Name.String()), "."), kind: question.Type}
	a.Header = dnsmessage.Header{
		ID:                 header.ID,
		Response:           true,
		Authoritative:      true,
		RecursionDesired:   header.RecursionDesired,
		RecursionAvailable: true,
	}
	a.Questions = []dnsmessage.Question{question}
	l.mu.Lock()
	how, n := l.lies[a.name], l.asked[a.name+a.kind.String()]
	l.asked[a.name+a.kind.String()]++
	l.mu.Unlock()
	if how == nil {
		a.RCode = dnsmessage.RCodeNameError
	} else {
		how(a, n)
	}
	packed, err := a.Pack()
	if err != nil {
		return nil
	}
	return packed
}

// add adds the addresses whose family was asked for, under a name.
func (a *reply) add(name string, addrs ...netip.Addr) {
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

// alias makes the asked name another's alias.
func (a *reply) alias(of string) {
	header := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(a.name + "."), Class: dnsmessage.ClassINET}
	a.Answers = append(a.Answers,
		dnsmessage.Resource{Header: header, Body: &dnsmessage.CNAMEResource{CNAME: dnsmessage.MustNewName(of + ".")}})
}

// service adds an SRV record, with an address of its host beside it that nobody asked for.
func (a *reply) service(host string, port uint16, glue netip.Addr) {
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

// truth is the lie that always gives these addresses.
func truth(addrs ...netip.Addr) lie {
	return func(a *reply, _ int) { a.add(a.name, addrs...) }
}

// silence is the lie that fails.
func silence(a *reply, _ int) { a.RCode = dnsmessage.RCodeServerFailure }
