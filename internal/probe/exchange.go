package probe

import (
	"errors"
	"io"
	"os"
	"syscall"
)

const (
	maxBody = 4 << 10  // bytes of a body, or of an answer without a protocol, that are read at most
	maxHead = 32 << 10 // bytes of headers that are read at most

	// maxHandshake is how many bytes a peer may say in a TLS handshake: long chains of certificates
	// have 10 KiB. After more than maxKeptHandshake the connection is not kept, because the
	// certificates would be kept with it.
	maxHandshake     = 32 << 10
	maxKeptHandshake = 16 << 10
)

// exchange is what is said over one connection, without any I/O. One exchange serves all the probes
// that go over its connection, one after the other.
type exchange interface {
	// begin appends to dst what opens the next probe. enough: the probe succeeds once that is sent.
	begin(dst []byte) (out []byte, enough bool)
	// feed takes what the peer has sent, during a probe or between two. in is only lent.
	feed(in []byte) answer
	// cut tells that nothing more comes: err is io.EOF, os.ErrDeadlineExceeded or what the socket
	// said. The answer is always done.
	cut(err error) answer
}

// answer is how far an exchange has come.
type answer struct {
	outcome        // valid when done
	done    bool   // the probe has ended; between two probes: the connection is of no more use
	keep    bool   // done, and the connection may serve another probe
	ignored bool   // done, and the peer had closed the connection before it took this probe
	reply   []byte // is to be sent now
}

func done(o outcome) answer { return answer{outcome: o, done: true} }

// cutOutcome is the outcome of a probe whose connection broke off with err.
func cutOutcome(err error) outcome {
	var alert alertError
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return failedWith(ReasonUnexpectedResponse, "connection closed before the answer")
	case errors.As(err, &alert): // TLS 1.3 refuses a client's certificate only now
		return failed(string(alert))
	default:
		return socketOutcome(err)
	}
}

// dialOutcome is the outcome of a probe that failed at once, for want of a socket or of a
// connection that could be begun. Where this host itself has no route (ENETUNREACH), or its policy
// forbids the connection (EACCES: a route that prohibits, or a filter of system calls), the target
// was not asked.
func dialOutcome(err error) outcome {
	if errors.Is(err, syscall.EACCES) || errors.Is(err, syscall.ENETUNREACH) {
		return outcome{}
	}
	return socketOutcome(err)
}

// socketOutcome is the outcome of a probe that ended with an error of the socket. What says nothing
// about the peer, such as a lack of file descriptors, memory or source ports, is unknown.
func socketOutcome(err error) outcome {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return failed(ReasonConnectionRefused)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.ECONNABORTED), errors.Is(err, syscall.EPIPE):
		return failed(ReasonConnectionReset)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH), errors.Is(err, syscall.EHOSTDOWN),
		// the last three are ICMP's; EACCES is a firewall's, over IPv6
		errors.Is(err, syscall.ENOPROTOOPT), errors.Is(err, syscall.EPROTO), errors.Is(err, syscall.EACCES):
		return failed(ReasonUnreachable)
	case errors.Is(err, syscall.ETIMEDOUT), errors.Is(err, os.ErrDeadlineExceeded):
		return failed(ReasonTimeout)
	default:
		return outcome{}
	}
}
