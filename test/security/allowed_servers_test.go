package security

import (
	"bufio"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
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
	"time"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
	corev1 "k8s.io/api/core/v1"
)

// The allowed servers answer at every address of these prefixes.
var (
	allowed4 = netip.MustParsePrefix("198.18.0.0/15")
	allowed6 = netip.MustParsePrefix("2001:db8:18::/48")
)

// isAllowed reports whether an address belongs to the allowed servers.
func isAllowed(a netip.Addr) bool { return allowed4.Contains(a) || allowed6.Contains(a) }

// allowedAddr returns allowed address i of the same family as other.
func allowedAddr(i int, other netip.Addr) netip.Addr {
	b := allowed4.Addr().AsSlice()
	if other.Is6() {
		b = allowed6.Addr().AsSlice()
	}
	b[len(b)-2], b[len(b)-1] = byte(i>>8), byte(i)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// handler is a kind of probe, with the port at which the allowed servers answer it.
type handler struct {
	name  string
	port  int
	check func(*v1alpha1.HealthCheck) // nil: no healthCheck
}

var unverified = &v1alpha1.TLS{Verification: v1alpha1.TLSVerificationNone}

// handlers lists all kinds of probes.
var handlers = []handler{
	{"none", 7000, nil},
	{"http", 7001, func(h *v1alpha1.HealthCheck) { h.HTTPGet = &v1alpha1.HTTPGet{} }},
	{"https", 7002, func(h *v1alpha1.HealthCheck) {
		h.HTTPGet, h.TLS = &v1alpha1.HTTPGet{Scheme: corev1.URISchemeHTTPS}, unverified
	}},
	{"tcp", 7003, func(h *v1alpha1.HealthCheck) { h.TCPSocket = &v1alpha1.TCPSocket{Send: "PING\r\n", Expect: "PONG"} }},
	{"tcp-tls", 7004, func(h *v1alpha1.HealthCheck) {
		h.TCPSocket, h.TLS = &v1alpha1.TCPSocket{Transport: v1alpha1.TransportTLS}, unverified
	}},
	{"grpc", 7005, func(h *v1alpha1.HealthCheck) { h.GRPC = &v1alpha1.GRPC{} }},
	{"grpc-tls", 7006, func(h *v1alpha1.HealthCheck) {
		h.GRPC, h.TLS = &v1alpha1.GRPC{Transport: v1alpha1.TransportTLS}, unverified
	}},
}

var (
	handlerPorts []int
	handlerNamed = map[string]handler{}
)

func init() {
	for _, h := range handlers {
		handlerPorts = append(handlerPorts, h.port)
		handlerNamed[h.name] = h
	}
}

// redirectPort is the first port at which the allowed servers redirect every request.
const redirectPort = 8000

// allowedServers is a machine with a server for each handler. It counts the connections to each of
// its addresses.
type allowedServers struct {
	*lab.Machine
	certificate tls.Certificate

	mu        sync.Mutex
	visited   map[netip.AddrPort]int // connections, and requests over them
	redirects map[uint16]string      // by port: the URL to which answers redirect
}

func newAllowedServers(h *harness.Test) *allowedServers {
	h.T.Helper()
	machine, err := h.AddMachine("allowed")
	if err == nil {
		err = machine.AddAddresses(allowed4.String(), allowed6.String())
	}
	if err != nil {
		h.T.Fatal(err)
	}
	s := &allowedServers{
		Machine:     machine,
		certificate: selfSigned(h.T, "allowed"),
		visited:     map[netip.AddrPort]int{},
		redirects:   map[uint16]string{},
	}
	for _, handler := range handlers {
		switch handler.name {
		case "tcp", "tcp-tls":
			s.pong(s.open(h.T, handler.port, handler.name == "tcp-tls"))
		default:
			answer(s.open(h.T, handler.port, handler.name == "https" || handler.name == "grpc-tls"), s.serve)
		}
	}
	return s
}

// open listens at a port of all addresses, until the program ends.
func (s *allowedServers) open(t testing.TB, port int, secure bool) net.Listener {
	t.Helper()
	listener, err := s.Listen("tcp", fmt.Sprintf("[::]:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	listener = counting{listener, s}
	if secure {
		listener = tls.NewListener(listener,
			&tls.Config{Certificates: []tls.Certificate{s.certificate}, NextProtos: []string{"h2", "http/1.1"}})
	}
	return listener
}

// counting counts each connection by the address that was dialled.
type counting struct {
	net.Listener
	servers *allowedServers
}

func (c counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.servers.note(addrPort(conn.LocalAddr()))
	}
	return conn, err
}

func (s *allowedServers) note(at netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.visited[at]++
}

// visits returns how many connections and requests have come to an address so far.
func (s *allowedServers) visits(a netip.Addr) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for at, count := range s.visited {
		if at.Addr() == a {
			n += count
		}
	}
	return n
}

// answer serves HTTP/1.1 and HTTP/2, also without TLS as gRPC needs it, until the program ends.
func answer(listener net.Listener, serve http.HandlerFunc) {
	server := &http.Server{
		ReadHeaderTimeout: 10 * time.Second, Protocols: new(http.Protocols), Handler: serve,
		ErrorLog: log.New(io.Discard, "", 0), // of probes that end early
	}
	server.Protocols.SetHTTP1(true)
	server.Protocols.SetHTTP2(true)
	server.Protocols.SetUnencryptedHTTP2(true)
	go func() { _ = server.Serve(listener) }()
}

// serve answers HTTP requests and gRPC health checks.
func (s *allowedServers) serve(w http.ResponseWriter, r *http.Request) {
	at := addrPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr))
	s.note(at)
	s.mu.Lock()
	to := s.redirects[at.Port()]
	s.mu.Unlock()
	switch {
	case to != "":
		redirect(w, to)
	case r.Header.Get("Content-Type") == "application/grpc":
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = w.Write([]byte{0, 0, 0, 0, 2, 1 << 3, 1}) // SERVING
		w.Header().Set("Grpc-Status", "0")
	}
}

