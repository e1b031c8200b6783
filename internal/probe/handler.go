package probe

import "crypto/tls"

// handler is how a check asks, made ready once for all endpoints of an owner.
type handler struct {
	kind kind
	tcp  *TCPSocket
	http *httpRequest
	grpc *GRPC
	tls  *tls.Config // nil: plaintext

	certificate *tls.Certificate // shown to a peer that asks for one; may be nil
}

// kind is the sort of a check, for metrics.
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
		h.kind, h.tcp = kindTCP, c.TCP
	}
	if c.TLS != nil {
		h.tls, h.certificate = tlsConfig(c.TLS, host, protocol), c.TLS.Certificate
	}
	return h
}

// exchange returns what is to be said to an endpoint, nil where a connection is all that is asked
// for.
func (h *handler) exchange(e Endpoint) exchange {
	switch h.kind {
	case kindHTTP:
		return &httpExchange{request: h.http, host: h.http.hostHeader(e, h.tls != nil)}
	case kindGRPC:
		return newGRPCExchange(h.grpc.Service, authority(e), h.tls != nil)
	}
	if h.onlyOpens() && h.opening() == "" {
		return nil
	}
	return &textExchange{TCPSocket: h.tcp}
}

// onlyOpens reports whether the check waits for no answer: the connection is all, and what is sent.
func (h *handler) onlyOpens() bool { return h.kind == kindTCP && (h.tcp == nil || h.tcp.Expect == "") }

// opening is what such a check sends.
func (h *handler) opening() string {
	if h.tcp == nil {
		return ""
	}
	return h.tcp.Send
}
