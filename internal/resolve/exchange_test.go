package resolve

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/netip"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/types"
)

// script answers a query with any number of messages, which may be anything.
type script func(q *dns.Msg, stream bool) [][]byte

// scripted is a nameserver on loopback that does what its script says, over UDP and TCP or TLS at
// one port.
type scripted struct {
	addr  netip.AddrPort
	conns atomic.Int32 // accepted
	oneBy bool         // a connection is closed after one answer

	script script
	udp    *net.UDPConn
	stream net.Listener
	wg     sync.WaitGroup
	mu     sync.Mutex
	open   map[net.Conn]struct{}
}

func serve(t testing.TB, config *tls.Config, s script) *scripted {
	t.Helper()
	srv := &scripted{script: s, open: map[net.Conn]struct{}{}}
	for srv.udp == nil {
		l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.MustParseAddrPort("127.0.0.1:0")))
		if err != nil {
			t.Fatal(err)
		}
		srv.addr = l.Addr().(*net.TCPAddr).AddrPort()
		srv.stream = l
		if srv.udp, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(srv.addr)); err != nil {
			l.Close() // the port is taken for UDP: try another one
		}
	}
	if config != nil {
		srv.stream = tls.NewListener(srv.stream, config)
	}
	srv.wg.Go(srv.serveUDP)
	srv.wg.Go(srv.serveStream)
	t.Cleanup(srv.close)
	return srv
}

func (s *scripted) serveUDP() {
	buf := make([]byte, 65535)
	for {
		n, from, err := s.udp.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		for _, raw := range s.replies(buf[:n], false) {
			_, _ = s.udp.WriteToUDPAddrPort(raw, from)
		}
	}
}

func (s *scripted) replies(raw []byte, stream bool) [][]byte {
	q := new(dns.Msg)
	if err := q.Unpack(raw); err != nil {
		return nil
	}
	return s.script(q, stream)
}

func (s *scripted) serveStream() {
	for {
		conn, err := s.stream.Accept()
		if err != nil {
			return
		}
		s.conns.Add(1)
		s.mu.Lock()
		s.open[conn] = struct{}{}
		s.mu.Unlock()
		s.wg.Go(func() { s.serveConn(conn) })
	}
}

func (s *scripted) serveConn(conn net.Conn) {
	defer func() {
		conn.Close()
		s.mu.Lock()
		delete(s.open, conn)
		s.mu.Unlock()
	}()
	for {
		var size [2]byte
		if _, err := io.ReadFull(conn, size[:]); err != nil {
			return
		}
		raw := make([]byte, binary.BigEndian.Uint16(size[:]))
		if _, err := io.ReadFull(conn, raw); err != nil {
			return
		}
		for _, reply := range s.replies(raw, true) {
			if _, err := conn.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(reply))), reply...)); err != nil {
				return
			}
		}
		if s.oneBy {
			return
		}
	}
}

