//go:build !portable

package probe

import (
	"errors"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

// file is what the poller knows of a file descriptor.
type file struct {
	conn   *conn // nil: the file is a spare socket, or not the poller's
	serial int32 // the number of its socket, since file descriptors are used again
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
		target: a.target, attempt: a, handler: a.handler, dial: a.endpoint.Dial, host: a.endpoint.Host,
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
	c.target.kept = nil
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

// detach removes c from its target and from the poller. Its socket stays open.
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
