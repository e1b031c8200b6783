//go:build !portable

package probe

import (
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

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
	c := a.probed.kept
	if c == nil {
		p.dial(a)
		return
	}
	a.probed.closes = 0 // the peer has not closed it
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
	p.drop(a.probed)
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
