package probe

import (
	"errors"
	"io"
	"os"
	"syscall"
)

const (
	maxBody = 4 << 10  // how many bytes of a body, or of an answer without a protocol, are read
	maxHead = 32 << 10 // how many bytes of headers are read

	// maxHandshake is how many bytes a peer may send in a TLS handshake. Long chains of certificates
	// have 10 KiB. After more than maxKeptHandshake bytes the connection is not kept, because the
	// certificates would stay in memory with it.
	maxHandshake     = 32 << 10
	maxKeptHandshake = 16 << 10
)

// exchange is the protocol of a check over one connection, without I/O. One exchange serves all
// probes that the connection carries, one after the other.
type exchange interface {
	// begin appends to dst the bytes that begin the next probe. enough reports whether the probe
	// succeeds once they are sent.
	begin(dst []byte) (out []byte, enough bool)
	// feed takes bytes that the peer has sent, during a probe or between two. It does not keep in.
	feed(in []byte) answer
	// cut ends the probe because nothing more comes. err is io.EOF, os.ErrDeadlineExceeded or the
	// socket's error. The answer is always done.
	cut(err error) answer
}

// answer is the state of a probe after a call of feed or cut.
type answer struct {
	outcome        // valid when done
	done    bool   // the probe has ended; between two probes: the connection has to be closed
	keep    bool   // done, and the connection may carry another probe
	ignored bool   // done, and the peer closed the connection before it took this probe
	reply   []byte // to be sent now
}

func done(o outcome) answer { return answer{outcome: o, done: true} }

// malformed is the answer to bytes that are not of the protocol.
var malformed = done(failed(ReasonUnexpectedResponse))

// alertError is the reason why a session ended with an alert.
type alertError string

func (e alertError) Error() string { return string(e) }

// cutOutcome returns the outcome of a probe whose connection ended with err.
func cutOutcome(err error) outcome {
	var alert alertError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return failedWith(ReasonUnexpectedResponse, "connection closed before the answer")
	case errors.As(err, &alert): // in TLS 1.3 a peer refuses a client certificate after the handshake
		return failed(string(alert))
	default:
		return socketOutcome(err)
	}
}

// socketOutcome returns the outcome of a probe that ended with an error of the socket. An error
// that says nothing about the peer, such as a lack of file descriptors, memory or source ports,
// is unknown.
func socketOutcome(err error) outcome {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return failed(ReasonTimeout)
	}
	var errno syscall.Errno
	errors.As(err, &errno)
	switch errno {
	case syscall.ECONNREFUSED:
		return failed(ReasonConnectionRefused)
	case syscall.ECONNRESET, syscall.ECONNABORTED, syscall.EPIPE:
		return failed(ReasonConnectionReset)
	case syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN,
		// ICMP causes the next three; EACCES comes from a firewall, over IPv6
		syscall.ENOPROTOOPT, syscall.EPROTO, syscall.EACCES:
		return failed(ReasonUnreachable)
	case syscall.ETIMEDOUT:
		return failed(ReasonTimeout)
	default:
		return outcome{}
	}
}
