//go:build !portable

package probe

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
)

const (
	readSize = 16 << 10 // of the one buffer that all connections share

	// maxSpare is how many disconnected sockets of a family wait for their next connection.
	maxSpare = 256

	// maxReserved is how many files are reserved for the rest of the process, at most. A lookup uses
	// up to two; connections to the API server, metrics and health checks use a few.
	maxReserved = 600
)

// fileLimit returns how many files this process may have open.
func fileLimit() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // the usual minimum
	}
	return int(min(limit.Cur, 1<<30))
}

// poller is the network over one epoll instance, edge-triggered. Connections are non-blocking
// sockets. A connection has a goroutine only during its TLS handshake, which computes for long
// and must not delay the others. Every connection ends with a reset, which leaves no TIME_WAIT on
// either side.
//
// Most of the cost of a probe is the kernel's work, and a good part of that is making and freeing
// a socket. So the poller only disconnects a socket (connect(2), AF_UNSPEC), leaves it
// registered, and uses it again.
type poller struct {
	epoll  int
	wakeup *os.File // an eventfd that ends wait
	wakeFD int      // its file descriptor
	woken  atomic.Bool

	files    []file   // by file descriptor
	made     int32    // how many sockets have been made
	spare    [2][]int // disconnected sockets, for IPv4 and IPv6
	released [2][]int // sockets that become spare before the next poll; until then events may name them
	open     int      // how many sockets there are: in use, kept, spare and released
	maxOpen  int
	kept     int // how many connections wait for their next probe
	maxKept  int
	lastShed int // the file descriptor of the kept connection that was closed last to free a file

	log    logr.Logger
	logged time.Time // when the last error was logged

	in, out []byte // buffers for one call
	polled  [512]unix.EpollEvent
	events  events

	handshakes sync.WaitGroup
	mu         sync.Mutex
	handshaken []*conn // connections whose handshakes have ended
}

// file is what the poller knows of a file descriptor.
type file struct {
	conn   *conn // nil: the file is a spare socket, or not the poller's
	serial int32 // the number of its socket, since file descriptors are used again
}

// conn is a connection to one endpoint.
type conn struct {
	socket   socket
	state    connState
	closing  bool // the peer has closed it, or it is broken
	probed   *probed
	attempt  *attempt // nil between probes, and where the probe was given up during the handshake
	handler  *handler
	dial     netip.AddrPort
	host     string
	tls      *session // nil: plaintext
	exchange exchange // nil until a probe sends something
	dialled  instant  // when the probe that dialled it began
	uses     int      // how many probes it has carried

	handshakeErr error // how its handshake ended
}

type connState uint8

const (
	connecting connState = iota
	handshaking
	talking
	idle
	closed
)

func (c *conn) stream() io.ReadWriter {
	if c.tls != nil {
		return c.tls
	}
	return &c.socket
}

func newNetwork(maxConcurrent int, log logr.Logger) (network, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	wakeFD, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wakeFD, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wakeFD)})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("eventfd: %w", err), unix.Close(epoll))
	}
	limit := fileLimit()
	maxOpen := limit - max(limit/16, min(maxReserved, limit/4))
	return &poller{
		epoll:   epoll,
		wakeup:  os.NewFile(uintptr(wakeFD), "eventfd"),
		wakeFD:  wakeFD,
		files:   make([]file, 64),
		maxOpen: maxOpen,
		maxKept: max(maxOpen-maxConcurrent, 0),
		in:      make([]byte, readSize),
		log:     log,
	}, nil
}

func (p *poller) wake() {
	if !p.woken.Swap(true) {
		_, _ = p.wakeup.Write([]byte{0, 0, 0, 0, 0, 0, 0, 1}) // it fails after close, and then nothing waits
	}
}

// dial opens a new connection for a.
func (p *poller) dial(a *attempt) {
	fd, err := p.socketFor(a.endpoint.Dial.Addr())
	if err == nil {
		if err = connect(fd, a.endpoint.Dial); err != nil {
			p.closeSocket(fd)
		}
	}
	if err != nil {
		o := dialOutcome(err)
		if o.result == unknown && time.Since(p.logged) > time.Minute {
			p.logged = time.Now()
			p.log.Error(err, "Probes cannot be run", "address", a.endpoint.Dial)
		}
		p.ended(a, o)
		return
	}
	a.conn = &conn{
		socket: socket{fd: fd},
		probed: a.probed, attempt: a, handler: a.handler, dial: a.endpoint.Dial, host: a.endpoint.Host,
		dialled: a.started,
	}
	p.files[fd].conn = a.conn
}

// socketFor returns a registered socket that is not connected. Where there are too many sockets,
// it closes a spare one or a kept connection.
func (p *poller) socketFor(addr netip.Addr) (fd int, err error) {
	spare := &p.spare[family(addr)]
	if last := len(*spare) - 1; last >= 0 {
		fd = (*spare)[last]
		*spare = (*spare)[:last]
		return fd, nil
	}
	if p.open >= p.maxOpen {
		p.shed()
	}
	fd, err = open(addr)
	if (errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)) && p.shed() {
		fd, err = open(addr)
	}
	if err != nil {
		return -1, err
	}
	p.open++
	if missing := fd + 1 - len(p.files); missing > 0 {
		p.files = append(p.files, make([]file, missing)...)
	}
	p.made++
	p.files[fd] = file{serial: p.made}
	err = unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{
		Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET, Fd: int32(fd), Pad: p.made,
	})
	if err != nil {
		p.closeSocket(fd)
		return -1, err
	}
	return fd, nil
}

// shed closes a spare socket, or a kept connection where there is no spare socket. It reports
// whether there was one.
func (p *poller) shed() bool {
	for i := range p.spare {
		if last := len(p.spare[i]) - 1; last >= 0 {
			p.closeSocket(p.spare[i][last])
			p.spare[i] = p.spare[i][:last]
			return true
		}
	}
	for p.kept > 0 {
		p.lastShed = (p.lastShed + 1) % len(p.files)
		if c := p.files[p.lastShed].conn; c != nil && c.state == idle {
			p.detach(c)
			p.closeSocket(c.socket.fd)
			return true
		}
	}
	return false
}

func (p *poller) closeSocket(fd int) {
	p.open--
	reset(fd)
}

func (p *poller) unkeep(c *conn) {
	c.probed.kept = nil
	p.kept--
}

// shut ends c. Its socket becomes a spare one, unless there are enough.
func (p *poller) shut(c *conn) {
	p.detach(c)
	fd, i := c.socket.fd, family(c.dial.Addr())
	if len(p.spare[i])+len(p.released[i]) < maxSpare && p.open <= p.maxOpen && disconnect(fd) == nil {
		p.released[i] = append(p.released[i], fd)
		return
	}
	p.closeSocket(fd)
}

// detach removes c from its endpoint and from the poller. Its socket stays open.
func (p *poller) detach(c *conn) {
	if c.state == idle {
		p.unkeep(c)
	}
	if c.tls != nil && c.state != handshaking && !c.closing {
		_ = c.tls.CloseWrite() // sends close_notify, which ends a session in order
	}
	c.state = closed
	p.files[c.socket.fd].conn = nil
}

func (p *poller) drop(ep *probed) {
	if ep.kept != nil {
		p.shut(ep.kept)
	}
}

// ended notes that a has ended with o. After a failure no connection is kept, so the next probe
// dials.
func (p *poller) ended(a *attempt, o outcome) {
	a.conn, a.outcome = nil, o
	p.events.ended = append(p.events.ended, a)
	if o.result == failure {
		p.drop(a.probed)
	}
}
