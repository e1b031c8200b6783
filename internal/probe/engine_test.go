package probe

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/apimachinery/pkg/types"
)

var owner1 = types.NamespacedName{Namespace: "shop", Name: "db"}

func addrPort(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// running starts an engine that ends with the test, and returns a channel that Notify feeds.
func running(t *testing.T, options Options) (*Engine, <-chan types.NamespacedName) {
	t.Helper()
	notified := make(chan types.NamespacedName, 1000)
	options.Notify = func(owner types.NamespacedName) { notified <- owner }
	e := New(options)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- e.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return e, notified
}

// quick is a check with which one probe makes a verdict.
func quick(c Check) *Check {
	c.Period, c.Confirm, c.SuccessThreshold, c.FailureThreshold = 50*ms, 20*ms, 1, 1
	if c.Timeout == 0 {
		c.Timeout = 20 * sec
	}
	return &c
}

func at(addr net.Addr) Endpoint {
	dial := netip.MustParseAddrPort(addr.String())
	return Endpoint{ID: ID{Target: "a", Addr: dial.Addr(), Port: dial.Port()}, Dial: dial}
}

func localPort(port uint16) net.Addr {
	return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(port)}
}

// state probes an endpoint until there is a verdict.
func state(t *testing.T, check Check, endpoint Endpoint) State {
	t.Helper()
	e, notified := running(t, Options{})
	e.Sync(owner1, quick(check), []Endpoint{endpoint})
	defer e.Forget(owner1)
	<-notified
	return snapshot(e, owner1)[endpoint.ID]
}

// snapshot is the state of each of owner's endpoints, without details.
func snapshot(e *Engine, owner types.NamespacedName) map[ID]State {
	states := e.States(owner)
	e.mu.Lock()
	defer e.mu.Unlock()
	o := e.owners[owner]
	if o == nil {
		return nil
	}
	out := make(map[ID]State, len(states))
	for i, ep := range o.probed {
		out[ep.ID] = withoutDetail(states[i])
	}
	return out
}

func withoutDetail(s State) State {
	s.Detail = ""
	return s
}

var healthy = State{Verdict: Healthy, Probed: true}

func unhealthy(reason string) State { return State{Verdict: Unhealthy, Reason: reason, Probed: true} }

// serve answers each connection to a listener with handle, until the test ends.
func serve(t testing.TB, listener net.Listener, handle func(net.Conn)) net.Addr {
	t.Helper()
	var group sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	group.Go(func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open = append(open, c)
			mu.Unlock()
			group.Go(func() {
				defer c.Close()
				handle(c)
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		group.Wait()
	})
	return listener.Addr()
}

func listen(t testing.TB, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() }) // one that nobody refers to any more is closed with the garbage
	return listener
}

func local(t testing.TB) net.Listener { return listen(t, "127.0.0.1:0") }

// hang keeps a connection open and silent until the peer closes it.
func hang(c net.Conn) { _, _ = io.Copy(io.Discard, c) }

func resets(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// says reads a line and answers with text, then does what next says.
func says(text string, next func(net.Conn)) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := bufio.NewReader(c).ReadString('\n'); err == nil {
			_, _ = io.WriteString(c, text)
			next(c)
		}
	}
}

func closes(c net.Conn) { _ = c.Close() }

const okResponse = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

func floods(c net.Conn) {
	for block := make([]byte, 1<<10); ; {
		if _, err := c.Write(block); err != nil {
			return
		}
	}
}

func closedPort(t *testing.T) net.Addr {
	t.Helper()
	listener := local(t)
	defer listener.Close()
	return listener.Addr()
}

// fullBacklog returns the port of a listener that takes no more connections: a SYN stays without
// an answer.
func fullBacklog(t *testing.T) uint16 {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrInet4{}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := name.(*unix.SockaddrInet4).Port
	for { // until its queue is full
		c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), 300*ms)
		if err != nil {
			return uint16(port)
		}
		t.Cleanup(func() { _ = c.Close() })
	}
}

