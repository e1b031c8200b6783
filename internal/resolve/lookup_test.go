package resolve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// servers scripts each server's replies by its last octet, and records who was asked when.
type servers struct {
	fakeDNS
	replies map[byte]reply
	asks    []string
}

func (s *servers) ask(ctx context.Context, _ *upstream, addr netip.AddrPort, _ query) (answer, error) {
	last := addr.Addr().As4()[3]
	s.mu.Lock()
	s.asks = append(s.asks, fmt.Sprintf("%v:%d", time.Since(bubbleStart), last))
	reply := s.replies[last]
	s.mu.Unlock()
	return reply(ctx, addr)
}

// server returns the nameserver with this last octet.
func server(last byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, last}), 53)
}

func after(d time.Duration, then reply) reply {
	return func(ctx context.Context, s netip.AddrPort) (answer, error) {
		select {
		case <-time.After(d):
			return then(ctx, s)
		case <-ctx.Done():
			return answer{}, ctx.Err()
		}
	}
}

// The next server is asked when one fails or is late; records win at once, and denials wait for
// earlier servers.
func TestServersAreAskedInOrder(t *testing.T) {
	good := records(time.Minute, "192.0.2.1")
	alias := func(context.Context, netip.AddrPort) (answer, error) { return answer{alias: "b.example.com"}, nil }
	for _, c := range []struct {
		desc    string
		replies []reply
		asks    string
		took    time.Duration
		cause   string
	}{
		{"the first answers", []reply{good, good}, "0s:1", 0, ""},
		{"the first refuses", []reply{rcode(refused, 0), good}, "0s:1 0s:2", 0, ""},
		{"the first is malformed", []reply{broken, good}, "0s:1 0s:2", 0, ""},
		{"the first is silent", []reply{silence, good, good}, "0s:1 500ms:2", 500 * time.Millisecond, ""},
		{"the first is slow and wins", []reply{after(600*time.Millisecond, good), silence}, "0s:1 500ms:2",
			600 * time.Millisecond, ""},
		{"all fail", []reply{rcode(servFail, 0), rcode(refused, 0)}, "0s:1 0s:2", 0, "SERVFAIL"},
		{"one fails, one is silent", []reply{silence, rcode(refused, 0)}, "0s:1 500ms:2 500ms:1 1.5s:1", lookupTimeout,
			"REFUSED"},
		{"the only one loses packets", []reply{silence}, "0s:1 500ms:1 1.5s:1", lookupTimeout, causeTimeout},
		{"the only one is slow", []reply{after(4500*time.Millisecond, good)}, "0s:1 500ms:1 1.5s:1", 4500 * time.Millisecond,
			""},
		{"NXDOMAIN is an answer", []reply{rcode(nxDomain, 0), good}, "0s:1", 0, causeNXDOMAIN},
		{"an empty answer, too", []reply{rcode(noError, 0), good}, "0s:1", 0, causeEmpty},
		{"NXDOMAIN of the second, SERVFAIL of the first", []reply{rcode(servFail, 0), rcode(nxDomain, 0)}, "0s:1 0s:2", 0,
			causeNXDOMAIN},
		{"NXDOMAIN of the second, records of the first", []reply{after(1900*time.Millisecond, good), rcode(nxDomain, 0)},
			"0s:1 500ms:2 1s:1", 1900 * time.Millisecond, ""},
		{"nothing there for the second, records of the first", []reply{after(700*time.Millisecond, good), rcode(noError, 0)},
			"0s:1 500ms:2", 700 * time.Millisecond, ""},
		{"an alias for the second, records of the first", []reply{after(700*time.Millisecond, good), alias}, "0s:1 500ms:2",
			700 * time.Millisecond, ""},
		{"NXDOMAIN of the second, nothing there for the first",
			[]reply{after(700*time.Millisecond, rcode(noError, 0)), rcode(nxDomain, 0)}, "0s:1 500ms:2", 700 * time.Millisecond,
			causeEmpty},
		{"NXDOMAIN of the second, late SERVFAIL of the first",
			[]reply{after(700*time.Millisecond, rcode(servFail, 0)), rcode(nxDomain, 0)}, "0s:1 500ms:2", 700 * time.Millisecond,
			causeNXDOMAIN},
		{"NXDOMAIN of the second, the first is silent", []reply{silence, rcode(nxDomain, 0), good}, "0s:1 500ms:2 1s:1",
			listenTime, causeNXDOMAIN},
		{"NXDOMAIN of the third, two are silent", []reply{silence, silence, rcode(nxDomain, 0)}, "0s:1 500ms:2 1s:3 1.5s:1",
			500*time.Millisecond + listenTime, causeNXDOMAIN},
		{"NXDOMAIN of the third, records of the second",
			[]reply{silence, after(700*time.Millisecond, good), rcode(nxDomain, 0)}, "0s:1 500ms:2 1s:3",
			1200 * time.Millisecond, ""},
		{"NXDOMAIN of the second, later records of the third",
			[]reply{silence, after(700*time.Millisecond, rcode(nxDomain, 0)), after(400*time.Millisecond, good)},
			"0s:1 500ms:2 1s:3 1.5s:1", listenTime, causeNXDOMAIN},
	} {
		t.Run(c.desc, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &servers{replies: map[byte]reply{}}
				up := &upstream{transport: UDP}
				for i, r := range c.replies {
					s.replies[byte(i+1)] = r
					up.servers = append(up.servers, server(byte(i+1)))
				}
				got := newLookuper(s, "").lookup(t.Context(), up, "db.example.com", typeA)
				if asks := strings.Join(s.asks, " "); asks != c.asks || time.Since(bubbleStart) != c.took || got.cause != c.cause {
					t.Errorf("%q after asking %s in %v", got.cause, asks, time.Since(bubbleStart))
				}
			})
		})
	}
}

