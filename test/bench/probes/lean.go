package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/external-backend/operator/test/bench/meter"
)

// leanTick and leanReuse are the engine's: what is due within a tick begins together, and a kept
// connection carries checks for ten seconds.
const (
	leanTick  = 5 * time.Millisecond
	leanReuse = 10 * time.Second
)

// beLean checks the targets of one group as cheaply as Go can: no verdicts, no timeouts, no bounds.
// It does not check whether an answer is right, only whether it is complete.
func beLean(text string) error {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	var stop atomic.Bool
	go func() { // ends with the process
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop.Store(true)
	}()
	g := j.Groups[0]
	if kinds[g.Kind].tls {
		return leanTLS(g, j.CA, &stop)
	}
	return leanPlain(g, &stop)
}

// leanTarget is one target of a loop.
type leanTarget struct {
	addr    netip.AddrPort
	due     time.Duration
	fd      int // -1: none is open
	dialled time.Duration
	uses    uint32
	sent    bool
}

// leanPlain is one loop over one epoll instance.
func leanPlain(g group, stop *atomic.Bool) error {
	k := kinds[g.Kind]
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	targets := make([]leanTarget, g.Count)
	for i := range targets {
		targets[i] = leanTarget{
			addr: netip.AddrPortFrom(meter.Address(g.First+i), k.port),
			fd:   -1,
			due:  k.period * time.Duration(i) / time.Duration(g.Count),
		}
	}
	began, next := time.Now(), 0 // the target that is due next
	events, in := make([]unix.EpollEvent, 512), make([]byte, 4<<10)
	for !stop.Load() {
		now := time.Since(began)
		for ; targets[next].due <= now; next = (next + 1) % len(targets) {
			t := &targets[next]
			t.due += k.period
			if err := t.begin(k, epoll, next, now); err != nil {
				return err
			}
		}
		n, err := unix.EpollWait(epoll, events, int((leanTick-time.Since(began)%leanTick)/time.Millisecond)+1)
		if err != nil && err != unix.EINTR {
			return err
		}
		for _, event := range events[:max(n, 0)] {
			targets[event.Fd].happened(k, event.Events, in)
		}
	}
	return nil
}

func (t *leanTarget) begin(k kind, epoll, index int, now time.Duration) error {
	switch {
	case t.fd < 0:
	case t.sent || t.uses == 0:
		return nil // it is being connected, or has no answer yet
	case now-t.dialled < leanReuse:
		if t.send(k) != nil {
			t.close()
		}
		return nil
	default:
		t.close()
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	t.fd, t.uses, t.dialled = fd, 0, now
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: int(t.addr.Port()), Addr: t.addr.Addr().As4()}); err != nil &&
		err != unix.EINPROGRESS {
		t.close()
		return nil
	}
	return unix.EpollCtl(
		epoll,
		unix.EPOLL_CTL_ADD,
		fd,
		&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLET, Fd: int32(index)},
	)
}

func (t *leanTarget) happened(k kind, events uint32, in []byte) {
	switch {
	case t.fd < 0:
	case events&(unix.EPOLLERR|unix.EPOLLHUP) != 0:
		t.close()
	case !t.sent && t.uses == 0 && events&unix.EPOLLOUT != 0:
		if !k.http && !k.grpc {
			t.close()
		} else if t.send(k) != nil {
			t.close()
		}
	case t.sent && events&unix.EPOLLIN != 0:
		n, err := unix.Read(t.fd, in)
		if err != nil || n > 0 && !answerEnds(k, in[:n]) {
			return
		}
		if t.sent = false; n == 0 || !k.keep {
			t.close()
		}
	}
}

func (t *leanTarget) send(k kind) error {
	request := leanRequest(k)
	if k.grpc {
		request = leanCalls[min(int(t.uses), len(leanCalls)-1)]
	}
	t.uses++
	t.sent = true
	_, err := unix.Write(t.fd, request)
	return err
}

// close resets the connection, which leaves no TIME_WAIT.
func (t *leanTarget) close() {
	_ = unix.SetsockoptLinger(t.fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.Close(t.fd)
	t.fd, t.sent = -1, false
}

var (
	leanKept  = []byte("GET / HTTP/1.1\r\nHost: " + serverName + "\r\n\r\n")
	leanOne   = []byte("GET / HTTP/1.1\r\nHost: " + serverName + "\r\nConnection: close\r\n\r\n")
	leanCalls = func() (calls [leanReuse/often + 1][]byte) {
		for i := range calls {
			calls[i] = grpcCall(uint32(2*i + 1))
		}
		return calls
	}()
)

func leanRequest(k kind) []byte {
	if k.keep {
		return leanKept
	}
	return leanOne
}

// answerEnds reports whether the bytes that have come end an answer.
func answerEnds(k kind, in []byte) bool {
	if k.http {
		return bytes.HasSuffix(in, []byte("ok"))
	}
	for len(in) >= 9 { // frames: HEADERS with END_STREAM is the last
		if in[3] == 1 && in[4]&1 != 0 {
			return true
		}
		in = in[min(9+int(in[1])<<8+int(in[2]), len(in)):]
	}
	return false
}

// leanTLS runs a goroutine for each target, because crypto/tls needs a connection that blocks.
func leanTLS(g group, ca string, stop *atomic.Bool) error {
	pool, err := readPool(ca)
	if err != nil {
		return err
	}
	k := kinds[g.Kind]
	config := &tls.Config{
		RootCAs:          pool,
		ServerName:       serverName,
		CurvePreferences: []tls.CurveID{tls.X25519},
		MinVersion:       tls.VersionTLS13,
	}
	errs := make(chan error, g.Count)
	for i := range g.Count {
		go func() {
			time.Sleep(k.period * time.Duration(i) / time.Duration(g.Count))
			errs <- leanTLSTarget(k, meter.Address(g.First+i), config, i, stop)
		}()
	}
	for range g.Count {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

// leanTLSTarget checks one target. Those of a group dial anew by turns.
func leanTLSTarget(k kind, addr netip.Addr, config *tls.Config, index int, stop *atomic.Bool) error {
	ticker := time.NewTicker(k.period)
	defer ticker.Stop()
	in := make([]byte, 256)
	var c *tls.Conn
	for n := index; !stop.Load(); n++ {
		if c == nil {
			raw, err := net.DialTCP("tcp", nil, net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, k.port)))
			if err != nil {
				return err
			}
			_ = raw.SetLinger(0)
			c = tls.Client(raw, config)
		}
		if _, err := c.Write(leanRequest(k)); err != nil {
			return err
		}
		if _, err := c.Read(in); err != nil {
			return err
		}
		if !k.keep || n%int(leanReuse/k.period) == 0 {
			_ = c.NetConn().Close()
			c = nil
		}
		<-ticker.C
	}
	return nil
}
