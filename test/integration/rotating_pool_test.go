package integration

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/external-backend/operator/test/harness"
)

// rotatingPool answers with some of its addresses at a time, in turn.
type rotatingPool struct {
	mu    sync.Mutex
	addrs []string
	shown map[string]time.Time // when an answer contained the address last
	next  int
}

const (
	poolSize = 64
	atATime  = 8
	rotation = poolSize / atATime // queries, one per second, until answers have contained all addresses
)

func (p *rotatingPool) answer(m *dns.Msg) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var window []string
	for range atATime {
		addr := p.addrs[p.next%len(p.addrs)]
		p.next++
		p.shown[addr] = time.Now()
		window = append(window, addr)
	}
	return answerWith(window...)(m)
}

// remove removes the last address, and returns when an answer contained it last.
func (p *rotatingPool) remove() (shown time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last := p.addrs[len(p.addrs)-1]
	p.addrs = p.addrs[:len(p.addrs)-1]
	return p.shown[last]
}

// If answers show 8 of 64 addresses at a time, all 64 are published, and then nothing is written
// any more. An address that no longer comes stays for removalDelaySeconds, drains for drainSeconds
// and leaves, without effect on the others.
func TestRotatingPoolIsPublishedWhole(t *testing.T) {
	h := parallel(t)
	ns := startScriptedDNS(h)
	p := &rotatingPool{shown: map[string]time.Time{}}
	want := harness.States{}
	for i := range poolSize {
		p.addrs = append(p.addrs, fmt.Sprintf("198.51.100.%d", i+1))
		want[netip.AddrPortFrom(netip.MustParseAddr(p.addrs[i]), 8080)] = harness.Healthy
	}
	ns.set("db.example.com", p.answer)
	const removalDelay, drain = 25 * time.Second, 4 * time.Second // removalDelay takes three rotations
	applyHostname(h, ns, "web", fmt.Sprintf(", removalDelaySeconds: %d", int(removalDelay.Seconds())),
		fmt.Sprintf("drainSeconds: %d", int(drain.Seconds())))
	h.WaitReady("web")
	history := recordSlices(h, "web")
	h.WaitStates("web", want)

	settled, asked := h.CountWrites(), ns.queries()
	h.Eventually("two more rotations", func() error {
		if n := ns.queries() - asked; n < 2*rotation {
			return fmt.Errorf("it was asked %d times", n)
		}
		return nil
	})
	if written := settled.Of("services", "endpointslices"); len(written) > 0 {
		t.Errorf("while the pool rotated, the manager wrote %v", written)
	}
	h.WaitStates("web", want)

	last := at(p.addrs[poolSize-1] + ":8080")
	shown := p.remove()
	want[last] = harness.Draining
	h.WaitStates("web", want)
	if after := time.Since(shown); after < removalDelay {
		t.Errorf("the address began to drain %v after the last answer with it", after)
	}
	delete(want, last)
	h.WaitStates("web", want)
	if after := time.Since(shown); after < removalDelay+drain-time.Second { // slices keep whole seconds
		t.Errorf("the address left %v after the last answer with it", after)
	}
	for _, state := range history.all() {
		if !strings.HasSuffix(state, ":true,true,false") &&
			!strings.Contains(state, " "+last.Addr().String()+":false,true,true") {
			t.Errorf("there was the state %q", state)
		}
	}
}
