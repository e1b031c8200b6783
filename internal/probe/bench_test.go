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
	for len(ports) < 5 && lines.Scan() {
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

// load runs an engine while measure is called, which gets a function that waits for that many probes to end.
func load(b *testing.B, check *Check, endpoints []Endpoint, measure func(e *Engine, wait func(probes int))) {
	b.Helper()
	var mu sync.Mutex
	begun, enough := 0, make(chan struct{}, 1)
	target := -1
	e := New(Options{MaxConcurrent: 10000, Permit: func(types.NamespacedName, netip.AddrPort) error {
		mu.Lock()
		defer mu.Unlock()
		if begun++; begun == target {
			enough <- struct{}{}
		}
		return nil
	}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- e.Start(ctx) }()
	e.Sync(owner1, check, endpoints)
	wait := func(probes int) {
		mu.Lock()
		target = begun + probes
		mu.Unlock()
		<-enough
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
			load(b, &check, many(500, ports[bench.port]), func(e *Engine, wait func(int)) {
				before := cpuTime()
				b.ResetTimer()
				wait(max(b.N, 500))
				b.StopTimer()
				b.ReportMetric(float64(cpuTime()-before)/float64(max(b.N, 500))/1000, "cpu-us/probe")
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
				load(b, &check, many(number, ports[bench.port]), func(e *Engine, wait func(int)) {
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
