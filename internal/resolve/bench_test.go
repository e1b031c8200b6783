package resolve

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"k8s.io/apimachinery/pkg/types"
)

// benchServer is an environment variable that makes the test binary a nameserver, whose CPU time is
// not counted.
const benchServer = "RESOLVE_BENCH_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(benchServer) == "" {
		os.Exit(m.Run())
	}
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(conn.LocalAddr())
	server := &dns.Server{PacketConn: conn, Handler: dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		a := new(dns.Msg)
		a.SetReply(q)
		for i := range 4 {
			a.Answer = append(a.Answer, &dns.A{
				Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 30},
				A:   net.IPv4(192, 0, 2, byte(i)),
			})
		}
		a.Compress = true
		_ = w.WriteMsg(a)
	})}
	fmt.Fprintln(os.Stderr, server.ActivateAndServe())
}

// startServer starts the nameserver in a process of its own.
func startServer(b *testing.B) netip.AddrPort {
	b.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), benchServer+"=1")
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	return netip.MustParseAddrPort(strings.TrimSpace(line))
}

// cpu is the user and system time of this process so far.
func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkQuery compares a lookup with a query that uses the library alone. Both use EDNS0 and a
// new socket for each query.
func BenchmarkQuery(b *testing.B) {
	server := startServer(b)
	for _, parallel := range []int{1, 8} {
		b.Run(fmt.Sprintf("bare/parallel=%d", parallel), func(b *testing.B) {
			client := dns.Client{Timeout: 5 * time.Second}
			measureQueries(b, parallel, func() error {
				m := new(dns.Msg).SetQuestion("name.example.com.", dns.TypeA)
				m.SetEdns0(ednsBytes, false)
				_, _, err := client.Exchange(m, server.String())
				return err
			})
		})
		b.Run(fmt.Sprintf("lookup/parallel=%d", parallel), func(b *testing.B) {
			l := newLookuper(newExchanger(), "")
			up := upstreamOf(Config{Nameservers: []netip.AddrPort{server}})
			measureQueries(b, parallel, func() error {
				if r := l.lookup(b.Context(), up, "name.example.com", typeA); r.kind != kindGood {
					return fmt.Errorf("%+v", r)
				}
				return nil
			})
		})
	}
}

func measureQueries(b *testing.B, parallel int, query func() error) {
	var wg sync.WaitGroup
	next := make(chan struct{}, parallel)
	b.ReportAllocs()
	begin := cpu(b)
	for range parallel {
		wg.Go(func() {
			for range next {
				if err := query(); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for b.Loop() {
		next <- struct{}{}
	}
	close(next)
	wg.Wait()
	b.ReportMetric(float64((cpu(b)-begin).Microseconds())/float64(b.N), "cpu-us/query")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "queries/s")
}

// lateAsker notes how late each query leaves, compared with the schedule of its record.
type lateAsker struct {
	asker
	engine *Engine
	begin  time.Time // when new names are due
	mu     sync.Mutex
	late   []time.Duration
	count  int
}

func (l *lateAsker) ask(ctx context.Context, up *upstream, server netip.AddrPort, q query) (answer, error) {
	now := time.Now()
	l.engine.mu.Lock()
	r := l.engine.records[recordKey{name: q.name, t: q.t, upstream: up.key}]
	due := l.begin
	for user := range r.users { // a record of this benchmark has one user
		if r.kind != kindNone {
			due = r.refreshAt(user.owner.settings, user.needs(r, now), r.jitter())
		}
	}
	l.engine.mu.Unlock()
	l.mu.Lock()
	l.count++
	l.late = append(l.late, now.Sub(due))
	l.mu.Unlock()
	return l.asker.ask(ctx, up, server, q)
}

// BenchmarkNames refreshes names with a TTL of 30 s for a minute and reports their cost. For
// comparison it sends the same queries at the same rate with the library alone.
func BenchmarkNames(b *testing.B) {
	const names, ttl, window = 10_000, 30 * time.Second, time.Minute
	server := startServer(b)
	b.Run("engine", func(b *testing.B) {
		asker := &lateAsker{asker: newExchanger()}
		e := newEngine(Options{Notify: func(types.NamespacedName) {}}, asker)
		asker.engine = e
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		cfg := Config{Nameservers: []netip.AddrPort{server}, MinTTL: 5 * time.Second, MaxTTL: time.Hour, Stale: time.Hour}
		for i := range names / 10 {
			var wanted []Wanted
			for j := range 10 {
				wanted = append(wanted, name(fmt.Sprintf("n%d-%d.example.com", i, j), IPv4))
			}
			e.Sync(ownerOf(i), cfg, wanted)
		}
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error, 1)
		begin := time.Now()
		asker.begin = begin
		go func() { done <- e.Start(ctx) }()
		<-time.After(ttl) // the first round: all at once
		runtime.GC()
		runtime.ReadMemStats(&after)
		asker.mu.Lock()
		first := slices.Max(asker.late)
		asker.late, asker.count = nil, 0
		asker.mu.Unlock()
		busy := cpu(b)
		<-time.After(window)
		spent := cpu(b) - busy
		cancel()
		if err := <-done; err != nil {
			b.Fatal(err)
		}
		slices.Sort(asker.late)
		b.ReportMetric(float64(spent.Microseconds())/float64(asker.count), "cpu-us/query")
		b.ReportMetric(float64(asker.count)/window.Seconds(), "queries/s")
		b.ReportMetric(100*spent.Seconds()/window.Seconds(), "cpu-%")
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/names, "B/name")
		b.ReportMetric(asker.late[len(asker.late)/2].Seconds()*1000, "late-p50-ms")
		b.ReportMetric(asker.late[len(asker.late)*99/100].Seconds()*1000, "late-p99-ms")
		b.ReportMetric(first.Seconds()*1000, "first-round-ms")
		b.ReportMetric(time.Since(begin).Seconds(), "s")
	})
	b.Run("bare", func(b *testing.B) {
		client := dns.Client{Timeout: 5 * time.Second}
		const queries = 5000
		tick := time.NewTicker(time.Duration(float64(ttl) * 0.855 / names))
		defer tick.Stop()
		busy := cpu(b)
		for range queries {
			<-tick.C
			m := new(dns.Msg).SetQuestion("name.example.com.", dns.TypeA)
			m.SetEdns0(ednsBytes, false)
			if _, _, err := client.Exchange(m, server.String()); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64((cpu(b)-busy).Microseconds())/queries, "cpu-us/query")
	})
}
