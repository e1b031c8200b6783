package integration

import (
	"net"
	"net/netip"
	"sync"

	"github.com/miekg/dns"

	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// scriptedDNS is a nameserver whose answers a test chooses and changes.
type scriptedDNS struct {
	*lab.Machine

	mu      sync.Mutex
	answers map[string]dnsAnswer
	asked   int
}

// dnsAnswer turns m, which has a question, into an answer. It returns false for no answer.
type dnsAnswer func(m *dns.Msg) bool

// startScriptedDNS starts a nameserver over UDP and TCP, and stops it when the test ends. It
// refuses queries for names without an answer.
func startScriptedDNS(h *harness.Test) *scriptedDNS {
	h.T.Helper()
	ns := &scriptedDNS{Machine: h.Machine("dns"), answers: map[string]dnsAnswer{}}
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

func (ns *scriptedDNS) serve(h *harness.Test, s *dns.Server) {
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

// set sets the answer for a name.
func (ns *scriptedDNS) set(name string, r dnsAnswer) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	ns.answers[dns.Fqdn(name)] = r
}

// queries returns how many queries came so far.
func (ns *scriptedDNS) queries() int {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	return ns.asked
}

// ServeDNS answers one query.
func (ns *scriptedDNS) ServeDNS(w dns.ResponseWriter, query *dns.Msg) {
	m := new(dns.Msg)
	m.SetReply(query)
	m.Authoritative = true
	ns.mu.Lock()
	ns.asked++
	answer, ok := ns.answers[query.Question[0].Name]
	ns.mu.Unlock()
	if !ok {
		answer = answerWithCode(dns.RcodeRefused)
	}
	if answer(m) {
		_ = w.WriteMsg(m)
	}
}

// answerWith answers with the addresses of the family asked for, with a TTL of a second.
func answerWith(addrs ...string) dnsAnswer {
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

// answerWithSRV answers with SRV records, with a TTL of a second.
func answerWithSRV(records ...dns.SRV) dnsAnswer {
	return func(m *dns.Msg) bool {
		question := m.Question[0]
		for _, r := range records {
			r.Hdr = dns.RR_Header{Name: question.Name, Rrtype: dns.TypeSRV, Class: dns.ClassINET, Ttl: 1}
			m.Answer = append(m.Answer, &r)
		}
		return true
	}
}

// answerWithCode answers with an error code.
func answerWithCode(code int) dnsAnswer {
	return func(m *dns.Msg) bool {
		m.Rcode = code
		return true
	}
}

// answerWithNothing answers that the name exists, without a record of the type asked for.
func answerWithNothing(*dns.Msg) bool { return true }

// neverAnswer gives no answer.
func neverAnswer(*dns.Msg) bool { return false }
