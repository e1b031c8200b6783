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

// The farm answers on every address of these.
var (
	farm4 = netip.MustParsePrefix("198.18.0.0/15")
	farm6 = netip.MustParsePrefix("2001:db8:18::/48")
)

// isGood tells whether an address is the farm's.
func isGood(a netip.Addr) bool { return farm4.Contains(a) || farm6.Contains(a) }

// goodAddr is address i of the farm, of the family that other has.
func goodAddr(i int, other netip.Addr) netip.Addr {
	b := farm4.Addr().AsSlice()
	if other.Is6() {
		b = farm6.Addr().AsSlice()
	}
	b[len(b)-2], b[len(b)-1] = byte(i>>8), byte(i)
	a, _ := netip.AddrFromSlice(b)
	return a
}

// handler is a way to probe, with the port on which the farm answers that way.
type handler struct {
	name  string
	port  int
	check func(*v1alpha1.HealthCheck) // nil: no healthCheck
}

var unverified = &v1alpha1.TLS{Verification: v1alpha1.TLSVerificationNone}

// handlers are all ways there are.
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
	byName       = map[string]handler{}
)

func init() {
	for _, h := range handlers {
		handlerPorts = append(handlerPorts, h.port)
		byName[h.name] = h
	}
}

// redirectPort is the first of those ports of the farm on which every answer leads elsewhere.
const redirectPort = 8000

// farm is a machine with a server for each handler, and counts who comes to which of its addresses.
type farm struct {
	*lab.Machine
	certificate tls.Certificate

	mu    sync.Mutex
	came  map[netip.AddrPort]int // connections, and requests over them
	leads map[uint16]string      // by port: the place that answers lead to
}

func newFarm(h *harness.Test) *farm {
	h.T.Helper()
	machine, err := h.AddMachine("farm")
	if err == nil {
		err = machine.AddAddresses(farm4.String(), farm6.String())
	}
	if err != nil {
		h.T.Fatal(err)
	}
	f := &farm{
		Machine:     machine,
		certificate: selfSigned(h.T, "farm"),
		came:        map[netip.AddrPort]int{},
		leads:       map[uint16]string{},
	}
	for _, handler := range handlers {
		switch handler.name {
		case "tcp", "tcp-tls":
			f.pong(f.open(h.T, handler.port, handler.name == "tcp-tls"))
		default:
			answer(f.open(h.T, handler.port, handler.name == "https" || handler.name == "grpc-tls"), f.serve)
		}
	}
	return f
}

// open listens on a port of all addresses, until the program ends.
func (f *farm) open(t testing.TB, port int, secure bool) net.Listener {
	t.Helper()
	listener, err := f.Listen("tcp", fmt.Sprintf("[::]:%d", port))
	if err != nil {
		t.Fatal(err)
	}
	listener = counting{listener, f}
	if secure {
		listener = tls.NewListener(listener,
			&tls.Config{Certificates: []tls.Certificate{f.certificate}, NextProtos: []string{"h2", "http/1.1"}})
	}
	return listener
}

// counting notes each connection by the address that was dialled.
type counting struct {
	net.Listener
	farm *farm
}

func (c counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.farm.note(addrPort(conn.LocalAddr()))
	}
	return conn, err
}

func (f *farm) note(at netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.came[at]++
}

// visits are how many connections and requests have come to an address so far.
func (f *farm) visits(a netip.Addr) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for at, came := range f.came {
		if at.Addr() == a {
			n += came
		}
	}
	return n
}

// answer serves HTTP/1.1 and HTTP/2, as gRPC wants it, until the program ends.
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

// serve answers requests and gRPC's health checks.
func (f *farm) serve(w http.ResponseWriter, r *http.Request) {
	at := addrPort(r.Context().Value(http.LocalAddrContextKey).(net.Addr))
	f.note(at)
	f.mu.Lock()
	lead := f.leads[at.Port()]
	f.mu.Unlock()
	switch {
	case lead != "":
		mislead(w, lead)
	case r.Header.Get("Content-Type") == "application/grpc":
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = w.Write([]byte{0, 0, 0, 0, 2, 1 << 3, 1}) // SERVING
		w.Header().Set("Grpc-Status", "0")
	}
}

// mislead answers with every header and body that has led some client elsewhere.
func mislead(w http.ResponseWriter, to string) {
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

// lead opens a port on which every answer leads to a place.
func (f *farm) lead(t testing.TB, port int, secure bool, to string) {
	t.Helper()
	f.mu.Lock()
	f.leads[uint16(port)] = to
	f.mu.Unlock()
	answer(f.open(t, port, secure), f.serve)
}

// pong answers PING.
func (f *farm) pong(listener net.Listener) {
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

// selfSigned is a certificate for name.example that names canaries wherever a client might ask
// about it.
func selfSigned(t testing.TB, name string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const canary = "http://127.0.0.1:7001/"
	template := &x509.Certificate{
		SerialNumber: big.NewInt(
			1,
		), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{
			name + ".example"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		OCSPServer: []string{canary}, IssuingCertificateURL: []string{canary}, CRLDistributionPoints: []string{canary},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// certificatePEM is a certificate of selfSigned's, which is its own authority.
func certificatePEM(c tls.Certificate) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate[0]})
}

// keyPEM is its key.
func keyPEM(t testing.TB, c tls.Certificate) []byte {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}
