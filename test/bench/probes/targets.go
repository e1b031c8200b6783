package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/bench/meter"
)

// targets is a network namespace that answers on every address of the prefix, and counts requests
// and connections.
type targets struct {
	namespace *devcluster.Namespace
	listeners []io.Closer
	done      sync.WaitGroup
	answered  map[uint16]*atomic.Int64 // requests, by port
	open      atomic.Int64             // connections that one is served over
}

// openTargets makes a network that has targets and nothing else.
func openTargets(id identity) (*targets, func() error, error) {
	network, err := devcluster.OpenNetwork()
	if err != nil {
		return nil, nil, err
	}
	namespace, err := network.AddNamespace("targets", "203.0.113.60", meter.Prefix)
	if err != nil {
		return nil, nil, errors.Join(err, network.Close())
	}
	t, err := startTargets(namespace, id)
	stop := func() error {
		t.close()
		return network.Close()
	}
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return t, stop, nil
}

// startTargets serves in a namespace that has the prefix. The caller closes the targets, after an
// error too.
func startTargets(namespace *devcluster.Namespace, id identity) (*targets, error) {
	t := &targets{namespace: namespace, answered: map[uint16]*atomic.Int64{}}
	return t, errors.Join(t.serve(id), t.countDials())
}

func (t *targets) serve(id identity) error {
	resuming := &tls.Config{Certificates: []tls.Certificate{id.certificate}, MinVersion: tls.VersionTLS13}
	full := resuming.Clone()
	full.SessionTicketsDisabled = true
	for _, server := range []struct {
		port  uint16
		serve func(net.Conn, *atomic.Int64)
	}{
		{portTCP, func(net.Conn, *atomic.Int64) {}},
		{portHTTP, answerHTTP},
		{portHTTPS, func(c net.Conn, n *atomic.Int64) { answerHTTP(tls.Server(c, resuming), n) }},
		{portFull, func(c net.Conn, n *atomic.Int64) { answerHTTP(tls.Server(c, full), n) }},
	} {
		listener, err := t.namespace.Listen("tcp", fmt.Sprintf(":%d", server.port))
		if err != nil {
			return err
		}
		answered := &atomic.Int64{}
		t.answered[server.port] = answered
		t.listeners = append(t.listeners, listener)
		t.done.Go(func() {
			for {
				c, err := listener.Accept()
				if errors.Is(err, net.ErrClosed) {
					return
				}
				if err != nil {
					continue
				}
				if server.port == portTCP {
					_ = c.Close()
					continue
				}
				t.done.Go(func() {
					t.open.Add(1)
					server.serve(c, answered)
					t.open.Add(-1)
					_ = c.Close()
				})
			}
		})
	}
	return t.serveGRPC()
}

func (t *targets) serveGRPC() error {
	listener, err := t.namespace.Listen("tcp", fmt.Sprintf(":%d", portGRPC))
	if err != nil {
		return err
	}
	answered := &atomic.Int64{}
	t.answered[portGRPC] = answered
	server := &http.Server{
		Protocols:         new(http.Protocols),
		ReadHeaderTimeout: time.Minute,
		ConnState: func(_ net.Conn, state http.ConnState) {
			switch state {
			case http.StateNew:
				t.open.Add(1)
			case http.StateClosed:
				t.open.Add(-1)
			}
		},
	}
	server.Protocols.SetUnencryptedHTTP2(true)
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answered.Add(1)
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Trailer", "Grpc-Status")
		_, _ = io.WriteString(w, grpcServing)
		w.Header().Set("Grpc-Status", "0")
	})
	t.listeners = append(t.listeners, server)
	t.done.Go(func() { _ = server.Serve(listener) }) // ends with Close
	return nil
}

// close ends the servers. Their connections have ended with those who made them.
func (t *targets) close() {
	for _, l := range t.listeners {
		_ = l.Close()
	}
	t.done.Wait()
}