// TestHandlersJudgeServers runs each kind of check against servers that answer well, badly or not
// at all.
func TestHandlersJudgeServers(t *testing.T) {
	short := func(c Check) Check {
		c.Timeout = 200 * ms
		return c
	}
	var (
		connect = Check{TCP: &TCPSocket{}}
		ping    = Check{TCP: &TCPSocket{Send: "PING\r\n", Expect: "+PONG"}}
		get     = Check{HTTP: &HTTPGet{Path: "/healthz"}}
		call    = Check{GRPC: &GRPC{}}
		secure  = Check{TCP: &TCPSocket{}, TLS: &TLS{InsecureSkipVerify: true}}
	)
	for _, test := range []struct {
		name   string
		check  Check
		server func(net.Conn)
		want   State
	}{
		{"connect", connect, hang, healthy},
		{"connect to one that closes", connect, closes, healthy},
		{"ping", ping, says("+PONG\r\n", hang), healthy},
		{"ping, and a wrong answer", short(ping), says("-LOADING\r\n", hang), unhealthy(ReasonUnexpectedResponse)},
		{"ping, and a close", ping, says("-ERR\r\n", closes), unhealthy(ReasonUnexpectedResponse)},
		{"ping, and a reset", ping, says("", resets), unhealthy(ReasonConnectionReset)},
		{"ping, and silence", short(ping), hang, unhealthy(ReasonTimeout)},
		{"ping, and a flood", ping, floods, unhealthy(ReasonUnexpectedResponse)},
		{"a banner", Check{TCP: &TCPSocket{Expect: "220 "}}, func(c net.Conn) {
			_, _ = io.WriteString(c, "220 ready\r\n")
			hang(c)
		}, healthy},
		{"a text without an answer", Check{TCP: &TCPSocket{Send: "QUIT\r\n"}}, hang, healthy},
		{"get", get, says("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", hang), healthy},
		{"get by HTTP/1.0", get, says("HTTP/1.0 200 OK\r\n\r\nok", closes), healthy},
		{"get 503", get, says("HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno", hang), unhealthy(ReasonUnexpectedStatus)},
		{"get, and an endless body", get, says("HTTP/1.1 200 OK\r\n\r\n", floods), healthy},
		{"get, and endless headers", get, says("HTTP/1.1 200 OK\r\n", func(c net.Conn) {
			for {
				if _, err := io.WriteString(c, "X: y\r\n"); err != nil {
					return
				}
			}
		}), unhealthy(ReasonUnexpectedResponse)},
		{
			"get, and a body that stalls", short(get), says("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", hang),
			unhealthy(ReasonTimeout),
		},
		{"get, and garbage", get, says("\x00\xff\x13garbage", hang), unhealthy(ReasonUnexpectedResponse)},
		{"get, and silence", short(get), hang, unhealthy(ReasonTimeout)},
		{"get, and a close", get, says("", closes), unhealthy(ReasonUnexpectedResponse)},
		{
			"get, and a reset", get, says("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello", resets),
			unhealthy(ReasonConnectionReset),
		},
		{"call, and garbage", call, says("HTTP/1.1 400 Bad Request\r\n\r\n", hang), unhealthy(ReasonUnexpectedResponse)},
		{"call, and silence", short(call), hang, unhealthy(ReasonTimeout)},
		{"TLS, and silence", short(secure), hang, unhealthy(ReasonTimeout)},
		{"TLS, and a reset", secure, func(c net.Conn) {
			_, _ = io.ReadFull(c, make([]byte, 100)) // in the middle of the ClientHello
			resets(c)
		}, unhealthy(ReasonConnectionReset)},
		{"TLS, and a close", secure, func(c net.Conn) {
			_, _ = c.Read(make([]byte, 1<<14))
			closes(c)
		}, unhealthy(ReasonTLSHandshakeFailed)},
		{"TLS, and plaintext", secure, func(c net.Conn) {
			_, _ = c.Read(make([]byte, 1<<14))
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
			hang(c)
		}, unhealthy(ReasonTLSHandshakeFailed)},
		{"TLS, and half a handshake", short(secure), func(c net.Conn) {
			_, _ = c.Read(make([]byte, 1<<14))
			_, _ = c.Write([]byte{22, 3, 3, 1, 0, 2, 0, 0, 200})
			hang(c)
		}, unhealthy(ReasonTimeout)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			addr := serve(t, local(t), test.server)
			if diff := cmp.Diff(test.want, state(t, test.check, at(addr))); diff != "" {
				t.Error(diff)
			}
		})
	}
	t.Run("nobody listens", func(t *testing.T) {
		t.Parallel()
		if got := state(t, connect, at(closedPort(t))); got != unhealthy(ReasonConnectionRefused) {
			t.Errorf("%+v", got)
		}
	})
	t.Run("nobody accepts", func(t *testing.T) {
		t.Parallel()
		if got := state(t, short(connect), at(localPort(fullBacklog(t)))); got != unhealthy(ReasonTimeout) {
			t.Errorf("%+v", got)
		}
	})
	t.Run("over IPv6", func(t *testing.T) {
		t.Parallel()
		addr := serve(t, listen(t, "[::1]:0"), says("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", hang))
		if got := state(t, get, at(addr)); got != healthy {
			t.Errorf("%+v", got)
		}
	})
}

