package resolve

import (
	"context"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// fakeDNS is an asker whose replies a test sets by name and type.
type fakeDNS struct {
	mu    sync.Mutex
	zone  map[string]func(ctx context.Context, server netip.AddrPort) (answer, error)
	asked map[string]int
	now   map[string]int // in flight
	most  int            // in flight at once for one question
}

func newFakeDNS() *fakeDNS {
	return &fakeDNS{
		zone:  map[string]func(context.Context, netip.AddrPort) (answer, error){},
		asked: map[string]int{},
		now:   map[string]int{},
	}
}

var typeNames = map[qtype]string{typeA: "A", typeAAAA: "AAAA", typeSRV: "SRV"}

func (f *fakeDNS) ask(ctx context.Context, _ *upstream, server netip.AddrPort, q query) (answer, error) {
	key := q.name + " " + typeNames[q.t]
	f.mu.Lock()
	reply := f.zone[key]
	f.asked[key]++
	f.now[key]++
	f.most = max(f.most, f.now[key])
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.now[key]--
		f.mu.Unlock()
	}()
	if reply == nil {
		return answer{ttl: 30 * time.Second}, nil
	}
	return reply(ctx, server)
}

func (f *fakeDNS) close() {}

func (f *fakeDNS) set(key string, reply func(context.Context, netip.AddrPort) (answer, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.zone[key] = reply
}

func (f *fakeDNS) count(key string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked[key]
}

type reply = func(context.Context, netip.AddrPort) (answer, error)

func records(ttl time.Duration, ips ...string) reply {
	var data []datum
	for _, ip := range ips {
		data = append(data, datum{ip: netip.MustParseAddr(ip)})
	}
	return func(context.Context, netip.AddrPort) (answer, error) {
		return answer{data: unique(append([]datum(nil), data...)), ttl: ttl}, nil
	}
}

func services(ttl time.Duration, data ...datum) reply {
	return func(context.Context, netip.AddrPort) (answer, error) {
		return answer{data: unique(append([]datum(nil), data...)), ttl: ttl}, nil
	}
}

func rcode(code int, ttl time.Duration) reply {
	return func(context.Context, netip.AddrPort) (answer, error) { return answer{rcode: code, ttl: ttl}, nil }
}

func silence(ctx context.Context, _ netip.AddrPort) (answer, error) {
	<-ctx.Done()
	return answer{}, ctx.Err()
}

const (
	noError  = 0
	servFail = 2
	nxDomain = 3
	refused  = 5
)

// harness is an engine inside a synctest bubble.
type harness struct {
	*testing.T
	*Engine
	dns      *fakeDNS
	mu       sync.Mutex
	notified map[types.NamespacedName]int
}

var (
	owner1 = types.NamespacedName{Namespace: "shop", Name: "one"}
	owner2 = types.NamespacedName{Namespace: "shop", Name: "two"}
)

func defaultConfig() Config {
	return Config{
		Nameservers: []netip.AddrPort{netip.MustParseAddrPort("198.51.100.53:53")},
		MinTTL:      5 * time.Second, MaxTTL: time.Hour, Stale: 24 * time.Hour,
	}
}

// inBubble runs the test with a fake clock and an engine that is not started yet.
func inBubble(t *testing.T, test func(h *harness)) {
	synctest.Test(t, func(t *testing.T) {
		h := &harness{T: t, dns: newFakeDNS(), notified: map[types.NamespacedName]int{}}
		h.Engine = newEngine(Options{ResolvConf: "testdata/none", Notify: func(o types.NamespacedName) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.notified[o]++
		}}, h.dns)
		test(h)
	})
}

// start starts the engine. The end of the test stops it and waits.
func (h *harness) start() {
	ctx, cancel := context.WithCancel(h.Context())
	done := make(chan error, 1)
	go func() { done <- h.Start(ctx) }()
	h.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			h.Error(err)
		}
	})
	synctest.Wait()
}

// pass lets time pass, and waits until all that it causes has happened.
func (h *harness) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (h *harness) notifications(o types.NamespacedName) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.notified[o]
	h.notified[o] = 0
	return n
}

func name(n string, f Families) Wanted { return Wanted{Question: Question{Name: n, Families: f}} }

func seeded(w Wanted, ips ...string) Wanted {
	w.Seed = addrs(ips...)
	return w
}

func addrs(ips ...string) []Addr {
	var out []Addr
	for _, ip := range ips {
		out = append(out, Addr{IP: netip.MustParseAddr(ip)})
	}
	return out
}

func (h *harness) want(o types.NamespacedName, q Wanted, want Answer) {
	h.Helper()
	got, ok := h.Snapshot(o)[q.Question]
	if !ok {
		h.Fatalf("no answer for %v", q.Question)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		h.Fatalf("answer after %v (-want +got):\n%s", time.Since(bubbleStart), diff)
	}
}

// bubbleStart is where the clocks of synctest begin.
var bubbleStart = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func current(ips ...string) Answer { return Answer{Status: Current, Addrs: addrs(ips...)} }

func stale(cause string, ips ...string) Answer {
	return Answer{Status: Stale, Reason: ReasonServingStale, Cause: cause, Addrs: addrs(ips...)}
}

func failed(reason, cause string) Answer { return Answer{Status: Failed, Reason: reason, Cause: cause} }

// An answer is asked for again when 81 to 90 % of its TTL are over, and only a change is notified.
func TestAnswersAreRefreshedBeforeTheirTTLEnds(t *testing.T) {
	inBubble(t, func(h *harness) {
		db := name("db.example.com", IPv4|IPv6)
		h.dns.set("db.example.com A", records(100*time.Second, "192.0.2.2", "192.0.2.1"))
		h.dns.set("db.example.com AAAA", records(100*time.Second, "2001:db8::1"))
		h.Sync(owner1, defaultConfig(), []Wanted{db})
		h.want(owner1, db, Answer{Status: Pending})
		h.start()
		h.want(owner1, db, current("192.0.2.1", "192.0.2.2", "2001:db8::1"))
		h.notifications(owner1)

		h.dns.set("db.example.com A", records(100*time.Second, "192.0.2.3"))
		h.pass(80 * time.Second)
		h.want(owner1, db, current("192.0.2.1", "192.0.2.2", "2001:db8::1"))
		if n := h.dns.count("db.example.com A"); n != 1 {
			t.Errorf("asked %d times before 81%% of the TTL", n)
		}
		h.pass(11 * time.Second)
		h.want(owner1, db, current("192.0.2.3", "2001:db8::1"))
		if n := h.notifications(owner1); n != 1 {
			t.Errorf("%d notifications for one change", n)
		}
		h.pass(time.Hour)
		if n := h.notifications(owner1); n != 0 {
			t.Errorf("%d notifications for unchanged answers", n)
		}
	})
}
