//go:build !portable

package probe

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
)

const (
	readSize = 16 << 10 // of the one buffer that all connections share

	// maxCloses is how many kept connections in a row a peer may close. After that none is kept for
	// its target.
	maxCloses = 2

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

func (p *poller) close() {
	p.handshakes.Wait() // the loop has cancelled them
	p.takeHandshaken()
	for _, fd := range slices.Concat(p.spare[0], p.spare[1], p.released[0], p.released[1]) {
		p.closeSocket(fd)
	}
	_ = p.wakeup.Close()
	_ = unix.Close(p.epoll)
}

func (p *poller) wait(d time.Duration) events {
	milliseconds := -1
	if len(p.events.ended)+len(p.events.redial) > 0 {
		d = 0
	}
	if d >= 0 {
		milliseconds = int(min((d+time.Millisecond-1)/time.Millisecond, time.Hour/time.Millisecond))
	}
	for range 16 { // a flood of events must not keep it here
		for i := range p.released {
			p.spare[i] = append(p.spare[i], p.released[i]...)
			p.released[i] = p.released[i][:0]
		}
		n, err := unix.EpollWait(p.epoll, p.polled[:], milliseconds)
		if err != nil {
			break // interrupted
		}
		for _, event := range p.polled[:n] {
			p.handle(event)
		}
		if n < len(p.polled) {
			break
		}
		milliseconds = 0
	}
	p.takeHandshaken()
	happened := p.events
	p.events = events{}
	return happened
}

func (p *poller) handle(event unix.EpollEvent) {
	if int(event.Fd) == p.wakeFD {
		var count [8]byte
		_, _ = unix.Read(p.wakeFD, count[:])
		p.woken.Store(false)
		return
	}
	c := p.files[event.Fd].conn
	if c == nil || p.files[event.Fd].serial != event.Pad {
		return // the connection has ended since the event was polled
	}
	c.closing = c.closing || event.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	readable := event.Events&unix.EPOLLIN != 0 || c.closing
	switch c.state {
	case connecting:
		if event.Events&unix.EPOLLOUT == 0 && !c.closing {
			return
		}
		p.connected(c)
		if readable && c.state == talking {
			p.read(c)
		}
	case handshaking:
		c.socket.gate.open()
	default:
		if event.Events&unix.EPOLLOUT != 0 {
			c.socket.flush()
		}
		if readable {
			p.read(c)
		}
	}
}

func (p *poller) start(a *attempt) {
	c := a.target.kept
	if c == nil {
		p.dial(a)
		return
	}
	a.target.closes = 0 // the peer has not closed it
	if c.dialled < a.since || c.handler != a.handler || c.dial != a.endpoint.Dial || c.host != a.endpoint.Host {
		p.shut(c)
		p.dial(a)
		return
	}
	p.unkeep(c)
	c.attempt, a.conn = a, c
	p.send(c)
}

func (p *poller) expire(a *attempt) outcome {
	o := failed(ReasonTimeout)
	switch c := a.conn; {
	case c == nil:
		o = outcome{} // the probe waits to dial again
	case c.state == handshaking && !c.socket.gate.waiting.Load():
		o = outcome{} // the peer has answered, and this process is slow
	case c.state == handshaking && c.tls.accepted.Load():
		o = succeeded
	case c.state == talking:
		o = c.exchange.cut(os.ErrDeadlineExceeded).outcome
	}
	p.cancel(a)
	p.drop(a.target)
	return o
}

func (p *poller) cancel(a *attempt) {
	c := a.conn
	if c == nil {
		return // the probe waits to dial again
	}
	a.conn, c.attempt = nil, nil
	if c.state == handshaking {
		c.socket.gate.abort() // takeHandshaken closes the connection
		return
	}
	p.shut(c)
}

func (p *poller) drop(t *target) {
	if t.kept != nil {
		p.shut(t.kept)
	}
}

// ended notes that a has ended with o. After a failure no connection is kept, so the next probe
// dials.
func (p *poller) ended(a *attempt, o outcome) {
	a.conn, a.outcome = nil, o
	p.events.ended = append(p.events.ended, a)
	if o.result == failure {
		p.drop(a.target)
	}
}
