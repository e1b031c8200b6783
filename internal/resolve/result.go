package resolve

import (
	"crypto/tls"
	"errors"
	"syscall"
	"time"
)

// kind is how a lookup ended.
type kind uint8

const (
	kindNone     kind = iota // no lookup has ended yet
	kindGood                 // records
	kindNoData               // the name exists, the type doesn't (RFC 2308)
	kindNXDomain             // the name does not exist
	kindFailed               // no usable answer
)

// result is the outcome of one lookup.
type result struct {
	kind  kind
	data  []datum       // kindGood: sorted, each once, at least one
	ttl   time.Duration // of all but kindFailed: the smallest of the alias chain
	cause string        // of all but kindGood: a fixed phrase
}

// Causes that are neither response codes nor errors of this package.
const (
	causeTimeout   = "timeout"
	causeEmpty     = "empty answer"
	causeNXDOMAIN  = "NXDOMAIN"
	causeForbidden = "no nameserver may be asked"
)

// causeOf returns a fixed phrase for an error. It contains no address, and nothing that differs
// from time to time.
func causeOf(err error) string {
	for _, own := range []error{errMalformed, errAliasLoop, errTruncated, errInvalidName} {
		if errors.Is(err, own) {
			return own.Error()
		}
	}
	var timeout interface{ Timeout() bool }
	var unverified *tls.CertificateVerificationError
	var handshake handshakeError
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return causeTimeout
	case errors.As(err, &unverified):
		return "TLS verification failed"
	case errors.As(err, &handshake):
		return "TLS handshake failed"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	}
	return "network error"
}