// TestHTTPAgainstNetHTTP checks what a server of net/http gets. Proxies are ignored, and
// redirects are not followed.
func TestHTTPAgainstNetHTTP(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("http_proxy", "http://127.0.0.1:1")
	requests := make(chan *http.Request, 1000)
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests <- r
		http.Redirect(w, r, "http://127.0.0.1:1/forbidden", http.StatusFound)
	})}
	listener := local(t)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })

	check := Check{HTTP: &HTTPGet{
		Path: "/healthz?deep=1", Headers: []Header{{"X-Probe", "1"}, {"Host", "db.example.com:81"}},
		Expected: []StatusRange{{302, 302}},
	}}
	if got := state(t, check, at(listener.Addr())); got != healthy {
		t.Errorf("%+v", got)
	}
	r := <-requests
	if r.Host != "db.example.com:81" || r.URL.String() != "/healthz?deep=1" || r.Header.Get("X-Probe") != "1" ||
		r.Method != "GET" {
		t.Errorf("%+v", r)
	}
	check.HTTP = &HTTPGet{Expected: []StatusRange{{200, 299}}}
	endpoint := at(listener.Addr())
	endpoint.Host = "replica.example.com"
	if got := state(t, check, endpoint); got != unhealthy(ReasonUnexpectedStatus) {
		t.Errorf("%+v", got)
	}
	for r = range requests {
		if r.Host == fmt.Sprintf("replica.example.com:%d", endpoint.Dial.Port()) {
			break
		}
	}
}

// certificates signs certificates with a root of its own.
type certificates struct {
	template x509.Certificate
	signed   *x509.Certificate
	key      *ecdsa.PrivateKey
}

func newCertificates(t testing.TB) *certificates {
	t.Helper()
	c := &certificates{template: x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "a root"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(48 * time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}}
	made := c.sign(t, c.template)
	c.signed, c.key = made.Leaf, made.PrivateKey.(*ecdsa.PrivateKey)
	return c
}

func (c *certificates) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(c.signed)
	return pool
}

// leaf signs a certificate for a name or an address.
func (c *certificates) leaf(t testing.TB, host string, notAfter time.Time) tls.Certificate {
	t.Helper()
	template := x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: host},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: notAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	if ip := net.ParseIP(host); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{host}
	}
	return c.sign(t, template)
}

