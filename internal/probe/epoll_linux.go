//go:build !portable

package probe

import (
	"errors"
	"fmt"
	"net/netip"
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

	// maxCloses is how many kept connections in a row a peer may close before none is kept any more.
	maxCloses = 2

	// maxSpare is how many sockets of a family wait to be used again.
	maxSpare = 256

	// maxOthers is how many files are left to the rest of the process, at most and where there are
	// many: lookups use up to two each, and the API server's connections, metrics and health checks
	// a few.
	maxOthers = 600
)

// fileLimit returns how many files this process may have open.
func fileLimit() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 1024 // the least that is usual
	}
	return int(min(limit.Cur, 1<<30))
}

// poller is the network over one epoll instance, edge-triggered. Connections are non-blocking
// sockets; none costs a goroutine but during its TLS handshake, which computes for long and must
// not hold up the others. All are ended with a reset, which leaves no TIME_WAIT on either side.
//
// Most of what a probe costs is the kernel's work, and a third of that is to make and to free a
// socket. So sockets are used again: they are only disconnected (connect(2), AF_UNSPEC) and stay
// registered.
type poller struct {
	epoll  int
	bell   *os.File // an eventfd that ends wait
	bellFD int
	rung   atomic.Bool
	files  []file   // by file descriptor
	made   int32    // how many sockets have been made
	spare  [2][]int // disconnected sockets, for IPv4 and IPv6
	fresh  [2][]int // those to which an event that is being handled may still belong
	open   int      // how many sockets there are: in use, kept and spare
	bound  int      // how many there may be
	kept   int      // how many connections wait for their next probe
	room   int      // how many may
	hand   int      // the file descriptor at which the last kept connection was shed

	log        logr.Logger
	complained time.Time // when the log was last told of a lack

	in, out []byte // scratch
	polled  [512]unix.EpollEvent
	events  events

	handshakes sync.WaitGroup
	mu         sync.Mutex
	shaken     []*conn // handshakes that have ended
}

// file is what the poller knows of a file descriptor.
type file struct {
	conn   *conn // nil: it is spare, or not the poller's
	serial int32 // tells its socket from an earlier one with the same file descriptor
}

// conn is a connection to one target.
type conn struct {
	socket   socket
	phase    connPhase
	closing  bool     // the peer has closed it, or it is broken
	target   *target  // whose it is
	attempt  *attempt // nil between probes, and where the probe was given up during the handshake
	handler  *handler
	dial     netip.AddrPort
	host     string
	tls      *session // nil: plaintext
	shaken   error    // how its handshake ended
	exchange exchange // nil before the first probe speaks
	dialled  instant  // when the probe began that dialled it
	uses     int      // how many probes have gone over it
}

type connPhase uint8

const (
	connecting connPhase = iota
	handshaking
	talking
	idle
	closed
)

func newNetwork(maxConcurrent int, log logr.Logger) (network, error) {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll: %w", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err == nil {
		err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, bell, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(bell)})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("eventfd: %w", err), unix.Close(epoll))
	}
	limit := fileLimit()
	bound := limit - max(limit/16, min(maxOthers, limit/4))
	return &poller{
		epoll:  epoll,
		bell:   os.NewFile(uintptr(bell), "eventfd"),
		bellFD: bell,
		files:  make([]file, 64),
		bound:  bound,
		room:   max(bound-maxConcurrent, 0),
		in:     make([]byte, readSize),
		log:    log,
	}, nil
}

func (p *poller) wake() {
	if !p.rung.Swap(true) {
		_, _ = p.bell.Write([]byte{0, 0, 0, 0, 0, 0, 0, 1}) // any number rings it; after close nobody listens
	}
}

