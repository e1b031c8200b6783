package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/net/http2/hpack"

	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/test/harness/pki"
)

// serverName is the name in the targets' certificate.
const serverName = "db.example.com"

// The ports of the targets, one for each protocol. Nobody listens on portRefused. portFull resumes
// no TLS session.
const (
	portTCP uint16 = 9001 + iota
	portRefused
	portHTTP
	portHTTPS
	portFull
	portGRPC

	// Victims listen on the protocol's port plus one of these: one for our checks and one for those of
	// HAProxy, so that the port shows whose check comes.
	ofVictim  = 100
	ofVictim2 = 200
)

// kind is a kind of check.
type kind struct {
	name   string
	port   uint16
	period time.Duration
	tls    bool
	keep   bool // the connection is kept; HAProxy can't
	http   bool
	grpc   bool
	like   string // the kind whose figure of HAProxy's is to be compared with, where it has none of its own
	goal   float64
}

const (
	often  = 100 * time.Millisecond
	seldom = time.Second // where each check is a TLS handshake, because the machine is too small for more of them

	// The default of periodSeconds. After so long no connection is used again. It is kept only to
	// notice a death.
	byDefault = 10 * time.Second
)

// kinds are the checks that are measured. A goal bounds the CPU time of our check, as a multiple of
// HAProxy's; 0 means that there is none. HTTPS is kept alive at two rates: at that of the full
// handshakes, and at that of all others, to which the goal applies.
var kinds = []kind{
	{name: "TCP", port: portTCP, period: often, goal: 2},
	{name: "refused", port: portRefused, period: often},
	{name: "HTTP, new connection", port: portHTTP, period: often, http: true},
	{
		name:   "HTTP, kept alive",
		port:   portHTTP,
		period: often,
		http:   true,
		keep:   true,
		like:   "HTTP, new connection",
		goal:   1.5,
	},
	{name: "HTTPS, full handshake", port: portFull, period: seldom, http: true, tls: true},
	{
		name:   "HTTPS, kept alive",
		port:   portHTTPS,
		period: seldom,
		http:   true,
		tls:    true,
		keep:   true,
		like:   "HTTPS, full handshake",
	},
	{
		name:   "HTTPS, kept alive, often",
		port:   portHTTPS,
		period: often,
		http:   true,
		tls:    true,
		keep:   true,
		like:   "HTTPS, full handshake",
		goal:   0.125,
	},
	{name: "gRPC, kept alive (HAProxy: new connection)", port: portGRPC, period: often, grpc: true, keep: true},
	{name: "HTTP, new connection, by default", port: portHTTP, period: byDefault, http: true},
	{name: "HTTP, kept alive, by default", port: portHTTP, period: byDefault, http: true, keep: true},
	{name: "HTTPS, full handshake, by default", port: portFull, period: byDefault, http: true, tls: true},
	{name: "HTTPS, kept alive, by default", port: portHTTPS, period: byDefault, http: true, tls: true, keep: true},
	{name: "gRPC, kept alive, by default", port: portGRPC, period: byDefault, grpc: true, keep: true},
}

// count returns how many targets are checked. By default there are as many checks a second as with
// TLS.
func (k kind) count() int {
	if k.period == byDefault {
		return 10 * checked
	}
	return checked
}

// warmUp is the time in which a prober starts, and every target is checked once at least.
func (k kind) warmUp() time.Duration { return k.period + 2*time.Second }

// haproxy reports whether HAProxy has such a check. By default HAProxy begins all handshakes
// together, which is more than the machine can do in a period.
func (k kind) haproxy() bool { return (!k.keep || k.grpc) && k.period != byDefault }

// check returns the kind as a check of the engine.
func (k kind) check(ca string) (*probe.Check, error) {
	// The first handshakes are slow together. With a shorter confirm period each would begin several
	// times.
	c := &probe.Check{
		Period:           k.period,
		Confirm:          max(k.period, time.Second),
		Timeout:          time.Second,
		SuccessThreshold: 1,
		FailureThreshold: 3,
	}
	switch {
	case k.grpc:
		c.GRPC = &probe.GRPC{}
	case k.http:
		c.HTTP = &probe.HTTPGet{}
		if !k.keep {
			c.HTTP.Headers = []probe.Header{{Name: "Connection", Value: "close"}}
		}
	default:
		c.TCP = &probe.TCPSocket{}
	}
	if k.tls {
		pool, err := readPool(ca)
		if err != nil {
			return nil, err
		}
		c.TLS = &probe.TLS{ServerName: serverName, RootCAs: pool}
	}
	return c, nil
}

// directives returns the kind as directives of a HAProxy backend.
func (k kind) directives(ca string) string {
	var text strings.Builder
	text.WriteString("  default-server check inter 100ms")
	if k.period != often {
		fmt.Fprintf(&text, " inter %dms", k.period.Milliseconds())
	}
	if k.tls {
		fmt.Fprintf(&text, " check-ssl no-ssl-reuse check-sni %s verify required ca-file %s", serverName, ca)
	}
	text.WriteString("\n")
	switch {
	case k.grpc:
		fmt.Fprintf(
			&text,
			"  option tcp-check\n  tcp-check connect\n  tcp-check send-binary %s\n  tcp-check expect binary %s\n",
			hex.EncodeToString(grpcCall(1)),
			hex.EncodeToString([]byte(grpcServing)),
		)
	case k.http:
		fmt.Fprintf(
			&text,
			"  option httpchk\n  http-check send meth GET uri / ver HTTP/1.1 hdr Host %s\n  http-check expect status 200-399\n",
			serverName,
		)
	}
	return text.String()
}

// grpcServing is the message of a gRPC health service that serves, with its prefix.
const grpcServing = "\x00\x00\x00\x00\x02\x08\x01"

// grpcCall is a call of grpc.health.v1.Health/Check, with all that goes before the first one of a
// connection.
func grpcCall(stream uint32) []byte {
	var headers bytes.Buffer
	encoder := hpack.NewEncoder(&headers)
	encoder.SetMaxDynamicTableSize(0) // the second call is encoded as the first
	for _, field := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", "/grpc.health.v1.Health/Check"}, {":authority", serverName},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		_ = encoder.WriteField(hpack.HeaderField{Name: field[0], Value: field[1]}) // a buffer never fails
	}
	var call []byte
	if stream == 1 {
		call = append(call, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"...)
		call = appendFrame(call, 4, 0, 0, nil) // SETTINGS
	}
	call = appendFrame(call, 1, 4, stream, headers.Bytes()) // HEADERS, END_HEADERS
	return appendFrame(call, 0, 1, stream, make([]byte, 5)) // DATA, END_STREAM: an empty message
}

func appendFrame(dst []byte, kind, flags byte, stream uint32, payload []byte) []byte {
	dst = append(dst, 0, byte(len(payload)>>8), byte(len(payload)), kind, flags)
	dst = binary.BigEndian.AppendUint32(dst, stream)
	return append(dst, payload...)
}

// identity is the targets' certificate and the authority that has signed it.
type identity struct {
	authority   []byte // PEM
	certificate tls.Certificate
}

func newIdentity() (identity, error) {
	authority, err := pki.NewAuthority()
	if err != nil {
		return identity{}, err
	}
	pair, err := authority.Issue(time.Now().Add(24*time.Hour), serverName)
	if err != nil {
		return identity{}, err
	}
	certificate, err := pair.TLS()
	return identity{authority: authority.Cert, certificate: certificate}, err
}

func readPool(ca string) (*x509.CertPool, error) {
	text, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate", ca)
	}
	return pool, nil
}