func (c *certificates) sign(t testing.TB, template x509.Certificate) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	parent, signer := c.signed, c.key
	if parent == nil {
		parent, signer = &template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, &template, parent, key.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// TestCertificatesAreVerified connects to servers with good and bad certificates.
func TestCertificatesAreVerified(t *testing.T) {
	root, other := newCertificates(t), newCertificates(t)
	later := time.Now().Add(24 * time.Hour)
	good := root.leaf(t, "db.example.com", later)
	byAddress := root.leaf(t, "127.0.0.1", later)
	expired := root.leaf(t, "db.example.com", time.Now().Add(-time.Hour))
	client := root.leaf(t, "client.example.com", later)
	template := *good.Leaf
	template.NotBefore = time.Now().Add(time.Hour)
	early := root.sign(t, template)
	template = *good.Leaf
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	forClients := root.sign(t, template)
	wantsClient := func(maxVersion uint16) *tls.Config {
		return &tls.Config{
			Certificates: []tls.Certificate{good}, MaxVersion: maxVersion,
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: root.pool(),
		}
	}

	for _, test := range []struct {
		name   string
		config *tls.Config // of the server
		tls    TLS
		host   string // the Host header
		target string // Endpoint.Host
		sni    string
		want   State
	}{
		{
			"by the target's name", &tls.Config{Certificates: []tls.Certificate{good}}, TLS{RootCAs: root.pool()}, "",
			"db.example.com", "db.example.com", healthy,
		},
		{
			"by host", &tls.Config{Certificates: []tls.Certificate{good}}, TLS{RootCAs: root.pool()}, "db.example.com:8443",
			"x.example.com", "db.example.com", healthy,
		},
		{
			"by serverName", &tls.Config{Certificates: []tls.Certificate{good}},
			TLS{RootCAs: root.pool(), ServerName: "db.example.com"}, "x.example.com", "y.example.com", "db.example.com",
			healthy,
		},
		{
			"by address", &tls.Config{Certificates: []tls.Certificate{byAddress}}, TLS{RootCAs: root.pool()}, "", "", "",
			healthy,
		},
		{
			"another name", &tls.Config{Certificates: []tls.Certificate{good}}, TLS{RootCAs: root.pool()}, "",
			"x.example.com", "x.example.com", unhealthy(ReasonTLSNameMismatch),
		},
		{
			"another root", &tls.Config{Certificates: []tls.Certificate{good}}, TLS{RootCAs: other.pool()}, "",
			"db.example.com", "db.example.com", unhealthy(ReasonTLSUnknownAuthority),
		},
		{
			"the system's roots", &tls.Config{Certificates: []tls.Certificate{good}}, TLS{}, "", "db.example.com",
			"db.example.com", unhealthy(ReasonTLSUnknownAuthority),
		},
		{
			"expired", &tls.Config{Certificates: []tls.Certificate{expired}}, TLS{RootCAs: root.pool()}, "", "db.example.com",
			"db.example.com", unhealthy(ReasonTLSCertificateExpired),
		},
		{
			"not valid yet", &tls.Config{Certificates: []tls.Certificate{early}}, TLS{RootCAs: root.pool()}, "",
			"db.example.com", "db.example.com", unhealthy(ReasonTLSVerificationFailed),
		},
		{
			"for clients alone", &tls.Config{Certificates: []tls.Certificate{forClients}}, TLS{RootCAs: root.pool()}, "",
			"db.example.com", "db.example.com", unhealthy(ReasonTLSVerificationFailed),
		},
		{
			"expired and not verified", &tls.Config{Certificates: []tls.Certificate{expired}}, TLS{InsecureSkipVerify: true},
			"", "x.example.com", "x.example.com", healthy,
		},
		{
			"TLS 1.2", &tls.Config{Certificates: []tls.Certificate{good}, MaxVersion: tls.VersionTLS12},
			TLS{RootCAs: root.pool()}, "", "db.example.com", "db.example.com", healthy,
		},
		{
			"too old",
			&tls.Config{Certificates: []tls.Certificate{good}, MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10},
			TLS{RootCAs: root.pool()}, "", "db.example.com", "db.example.com", unhealthy(ReasonTLSHandshakeFailed),
		},
		{
			"P-256 alone", &tls.Config{Certificates: []tls.Certificate{good}, CurvePreferences: []tls.CurveID{tls.CurveP256}},
			TLS{RootCAs: root.pool()}, "", "db.example.com", "db.example.com", healthy,
		},
		{
			"with a client certificate",
			wantsClient(0),
			TLS{RootCAs: root.pool(), Certificate: &client}, "", "db.example.com", "db.example.com", healthy,
		},
		{
			"without a client certificate",
			wantsClient(0),
			TLS{RootCAs: root.pool()}, "", "db.example.com", "db.example.com", unhealthy(ReasonTLSClientCertificateRequired),
		},
		{
			"without a client certificate, TLS 1.2",
			wantsClient(tls.VersionTLS12),
			TLS{RootCAs: root.pool()}, "", "db.example.com", "db.example.com", unhealthy(ReasonTLSClientCertificateRequired),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			names := make(chan string, 1000)
			test.config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
				names <- hello.ServerName
				return nil, nil
			}
			server := &http.Server{Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), ErrorLog: quiet}
			listener := tls.NewListener(local(t), test.config)
			go func() { _ = server.Serve(listener) }()
			t.Cleanup(func() { _ = server.Close() })

			endpoint := at(listener.Addr())
			endpoint.Host = test.target
			check := Check{HTTP: &HTTPGet{Headers: []Header{{"Host", test.host}}}, TLS: &test.tls}
			if got := state(t, check, endpoint); got != test.want {
				t.Errorf("%+v, want %+v", got, test.want)
			}
			if name := <-names; name != test.sni {
				t.Errorf("asked for %q, want %q", name, test.sni)
			}
		})
	}
}

