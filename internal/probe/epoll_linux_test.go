//go:build !portable

package probe

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/apimachinery/pkg/types"
)

// counting answers the HTTP requests of each connection with answer, and reports the number of
// the connection for each. answer gets the numbers of the connection and of the request on it,
// both from 1, and reports whether to go on.
func counting(answer func(c net.Conn, connection, request int) bool) (handle func(net.Conn), probes <-chan int) {
	reports, accepted := make(chan int, 10000), make(chan int, 1)
	accepted <- 0
	return func(c net.Conn) {
		connection := <-accepted + 1
		accepted <- connection
		r := bufio.NewReader(c)
		for request := 1; ; request++ {
			for line := ""; line != "\r\n"; {
				var err error
				if line, err = r.ReadString('\n'); err != nil {
					return
				}
			}
			reports <- connection
			if !answer(c, connection, request) {
				return
			}
		}
	}, reports
}

func answersAlways(c net.Conn, _, _ int) bool {
	_, err := io.WriteString(c, okResponse)
	return err == nil
}

// first returns over which connections the first n probes went, in their order.
func first(n int, probes <-chan int) []int {
	connections := make([]int, n)
	for i := range connections {
		connections[i] = <-probes
	}
	return connections
}

// prober starts probes of one endpoint over a network of its own, at times that the test chooses.
type prober struct {
	t       testing.TB
	network network
	handler *handler
	probed  probed
}

