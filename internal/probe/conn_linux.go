//go:build !portable

package probe

import (
	"errors"

	"golang.org/x/sys/unix"
)

// maxCloses is how many kept connections in a row a peer may close. After that none is kept for its
// endpoint.
const maxCloses = 2

// connected continues with a connection whose TCP handshake has succeeded or failed.
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
	if c.handler.tls != nil || c.handler.kind == kindGRPC {
		// They write in several pieces. No piece may wait for the acknowledgement of the one before.
		_ = unix.SetsockoptInt(c.socket.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	}
	if c.handler.tls == nil {
		p.converse(c)
		return
	}
	c.state, c.socket.gate = handshaking, newGate()
	c.tls = c.handler.secure(&c.socket, c.attempt.endpoint)
	p.handshakes.Go(func() {
		c.handshakeErr = c.tls.establish()
		p.mu.Lock()
		p.handshaken = append(p.handshaken, c)
		p.mu.Unlock()
		p.wake()
	})
}

// takeHandshaken continues with the connections whose TLS handshakes have ended.
func (p *poller) takeHandshaken() {
	p.mu.Lock()
	handshaken := p.handshaken
	p.handshaken = nil
	p.mu.Unlock()
	for _, c := range handshaken {
		c.socket.gate = nil
		switch {
		case c.attempt == nil:
			p.shut(c)
		case c.handshakeErr != nil:
			p.finish(c, done(c.tls.outcome(c.handshakeErr)))
		case c.handler.waitsForNothing():
			c.state = talking
			p.finish(c, done(succeeded))
		default:
			p.converse(c)
			if c.state == talking {
				p.read(c) // epoll does not announce again what has come meanwhile
			}
		}
	}
}

// converse begins the first probe over an open connection.
func (p *poller) converse(c *conn) {
	c.state = talking
	c.exchange = c.handler.exchange(c.attempt.endpoint)
	if c.exchange == nil {
		p.finish(c, done(succeeded))
		return
	}
	p.send(c)
}

// send begins a probe over a connection that may have carried others.
func (p *poller) send(c *conn) {
	c.state = talking
	c.uses++
	var enough bool
	p.out, enough = c.exchange.begin(p.out[:0])
	if _, err := c.stream().Write(p.out); err != nil {
		p.finish(c, c.exchange.cut(err))
	} else if enough {
		p.finish(c, done(succeeded))
	}
}

// read reads what has come, and gives it to the exchange.
func (p *poller) read(c *conn) {
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
				return // everything is read
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

// finish ends the probe that c carries. Between probes it ends the connection.
func (p *poller) finish(c *conn, a answer) {
	ep := c.probed
	if c.state == idle {
		ep.closes++
		p.shut(c)
		p.events.hints = append(p.events.hints, ep)
		return
	}
	attempt := c.attempt
	c.attempt = nil
	if a.ignored && c.uses > 1 { // the peer closed the connection before it took the probe
		p.shut(c)
		attempt.conn = nil
		p.events.redial = append(p.events.redial, attempt)
		return
	}
	p.ended(attempt, a.outcome)
	if a.keep && a.outcome.result == success && attempt.keep && !c.closing &&
		ep.closes < maxCloses && ep.kept == nil && p.kept < p.maxKept && c.socket.handshakeBytes <= maxKeptHandshake {
		c.state, ep.kept = idle, c
		p.kept++
		return
	}
	p.shut(c)
}
