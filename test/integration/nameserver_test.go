package integration

import (
	"net"
	"net/netip"
	"sync"

	"github.com/miekg/dns"

	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// nameserver is a machine whose answers a test changes while it runs, and that can answer as no
// zone file could.
type nameserver struct {
	*lab.Machine

	mu      sync.Mutex
	replies map[string]reply
	asked   int
}

// reply makes an answer of m, which has a question; where it returns false there is none.
type reply func(m *dns.Msg) bool

// newNameserver starts a nameserver over UDP and TCP, which goes with the test. Names that it knows
// nothing of it refuses.
func newNameserver(h *harness.Test) *nameserver {
	h.T.Helper()
	ns := &nameserver{Machine: h.Machine("dns"), replies: map[string]reply{}}
	packets, err := ns.ListenPacket("udp", ":53")
	if err != nil {
		h.T.Fatal(err)
	}
	listener, err := ns.Listen("tcp", ":53")
	if err != nil {
		h.T.Fatal(err)
	}
	ns.serve(h, &dns.Server{PacketConn: packets, Handler: ns})
	ns.serve(h, &dns.Server{Listener: listener, Handler: ns})
	return ns
}

func (ns *nameserver) serve(h *harness.Test, s *dns.Server) {
	var done sync.WaitGroup
	started := make(chan struct{})
	s.NotifyStartedFunc = func() { close(started) }
	done.Go(func() { _ = s.ActivateAndServe() }) // ends with Shutdown
	<-started
	h.T.Cleanup(func() {
		_ = s.Shutdown()
		done.Wait()
	})
}

// set changes what is answered for a name.
func (ns *nameserver) set(name string, r reply) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	ns.replies[dns.Fqdn(name)] = r
}

// queries is how many there were.
func (ns *nameserver) queries() int {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	return ns.asked
}

// ServeDNS answers one query.
func (ns *nameserver) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	m := new(dns.Msg)
	m.SetReply(query)
	m.Authoritative = true
	ns.mu.Lock()
	ns.asked++
	answer, ok := ns.replies[query.Question[0].Name]
	ns.mu.Unlock()
	if !ok {
		answer = rcode(dns.RcodeRefused)
	}
	if answer(m) {
		_ = w.WriteMsg(m)
	}
}

// good answers with those of the addresses that are of the family asked for, for one second.
func good(addrs ...string) reply {
	return func(m *dns.Msg) bool {
		question := m.Question[0]
		header := dns.RR_Header{Name: question.Name, Rrtype: question.Qtype, Class: dns.ClassINET, Ttl: 1}
		for _, text := range addrs {
			addr := netip.MustParseAddr(text)
			switch {
			case addr.Is4() && question.Qtype == dns.TypeA:
				m.Answer = append(m.Answer, &dns.A{Hdr: header, A: net.IP(addr.AsSlice())})
			case !addr.Is4() && question.Qtype == dns.TypeAAAA:
				m.Answer = append(m.Answer, &dns.AAAA{Hdr: header, AAAA: net.IP(addr.AsSlice())})
			}
		}
		return true
	}
}

// services answers SRV questions, for one second.
func services(records ...dns.SRV) reply {
	return func(m *dns.Msg) bool {
		question := m.Question[0]
		for _, r := range records {
			r.Hdr = dns.RR_Header{Name: question.Name, Rrtype: dns.TypeSRV, Class: dns.ClassINET, Ttl: 1}
			m.Answer = append(m.Answer, &r)
		}
		return true
	}
}

// rcode answers with an error.
func rcode(code int) reply {
	return func(m *dns.Msg) bool {
		m.Rcode = code
		return true
	}
}

// empty says that the name is there and has nothing of what was asked for.
func empty(*dns.Msg) bool { return true }

// silent does not answer at all.
func silent(*dns.Msg) bool { return false }