func newProber(t testing.TB, check Check, endpoint Endpoint) *prober {
	t.Helper()
	network, err := newNetwork(10, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	p := &prober{t: t, network: network, handler: newHandler(&check), probed: probed{Endpoint: endpoint}}
	t.Cleanup(func() {
		network.drop(&p.probed)
		network.close()
	})
	return p
}

// start begins a probe that may go over a connection which was dialled at since or later.
func (p *prober) start(started, since instant) *attempt {
	a := &attempt{
		probed:   &p.probed,
		handler:  p.handler,
		endpoint: p.probed.Endpoint,
		keep:     true,
		started:  started,
		since:    since,
	}
	p.network.start(a)
	return a
}

// probe runs a probe to its end.
func (p *prober) probe(started, since instant) outcome {
	a := p.start(started, since)
	for !slices.Contains(p.network.wait(-1).ended, a) {
	}
	return a.outcome
}

// hinted waits for the network to say that the kept connection has been closed.
func (p *prober) hinted() bool {
	for until := time.Now().Add(10 * sec); time.Now().Before(until); {
		if slices.Contains(p.network.wait(time.Until(until)).hints, &p.probed) {
			return true
		}
	}
	return false
}

// TestKeptConnectionIsReplaced has a server that no longer accepts connections, and still answers
// over those that it has. The first probe that dials finds it. A new connection replaces the kept
// one.
func TestKeptConnectionIsReplaced(t *testing.T) {
	root := newCertificates(t)
	config := &tls.Config{Certificates: []tls.Certificate{root.leaf(t, "127.0.0.1", time.Now().Add(time.Hour))}}
	for _, over := range []*TLS{nil, {RootCAs: root.pool()}} {
		t.Run(fmt.Sprintf("TLS %v", over != nil), func(t *testing.T) {
			handle, probes := counting(answersAlways)
			closed := make(chan struct{}, 10)
			listener := local(t)
			if over != nil {
				listener = tls.NewListener(listener, config)
			}
			p := newProber(t, Check{HTTP: &HTTPGet{}, TLS: over}, at(serve(t, listener, func(c net.Conn) {
				handle(c)
				closed <- struct{}{}
			})))
			for _, step := range []struct {
				started, since instant
				connection     int
			}{{0, 0, 1}, {9 * sec, 0, 1}, {10 * sec, 10 * sec, 2}, {30 * sec, 30 * sec, 3}} {
				if o := p.probe(step.started, step.since); o.result != success {
					t.Fatalf("%+v", o)
				}
				if connection := <-probes; connection != step.connection {
					t.Errorf("the probe at %v goes over connection %d, want %d", step.started, connection, step.connection)
				}
			}
			<-closed
			<-closed // both that were replaced

			_ = listener.Close()
			if o := p.probe(39*sec, 30*sec); o.result != success {
				t.Errorf("over the connection that is left: %+v", o)
			}
			if o := p.probe(40*sec, 40*sec); o != failed(ReasonConnectionRefused) {
				t.Errorf("nobody accepts any more: %+v", o)
			}
			<-closed
		})
	}
}

// TestRestartsDoNotEndKeeping has a server that closes its connections now and then, as in a
// restart. Between two closes a connection stays open from one probe to the next, so the next
// close is noticed at once, too.
func TestRestartsDoNotEndKeeping(t *testing.T) {
	connections := make(chan net.Conn, 10)
	handle, _ := counting(func(c net.Conn, connection, request int) bool {
		connections <- c
		return answersAlways(c, connection, request)
	})
	p := newProber(t, Check{HTTP: &HTTPGet{}}, at(serve(t, local(t), handle)))
	for i := range 2 * instant(maxCloses) {
		p.probe(2*i*10*sec, 2*i*10*sec)
		p.probe((2*i+1)*10*sec, (2*i+1)*10*sec)
		<-connections
		_ = (<-connections).Close()
		if !p.hinted() {
			t.Fatalf("close %d is not noticed", i+1)
		}
	}
}

// TestLargeCertificatesAreNotKept has servers with large certificates, which stay in memory as
// long as the connection. So the connection is not kept.
func TestLargeCertificatesAreNotKept(t *testing.T) {
	for _, test := range []struct {
		size int
		want State
		kept bool
	}{
		{maxKeptHandshake - 4<<10, healthy, true},
		{maxKeptHandshake, healthy, false},
		{maxHandshake, unhealthy(ReasonTLSHandshakeFailed), false},
	} {
		t.Run(fmt.Sprint(test.size), func(t *testing.T) {
			root := newCertificates(t)
			large := root.leaf(t, "127.0.0.1", time.Now().Add(time.Hour))
			template := *large.Leaf
			template.ExtraExtensions = []pkix.Extension{{Id: []int{1, 3, 6, 1, 4, 1, 32473, 1}, Value: make([]byte, test.size)}}
			config := &tls.Config{Certificates: []tls.Certificate{root.sign(t, template)}}
			check := Check{HTTP: &HTTPGet{}, TLS: &TLS{RootCAs: root.pool()}}
			handle, _ := counting(answersAlways)
			if is := state(t, check, at(serve(t, tls.NewListener(local(t), config), handle))); is != test.want {
				t.Fatalf("the endpoint is %v, not %v", is, test.want)
			}
			if test.want != healthy {
				return
			}
			handle, probes := counting(answersAlways)
			e, _ := running(t, Options{})
			e.Sync(owner1, quick(check), []Endpoint{at(serve(t, tls.NewListener(local(t), config), handle))})
			connections := first(20, probes)
			if fresh := connections[19] == 20; fresh == test.kept {
				t.Errorf("20 probes go over connections %v", connections)
			}
		})
	}
}

// TestGRPCConnectionsAreKept counts the connections of many calls.
func TestGRPCConnectionsAreKept(t *testing.T) {
	server, inner := grpc.NewServer(), local(t)
	listener := &countingListener{Listener: inner}
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	asked := make(chan struct{}, 100)
	e, _ := running(t, Options{Permit: func(types.NamespacedName, netip.AddrPort) error {
		asked <- struct{}{}
		return nil
	}})
	e.Sync(owner1, quick(Check{GRPC: &GRPC{}}), []Endpoint{at(inner.Addr())})
	for range 31 {
		<-asked
	}
	if n := listener.n.Load(); n > 5 {
		t.Errorf("31 probes over %d connections", n)
	}
	if got := snapshot(e, owner1)[at(inner.Addr()).ID]; got != healthy {
		t.Errorf("%+v", got)
	}
}

// TestFailureEndsTheConnection has a server that fails now and then: the next probe dials.
func TestFailureEndsTheConnection(t *testing.T) {
	handle, probes := counting(func(c net.Conn, connection, request int) bool {
		text := okResponse
		if request == 3 {
			text = "HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno"
		}
		_, err := io.WriteString(c, text)
		return err == nil
	})
	addr := serve(t, local(t), handle)
	e, _ := running(t, Options{})
	e.Sync(owner1, quick(Check{HTTP: &HTTPGet{}}), []Endpoint{at(addr)})
	uses := map[int]int{}
	for _, connection := range first(30, probes) {
		if uses[connection]++; uses[connection] > 3 {
			t.Errorf("connection %d is used after a failure", connection)
		}
	}
	if len(uses) > 11 { // one may have been replaced besides
		t.Errorf("30 probes over %d connections", len(uses))
	}
}

// TestClosedConnectionsAreHints lets a server die with a kept connection: long before the next
// regular probe its death is known.
func TestClosedConnectionsAreHints(t *testing.T) {
	root := newCertificates(t)
	config := &tls.Config{Certificates: []tls.Certificate{root.leaf(t, "127.0.0.1", time.Now().Add(time.Hour))}}
	for _, test := range []struct {
		name   string
		secure bool
		end    func(net.Conn)
	}{
		{"close", false, closes},
		{"reset", false, resets},
		{"close over TLS", true, closes},
		{"reset over TLS", true, func(c net.Conn) { resets(c.(*tls.Conn).NetConn()) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			listener := local(t)
			check := quick(Check{HTTP: &HTTPGet{}})
			if test.secure {
				listener = tls.NewListener(listener, config)
				check.TLS = &TLS{RootCAs: root.pool()}
			}
			check.Period = 59 * sec
			kept := make(chan net.Conn, 1)
			handle, _ := counting(func(c net.Conn, _, _ int) bool {
				kept <- c
				return answersAlways(c, 0, 0)
			})
			endpoint := at(serve(t, listener, handle))
			endpoint.ID = lateID()
			e, notified := running(t, Options{})
			e.Sync(owner1, check, []Endpoint{endpoint})
			<-notified
			_ = listener.Close()
			test.end(<-kept)
			<-notified
			if got := snapshot(e, owner1)[endpoint.ID]; got != unhealthy(ReasonConnectionRefused) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestNoneKeptAfterTwoCloses has a server that closes every idle connection. After the second
// close none is kept.
func TestNoneKeptAfterTwoCloses(t *testing.T) {
	e, notified := running(t, Options{})
	idle := make(chan net.Conn, 10)
	handle, probes := counting(func(c net.Conn, connection, request int) bool {
		defer func() { idle <- c }()
		return answersAlways(c, connection, request)
	})
	endpoint := at(serve(t, local(t), handle))
	endpoint.ID = lateID()
	check := quick(Check{HTTP: &HTTPGet{}})
	check.Period = 59 * sec
	e.Sync(owner1, check, []Endpoint{endpoint})
	<-notified
	for range 3 { // the first one, and two hints
		c := <-idle
		for e.machineOf(endpoint).inFlight > 0 {
			runtime.Gosched()
		}
		_ = c.Close()
	}
	if connections := first(3, probes); connections[2] != 3 {
		t.Errorf("the probes go over connections %v", connections)
	}
	e.mu.Lock()
	next := e.due.next() - e.now()
	e.mu.Unlock()
	if next < 10*sec || len(probes) > 0 {
		t.Errorf("the next probe comes in %v", next)
	}
	if got := snapshot(e, owner1)[endpoint.ID]; got != healthy {
		t.Errorf("%+v", got)
	}
}

// lateID returns an ID whose first regular probe, with a period of 59 s, comes late in an
// engine's life.
func lateID() ID {
	return findID(func(offset uint64) bool { return slot(epochOffset, 59*sec, offset) > epochOffset+50*sec })
}

// steadyID returns an ID whose connection is not replaced early in an engine's life.
func steadyID() ID {
	return findID(func(offset uint64) bool { return replacedAt(epochOffset+8*sec, offset) < epochOffset })
}

func findID(suits func(offset uint64) bool) ID {
	for i := 0; ; i++ {
		id := ID{Target: fmt.Sprint(i)}
		if suits(offsetOf(owner1, id)) {
			return id
		}
	}
}

// TestStaleConnectionsAreNoFailures has a server that closes a kept connection as soon as it is
// used again.
func TestStaleConnectionsAreNoFailures(t *testing.T) {
	handle, probes := counting(func(c net.Conn, connection, request int) bool {
		if request == 2 {
			if connection%2 == 0 {
				resets(c)
			}
			return false
		}
		return answersAlways(c, 0, 0)
	})
	addr := serve(t, local(t), handle)
	e, notified := running(t, Options{})
	e.Sync(owner1, quick(Check{HTTP: &HTTPGet{}}), []Endpoint{at(addr)})
	<-notified
	first(20, probes)
	if got := snapshot(e, owner1)[at(addr).ID]; got != healthy {
		t.Errorf("%+v", got)
	}
	if len(notified) != 0 {
		t.Error("its state has changed meanwhile")
	}
}

// TestPolicyIsAskedBeforeARedial has a server that closes a kept connection when it is used
// again, after policy has come to refuse its address: the probe does not dial once more.
func TestPolicyIsAskedBeforeARedial(t *testing.T) {
	var denied atomic.Bool
	listener := &countingListener{Listener: local(t)}
	handle, _ := counting(func(c net.Conn, _, request int) bool {
		if request == 2 {
			denied.Store(true)
			return false
		}
		return answersAlways(c, 0, 0)
	})
	endpoint := at(serve(t, listener, handle))
	endpoint.ID = steadyID()
	refusals := make(chan struct{}, 1000)
	e, _ := running(t, Options{Permit: func(types.NamespacedName, netip.AddrPort) error {
		if !denied.Load() {
			return nil
		}
		refusals <- struct{}{}
		return errors.New("denied")
	}})
	e.Sync(owner1, quick(Check{HTTP: &HTTPGet{}}), []Endpoint{endpoint})
	for range 5 { // the redial, and later probes
		<-refusals
	}
	if n := listener.n.Load(); n > 1 {
		t.Errorf("%d connections, of which one was allowed", n)
	}
	if got := snapshot(e, owner1)[endpoint.ID]; got != healthy {
		t.Errorf("%+v", got)
	}
}

// TestHalfOpenConnectionIsNoDeath has a kept connection of which the peer knows no more, as after
// a firewall has forgotten it: the probe that goes over it stays unanswered, those beside it and
// after it dial anew.
func TestHalfOpenConnectionIsNoDeath(t *testing.T) {
	handle, probes := counting(func(c net.Conn, connection, request int) bool {
		if connection == 1 && request == 2 {
			hang(c)
			return false
		}
		return answersAlways(c, connection, request)
	})
	p := newProber(t, Check{HTTP: &HTTPGet{}}, at(serve(t, local(t), handle)))
	p.probe(0, 0)
	silent := p.start(0, 0)
	if connections := first(2, probes); !slices.Equal(connections, []int{1, 1}) {
		t.Errorf("the first probes go over connections %v", connections)
	}
	beside := p.probe(0, 0)
	if o := p.network.expire(silent); o != failed(ReasonTimeout) {
		t.Errorf("the unanswered one: %+v", o)
	}
	if after := p.probe(0, 0); beside.result != success || after.result != success {
		t.Errorf("%+v beside it, %+v after it", beside, after)
	}
	if connections := first(2, probes); !slices.Equal(connections, []int{2, 3}) {
		t.Errorf("the later probes go over connections %v", connections)
	}
}

// TestALackOfFilesIsUnknown leaves this process no file to open: no verdict changes.
func TestALackOfFilesIsUnknown(t *testing.T) {
	addr := serve(t, local(t), hang)
	asked := make(chan struct{}, 100)
	e, notified := running(t, Options{Permit: func(types.NamespacedName, netip.AddrPort) error {
		asked <- struct{}{}
		return nil
	}})
	e.Sync(owner1, quick(Check{TCP: &TCPSocket{}}), []Endpoint{at(addr)})
	<-notified

	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 3, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
	for range 10 + len(asked) {
		<-asked
	}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if got := snapshot(e, owner1)[at(addr).ID]; got != healthy || len(notified) != 0 {
		t.Errorf("%+v", got)
	}
}

// TestFilesAreBounded counts the sockets of connections in use, kept connections and spare sockets,
// over both families. All together stay within the bound, and every endpoint is probed.
func TestFilesAreBounded(t *testing.T) {
	const bound, concurrent = 20, 8
	net, err := newNetwork(concurrent, logr.Discard())
	if err != nil {
		t.Fatal(err)
	}
	p := net.(*poller)
	p.maxOpen, p.maxKept = bound, bound-concurrent
	most, asked := 0, make(chan struct{})
	e := New(Options{MaxConcurrent: concurrent, Permit: func(types.NamespacedName, netip.AddrPort) error {
		most = max(most, p.open)
		asked <- struct{}{}
		return nil
	}})
	handle, _ := counting(answersAlways)
	for i, address := range []string{"127.0.0.1:0", "[::1]:0"} {
		addr := serve(t, listen(t, address), handle)
		for j, check := range []Check{{HTTP: &HTTPGet{}}, {TCP: &TCPSocket{}}} {
			list := make([]Endpoint, 20)
			for k := range list {
				list[k] = at(addr)
				list[k].ID.Target = fmt.Sprint(k)
			}
			e.Sync(types.NamespacedName{Name: fmt.Sprint(i, j)}, quick(check), list)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- e.run(ctx, net) }()
	for range 2000 {
		<-asked
	}
	cancel()
	for running := true; running; {
		select {
		case <-asked:
		case err := <-ended:
			if running = false; err != nil {
				t.Error(err)
			}
		}
	}
	if most > bound || most < bound/2 {
		t.Errorf("%d sockets at once, want at most %d", most, bound)
	}
	if p.open != 0 {
		t.Errorf("%d sockets are counted after the end", p.open)
	}
	for _, owner := range slices.Collect(maps.Keys(e.owners)) {
		for id, state := range snapshot(e, owner) {
			if state != healthy {
				t.Errorf("%v %v: %+v", owner, id, state)
			}
		}
	}
}

// TestKeptConnectionsGiveUpTheirFiles leaves this process no file to open. A probe gets the file
// of a kept connection.
func TestKeptConnectionsGiveUpTheirFiles(t *testing.T) {
	asked := make(chan struct{}, 1000)
	e, notified := running(t, Options{Permit: func(_ types.NamespacedName, addr netip.AddrPort) error {
		asked <- struct{}{}
		return nil
	}})
	handle, _ := counting(answersAlways)
	kept := at(serve(t, local(t), handle))
	kept.ID = lateID()
	check := quick(Check{HTTP: &HTTPGet{}})
	check.Period = 59 * sec
	e.Sync(owner1, check, []Endpoint{kept})
	<-notified

	other := types.NamespacedName{Name: "other"}
	endpoint := at(local(t).Addr()) // which accepts nothing: that would take a file, too
	restore := useUpFiles(t)
	e.Sync(other, quick(Check{TCP: &TCPSocket{}}), []Endpoint{endpoint})
	for range 10 {
		<-asked
	}
	restore()
	if got := snapshot(e, other)[endpoint.ID]; got != healthy {
		t.Errorf("%+v, though there was a connection to close", got)
	}
	if got := snapshot(e, owner1)[kept.ID]; got != healthy {
		t.Errorf("whose connection was closed: %+v", got)
	}
}

// useUpFiles leaves this process no file to open, until restore is called.
func useUpFiles(t *testing.T) (restore func()) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	highest := 0
	for _, entry := range entries {
		fd, _ := strconv.Atoi(entry.Name())
		highest = max(highest, fd)
	}
	var files []int
	for last := 0; last <= highest; { // each gets the lowest number that is free
		if last, err = unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			t.Fatal(err)
		}
		files = append(files, last)
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	full := unix.Rlimit{Cur: uint64(files[len(files)-1]) + 1, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &full); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
		for _, fd := range files {
			_ = unix.Close(fd)
		}
	}
}

// TestSlowProcessFailsNoHandshake has a peer answer a handshake whose goroutine does not run in
// time. That is not a failure of the peer.
func TestSlowProcessFailsNoHandshake(t *testing.T) {
	for answered, want := range map[bool]outcome{false: failed(ReasonTimeout), true: {}} {
		c := &conn{state: handshaking, socket: socket{gate: newGate()}, tls: new(session)}
		p := &poller{files: []file{{conn: c}}, wakeFD: -1}
		c.socket.gate.waiting.Store(true) // as its goroutine has left it
		if answered {
			p.handle(unix.EpollEvent{Events: unix.EPOLLIN})
		}
		if got := p.expire(&attempt{probed: &probed{}, conn: c}); got != want {
			t.Errorf("answered %v: %+v, want %+v", answered, got, want)
		}
	}
	if got := (&poller{}).expire(&attempt{probed: &probed{}}); got != (outcome{}) {
		t.Errorf("a probe whose time is over before it could dial again: %+v", got)
	}
}

// TestNothingLeaks ends an engine with probes in every state. No goroutine, socket or TIME_WAIT
// is left.
func TestNothingLeaks(t *testing.T) {
	root := newCertificates(t)
	config := &tls.Config{Certificates: []tls.Certificate{root.leaf(t, "127.0.0.1", time.Now().Add(time.Hour))}}
	secure, probes := counting(answersAlways)
	plain, morePlain := counting(answersAlways)
	addresses := map[string]net.Addr{
		"connect": serve(t, local(t), hang), "silent": serve(t, local(t), hang), "full": localPort(fullBacklog(t)),
		"plain": serve(t, local(t), plain), "secure": serve(t, tls.NewListener(local(t), config), secure),
	}
	checks := map[string]Check{
		"connect": {TCP: &TCPSocket{}}, "silent": {TCP: &TCPSocket{}, TLS: &TLS{}}, "full": {TCP: &TCPSocket{}},
		"plain": {HTTP: &HTTPGet{}}, "secure": {HTTP: &HTTPGet{}, TLS: &TLS{RootCAs: root.pool()}},
	}
	files, goroutines := openSockets(t), runtime.NumGoroutine()
	e := New(Options{})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- e.Start(ctx) }()
	for name, check := range checks {
		e.Sync(types.NamespacedName{Name: name}, quick(check), []Endpoint{at(addresses[name])})
	}
	idle := at(addresses["connect"])
	idle.Seed = Healthy
	e.Sync(types.NamespacedName{Name: "idle"}, with(tcpCheck(), func(c *Check) { c.Period = time.Hour }), []Endpoint{idle})
	first(15, probes)
	first(15, morePlain)
	e.Forget(types.NamespacedName{Name: "plain"})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if e.due.Len() == 0 {
		t.Error("nothing was scheduled")
	}

	// The servers' ends go as soon as they see that ours have.
	for openSockets(t) > files || runtime.NumGoroutine() > goroutines {
		runtime.Gosched()
	}
	for name, addr := range addresses {
		if n := timeWaits(t, addr.(*net.TCPAddr).Port); n != 0 {
			t.Errorf("%s: %d connections in TIME_WAIT", name, n)
		}
	}
}

// openSockets counts this process's sockets, and what an engine has besides.
func openSockets(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, entry := range entries {
		to, err := os.Readlink("/proc/self/fd/" + entry.Name())
		if err == nil && (strings.HasPrefix(to, "socket:") || strings.HasPrefix(to, "anon_inode:")) {
			n++
		}
	}
	return n
}

// timeWaits counts the connections of port in TIME_WAIT.
func timeWaits(t *testing.T, port int) int {
	t.Helper()
	table, err := os.ReadFile("/proc/self/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		mine := fmt.Sprintf(":%04X", port)
		if len(fields) > 3 && (strings.HasSuffix(fields[1], mine) || strings.HasSuffix(fields[2], mine)) &&
			fields[3] == "06" {
			n++
		}
	}
	return n
}

// countingListener counts what it accepts.
type countingListener struct {
	net.Listener
	n atomic.Int32
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		l.n.Add(1)
	}
	return c, err
}

// BenchmarkProbe measures the CPU time of a probe, of this process and so of both ends: over a
// kept connection; over a new one that replaces it, as every probe is with a period of 10 s or
// more; and over a new one where none is kept.
func BenchmarkProbe(b *testing.B) {
	root := newCertificates(b)
	config := &tls.Config{Certificates: []tls.Certificate{root.leaf(b, "127.0.0.1", time.Now().Add(time.Hour))}}
	for _, protocol := range []string{"HTTP", "HTTPS"} {
		for name, probes := range map[string]struct{ age, keep bool }{
			"kept": {false, true}, "replaced": {true, true}, "new": {true, false},
		} {
			b.Run(protocol+"/"+name, func(b *testing.B) {
				check, listener := Check{HTTP: &HTTPGet{}}, local(b)
				if protocol == "HTTPS" {
					check.TLS, listener = &TLS{RootCAs: root.pool()}, tls.NewListener(listener, config)
				}
				p := newProber(b, check, at(serve(b, listener, answersRequests)))
				var now instant
				before := cpuTime(b)
				for b.Loop() {
					if probes.age {
						now += maxReuse
					}
					if o := p.probe(now, now); o.result != success {
						b.Fatal(o)
					}
					if !probes.keep {
						p.network.drop(&p.probed)
					}
				}
				b.ReportMetric(float64((cpuTime(b)-before).Microseconds())/float64(b.N), "cpu-us/op")
			})
		}
	}
}

// answersRequests answers each request of a connection.
func answersRequests(c net.Conn) {
	for in := make([]byte, 1<<10); ; {
		if _, err := c.Read(in); err != nil {
			return
		}
		if _, err := io.WriteString(c, okResponse); err != nil {
			return
		}
	}
}

// cpuTime is the CPU time that this process has used.
func cpuTime(b *testing.B) time.Duration {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
