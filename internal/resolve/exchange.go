package resolve

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"
)

// asker carries one question to one server and brings its answer back, or why there is none.
type asker interface {
	ask(ctx context.Context, up *upstream, server netip.AddrPort, name string, t qtype) (answer, error)
	close()
}

// upstream is a set of nameservers and the way to them. Records are shared by owners whose
// upstreams have equal keys.
type upstream struct {
	key       string
	servers   []netip.AddrPort // none: those of resolv.conf
	transport Transport
	tls       *tls.Config
	identity  string
	silent    bool // may not be asked
}

func upstreamOf(c Config) *upstream {
	up := &upstream{transport: c.Transport, silent: c.NoQueries}
	if up.transport == "" {
		up.transport = UDP
	}
	if up.transport == TLS {
		up.tls, up.identity = c.TLS, c.TLSIdentity
	}
	for _, s := range c.Nameservers {
		up.servers = append(up.servers, withPort(s, up.transport))
	}
	up.key = fmt.Sprint(up.transport, up.servers, up.silent, up.identity)
	return up
}

// withPort fills in the transport's own port (RFC 1035, RFC 7858) where none is given.
func withPort(s netip.AddrPort, t Transport) netip.AddrPort {
	switch {
	case s.Port() != 0:
		return s
	case t == TLS:
		return netip.AddrPortFrom(s.Addr(), 853)
	default:
		return netip.AddrPortFrom(s.Addr(), 53)
	}
}

const (
	maxIdleConns = 16               // kept per server
	idleTime     = 10 * time.Second // a few seconds, as RFC 7766 section 6.2.3 wants
	maxDatagram  = 4096             // read of one; servers send no more than ednsBytes
)

var errTruncated = errors.New("truncated answer")

// exchanger is the asker of the real network. UDP queries each have a socket of their own, and with
// it a random port; TCP and TLS connections are used again, one query at a time.
type exchanger struct {
	buffers sync.Pool // *[maxDatagram]byte

	mu     sync.Mutex
	idle   map[connKey][]*idleConn
	closed bool
}

// connKey is a server and the way to it.
type connKey struct {
	server    netip.AddrPort
	transport Transport
	identity  string
}

type idleConn struct {
	net.Conn
	expire *time.Timer
}

func (up *upstream) connKey(server netip.AddrPort) connKey {
	return connKey{server: server, transport: up.transport, identity: up.identity}
}

func newExchanger() *exchanger {
	return &exchanger{
		buffers: sync.Pool{New: func() any { return new([maxDatagram]byte) }},
		idle:    map[connKey][]*idleConn{},
	}
}

// ask sends the question with EDNS0, and to a server that can't read that without; over UDP first
// where the upstream says so, and over TCP when the answer doesn't fit.
func (x *exchanger) ask(ctx context.Context, up *upstream, server netip.AddrPort, name string, t qtype) (answer, error) {
	a, err := x.askOnce(ctx, up, server, name, t, true)
	if err == nil && intolerant(a.rcode) {
		return x.askOnce(ctx, up, server, name, t, false)
	}
	return a, err
}

func (x *exchanger) askOnce(ctx context.Context, up *upstream, server netip.AddrPort, name string, t qtype, edns bool) (answer, error) {
	msg, id, err := pack(name, t, edns)
	if err != nil {
		return answer{}, errUnaskable
	}
	check := func(raw []byte) (answer, error) { return decode(raw, id, name, t) }
	key := up.connKey(server)
	if up.transport == UDP {
		a, err := x.overUDP(ctx, server, msg, check)
		if err != nil || !a.truncated {
			return a, err
		}
		key.transport = TCP
	}
	a, err := x.overStream(ctx, key, up.tls, msg, check)
	if err == nil && a.truncated {
		return answer{}, errTruncated
	}
	return a, err
}

// overUDP waits for the answer among what comes. What answers something else may be forged, so the
// wait goes on; only when it ends in vain the server is said to answer wrongly.
func (x *exchanger) overUDP(ctx context.Context, server netip.AddrPort, msg []byte, check func([]byte) (answer, error)) (answer, error) {
	var d net.Dialer
	conn, err := d.DialUDP(ctx, "udp", netip.AddrPort{}, server)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	defer interruptible(ctx, conn)()
	if _, err := conn.Write(msg); err != nil {
		return answer{}, err
	}
	buf := x.buffers.Get().(*[maxDatagram]byte)
	defer x.buffers.Put(buf)
	strange := false
	for {
		n, err := conn.Read(buf[:])
		if err != nil {
			if strange && errors.Is(err, os.ErrDeadlineExceeded) {
				return answer{}, errMalformed
			}
			return answer{}, err
		}
		a, err := check(buf[:n])
		if !errors.Is(err, errNotOurs) {
			return a, err
		}
		strange = true
	}
}