func (p *poller) close() {
	p.handshakes.Wait() // all have been cancelled
	p.takeShaken()
	for _, fd := range slices.Concat(p.spare[0], p.spare[1], p.fresh[0], p.fresh[1]) {
		p.closeSocket(fd)
	}
	_ = p.bell.Close()
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
	for range 16 { // more can only be a flood
		for i := range p.fresh {
			p.spare[i] = append(p.spare[i], p.fresh[i]...)
			p.fresh[i] = p.fresh[i][:0]
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
	p.takeShaken()
	happened := p.events
	p.events = events{}
	return happened
}

func (p *poller) handle(event unix.EpollEvent) {
	if int(event.Fd) == p.bellFD {
		var count [8]byte
		_, _ = unix.Read(p.bellFD, count[:])
		p.rung.Store(false)
		return
	}
	c := p.files[event.Fd].conn
	if c == nil || p.files[event.Fd].serial != event.Pad {
		return // it was ended while its event waited
	}
	c.closing = c.closing || event.Events&(unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) != 0
	readable := event.Events&unix.EPOLLIN != 0 || c.closing
	switch c.phase {
	case connecting:
		if event.Events&unix.EPOLLOUT == 0 && !c.closing {
			return
		}
		p.connected(c)
		if readable && c.phase == talking {
			p.hear(c)
		}
	case handshaking:
		c.socket.gate.open()
	default:
		if event.Events&unix.EPOLLOUT != 0 {
			c.socket.flush()
		}
		if readable {
			p.hear(c)
		}
	}
}

func (p *poller) start(a *attempt) {
	c := a.target.kept
	if c == nil {
		p.dial(a)
		return
	}
	a.target.closes = 0 // the peer has kept it open all the while
	if c.dialled < a.since || c.handler != a.handler || c.dial != a.endpoint.Dial || c.host != a.endpoint.Host {
		p.shut(c)
		p.dial(a)
		return
	}
	p.unkeep(c)
	c.attempt, a.conn = a, c
	p.say(c)
}

func (p *poller) expire(a *attempt) outcome {
	o := failed(ReasonTimeout)
	switch c := a.conn; {
	case c == nil:
		o = outcome{} // it waits to dial again
	case c.phase == handshaking && !c.socket.gate.waiting.Load():
		o = outcome{} // the peer has answered; it is this process that is slow
	case c.phase == handshaking && c.tls.accepted.Load():
		o = outcome{result: success}
	case c.phase == talking:
		o = c.exchange.cut(os.ErrDeadlineExceeded).outcome
	}
	p.cancel(a)
	p.drop(a.target)
	return o
}

func (p *poller) cancel(a *attempt) {
	c := a.conn
	if c == nil {
		return // it waits to dial again
	}
	a.conn, c.attempt = nil, nil
	if c.phase == handshaking {
		c.socket.gate.abort() // it is closed when its goroutine has ended
		return
	}
	p.shut(c)
}

func (p *poller) drop(t *target) {
	if t.kept != nil {
		p.shut(t.kept)
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
		if o.result == unknown && time.Since(p.complained) > time.Minute {
			p.complained = time.Now()
			p.log.Error(err, "Probes cannot be run", "address", a.endpoint.Dial)
		}
		p.ended(a, o)
		return
	}
	a.conn = &conn{
		socket: socket{fd: fd},
		target: a.target, attempt: a, handler: a.handler, dial: a.endpoint.Dial, host: a.endpoint.Host,
		dialled: a.started,
	}
	p.files[fd].conn = a.conn
}

// socketFor returns a socket that is registered and not connected. What is only kept for later
// makes room for it.
func (p *poller) socketFor(addr netip.Addr) (fd int, err error) {
	spare := &p.spare[family(addr)]
	if last := len(*spare) - 1; last >= 0 {
		fd = (*spare)[last]
		*spare = (*spare)[:last]
		return fd, nil
	}
	if p.open >= p.bound {
		p.yield()
	}
	fd, err = open(addr)
	if (errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE)) && p.yield() {
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

// yield closes a spare socket, or where there is none a kept connection. It reports whether it
// found one.
func (p *poller) yield() bool {
	for i := range p.spare {
		if last := len(p.spare[i]) - 1; last >= 0 {
			p.closeSocket(p.spare[i][last])
			p.spare[i] = p.spare[i][:last]
			return true
		}
	}
	for p.kept > 0 {
		p.hand = (p.hand + 1) % len(p.files)
		if c := p.files[p.hand].conn; c != nil && c.phase == idle {
			p.detach(c)
			p.closeSocket(c.socket.fd)
			return true
		}
	}
	return false
}

// closeSocket closes a socket at once.
func (p *poller) closeSocket(fd int) {
	p.open--
	reset(fd)
}

// ended notes that a has ended with o. After a failure nothing is kept: the next probe dials anew.
func (p *poller) ended(a *attempt, o outcome) {
	a.conn, a.outcome = nil, o
	p.events.ended = append(p.events.ended, a)
	if o.result == failure {
		p.drop(a.target)
	}
}

// connected goes on with a connection whose handshake of TCP has ended, well or not.
func (p *poller) connected(c *conn) {
	if c.closing {
		errno, err := unix.GetsockoptInt(c.socket.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && errno != 0 {
			err = unix.Errno(errno)
		}
		if err != nil {
			p.finish(c, done(socketOutcome(err)))
			return
		}
	}
	if c.handler.tls == nil && c.handler.kind != kindGRPC {
		p.speak(c)
		return
	}
	// What follows is written in several pieces; none may wait for the acknowledgement of the one
	// before.
	_ = unix.SetsockoptInt(c.socket.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if c.handler.tls == nil {
		p.speak(c)
		return
	}
	c.phase, c.socket.gate = handshaking, newGate()
	c.tls = c.handler.secure(&c.socket, c.attempt.endpoint)
	p.handshakes.Go(func() {
		c.shaken = c.tls.establish()
		p.mu.Lock()
		p.shaken = append(p.shaken, c)
		p.mu.Unlock()
		p.wake()
	})
}

// takeShaken goes on with the connections whose TLS handshake has ended.
func (p *poller) takeShaken() {
	p.mu.Lock()
	shaken := p.shaken
	p.shaken = nil
	p.mu.Unlock()
	for _, c := range shaken {
		c.socket.gate = nil
		switch {
		case c.attempt == nil:
			p.shut(c)
		case c.shaken != nil:
			p.finish(c, done(c.tls.outcome(c.shaken)))
		case c.handler.onlyOpens():
			c.phase = talking
			p.finish(c, done(outcome{result: success}))
		default:
			p.speak(c)
			if c.phase == talking {
				p.hear(c) // what has come meanwhile is not announced again
			}
		}
	}
}

// speak begins the first probe over a connection that is open.
func (p *poller) speak(c *conn) {
	c.phase = talking
	c.exchange = c.handler.exchange(c.attempt.endpoint)
	if c.exchange == nil {
		p.finish(c, done(outcome{result: success}))
		return
	}
	p.say(c)
}

// say begins a probe.
func (p *poller) say(c *conn) {
	c.phase = talking
	c.uses++
	var enough bool
	p.out, enough = c.exchange.begin(p.out[:0])
	if _, err := c.stream().Write(p.out); err != nil {
		p.finish(c, c.exchange.cut(err))
	} else if enough {
		p.finish(c, done(outcome{result: success}))
	}
}

// hear reads what has come, until there is no more.
func (p *poller) hear(c *conn) {
	stream := c.stream()
	for {
		n, err := stream.Read(p.in)
		if n > 0 {
			a := c.exchange.feed(p.in[:n])
			if len(a.reply) > 0 {
				_, err = stream.Write(a.reply)
			}
			if a.done {
				p.finish(c, a)
				return
			}
			if c.tls == nil && n < len(p.in) && !c.closing {
				return // there is no more
			}
		}
		if errors.Is(err, errWouldBlock) {
			return
		}
		if err != nil {
			p.finish(c, c.exchange.cut(err))
			return
		}
	}
}

// finish ends the probe over c with a. Between probes, it ends the connection.
func (p *poller) finish(c *conn, a answer) {
	t := c.target
	if c.phase == idle {
		t.closes++
		p.shut(c)
		p.events.hints = append(p.events.hints, t)
		return
	}
	attempt := c.attempt
	c.attempt = nil
	if a.ignored && c.uses > 1 { // the peer closed it before it took the probe, and says nothing about itself thereby
		p.shut(c)
		attempt.conn = nil
		p.events.redial = append(p.events.redial, attempt)
		return
	}
	p.ended(attempt, a.outcome)
	if a.keep && a.outcome.result == success && attempt.keep && !c.closing &&
		t.closes < maxCloses && t.kept == nil && p.kept < p.room && c.socket.shaken <= maxKeptHandshake {
		c.phase, t.kept = idle, c
		p.kept++
		return
	}
	p.shut(c)
}

func (p *poller) unkeep(c *conn) {
	c.target.kept = nil
	p.kept--
}

// shut closes c. Its socket is used again where there is room for a spare one.
func (p *poller) shut(c *conn) {
	p.detach(c)
	fd, i := c.socket.fd, family(c.dial.Addr())
	if len(p.spare[i])+len(p.fresh[i]) < maxSpare && p.open <= p.bound && disconnect(fd) == nil {
		p.fresh[i] = append(p.fresh[i], fd)
		return
	}
	p.closeSocket(fd)
}

// detach ends what c is to its target and to the poller, and leaves its socket open.
func (p *poller) detach(c *conn) {
	if c.phase == idle {
		p.unkeep(c)
	}
	if c.tls != nil && c.phase != handshaking && !c.closing {
		_ = c.tls.CloseWrite() // a courtesy
	}
	c.phase = closed
	p.files[c.socket.fd].conn = nil
}

type stream interface {
	Read([]byte) (int, error)
	Write([]byte) (int, error)
}

func (c *conn) stream() stream {
	if c.tls != nil {
		return c.tls
	}
	return &c.socket
}
