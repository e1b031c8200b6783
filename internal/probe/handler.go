package probe

import (
	"cmp"
	"crypto/tls"
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
