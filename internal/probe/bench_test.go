package probe

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/apimachinery/pkg/types"
)

// peersVariable makes a process of this test binary serve what the benchmarks probe, until its standard input ends: so
// that its CPU time and memory are not counted.
const peersVariable = "PROBE_BENCHMARK_PEERS"

func TestMain(m *testing.M) {
	if os.Getenv(peersVariable) != "" {
		servePeers()
		return
	}
	os.Exit(m.Run())
}

// servePeers prints a line "name address" for each server.
func servePeers() {
	t := &testing.T{}
	root := newCertificates(t)
	config := &tls.Config{Certificates: []tls.Certificate{root.leaf(t, "db.example.com", time.Now().Add(time.Hour))}}
	ok := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusNoContent) })
	fmt.Println("full", fullBacklog(t))
	for _, name := range []string{"tcp", "http", "https", "grpc", "refused"} {
		listener, err := net.Listen("tcp", "0.0.0.0:0")
		if err != nil {
			panic(err)
		}
		fmt.Println(name, listener.Addr().(*net.TCPAddr).Port)
		switch name {
		case "tcp":
			go func() {
				for {
					if c, err := listener.Accept(); err == nil {
						_ = c.Close()
					}
				}
			}()
		case "http":
			go func() { _ = http.Serve(listener, ok) }()
		case "https":
			go func() {
				server := &http.Server{Handler: ok, ErrorLog: quiet}
				_ = server.Serve(tls.NewListener(listener, config))
			}()
		case "grpc":
			server := grpc.NewServer()
			grpc_health_v1.RegisterHealthServer(server, health.NewServer())
			go func() { _ = server.Serve(listener) }()
		case "refused":
			_ = listener.Close()
		}
	}
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
}

// peers starts the servers in a process of their own, and returns their ports.
func peers(b *testing.B) map[string]uint16 {
	b.Helper()
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), peersVariable+"=1")
	stdin, err := command.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := command.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := command.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = stdin.Close()
		_ = command.Wait()
	})
	ports := map[string]uint16{}
	lines := bufio.NewScanner(stdout)
	for len(ports) < 6 && lines.Scan() {
		var name string
		var port uint16
		if _, err := fmt.Sscan(lines.Text(), &name, &port); err != nil {
			b.Fatal(err)
		}
		ports[name] = port
	}
	return ports
}

// many returns n endpoints, each with an address of its own.
func many(n int, port uint16) []Endpoint {
	list := make([]Endpoint, n)
	for i := range list {
		addr := netip.AddrFrom4([4]byte{127, byte(1 + i>>16), byte(i >> 8), byte(i)})
		list[i] = Endpoint{ID: ID{"t", addr, port}, Dial: netip.AddrPortFrom(addr, port), Host: "db.example.com"}
	}
	return list
}

// start is a probe that has begun.
type start struct {
	dial netip.AddrPort
	at   time.Time
}

