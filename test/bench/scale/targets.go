package main

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/bench/meter"
	"github.com/external-backend/operator/test/harness/lab"
)

const (
	port = 5432
	zone = "scale.example"
)

// targets is a machine that answers on every address of [meter.Prefix]. To a check a well target says "ok", a sick one hangs up.
type targets struct {
	machine  *lab.Machine
	dns      *devcluster.Nameserver
	listener net.Listener
	done     sync.WaitGroup

	mu       sync.Mutex
	sick     map[netip.Addr]bool
	turn     func(netip.Addr) bool // whether this target is to fall sick; nil: none is
	turned   netip.Addr            // the target that fell sick last
	turnedAt time.Time             // when it began to give the answer that says so
	turning  chan struct{}         // closed once one has
}

func (t *targets) serve() {
	for {
		conn, err := t.listener.Accept()
		if err != nil {
			return // closed
		}
		t.done.Go(func() {
			defer conn.Close()
			if t.answer(conn.LocalAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()) {
				_, _ = conn.Write([]byte("ok\n"))
			}
		})
	}
}

// answer decides what a target says to a check.
func (t *targets) answer(target netip.Addr) (well bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.turn != nil && t.turn(target) {
		t.turn = nil
		t.sick[target] = true
		t.turned, t.turnedAt = target, time.Now()
		close(t.turning)
	}
	return !t.sick[target]
}

// turnNext makes sick the next wanted target that is checked. The channel is closed when it was.
func (t *targets) turnNext(wanted func(netip.Addr) bool) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.turning = make(chan struct{})
	t.turn = func(a netip.Addr) bool { return !t.sick[a] && wanted(a) }
	return t.turning
}

func (t *targets) lastTurn() (netip.Addr, time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.turned, t.turnedAt
}

// records are names n0, n1.. of the zone with perName addresses each, those from first on.
func records(names, perName, first int) string {
	var text strings.Builder
	for i := range names * perName {
		fmt.Fprintf(&text, "n%d 60 IN A %s\n", i/perName, meter.Address(first+i))
	}
	return text.String()
}