// interruptible ends the connection's reads and writes with the context; the returned function
// undoes it.
func interruptible(ctx context.Context, conn net.Conn) (undo func() bool) {
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline) // an error shows at the next read or write
	}
	return context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
}

// overStream asks over TCP or TLS. A connection from earlier may have been closed by the server
// meanwhile: then it is tried once more on a new one.
func (x *exchanger) overStream(ctx context.Context, key connKey, config *tls.Config, msg []byte, check func([]byte) (answer, error)) (answer, error) {
	if conn := x.takeIdle(key); conn != nil {
		a, err := x.roundTrip(ctx, key, conn, msg, check)
		if err == nil || ctx.Err() != nil || errors.Is(err, errMalformed) || errors.Is(err, errAliasLoop) {
			return a, err
		}
	}
	conn, err := dialStream(ctx, key, config)
	if err != nil {
		return answer{}, err
	}
	return x.roundTrip(ctx, key, conn, msg, check)
}

// roundTrip does one query on the connection and keeps it for the next, or closes it.
func (x *exchanger) roundTrip(ctx context.Context, key connKey, conn net.Conn, msg []byte, check func([]byte) (answer, error)) (answer, error) {
	undo := interruptible(ctx, conn)
	a, err := streamExchange(conn, msg, check)
	if undo() && err == nil {
		x.keepIdle(key, conn)
	} else {
		conn.Close()
	}
	return a, err
}

// streamExchange frames messages by their length (RFC 1035 section 4.2.2).
func streamExchange(conn net.Conn, msg []byte, check func([]byte) (answer, error)) (answer, error) {
	framed := append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(msg)), uint16(len(msg))), msg...)
	if _, err := conn.Write(framed); err != nil {
		return answer{}, err
	}
	var size [2]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return answer{}, err
	}
	raw := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(conn, raw); err != nil {
		return answer{}, err
	}
	a, err := check(raw)
	if errors.Is(err, errNotOurs) {
		err = errMalformed
	}
	return a, err
}

func dialStream(ctx context.Context, key connKey, config *tls.Config) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialTCP(ctx, "tcp", netip.AddrPort{}, key.server)
	if err != nil || key.transport != TLS {
		return conn, err
	}
	if config == nil {
		config = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	if config.ServerName == "" {
		config = config.Clone()
		config.ServerName = key.server.Addr().WithZone("").String()
	}
	secured := tls.Client(conn, config)
	if err := secured.HandshakeContext(ctx); err != nil {
		conn.Close()
		return nil, handshakeError{err}
	}
	return secured, nil
}

// handshakeError tells a failure of TLS from one of the connection below.
type handshakeError struct{ error }

func (e handshakeError) Unwrap() error { return e.error }

func (x *exchanger) takeIdle(key connKey) net.Conn {
	x.mu.Lock()
	defer x.mu.Unlock()
	conns := x.idle[key]
	if len(conns) == 0 {
		return nil
	}
	c := conns[len(conns)-1]
	x.setIdleLocked(key, conns[:len(conns)-1])
	c.expire.Stop()
	return c.Conn
}

// keepIdle keeps the connection for a while, or closes it where there are enough.
func (x *exchanger) keepIdle(key connKey, conn net.Conn) {
	if !x.storeIdle(key, conn) {
		conn.Close()
	}
}

func (x *exchanger) storeIdle(key connKey, conn net.Conn) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed || len(x.idle[key]) >= maxIdleConns {
		return false
	}
	c := &idleConn{Conn: conn}
	c.expire = time.AfterFunc(idleTime, func() {
		if x.dropIdle(key, c) {
			c.Close()
		}
	})
	x.idle[key] = append(x.idle[key], c)
	return true
}

// dropIdle says whether the connection was still idle.
func (x *exchanger) dropIdle(key connKey, c *idleConn) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	i := slices.Index(x.idle[key], c)
	if i < 0 {
		return false
	}
	x.setIdleLocked(key, slices.Delete(x.idle[key], i, i+1))
	return true
}

func (x *exchanger) setIdleLocked(key connKey, conns []*idleConn) {
	if len(conns) == 0 {
		delete(x.idle, key)
	} else {
		x.idle[key] = conns
	}
}

// close ends every idle connection; those in use end with their query.
func (x *exchanger) close() {
	x.mu.Lock()
	idle := x.idle
	x.idle, x.closed = nil, true
	x.mu.Unlock()
	for _, conns := range idle {
		for _, c := range conns {
			c.expire.Stop()
			c.Close()
		}
	}
}