// load runs an engine while measure is called, which gets a function that waits for that many probes to begin and returns
// them.
func load(b *testing.B, check *Check, endpoints []Endpoint, measure func(e *Engine, wait func(probes int) []start)) {
	b.Helper()
	var mu sync.Mutex
	var begun []start
	var target int
	enough := make(chan []start)
	e := New(Options{MaxConcurrent: 10000, Permit: func(_ types.NamespacedName, dial netip.AddrPort) error {
		mu.Lock()
		defer mu.Unlock()
		if target == 0 {
			return nil
		}
		if begun = append(begun, start{dial, time.Now()}); len(begun) == target {
			enough <- begun
			target = 0
		}
		return nil
	}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- e.Start(ctx) }()
	e.Sync(owner1, check, endpoints)
	wait := func(probes int) []start {
		mu.Lock()
		begun, target = make([]start, 0, probes), probes
		mu.Unlock()
		return <-enough
	}
	wait(3 * len(endpoints)) // every endpoint has its verdict, and its connection
	measure(e, wait)
	cancel()
	if err := <-ended; err != nil {
		b.Error(err)
	}
}

func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// BenchmarkCPU measures the CPU time of this process, user and system, per probe: 500 endpoints on loopback.
func BenchmarkCPU(b *testing.B) {
	ports := peers(b)
	insecure := &TLS{InsecureSkipVerify: true}
	closing := []Header{{"Connection", "close"}}
	for _, bench := range []struct {
		name, port string
		check      Check
		period     time.Duration
	}{
		{"TCP", "tcp", Check{TCP: &TCPSocket{}}, 100 * ms},
		{"refused", "refused", Check{TCP: &TCPSocket{}}, 100 * ms},
		{"HTTP/new", "http", Check{HTTP: &HTTPGet{Headers: closing}}, 100 * ms},
		{"HTTP/kept", "http", Check{HTTP: &HTTPGet{}}, 100 * ms},
		{"HTTPS/full", "https", Check{HTTP: &HTTPGet{Headers: closing}, TLS: insecure}, 1000 * ms},
		{"HTTPS/kept", "https", Check{HTTP: &HTTPGet{}, TLS: insecure}, 200 * ms},
		{"gRPC/kept", "grpc", Check{GRPC: &GRPC{}}, 200 * ms},
	} {
		b.Run(bench.name, func(b *testing.B) {
			check := bench.check
			check.Period, check.Confirm, check.Timeout, check.FailureThreshold = bench.period, bench.period, 3*sec, 3
			load(b, &check, many(500, ports[bench.port]), func(e *Engine, wait func(int) []start) {
				before := cpuTime()
				b.ResetTimer()
				wait(max(b.N, 500))
				b.StopTimer()
				b.ReportMetric(float64(cpuTime()-before)/float64(max(b.N, 500))/1000, "cpu-us/probe")
			})
		})
	}
}

// BenchmarkPunctuality probes 20,000 endpoints every 2 s, none and 40% of which don't answer, and reports by how much the
// time from one probe of an endpoint that answers to its next is off, in milliseconds.
func BenchmarkPunctuality(b *testing.B) {
	ports := peers(b)
	for _, dead := range []int{0, 8000} {
		b.Run(fmt.Sprintf("dead=%d", dead), func(b *testing.B) {
			list := many(20000, ports["tcp"])
			for i := range dead {
				at := i * len(list) / dead
				list[at].Dial = netip.AddrPortFrom(list[at].Dial.Addr(), ports["full"])
			}
			check := &Check{TCP: &TCPSocket{}, Period: 2 * sec, Timeout: sec, Confirm: 200 * ms, FailureThreshold: 3}
			load(b, check, list, func(e *Engine, wait func(int) []start) {
				wait(10 * len(list))
				cpu, began := cpuTime(), time.Now()
				last := map[netip.AddrPort]time.Time{}
				var off []time.Duration
				for _, s := range wait(5 * len(list)) {
					if previous, ok := last[s.dial]; ok && s.dial.Port() == ports["tcp"] {
						off = append(off, (s.at.Sub(previous) - check.Period).Abs())
					}
					last[s.dial] = s.at
				}
				slices.Sort(off)
				b.ReportMetric(off[len(off)/2].Seconds()*1000, "p50-ms")
				b.ReportMetric(off[len(off)*99/100].Seconds()*1000, "p99-ms")
				b.ReportMetric(off[len(off)-1].Seconds()*1000, "max-ms")
				b.ReportMetric(100*(cpuTime()-cpu).Seconds()/time.Since(began).Seconds(), "%cpu")
			})
		})
	}
}

// BenchmarkMemory measures the heap per endpoint between probes.
func BenchmarkMemory(b *testing.B) {
	ports := peers(b)
	for _, bench := range []struct {
		name, port string
		check      Check
	}{
		{"TCP", "tcp", Check{TCP: &TCPSocket{}}},
		{"HTTP", "http", Check{HTTP: &HTTPGet{}}},
		{"HTTPS", "https", Check{HTTP: &HTTPGet{}, TLS: &TLS{InsecureSkipVerify: true}}},
		{"gRPC", "grpc", Check{GRPC: &GRPC{}}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			const number = 2000
			for b.Loop() {
				before := heap()
				check := bench.check
				check.Period, check.Confirm, check.Timeout, check.FailureThreshold = 4*sec, 4*sec, 3*sec, 3
				load(b, &check, many(number, ports[bench.port]), func(e *Engine, wait func(int) []start) {
					b.ReportMetric(float64(heap()-before)/number, "heap-B/endpoint")
				})
			}
		})
	}
}

func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc + stats.StackInuse
}

// BenchmarkSync measures a Sync of 10,000 endpoints that changes nothing, and one that changes one.
func BenchmarkSync(b *testing.B) {
	e := New(Options{})
	check := &Check{TCP: &TCPSocket{}, Period: sec, Timeout: sec, Confirm: sec}
	list := many(10000, 80)
	e.Sync(owner1, check, list)
	b.Run("unchanged", func(b *testing.B) {
		for b.Loop() {
			e.Sync(owner1, check, list)
		}
	})
	b.Run("one less, one more", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			e.Sync(owner1, check, list[i%2:len(list)-1+i%2])
		}
	})
}
