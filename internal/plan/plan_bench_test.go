package plan

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// BenchmarkFlip plans one endpoint's change of health, from the verdict to the slice to write. The
// manager holds 100,000 endpoints in 100 ExternalBackends, and plans the one that changes. "anew"
// is the cost of a plan without a cache. cpu-ms/op is the user and system time of the whole
// process, garbage collection included.
func BenchmarkFlip(b *testing.B) {
	others := make([]*flip, 100)
	for i := range others {
		others[i] = newFlip(1000)
		others[i].plan()
	}
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprintf("endpoints=%d", n), func(b *testing.B) { benchmarkFlip(b, n, false) })
		b.Run(fmt.Sprintf("endpoints=%d/anew", n), func(b *testing.B) { benchmarkFlip(b, n, true) })
	}
	runtime.KeepAlive(others)
}

func benchmarkFlip(b *testing.B, n int, anew bool) {
	f := newFlip(n)
	for range 2 { // publish all, then fill the cache
		f.plan()
	}
	b.ReportAllocs()
	b.ResetTimer()
	began := cpuTime(b)
	for i := range b.N {
		if anew {
			f.cache = Cache{}
		}
		state := &f.states[i%n]
		state.Verdict = Healthy + Unhealthy - state.Verdict
		if changes := f.plan(); len(changes.Update) != 1 || len(changes.Create)+len(changes.Delete) != 0 {
			b.Fatalf("%d updates, %d creations, %d deletions", len(changes.Update), len(changes.Create), len(changes.Delete))
		}
	}
	b.ReportMetric((cpuTime(b)-began).Seconds()*1000/float64(b.N), "cpu-ms/op")
}

// cpuTime returns the CPU time that the process has used.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// flip is one ExternalBackend. Its slices follow each plan.
type flip struct {
	backend *v1alpha1.ExternalBackend
	service *corev1.Service
	slices  map[string]*discoveryv1.EndpointSlice
	answers map[string]Answer
	states  []ProbeState // in the order of the targets, as the engine has them
	probes  []Probe
	named   []NamedAddr
	tier    *TierState
	cache   Cache
	writes  int
}

// newFlip returns n healthy endpoints: up to 1,024 literal targets, or names with 100 addresses
// each.
func newFlip(n int) *flip {
	f := &flip{
		backend: &v1alpha1.ExternalBackend{ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: "default"}},
		service: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: "shop"},
			Spec: corev1.ServiceSpec{
				IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				Ports:      []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
			},
		},
		slices: map[string]*discoveryv1.EndpointSlice{}, answers: map[string]Answer{},
	}
	f.backend.Spec.Ports = []v1alpha1.Port{{Name: "http", Port: 80, TargetPort: 8080, Protocol: corev1.ProtocolTCP}}
	f.backend.Spec.HealthCheck = &v1alpha1.HealthCheck{TCPSocket: &v1alpha1.TCPSocket{}}
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 18 + byte(i>>16), byte(i >> 8), byte(i)}) }
	for i := 0; i < n; {
		t := v1alpha1.Target{Name: fmt.Sprintf("t%05d", i)}
		if n <= 1024 {
			t.Address = addr(i).String()
			i++
		} else {
			t.Hostname = t.Name + ".example.com"
			answer := Answer{Status: AnswerCurrent}
			for range 100 {
				answer.Addrs = append(answer.Addrs, Addr{IP: addr(i)})
				i++
			}
			f.answers[t.Name] = answer
		}
		f.backend.Spec.Targets = append(f.backend.Spec.Targets, t)
	}
	f.states = slices.Repeat([]ProbeState{{Verdict: Healthy}}, n)
	return f
}

func (f *flip) plan() endpointslice.Changes {
	existing := make([]*discoveryv1.EndpointSlice, 0, len(f.slices))
	for _, s := range f.slices {
		existing = append(existing, s)
	}
	published := endpointslice.Published(existing)
	c := f.cache.Candidates(Input{
		Backend: f.backend, Families: FamiliesOf(f.service),
		ServesPort: func(p *v1alpha1.Port) bool { return ServesPort(f.service, p) },
		Answers:    f.answers, Published: published, NamedAddrs: f.named, Max: 10000, Now: testNow,
		Permit: func(string, netip.Addr, []Port) Refusal { return Refusal{} },
	}, endpointslice.Template{Namespace: "default", Service: "shop", Backend: "shop", Max: 100})
	f.probes, _ = c.Probes(f.probes)
	f.named = c.NamedAddrs(f.named)
	p := Publish(PublishInput{
		Backend: f.backend, Published: published, TierState: f.tier, Now: testNow,
		State: func(i int) ProbeState { return f.states[i] },
	}, &c)
	f.tier = &p.TierState
	changes := f.cache.Slices(&c, p.Conditions)
	for _, list := range [][]*discoveryv1.EndpointSlice{changes.Create, changes.Update} {
		for _, s := range list {
			f.writes++
			s.ResourceVersion = strconv.Itoa(f.writes)
			f.slices[s.Name] = s
		}
	}
	return changes
}