var quiet = log.New(io.Discard, "", 0)

// TestRefusedClientCertificateIsFound shows good and bad client certificates to servers that
// demand one. A check finds the refusal even where it only connects, and in TLS 1.3, where a
// server refuses a certificate after the handshake has ended on this side.
func TestRefusedClientCertificateIsFound(t *testing.T) {
	root, other := newCertificates(t), newCertificates(t)
	later := time.Now().Add(time.Hour)
	server := root.leaf(t, "127.0.0.1", later)
	good := root.leaf(t, "client.example.com", later)
	foreign := other.leaf(t, "client.example.com", later)
	expired := root.leaf(t, "client.example.com", time.Now().Add(-time.Hour))

	checks := map[string]Check{
		"connect": {TCP: &TCPSocket{}},
		"send":    {TCP: &TCPSocket{Send: "PING\r\n"}},
		"expect":  {TCP: &TCPSocket{Send: "PING\r\n", Expect: "+PONG"}},
		"get":     {HTTP: &HTTPGet{}},
	}
	answers := map[string]string{"expect": "+PONG\r\n", "get": okResponse}
	for name, check := range checks {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			for _, client := range []struct {
				name        string
				certificate *tls.Certificate
				want        State
			}{
				{"a good one", &good, healthy},
				{"none", nil, unhealthy(ReasonTLSClientCertificateRequired)},
				{"an expired one", &expired, unhealthy(ReasonTLSHandshakeFailed)},
				{"one of another authority", &foreign, unhealthy(ReasonTLSHandshakeFailed)},
			} {
				t.Run(fmt.Sprintf("%s, %s, %s", name, tls.VersionName(version), client.name), func(t *testing.T) {
					t.Parallel()
					config := &tls.Config{
						Certificates: []tls.Certificate{server}, MaxVersion: version,
						ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: root.pool(),
					}
					addr := serve(t, local(t), func(c net.Conn) {
						s := tls.Server(c, config)
						if s.Handshake() == nil {
							says(answers[name], hang)(s)
						}
					})
					check := check
					check.TLS = &TLS{RootCAs: root.pool(), Certificate: client.certificate}
					if got := state(t, check, at(addr)); got != client.want {
						t.Errorf("%+v, want %+v", got, client.want)
					}
				})
			}
		}
	}
}

