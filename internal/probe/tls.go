package probe

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// acceptanceWait is how long to wait, at most, for a sign that a peer has accepted a handshake.
const acceptanceWait = time.Second

// The alerts with which a peer demands a certificate (RFC 8446, section 6.2; RFC 5246, section
// 7.4.6). All except the last may also mean that it refuses the certificate that it was shown.
const (
	alertHandshakeFailure    tls.AlertError = 40
	alertBadCertificate      tls.AlertError = 42
	alertCertificateUnknown  tls.AlertError = 46
	alertCertificateRequired tls.AlertError = 116
)

// session is a connection over TLS to one endpoint.
type session struct {
	*tls.Conn
	handler  *handler
	hasNone  bool        // the peer has asked for a certificate, and the check has none
	ticket   bool        // the peer has sent a session ticket
	accepted atomic.Bool // the handshake is complete on this side, and the peer has not refused it yet
}

// secure makes a session of a new connection to e.
func (h *handler) secure(conn net.Conn, e Endpoint) *session {
	s := &session{handler: h}
	config := h.tls.Clone()
	config.ServerName = h.serverName(e)
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		s.hasNone = h.certificate == nil
		return cmp.Or(h.certificate, &tls.Certificate{}), nil
	}
	if h.waitsForNothing() {
		config.ClientSessionCache = ticketWatch{s}
	}
	s.Conn = tls.Client(conn, config)
	return s
}

// serverName returns the name that is sent to the peer, and that its certificate must be for.
func (h *handler) serverName(e Endpoint) string {
	return cmp.Or(h.tls.ServerName, e.Host, e.Dial.Addr().WithZone("").String())
}

// ticketWatch is a cache that keeps no session ticket. When a ticket comes, it ends the read that
// waits for acceptance.
type ticketWatch struct{ *session }

// Get implements tls.ClientSessionCache.
func (ticketWatch) Get(string) (*tls.ClientSessionState, bool) { return nil, false }

// Put implements tls.ClientSessionCache.
func (w ticketWatch) Put(string, *tls.ClientSessionState) {
	w.ticket = true
	_ = w.SetReadDeadline(time.Unix(1, 0))
}

// establish does the handshake. For a check that waits for no answer it does the whole probe: it
// sends the text, and waits until the peer has accepted the session.
func (s *session) establish() error {
	err := s.Handshake()
	if err != nil || !s.handler.waitsForNothing() {
		return err
	}
	if text := s.handler.tcp.Send; text != "" {
		_, err = s.Write([]byte(text))
	}
	return cmp.Or(s.awaitAcceptance(), err)
}

// awaitAcceptance waits for a sign that the peer has accepted the handshake: a session ticket or
// data. In TLS 1.3 the handshake ends on this side before the peer has seen the certificate, so
// the peer refuses it later, with an alert. A peer that sends nothing accepts.
func (s *session) awaitAcceptance() error {
	if s.ConnectionState().Version < tls.VersionTLS13 {
		return nil
	}
	s.accepted.Store(true)
	_ = s.SetReadDeadline(time.Now().Add(acceptanceWait))
	_, err := s.Read(make([]byte, 1))
	s.accepted.Store(false)
	if errors.Is(err, os.ErrDeadlineExceeded) || s.ticket && !isAlert(err) {
		return nil
	}
	return err
}

// Read is Conn.Read. It returns an alertError for an alert.
func (s *session) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if reason := s.alertReason(err); reason != "" {
		err = alertError(reason)
	}
	return n, err
}

// Write is Conn.Write. Where the peer has refused the session and closed it, Write returns the
// peer's alert.
func (s *session) Write(b []byte) (int, error) {
	n, err := s.Conn.Write(b)
	if err != nil {
		if _, last := s.Read(make([]byte, 1)); isAlert(last) {
			err = last
		}
	}
	return n, err
}

func isAlert(err error) bool {
	var alert alertError
	return errors.As(err, &alert)
}

// alertReason returns the reason for an alert of the peer or of this side. It returns "" for any
// other error.
func (s *session) alertReason(err error) string {
	var op *net.OpError
	if !errors.As(err, &op) || !strings.HasSuffix(op.Op, " error") {
		return ""
	}
	is := func(alert tls.AlertError) bool { return op.Op == "remote error" && op.Err.Error() == alert.Error() }
	if is(alertCertificateRequired) ||
		s.hasNone && (is(alertHandshakeFailure) || is(alertBadCertificate) || is(alertCertificateUnknown)) {
		return ReasonTLSClientCertificateRequired
	}
	return ReasonTLSHandshakeFailed
}

// outcome returns the outcome of a probe whose session could not be established.
func (s *session) outcome(err error) outcome {
	var (
		verification *tls.CertificateVerificationError
		errno        syscall.Errno
		alert        alertError
	)
	switch {
	case errors.As(err, &verification):
		return failed(verificationReason(verification.Err))
	case errors.As(err, &errno), errors.Is(err, os.ErrDeadlineExceeded):
		return socketOutcome(err)
	case errors.As(err, &alert):
		return failed(string(alert))
	default:
		return failed(cmp.Or(s.alertReason(err), ReasonTLSHandshakeFailed))
	}
}

// verificationReason returns the reason why this side refused a peer's certificate.
func verificationReason(err error) string {
	var (
		authority x509.UnknownAuthorityError
		name      x509.HostnameError
		invalid   x509.CertificateInvalidError
	)
	switch {
	case errors.As(err, &authority):
		return ReasonTLSUnknownAuthority
	case errors.As(err, &name):
		return ReasonTLSNameMismatch
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired && time.Now().After(invalid.Cert.NotAfter):
		return ReasonTLSCertificateExpired // x509.Expired is also for a certificate that is not valid yet
	default:
		return ReasonTLSVerificationFailed
	}
}
