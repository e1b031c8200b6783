package probe

import (
	"cmp"
	"crypto/tls"
	"net"
	"strings"
)

// handler makes the exchanges of a check. All endpoints of an owner share one.
type handler struct {
	kind kind
	tcp  *TCPSocket // of a tcpSocket check, never nil
	http *httpRequest
	grpc *GRPC
	tls  *tls.Config // nil: plaintext

	certificate *tls.Certificate // shown to a peer that asks for one; may be nil
}

// kind is the kind of a check, for metrics.
type kind uint8

const (
	kindTCP kind = iota
	kindHTTP
	kindGRPC
	kinds
)

func (k kind) String() string { return [kinds]string{"tcpSocket", "httpGet", "grpc"}[k] }

func newHandler(c *Check) *handler {
	h := &handler{}
	var protocol, host string
	switch {
	case c.HTTP != nil:
		h.kind, h.http = kindHTTP, newHTTPRequest(c.HTTP)
		protocol, host = "http/1.1", h.http.host
	case c.GRPC != nil:
		h.kind, h.grpc = kindGRPC, c.GRPC
		protocol = "h2"
	default:
		h.kind, h.tcp = kindTCP, cmp.Or(c.TCP, &TCPSocket{})
	}
	if c.TLS != nil {
		h.tls, h.certificate = tlsConfig(c.TLS, host, protocol), c.TLS.Certificate
	}
	return h
}

// tlsConfig returns the configuration that all endpoints of a check share. host is its Host
// header.
func tlsConfig(t *TLS, host, protocol string) *tls.Config {
	config := &tls.Config{
		ServerName:         cmp.Or(t.ServerName, withoutPort(host)),
		RootCAs:            t.RootCAs,
		InsecureSkipVerify: t.InsecureSkipVerify, //nolint:gosec // the user asks for it by verification: None
		// A probe carries no secret that must outlive quantum computers. Hybrid key exchange costs a
		// third more (docs/benchmarks.md).
		CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384, tls.CurveP521},
	}
	if protocol != "" {
		config.NextProtos = []string{protocol}
	}
	return config
}

// withoutPort returns the name or the address of a Host header.
func withoutPort(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		return name
	}
	return strings.Trim(host, "[]")
}

// exchange returns the exchange with an endpoint. It returns nil where the check only connects.
func (h *handler) exchange(e Endpoint) exchange {
	switch h.kind {
	case kindHTTP:
		return &httpExchange{request: h.http, host: h.http.hostHeader(e, h.tls != nil)}
	case kindGRPC:
		return newGRPCExchange(h.grpc.Service, authority(e), h.tls != nil)
	}
	if h.waitsForNothing() && h.tcp.Send == "" {
		return nil
	}
	return &textExchange{TCPSocket: h.tcp}
}

// waitsForNothing reports whether the check connects, and perhaps sends a text, but waits for no
// answer.
func (h *handler) waitsForNothing() bool {
	return h.kind == kindTCP && h.tcp.Expect == ""
}