// TestServersAcceptAfterTheHandshake has servers that complete a TLS 1.3 handshake and then
// behave in different ways. The check only connects.
func TestServersAcceptAfterTheHandshake(t *testing.T) {
	root := newCertificates(t)
	certificate := root.leaf(t, "127.0.0.1", time.Now().Add(time.Hour))
	for _, test := range []struct {
		name    string
		tickets bool
		timeout time.Duration
		then    func(*tls.Conn)
		want    State
	}{
		{"a ticket, and silence", true, 0, func(c *tls.Conn) { hang(c) }, healthy},
		{"a ticket, and a close", true, 0, func(c *tls.Conn) { closes(c) }, healthy},
		{"silence", false, 0, func(c *tls.Conn) { hang(c) }, healthy},
		{"silence for the whole timeout", false, 300 * ms, func(c *tls.Conn) { hang(c) }, healthy},
		{"a banner", false, 0, func(c *tls.Conn) {
			_, _ = io.WriteString(c, "220 ready\r\n")
			hang(c)
		}, healthy},
		{"a close", false, 0, func(c *tls.Conn) { closes(c.NetConn()) }, unhealthy(ReasonTLSHandshakeFailed)},
		{"a reset", false, 0, func(c *tls.Conn) { resets(c.NetConn()) }, unhealthy(ReasonConnectionReset)},
		{"garbage", false, 0, func(c *tls.Conn) {
			_, _ = io.WriteString(c.NetConn(), "\x17\x03\x03\x00\x20"+strings.Repeat("x", 32))
			hang(c.NetConn())
		}, unhealthy(ReasonTLSHandshakeFailed)},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			config := &tls.Config{Certificates: []tls.Certificate{certificate}, SessionTicketsDisabled: !test.tickets}
			addr := serve(t, local(t), func(c net.Conn) {
				s := tls.Server(c, config)
				if s.Handshake() == nil {
					test.then(s)
				}
			})
			check := Check{TCP: &TCPSocket{}, TLS: &TLS{RootCAs: root.pool()}, Timeout: test.timeout}
			if got := state(t, check, at(addr)); got != test.want {
				t.Errorf("%+v, want %+v", got, test.want)
			}
		})
	}
}

// TestAcceptanceWaitsBriefly checks that a peer accepts with a session ticket at once, and with
// silence after one second.
func TestAcceptanceWaitsBriefly(t *testing.T) {
	root := newCertificates(t)
	certificate := root.leaf(t, "db.example.com", time.Now().Add(24*time.Hour))
	for disabled, want := range map[bool]time.Duration{false: 0, true: acceptanceWait} {
		synctest.Test(t, func(t *testing.T) {
			h := newHandler(&Check{TCP: &TCPSocket{}, TLS: &TLS{InsecureSkipVerify: true}})
			ours, theirs := net.Pipe()
			var group sync.WaitGroup
			group.Go(func() {
				hang(
					tls.Server(theirs, &tls.Config{Certificates: []tls.Certificate{certificate}, SessionTicketsDisabled: disabled}),
				)
			})
			begun := time.Now()
			if err := h.secure(ours, Endpoint{Host: "db.example.com"}).establish(); err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took != want {
				t.Errorf("without tickets %v: accepted after %v, want %v", disabled, took, want)
			}
			_ = ours.Close()
			group.Wait()
		})
	}
}

// TestEqualTLSIsNoNewQuestion compares TLS settings by their content.
func TestEqualTLSIsNoNewQuestion(t *testing.T) {
	root := newCertificates(t)
	base := &Check{TCP: &TCPSocket{}, TLS: &TLS{RootCAs: root.pool(), Identity: "a"}}
	for _, test := range []struct {
		name string
		tls  *TLS
		want bool
	}{
		{"read again", &TLS{RootCAs: root.pool(), Identity: "a"}, true},
		{"another content", &TLS{RootCAs: root.pool(), Identity: "b"}, false},
		{"another name", &TLS{RootCAs: root.pool(), Identity: "a", ServerName: "x"}, false},
		{"not verified", &TLS{RootCAs: root.pool(), Identity: "a", InsecureSkipVerify: true}, false},
		{"no TLS", nil, false},
	} {
		if got := base.asksTheSame(&Check{TCP: &TCPSocket{}, TLS: test.tls}); got != test.want {
			t.Errorf("%s: the same is %v, want %v", test.name, got, test.want)
		}
	}
}

// TestTextOverTLS sends and expects a text over TLS.
func TestTextOverTLS(t *testing.T) {
	root := newCertificates(t)
	config := &tls.Config{Certificates: []tls.Certificate{root.leaf(t, "127.0.0.1", time.Now().Add(time.Hour))}}
	for answer, want := range map[string]State{"+PONG\r\n": healthy, "-ERR\r\n": unhealthy(ReasonUnexpectedResponse)} {
		addr := serve(t, tls.NewListener(local(t), config), says(answer, closes))
		check := Check{TCP: &TCPSocket{Send: "PING\r\n", Expect: "+PONG"}, TLS: &TLS{RootCAs: root.pool()}}
		if got := state(t, check, at(addr)); got != want {
			t.Errorf("%q: %+v, want %+v", answer, got, want)
		}
	}
}