func (s *scripted) close() {
	s.udp.Close()
	s.stream.Close()
	s.mu.Lock()
	for conn := range s.open {
		conn.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// answerTo packs an answer to the query with records in zone-file form.
func answerTo(t testing.TB, q *dns.Msg, code int, records ...string) []byte {
	m := new(dns.Msg)
	m.SetRcode(q, code)
	for _, r := range records {
		rr, err := dns.NewRR(r)
		if err != nil {
			t.Error(err)
			return nil
		}
		m.Answer = append(m.Answer, rr)
	}
	return packed(t, m)
}

func truncatedAnswer(t testing.TB, q *dns.Msg) []byte {
	raw := answerTo(t, q, 0, "a.example.com. 30 A 192.0.2.66")
	raw[2] |= 2
	return raw
}

func one(raw []byte) [][]byte { return [][]byte{raw} }

const recordA = "a.example.com. 30 A 192.0.2.1"

// Whatever a server replies, a lookup ends with the records that answer its query, or with a cause.
func TestLookupHandlesEveryReply(t *testing.T) {
	var first atomic.Bool
	for _, c := range []struct {
		desc      string
		transport Transport
		script    script
		want      string // data, or cause
	}{
		{"an address", UDP, func(q *dns.Msg, _ bool) [][]byte { return one(answerTo(t, q, 0, recordA)) }, "192.0.2.1"},
		{"over TCP", TCP, func(q *dns.Msg, stream bool) [][]byte {
			if !stream {
				return one(answerTo(t, q, 0))
			}
			return one(answerTo(t, q, 0, recordA))
		}, "192.0.2.1"},
		{"NXDOMAIN", UDP, func(q *dns.Msg, _ bool) [][]byte { return one(answerTo(t, q, 3)) }, "NXDOMAIN"},
		{"empty", UDP, func(q *dns.Msg, _ bool) [][]byte { return one(answerTo(t, q, 0)) }, "empty answer"},
		{"SERVFAIL", UDP, func(q *dns.Msg, _ bool) [][]byte { return one(answerTo(t, q, 2)) }, "SERVFAIL"},
		{"REFUSED", TCP, func(q *dns.Msg, _ bool) [][]byte { return one(answerTo(t, q, 5)) }, "REFUSED"},
		{"NOTIMP", UDP, func(q *dns.Msg, _ bool) [][]byte { return one(answerTo(t, q, 4)) }, "NOTIMP"},
		{"BADCOOKIE", UDP, func(q *dns.Msg, _ bool) [][]byte {
			m := new(dns.Msg)
			m.SetReply(q)
			m.SetEdns0(1232, false)
			m.Rcode = dns.RcodeBadCookie
			return one(packed(t, m))
		}, "BADCOOKIE"},
		{"a server that knows no EDNS", UDP, func(q *dns.Msg, _ bool) [][]byte {
			if q.IsEdns0() != nil {
				return one(answerTo(t, q, dns.RcodeFormatError))
			}
			return one(answerTo(t, q, 0, recordA))
		}, "192.0.2.1"},
		{"a truncated answer", UDP, func(q *dns.Msg, stream bool) [][]byte {
			if !stream {
				return one(truncatedAnswer(t, q))
			}
			return one(answerTo(t, q, 0, recordA, "a.example.com. 30 A 192.0.2.2"))
		}, "192.0.2.1 192.0.2.2"},
		{"truncated over TCP, too", UDP, func(q *dns.Msg, _ bool) [][]byte { return one(truncatedAnswer(t, q)) },
			"truncated answer"},
		{"the largest answer", UDP, func(q *dns.Msg, stream bool) [][]byte {
			if !stream {
				return one(truncatedAnswer(t, q))
			}
			var all []string
			for i := range 4000 {
				all = append(all, fmt.Sprintf("a.example.com. 30 A 192.0.%d.%d", i/256, i%256))
			}
			return one(answerTo(t, q, 0, all...))
		}, "4000 records"},
		{"forged answers before the right one", UDP, func(q *dns.Msg, _ bool) [][]byte {
			right := answerTo(t, q, 0, recordA)
			id := bytes.Clone(right)
			id[0]++
			name := bytes.Clone(right)
			name[13] = 'b'
			return [][]byte{nil, {1, 2, 3}, id, name, right}
		}, "192.0.2.1"},
		{"an answer to something else, over TCP", TCP, func(q *dns.Msg, _ bool) [][]byte {
			raw := answerTo(t, q, 0, recordA)
			raw[0]++
			return one(raw)
		}, "malformed answer"},
		{"nothing, over TCP", TCP, func(*dns.Msg, bool) [][]byte { return one(nil) }, "malformed answer"},
		{"garbage behind the header", UDP,
			func(q *dns.Msg, _ bool) [][]byte { return one(append(answerTo(t, q, 0, recordA), 7)) }, "malformed answer"},
		{"another name", UDP,
			func(q *dns.Msg, _ bool) [][]byte { return one(answerTo(t, q, 0, "b.example.com. 30 A 192.0.2.66")) },
			"malformed answer"},
		{"aliases in a circle", UDP, func(q *dns.Msg, _ bool) [][]byte {
			return one(answerTo(t, q, 0, "a.example.com. 30 CNAME b.", "b. 30 CNAME a.example.com."))
		}, "alias loop"},
		{"an alias that has to be asked for", UDP, func(q *dns.Msg, _ bool) [][]byte {
			if q.Question[0].Name == "a.example.com." {
				return one(answerTo(t, q, 0, "a.example.com. 30 CNAME b.example.net."))
			}
			return one(answerTo(t, q, 0, "b.example.net. 30 A 192.0.2.2"))
		}, "192.0.2.2"},
		{"a lost packet", UDP, func(q *dns.Msg, _ bool) [][]byte {
			if !first.Swap(true) {
				return nil
			}
			return one(answerTo(t, q, 0, recordA))
		}, "192.0.2.1"},
	} {
		t.Run(c.desc, func(t *testing.T) {
			t.Parallel()
			srv := serve(t, nil, c.script)
			x := newExchanger()
			defer x.close()
			up := &upstream{servers: []netip.AddrPort{srv.addr}, transport: c.transport}
			r := newLookuper(x, "").lookup(t.Context(), up, "a.example.com", typeA)
			if got := describeAnswer(r); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func describeAnswer(r result) string {
	if r.kind != kindGood {
		return r.cause
	}
	if len(r.data) > 10 {
		return fmt.Sprint(len(r.data), " records")
	}
	return strings.TrimSuffix(inOneLine(answer{data: r.data}, nil), " ttl 0")
}

// A query without a right answer ends with its context, and the error names what came instead.
func TestQueryEndsWithItsContext(t *testing.T) {
	for _, c := range []struct {
		desc      string
		transport Transport
		script    script
		want      string
	}{
		{"silence", UDP, func(*dns.Msg, bool) [][]byte { return nil }, "timeout"},
		{"silence over TCP", TCP, func(*dns.Msg, bool) [][]byte { return nil }, "timeout"},
		{"only forged answers", UDP, func(q *dns.Msg, _ bool) [][]byte { return one(make([]byte, 40)) }, "malformed answer"},
	} {
		t.Run(c.desc, func(t *testing.T) {
			srv := serve(t, nil, c.script)
			x := newExchanger()
			defer x.close()
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			_, err := x.ask(ctx, &upstream{transport: c.transport}, srv.addr, query{"a.example.com", typeA})
			if err == nil || causeOf(err) != c.want {
				t.Errorf("%v", err)
			}
		})
	}
}

// Where no server listens, the cause is the refused connection.
func TestClosedPortRefusesTheConnection(t *testing.T) {
	srv := serve(t, nil, nil)
	srv.close()
	for _, transport := range []Transport{UDP, TCP, TLS} {
		x := newExchanger()
		up := &upstream{servers: []netip.AddrPort{srv.addr}, transport: transport}
		r := newLookuper(x, "").lookup(t.Context(), up, "a.example.com", typeA)
		if r.cause != "connection refused" {
			t.Errorf("%s: %q", transport, r.cause)
		}
		x.close()
	}
}

// A name that does not fit into a query reaches no server.
func TestInvalidNameIsNotAsked(t *testing.T) {
	x := newExchanger()
	defer x.close()
	srv := serve(t, nil, func(q *dns.Msg, _ bool) [][]byte { t.Errorf("asked %v", q); return nil })
	up := &upstream{servers: []netip.AddrPort{srv.addr}, transport: UDP}
	r := newLookuper(x, "").lookup(t.Context(), up, strings.Repeat("x", 64)+".example.com", typeA)
	if r.cause != errInvalidName.Error() {
		t.Errorf("%q", r.cause)
	}
}

// certificate makes a CA and a server certificate for dns.example.com and 127.0.0.1.
func certificate(t *testing.T) (server tls.Certificate, roots *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		DNSNames: []string{"dns.example.com"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots = x509.NewCertPool()
	roots.AddCert(parsed)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, roots
}

// Over TLS, the certificate must be valid for the configured name, or else for the address.
func TestServerCertificateIsVerified(t *testing.T) {
	cert, roots := certificate(t)
	secure := serve(t, &tls.Config{Certificates: []tls.Certificate{cert}}, func(q *dns.Msg, stream bool) [][]byte {
		if !stream {
			t.Error("asked in clear")
		}
		return one(answerTo(t, q, 0, recordA))
	})
	plain, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for conn, err := plain.Accept(); err == nil; conn, err = plain.Accept() {
			_, _ = io.WriteString(conn, "220 no TLS here\r\n")
			conn.Close()
		}
	})
	defer wg.Wait()
	defer plain.Close()
	for _, c := range []struct {
		desc   string
		server netip.AddrPort
		config *tls.Config
		want   string
	}{
		{"by name", secure.addr, &tls.Config{RootCAs: roots, ServerName: "dns.example.com"}, "192.0.2.1"},
		{"by address", secure.addr, &tls.Config{RootCAs: roots}, "192.0.2.1"},
		{"another name", secure.addr, &tls.Config{RootCAs: roots, ServerName: "other.example.com"},
			"TLS verification failed"},
		{"unknown authority", secure.addr, nil, "TLS verification failed"},
		{"no TLS", plain.Addr().(*net.TCPAddr).AddrPort(), &tls.Config{RootCAs: roots}, "TLS handshake failed"},
	} {
		t.Run(c.desc, func(t *testing.T) {
			x := newExchanger()
			defer x.close()
			up := &upstream{servers: []netip.AddrPort{c.server}, transport: TLS, tls: c.config}
			if got := describeAnswer(newLookuper(x, "").lookup(t.Context(), up, "a.example.com", typeA)); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// A connection serves many queries, unless the server closes it.
func TestConnectionsAreReused(t *testing.T) {
	for _, oneBy := range []bool{false, true} {
		srv := serve(t, nil, func(q *dns.Msg, _ bool) [][]byte { return one(answerTo(t, q, 0, recordA)) })
		srv.oneBy = oneBy
		x := newExchanger()
		up := &upstream{servers: []netip.AddrPort{srv.addr}, transport: TCP}
		for i := range 5 {
			if _, err := x.ask(t.Context(), up, srv.addr, query{"a.example.com", typeA}); err != nil {
				t.Errorf("query %d: %v", i, err)
			}
		}
		want := int32(1)
		if oneBy {
			want = 5
		}
		if n := srv.conns.Load(); n != want {
			t.Errorf("%d connections for 5 queries, want %d", n, want)
		}
		x.close()
		if x.keepIdle(connKey{}, nil) {
			t.Error("a closed exchanger keeps connections")
		}
	}
}

// Parallel queries leave at most maxIdleConns idle connections.
func TestIdleConnectionsAreBounded(t *testing.T) {
	const queries = 3 * maxIdleConns
	var together sync.WaitGroup
	together.Add(queries)
	srv := serve(t, nil, func(q *dns.Msg, _ bool) [][]byte {
		together.Done()
		together.Wait()
		return one(answerTo(t, q, 0, recordA))
	})
	x := newExchanger()
	defer x.close()
	up := &upstream{servers: []netip.AddrPort{srv.addr}, transport: TCP}
	var wg sync.WaitGroup
	for range queries {
		wg.Go(func() {
			if _, err := x.ask(t.Context(), up, srv.addr, query{"a.example.com", typeA}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := len(x.idle[connKey{server: srv.addr, transport: TCP}]); n != maxIdleConns {
		t.Errorf("%d idle connections", n)
	}
}

// Over real sockets, the engine follows a change and leaves no goroutine and no connection behind.
func TestEngineWorksOverSockets(t *testing.T) {
	cert, roots := certificate(t)
	var ip atomic.Value
	ip.Store("192.0.2.1")
	script := func(q *dns.Msg, _ bool) [][]byte {
		switch {
		case q.Question[0].Qtype == dns.TypeSRV:
			return one(answerTo(t, q, 0, "_db._tcp.example.com. 1 SRV 1 1 5432 a.example.com."))
		case q.Question[0].Qtype == dns.TypeA:
			return one(answerTo(t, q, 0, q.Question[0].Name+" 1 A "+ip.Load().(string)))
		default:
			return one(answerTo(t, q, 0))
		}
	}
	plainServer := serve(t, nil, script)
	secureServer := serve(t, &tls.Config{Certificates: []tls.Certificate{cert}}, script)

	changes := make(chan types.NamespacedName, 100)
	e := New(Options{Notify: func(o types.NamespacedName) { changes <- o }})
	q, s := name("a.example.com", IPv4|IPv6), service("_db._tcp.example.com", IPv4)
	cfg := Config{Nameservers: []netip.AddrPort{plainServer.addr}, MaxTTL: time.Hour, Stale: time.Hour}
	e.Sync(owner1, cfg, []Wanted{q, s})
	cfg.Nameservers[0], cfg.Transport = secureServer.addr, TLS
	cfg.TLS, cfg.TLSIdentity = &tls.Config{RootCAs: roots}, "roots"
	e.Sync(owner2, cfg, []Wanted{q})

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- e.Start(ctx) }()
	await := func(want string) {
		t.Helper()
		for {
			a, b, c := e.Snapshot(owner1)[q.Question], e.Snapshot(owner1)[s.Question], e.Snapshot(owner2)[q.Question]
			if fmt.Sprint(a.Addrs, b.Addrs, c.Addrs) == want {
				return
			}
			select {
			case <-changes:
			case <-t.Context().Done():
				t.Fatalf("have %v %v %v", a, b, c)
			}
		}
	}
	await("[{192.0.2.1 0 0}] [{192.0.2.1 5432 0}] [{192.0.2.1 0 0}]")
	ip.Store("192.0.2.2")
	await("[{192.0.2.2 0 0}] [{192.0.2.2 5432 0}] [{192.0.2.2 0 0}]")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	plainServer.close()
	secureServer.close()
	noGoroutinesLeft(t)
}

// noGoroutinesLeft waits for the runtime to remove goroutines that have ended, and fails where one
// of this package goes on.
func noGoroutinesLeft(t *testing.T) {
	t.Helper()
	var stacks strings.Builder
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); runtime.Gosched() {
		stacks.Reset()
		if err := pprof.Lookup("goroutine").WriteTo(&stacks, 1); err != nil {
			t.Fatal(err)
		}
		if strings.Count(stacks.String(), "resolve.(*") == 0 {
			return
		}
	}
	t.Errorf("goroutines remain:\n%s", stacks.String())
}
