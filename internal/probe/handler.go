package probe

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
)

// handler is how a check asks, made ready once for all endpoints of an owner.
type handler struct {
	kind kind
	tcp  *TCPSocket
	http *httpRequest
	grpc *GRPC
	tls  *tls.Config // nil: plaintext
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
		h.tls = tlsConfig(c.TLS, host, protocol)
	}
	return h
}

// exchange returns what is to be said to an endpoint, nil where a connection is all that is asked for.
func (h *handler) exchange(e Endpoint) exchange {
	switch h.kind {
	case kindHTTP:
		return &httpExchange{request: h.http, host: h.http.hostHeader(e, h.tls != nil)}
	case kindGRPC:
		return newGRPCExchange(h.grpc.Service, authority(e), h.tls != nil)
	}
	if h.tcp == nil || h.tcp.Send == "" && h.tcp.Expect == "" {
		return nil
	}
	return &textExchange{TCPSocket: h.tcp}
}

// tlsConfig is the configuration that all endpoints of a check share. Where it names no server, tlsFor adds one.
func tlsConfig(t *TLS, host, protocol string) *tls.Config {
	config := &tls.Config{
		ServerName:         t.ServerName,
		RootCAs:            t.RootCAs,
		InsecureSkipVerify: t.InsecureSkipVerify, //nolint:gosec // the user asks for it by verification: None
		// A probe carries no secret that must outlive quantum computers; hybrid key shares cost a third of a handshake.
		CurvePreferences: []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384, tls.CurveP521},
	}
	if config.ServerName == "" {
		config.ServerName = withoutPort(host)
	}
	if protocol != "" {
		config.NextProtos = []string{protocol}
	}
	if t.Certificate != nil {
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return t.Certificate, nil }
	}
	return config
}

// tlsFor is the configuration for one endpoint.
func (h *handler) tlsFor(e Endpoint) *tls.Config {
	if h.tls.ServerName != "" {
		return h.tls
	}
	config := h.tls.Clone()
	if config.ServerName = e.Host; e.Host == "" {
		config.ServerName = e.Dial.Addr().WithZone("").String()
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

// handshakeOutcome is the outcome of a probe whose TLS handshake failed with err.
func handshakeOutcome(err error) outcome {
	var (
		verification *tls.CertificateVerificationError
		errno        syscall.Errno
	)
	switch {
	case errors.As(err, &verification):
		return failed(ReasonTLSVerificationFailed)
	case errors.As(err, &errno), errors.Is(err, os.ErrDeadlineExceeded):
		return socketOutcome(err)
	default:
		return failed(ReasonTLSHandshakeFailed)
	}
}