// A first server that is always slow for a name wins over a second one that denies the name.
func TestLaterDenialNeverBeatsRecords(t *testing.T) {
	for _, code := range []int{nxDomain, noError} {
		for _, takes := range []time.Duration{hedgeDelay + 100*time.Millisecond, listenTime - time.Millisecond} {
			t.Run(fmt.Sprintf("%s after %v", rcodeName(code), takes), func(t *testing.T) {
				inBubble(t, func(h *harness) {
					good := records(10*time.Second, "192.0.2.1")
					h.lookuper.asker = &servers{replies: map[byte]reply{1: after(takes, good), 2: rcode(code, time.Minute)}}
					db, cfg := name("db.example.com", IPv4), defaultConfig()
					cfg.Nameservers = []netip.AddrPort{server(1), server(2)}
					h.Sync(owner1, cfg, []Wanted{db})
					h.start()
					h.pass(listenTime)
					for range 600 {
						h.want(owner1, db, current("192.0.2.1"))
						h.pass(time.Second)
					}
				})
			})
		}
	}
}

// An alias is followed to its end, and the smallest TTL on the way counts.
func TestLookupFollowsAliases(t *testing.T) {
	alias := func(to string, ttl time.Duration) reply {
		return func(context.Context, netip.AddrPort) (answer, error) { return answer{alias: to, ttl: ttl}, nil }
	}
	for _, c := range []struct {
		desc string
		zone map[string]reply
		want result
	}{
		{"to records", map[string]reply{
			"a.example.com A": alias("b.example.com", 10*time.Second),
			"b.example.com A": alias("c.example.com", time.Minute),
			"c.example.com A": records(time.Hour, "192.0.2.1"),
		}, result{kind: kindGood, ttl: 10 * time.Second}},
		{"to a name that does not exist", map[string]reply{
			"a.example.com A": alias("b.example.com", time.Minute),
			"b.example.com A": rcode(nxDomain, 10*time.Second),
		}, result{kind: kindNXDomain, ttl: 10 * time.Second, cause: causeNXDOMAIN}},
		{"to nothing", map[string]reply{
			"a.example.com A": alias("b.example.com", time.Minute),
			"b.example.com A": rcode(noError, 10*time.Second),
		}, result{kind: kindNoData, ttl: 10 * time.Second, cause: causeEmpty}},
		{"to failure", map[string]reply{
			"a.example.com A": alias("b.example.com", time.Minute),
			"b.example.com A": rcode(servFail, 0),
		}, result{kind: kindFailed, cause: "SERVFAIL"}},
		{"in a circle", map[string]reply{
			"a.example.com A": alias("b.example.com", time.Minute),
			"b.example.com A": alias("a.example.com", time.Minute),
		}, result{kind: kindFailed, cause: "alias loop"}},
	} {
		t.Run(c.desc, func(t *testing.T) {
			f := newFakeDNS()
			f.zone = c.zone
			got := newLookuper(f, "").lookup(t.Context(), &upstream{transport: UDP}, "a.example.com", typeA)
			if got.kind != c.want.kind || got.cause != c.want.cause || got.kind != kindFailed && got.ttl != c.want.ttl {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
			if n := f.count("a.example.com A"); n > maxAliases {
				t.Errorf("asked %d times", n)
			}
		})
	}
}

// A cause is one of few phrases, without addresses.
func TestErrorsBecomeFixedPhrases(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{context.DeadlineExceeded, "timeout"},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, "timeout"},
		{&net.OpError{Op: "read", Err: os.NewSyscallError("recvfrom", syscall.ECONNREFUSED)}, "connection refused"},
		{handshakeError{&tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}}, "TLS verification failed"},
		{handshakeError{errors.New("remote error: tls: handshake failure")}, "TLS handshake failed"},
		{fmt.Errorf("%w: bytes behind the last record", errMalformed), "malformed answer"},
		{errTruncated, "truncated answer"},
		{errors.New("write udp 192.0.2.1:1: message too long"), "network error"},
	} {
		if got := causeOf(c.err); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

// Of a resolv.conf, the nameserver lines with an address count, with or without a port, up to the
// bound.
func TestResolvConfNamesTheNameservers(t *testing.T) {
	got := parseResolvConf(strings.NewReader(`# comment
search example.com
options ndots:5 timeout:1
nameserver 192.0.2.53
nameserver	2001:db8::53 trailing
 nameserver fe80::1%eth0
nameserver 127.0.0.1:5353
nameserver [192.0.2.54]:5353
nameserver [2001:db8::54]:5353
nameserver not-an-address
nameserver
nameserver 999.1.1.1
`))
	want := "192.0.2.53:0 [2001:db8::53]:0 [fe80::1%eth0]:0 127.0.0.1:5353 192.0.2.54:5353 [2001:db8::54]:5353"
	if s := strings.Trim(fmt.Sprint(got), "[]"); s != strings.Trim(want, "[]") {
		t.Errorf("got %s, want %s", s, want)
	}
	got = parseResolvConf(strings.NewReader(strings.Repeat("nameserver 192.0.2.1\n", 1000)))
	if len(got) != maxNameservers {
		t.Errorf("%d nameservers taken", len(got))
	}
}

// A change of resolv.conf is seen after the interval. A file that is missing or empty changes
// nothing.
func TestResolvConfIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(s string) {
		if err := os.WriteFile(path, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		l := newLookuper(newFakeDNS(), path)
		check := func(up *upstream, want ...string) {
			t.Helper()
			var got []string
			for _, s := range l.servers(up) {
				got = append(got, s.String())
			}
			if !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		}
		udp, secure := &upstream{transport: UDP}, &upstream{transport: TLS}
		check(udp, "127.0.0.1:53") // there is no file yet
		write("nameserver 192.0.2.1\nnameserver 192.0.2.2\n")
		time.Sleep(resolvConfInterval)
		check(udp, "192.0.2.1:53", "192.0.2.2:53")
		check(secure, "192.0.2.1:853", "192.0.2.2:853")
		write("nameserver 192.0.2.3\n")
		check(udp, "192.0.2.1:53", "192.0.2.2:53")
		time.Sleep(resolvConfInterval)
		check(udp, "192.0.2.3:53")
		write("")
		time.Sleep(resolvConfInterval)
		check(udp, "192.0.2.3:53") // somebody may be writing the file
	})
}