// TestGRPCAgainstGRPCGo checks the health service of google.golang.org/grpc.
func TestGRPCAgainstGRPCGo(t *testing.T) {
	root := newCertificates(t)
	certificate := root.leaf(t, "127.0.0.1", time.Now().Add(time.Hour))
	start := func(t *testing.T, registered bool, options ...grpc.ServerOption) net.Addr {
		server, listener := grpc.NewServer(options...), local(t)
		if registered {
			statuses := health.NewServer()
			statuses.SetServingStatus("dead", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
			grpc_health_v1.RegisterHealthServer(server, statuses)
		}
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
		return listener.Addr()
	}
	for _, secure := range []bool{false, true} {
		t.Run(fmt.Sprintf("TLS %v", secure), func(t *testing.T) {
			var options []grpc.ServerOption
			var over *TLS
			if secure {
				options = append(options, grpc.Creds(credentials.NewServerTLSFromCert(&certificate)))
				over = &TLS{RootCAs: root.pool()}
			}
			addr := start(t, true, options...)
			for service, want := range map[string]State{
				"": healthy, "dead": unhealthy(ReasonGRPCNotServing), "nobody": unhealthy(ReasonGRPCNotServing),
			} {
				if got := state(t, Check{GRPC: &GRPC{Service: service}, TLS: over}, at(addr)); got != want {
					t.Errorf("%q: %+v, want %+v", service, got, want)
				}
			}
			if got := state(t, Check{GRPC: &GRPC{}, TLS: over}, at(start(t, false, options...))); got != unhealthy(
				ReasonUnexpectedStatus,
			) {
				t.Errorf("without the service: %+v", got)
			}
		})
	}
}

// TestPermitIsAskedForTheDialledAddress refuses every probe: policy sees the address that is
// dialled.
func TestPermitIsAskedForTheDialledAddress(t *testing.T) {
	addr := serve(t, local(t), hang)
	asked := make(chan netip.AddrPort, 1000)
	e, _ := running(t, Options{Permit: func(owner types.NamespacedName, dial netip.AddrPort) error {
		asked <- dial
		return io.EOF
	}})
	e.Sync(owner1, quick(Check{TCP: &TCPSocket{}}), []Endpoint{at(addr)})
	for range 3 {
		if dial := <-asked; dial.String() != addr.String() {
			t.Errorf("asked for %v", dial)
		}
	}
	if got := snapshot(e, owner1)[at(addr).ID]; got != (State{}) {
		t.Errorf("%+v", got)
	}
}

// TestAllAtOnce runs many endpoints of many owners, alive and dead, against syncs that come and
// go.
func TestAllAtOnce(t *testing.T) {
	addr := serve(t, local(t), says("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", hang))
	dead := closedPort(t)
	e, notified := running(t, Options{MaxConcurrent: 20})
	owners := map[types.NamespacedName][]Endpoint{}
	for i := range 10 {
		key := types.NamespacedName{Name: strings.Repeat("x", i+1)}
		for j := range 20 {
			endpoint := at(addr)
			if j%4 == 0 {
				endpoint.Dial = netip.MustParseAddrPort(dead.String())
			}
			endpoint.ID.Target = fmt.Sprint(j)
			owners[key] = append(owners[key], endpoint)
		}
	}
	waiting := map[types.NamespacedName]bool{}
	for key, list := range owners {
		e.Sync(key, quick(Check{TCP: &TCPSocket{}}), list[:10])
		e.Sync(key, quick(Check{HTTP: &HTTPGet{}}), list)
		waiting[key] = true
	}
	for len(waiting) > 0 {
		key := <-notified
		done := true
		for id, state := range snapshot(e, key) {
			alive := slicesIndex(owners[key], id)%4 != 0
			done = done && (state == healthy && alive || state == unhealthy(ReasonConnectionRefused) && !alive)
		}
		if done {
			delete(waiting, key)
			e.Forget(key)
		}
	}
}

func slicesIndex(list []Endpoint, id ID) int {
	for i, endpoint := range list {
		if endpoint.ID == id {
			return i
		}
	}
	return -1
}