// redirect answers with every header and body that makes some client send another request.
func redirect(w http.ResponseWriter, to string) {
	codes := []int{http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther, http.StatusTemporaryRedirect,
		http.StatusPermanentRedirect, http.StatusUseProxy}
	w.Header().Set("Location", to)
	w.Header().Set("Content-Location", to)
	w.Header().Set("Refresh", "0; url="+to)
	w.Header().Set("Link", "<"+to+">; rel=preload")
	w.Header().Set("Alt-Svc", fmt.Sprintf("h2=%q", strings.TrimPrefix(to, "http://")))
	w.WriteHeader(codes[len(to)%len(codes)])
	fmt.Fprintf(w, `<meta http-equiv="refresh" content="0; url=%s">`, to)
}

// redirectFrom opens a port at which every answer redirects to a URL.
func (s *allowedServers) redirectFrom(t testing.TB, port int, secure bool, to string) {
	t.Helper()
	s.mu.Lock()
	s.redirects[uint16(port)] = to
	s.mu.Unlock()
	answer(s.open(t, port, secure), s.serve)
}

// pong answers PING with PONG.
func (s *allowedServers) pong(listener net.Listener) {
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(time.Minute))
				if line, err := bufio.NewReader(io.LimitReader(conn, 64)).ReadString('\n'); err == nil && line == "PING\r\n" {
					fmt.Fprint(conn, "PONG")
				}
			}()
		}
	}()
}

// selfSigned returns a certificate for name.example. Each URL from which a client might load more
// information leads to a canary.
func selfSigned(t testing.TB, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const canary = "http://127.0.0.1:7001/"
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name + ".example"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		OCSPServer: []string{canary}, IssuingCertificateURL: []string{canary}, CRLDistributionPoints: []string{canary},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// certificatePEM returns a certificate of selfSigned, which is its own authority.
func certificatePEM(c tls.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
}

// keyPEM returns the key of such a certificate.
func keyPEM(t testing.TB, c tls.Certificate) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}