var (
	httpRequestEnd = []byte("\r\n\r\n")
	httpAnswer     = []byte("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	httpLastAnswer = []byte("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok")
	httpLastAsked  = []byte("onnection: close\r\n")
)

// answerHTTP answers requests that come one at a time and have no body, until one of them asks to
// close the connection.
func answerHTTP(c net.Conn, answered *atomic.Int64) {
	in := make([]byte, 1<<10)
	for have := 0; have < len(in); {
		n, err := c.Read(in[have:])
		if have += n; bytes.HasSuffix(in[:have], httpRequestEnd) {
			answered.Add(1)
			answer := httpAnswer
			last := bytes.Contains(in[:have], httpLastAsked)
			if last {
				answer = httpLastAnswer
			}
			if _, err := c.Write(answer); err != nil || last {
				return
			}
			have = 0
		}
		if err != nil {
			return
		}
	}
}

// countDials makes the namespace count the first packets of connections, by port.
func (t *targets) countDials() error {
	var rules bytes.Buffer
	fmt.Fprintln(&rules, "table inet dials {")
	for port := portTCP; port <= portGRPC; port++ {
		fmt.Fprintf(&rules, "counter port%d {}\n", port)
	}
	fmt.Fprintln(&rules, "chain dials { type filter hook input priority 0;")
	for port := portTCP; port <= portGRPC; port++ {
		fmt.Fprintf(&rules, "tcp dport %d tcp flags & (syn | ack) == syn counter name port%[1]d\n", port)
	}
	fmt.Fprintln(&rules, "}\n}")
	cmd := t.namespace.Command(context.Background(), "nft", "-f", "-")
	cmd.Stdin = &rules
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

var counted = regexp.MustCompile(`counter port(\d+) \{\s+packets (\d+) `)

// dials returns how many connections to each port were begun.
func (t *targets) dials(ctx context.Context) (map[uint16]int64, error) {
	out, err := t.namespace.Command(ctx, "nft", "list", "counters", "table", "inet", "dials").Output()
	if err != nil {
		return nil, fmt.Errorf("nft: %w", err)
	}
	dials := map[uint16]int64{}
	for _, match := range counted.FindAllSubmatch(out, -1) {
		port, err1 := strconv.ParseUint(string(match[1]), 10, 16)
		n, err2 := strconv.ParseInt(string(match[2]), 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, err
		}
		dials[uint16(port)] = n
	}
	return dials, nil
}

// checks returns how many checks of a kind have reached the targets. It counts requests, or
// connections where the check makes no request.
func (t *targets) checks(ctx context.Context, k kind) (int64, error) {
	if k.http || k.grpc {
		return t.answered[k.port].Load(), nil
	}
	dials, err := t.dials(ctx)
	return dials[k.port], err
}

// beVictim serves TCP and HTTP on one address until it is killed.
func beVictim(addr string) error {
	failed := make(chan error)
	silent := func(net.Conn, *atomic.Int64) {}
	for port, serve := range map[uint16]func(net.Conn, *atomic.Int64){
		portTCP + ofVictim: silent, portTCP + ofVictim2: silent,
		portHTTP + ofVictim: answerHTTP, portHTTP + ofVictim2: answerHTTP,
	} {
		listener, err := net.Listen("tcp", net.JoinHostPort(addr, strconv.Itoa(int(port))))
		if err != nil {
			return err
		}
		go func() { // ends with the process
			for {
				c, err := listener.Accept()
				if err != nil {
					failed <- err
					return
				}
				go func() {
					defer c.Close()
					serve(c, new(atomic.Int64))
				}()
			}
		}()
	}
	fmt.Println("up")
	return <-failed
}

// indexOf returns i for the address meter.Address(i).
func indexOf(addr netip.Addr) int {
	octets, first := addr.As4(), meter.Address(0).As4()
	return int(binary.BigEndian.Uint32(octets[:])) - int(binary.BigEndian.Uint32(first[:]))
}
