//go:build !portable

package probe

import (
	"bytes"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxPending bounds the bytes that wait to be sent over one connection.
const maxPending = 64 << 10

// errWouldBlock says that a socket has nothing to read. It is temporary, so crypto/tls continues
// after it.
var errWouldBlock net.Error = wouldBlock{}

type wouldBlock struct{}

func (wouldBlock) Error() string   { return "nothing to read" }
func (wouldBlock) Timeout() bool   { return true }
func (wouldBlock) Temporary() bool { return true }

// socket is a non-blocking TCP socket. With a gate it blocks the goroutine that reads or writes,
// as crypto/tls requires for a handshake. Without a gate a read that finds nothing returns
// errWouldBlock, and the bytes that a write can't send wait for flush.
type socket struct {
	fd             int
	gate           *gate
	handshakeBytes int // how many bytes were read for the handshake
	pending        []byte
}

var errLongHandshake = errors.New("the TLS handshake is too long")

// family returns 0 for an IPv4 address and 1 for an IPv6 address.
func family(addr netip.Addr) int {
	if addr.Unmap().Is4() {
		return 0
	}
	return 1
}

// open makes a socket of addr's family.
func open(addr netip.Addr) (fd int, err error) {
	families := [...]int{unix.AF_INET, unix.AF_INET6}
	return unix.Socket(families[family(addr)], unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.IPPROTO_TCP)
}

// connect begins to connect a socket to addr. It does not wait for the connection.
func connect(fd int, addr netip.AddrPort) error {
	var err error
	if ip := addr.Addr().Unmap(); ip.Is4() {
		err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(addr.Port()), Addr: ip.As4()})
	} else {
		err = unix.Connect(fd, &unix.SockaddrInet6{Port: int(addr.Port()), Addr: ip.As16()})
	}
	if err == unix.EINPROGRESS || err == unix.EINTR {
		return nil
	}
	return err
}

// disconnect ends the connection of a socket with a reset. The socket can then be connected
// again.
func disconnect(fd int) error {
	unspecified := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	_, _, errno := unix.RawSyscall(
		unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&unspecified)), unix.SizeofSockaddrInet4)
	if errno != 0 {
		return errno
	}
	return nil
}

// reset closes a socket with a reset, which leaves no TIME_WAIT.
func reset(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.Close(fd)
}

func (s *socket) Read(b []byte) (int, error) {
	for {
		n, err := unix.Read(s.fd, b)
		switch {
		case n > 0 && s.gate != nil:
			if s.handshakeBytes += n; s.handshakeBytes > maxHandshake {
				return 0, errLongHandshake
			}
			return n, nil
		case n > 0:
			return n, nil
		case err == nil:
			return 0, io.EOF
		case err == unix.EINTR:
		case err != unix.EAGAIN:
			return 0, err
		case s.gate == nil:
			return 0, errWouldBlock
		default:
			if err := s.gate.wait(); err != nil {
				return 0, err
			}
		}
	}
}

func (s *socket) Write(b []byte) (int, error) {
	if s.gate == nil {
		return s.post(b)
	}
	for sent := 0; sent < len(b); {
		n, err := unix.Write(s.fd, b[sent:])
		switch {
		case n > 0:
			sent += n
		case err == unix.EAGAIN:
			if err := s.gate.wait(); err != nil {
				return sent, err
			}
		case err != unix.EINTR:
			return sent, err
		}
	}
	return len(b), nil
}

// post sends b. The bytes that can't be sent now wait for flush.
func (s *socket) post(b []byte) (int, error) {
	if len(s.pending) > 0 {
		if len(s.pending)+len(b) > maxPending {
			return 0, unix.ENOBUFS
		}
		s.pending = append(s.pending, b...)
		return len(b), nil
	}
	n, err := unix.Write(s.fd, b)
	if err != nil && err != unix.EAGAIN && err != unix.EINTR {
		return 0, err
	}
	if n = max(n, 0); n < len(b) {
		s.pending = bytes.Clone(b[n:])
	}
	return len(b), nil
}

// flush sends the pending bytes. The next read returns an error, if there is one.
func (s *socket) flush() {
	if len(s.pending) > 0 {
		b := s.pending
		s.pending = nil
		_, _ = s.post(b)
	}
}

// The methods below make a socket a net.Conn. They do nothing, because the poller closes sockets
// and enforces deadlines.

func (s *socket) Close() error                     { return nil }
func (s *socket) LocalAddr() net.Addr              { return nil }
func (s *socket) RemoteAddr() net.Addr             { return nil }
func (s *socket) SetDeadline(time.Time) error      { return nil }
func (s *socket) SetWriteDeadline(time.Time) error { return nil }

// SetReadDeadline bounds how long the goroutine of a handshake waits for its socket.
func (s *socket) SetReadDeadline(t time.Time) error {
	s.gate.deadline = time.After(time.Until(t))
	return nil
}

// gate is where the goroutine of a handshake waits for its socket.
type gate struct {
	ready    chan struct{}
	deadline <-chan time.Time // nil: there is none
	waiting  atomic.Bool      // the goroutine waits for the peer
	aborted  atomic.Bool
}

func newGate() *gate { return &gate{ready: make(chan struct{}, 1)} }

// open lets the goroutine try again, now or when it waits next. Until it does, the handshake
// waits for this process and not for the peer.
func (g *gate) open() {
	g.waiting.Store(false)
	select {
	case g.ready <- struct{}{}:
	default:
	}
}

// abort ends the handshake.
func (g *gate) abort() {
	g.aborted.Store(true)
	g.open()
}

func (g *gate) wait() error {
	g.waiting.Store(true)
	defer g.waiting.Store(false)
	if !g.aborted.Load() {
		select {
		case <-g.ready:
		case <-g.deadline:
			return os.ErrDeadlineExceeded
		}
	}
	if g.aborted.Load() {
		return os.ErrDeadlineExceeded
	}
	return nil
}
