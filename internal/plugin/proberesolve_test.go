package plugin

import (
	"net"
	"net/netip"
	"testing"

	"github.com/miekg/dns"

	"github.com/external-backend/operator/internal/resolve"
)

// TestNamesAreResolvedOnce: each name has its answer or its failure, and how long that took. No
// name is waited for any longer.
func TestNamesAreResolvedOnce(t *testing.T) {
	connection, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := &dns.Server{PacketConn: connection, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		answer := new(dns.Msg)
		answer.SetReply(q)
		if q.Question[0].Name == "db.example.com." {
			record, err := dns.NewRR("db.example.com. 60 IN A 203.0.113.10")
			if err == nil {
				answer.Answer = []dns.RR{record}
			}
		} else {
			answer.Rcode = dns.RcodeNameError
		}
		_ = w.WriteMsg(answer)
	})}
	go func() { _ = server.ActivateAndServe() }()
	t.Cleanup(func() { _ = server.Shutdown() })

	question := func(name string) resolve.Question { return resolve.Question{Name: name, Families: resolve.IPv4} }
	good, gone := question("db.example.com"), question("gone.example.com")
	answers, took := resolveNames(t.Context(), resolve.Config{
		Nameservers: []netip.AddrPort{netip.MustParseAddrPort(connection.LocalAddr().String())},
	}, []resolve.Wanted{{Question: good}, {Question: gone}})
	if a := answers[good]; a.Status != resolve.Current || len(a.Addrs) != 1 || a.Addrs[0].IP != addr("203.0.113.10") {
		t.Errorf("the good name: %+v", a)
	}
	if a := answers[gone]; a.Status != resolve.Failed || a.Cause != "NXDOMAIN" {
		t.Errorf("the name that does not exist: %+v", a)
	}
	if len(took) != 2 {
		t.Errorf("times: %v", took)
	}
}
