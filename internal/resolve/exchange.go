package resolve

import (
	"cmp"
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

// asker asks one server one question. It returns the answer, or why there is none.
type asker interface {
	ask(ctx context.Context, up *upstream, server netip.AddrPort, q query) (answer, error)
	close()
}

// upstream is a list of nameservers and the way to reach them. Owners share records where their
// upstreams have equal keys.
type upstream struct {
	key       string
	servers   []netip.AddrPort // none = those of resolv.conf
	transport Transport
	tls       *tls.Config
	identity  string
	forbidden bool // no nameserver may be asked
}

func upstreamOf(c Config) *upstream {
	up := &upstream{transport: cmp.Or(c.Transport, UDP), forbidden: c.NoQueries}
	if up.transport == TLS {
		up.tls, up.identity = c.TLS, c.TLSIdentity
	}
	for _, s := range c.Nameservers {
		up.servers = append(up.servers, withPort(s, up.transport))
	}
	up.key = fmt.Sprint(up.transport, up.servers, up.forbidden, up.identity)
	return up
}

// withPort adds the default port of the transport (RFC 1035, RFC 7858) where there is none.
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
	idleTime     = 10 * time.Second // of a connection; RFC 7766 section 6.2.3 wants a few seconds
	maxDatagram  = 4096             // bytes read of a datagram; servers send at most ednsBytes
)

var errTruncated = errors.New("truncated answer")

// errInvalidName means that a name does not fit into a query.
var errInvalidName = errors.New("name cannot be asked for")

// exchanger is the asker that uses the network. Each UDP query has a socket of its own and so a
// random port. TCP and TLS connections are reused, for one query at a time.
type exchanger struct {
	buffers sync.Pool // *[maxDatagram]byte

	mu     sync.Mutex
	idle   map[connKey][]*idleConn
	closed bool
}

// connKey is a server and the way to reach it.
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

// ask sends the question with EDNS0, and once more without it where the server doesn't know that.
// Over UDP, it turns to TCP when the answer is truncated.
func (x *exchanger) ask(ctx context.Context, up *upstream, server netip.AddrPort, q query) (answer, error) {
	a, err := x.askOnce(ctx, up, server, q, true)
	if err == nil && intolerant(a.rcode) {
		return x.askOnce(ctx, up, server, q, false)
	}
	return a, err
}

// exchange is a packed query, and the function that decodes its answer.
type exchange struct {
	query  []byte
	decode func(raw []byte) (answer, error)
}

func (x *exchanger) askOnce(
	ctx context.Context, up *upstream, server netip.AddrPort, q query, edns bool,
) (answer, error) {
	msg, id, err := pack(q.name, q.t, edns)
	if err != nil {
		return answer{}, errInvalidName
	}
	e := exchange{query: msg, decode: func(raw []byte) (answer, error) { return decode(raw, id, q.name, q.t) }}

	key := up.connKey(server)
	if up.transport == UDP {
		a, err := x.overUDP(ctx, server, e)
		if err != nil || !a.truncated {
			return a, err
		}
		key.transport = TCP
	}
	a, err := x.overStream(ctx, key, up.tls, e)
	if err == nil && a.truncated {
		return answer{}, errTruncated
	}
	return a, err
}

// overUDP asks over UDP. A datagram that does not answer this query may be forged, so overUDP waits
// for another one. If the deadline passes after such a datagram, the server's answer counts as
// malformed.
func (x *exchanger) overUDP(ctx context.Context, server netip.AddrPort, e exchange) (answer, error) {
	var d net.Dialer
	conn, err := d.DialUDP(ctx, "udp", netip.AddrPort{}, server)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	defer interruptible(ctx, conn)()
	if _, err := conn.Write(e.query); err != nil {
		return answer{}, err
	}

	buf := x.buffers.Get().(*[maxDatagram]byte)
	defer x.buffers.Put(buf)
	foreign := false
	for {
		n, err := conn.Read(buf[:])
		if err != nil {
			if foreign && errors.Is(err, os.ErrDeadlineExceeded) {
				return answer{}, errMalformed
			}
			return answer{}, err
		}
		a, err := e.decode(buf[:n])
		if !errors.Is(err, errNotOurs) {
			return a, err
		}
		foreign = true
	}
}

// interruptible makes the connection's reads and writes end with the context, until undo is called.
// As with the stop function of context.AfterFunc, undo reports whether the context had not ended
// before.
func interruptible(ctx context.Context, conn net.Conn) (undo func() bool) {
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline) // an error shows at the next read or write
	}
	return context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
}

// overStream asks over TCP or TLS. If the server has closed an idle connection meanwhile,
// overStream asks again on a new one.
func (x *exchanger) overStream(ctx context.Context, key connKey, config *tls.Config, e exchange) (answer, error) {
	if conn := x.takeIdle(key); conn != nil {
		a, err := x.roundTrip(ctx, key, conn, e)
		if err == nil || ctx.Err() != nil || errors.Is(err, errMalformed) || errors.Is(err, errAliasLoop) {
			return a, err
		}
	}
	conn, err := dialStream(ctx, key, config)
	if err != nil {
		return answer{}, err
	}
	return x.roundTrip(ctx, key, conn, e)
}

// roundTrip sends one query on the connection, and then keeps the connection for the next query or
// closes it.
func (x *exchanger) roundTrip(ctx context.Context, key connKey, conn net.Conn, e exchange) (answer, error) {
	undo := interruptible(ctx, conn)
	a, err := e.overConn(conn)
	if !undo() || err != nil || !x.keepIdle(key, conn) {
		conn.Close()
	}
	return a, err
}

// overConn sends the query and reads the answer, each behind its length (RFC 1035 section 4.2.2).
func (e exchange) overConn(conn net.Conn) (answer, error) {
	framed := make([]byte, 0, 2+len(e.query))
	framed = append(binary.BigEndian.AppendUint16(framed, uint16(len(e.query))), e.query...)
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
	a, err := e.decode(raw)
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

// handshakeError is an error of the TLS handshake, as opposed to one of the connection.
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

// keepIdle keeps the connection for a while. It reports false where the server has enough of them.
func (x *exchanger) keepIdle(key connKey, conn net.Conn) bool {
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

// dropIdle forgets the connection, and reports whether it was still idle.
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

// close closes all idle connections. Those in use are closed after their query.
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
