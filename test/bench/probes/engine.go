package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/test/bench/meter"
)

// job describes the work of a prober.
type job struct {
	CA     string
	Groups []group
	Pace   bool // measures how punctual probes are
}

// group is a number of targets that are checked alike.
type group struct {
	Name   string
	Kind   int // index of kinds
	First  int // of the prefix's addresses
	Count  int
	Beside uint16 // 0, or how far the port is from the kind's own: ofVictim or ofVictim2

	// 0: the kind's own.
	Period, Confirm, Timeout time.Duration
}

// port returns the port on which the group's targets listen.
func (g group) port() uint16 {
	return kinds[g.Kind].port + g.Beside
}

// check returns the group's check for the engine.
func (g group) check(ca string) (*probe.Check, error) {
	c, err := kinds[g.Kind].check(ca)
	if err == nil && g.Period > 0 {
		c.Period, c.Confirm, c.Timeout = g.Period, g.Confirm, g.Timeout
	}
	return c, err
}

func (g group) endpoints() []probe.Endpoint {
	list := make([]probe.Endpoint, g.Count)
	for i := range list {
		addr, port := meter.Address(g.First+i), g.port()
		list[i] = probe.Endpoint{
			ID:   probe.ID{Target: "t", Addr: addr, Port: port},
			Dial: netip.AddrPortFrom(addr, port),
			Host: serverName,
		}
	}
	return list
}

// measured holds the figures that the engine's process reports of itself.
type measured struct {
	Live, Resident int64 // bytes of memory that are in use, and that the process has, beyond what it had without targets
	Gaps           meter.Spread
	Late           float64 // seconds; 99 of 100 probes begin at most so late
	Probes         int     // of those that Gaps are of
}

// beEngine probes until its standard input ends. It prints "GROUP INDEX VERDICT" when a verdict
// changes. For each line that it reads, it prints what it has measured since the line before.
func beEngine(text string) (err error) {
	var j job
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	live, resident := memoryInUse()
	registry := prometheus.NewRegistry()
	watcher := &watcher{verdicts: map[string][]probe.Verdict{}, first: map[string]int{}}
	paces := newPaces(j)
	watcher.engine = probe.New(
		probe.Options{Notify: watcher.notify, Permit: paces.permit(), Registerer: registry, Log: logr.Discard()},
	)
	var checks []*probe.Check
	for _, g := range j.Groups {
		check, err := g.check(j.CA)
		if err != nil {
			return err
		}
		checks = append(checks, check)
		watcher.first[g.Name], watcher.verdicts[g.Name] = g.First, make([]probe.Verdict, g.Count)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- watcher.engine.Start(ctx) }()
	defer func() {
		cancel()
		err = errors.Join(err, <-ended)
	}()
	for i, g := range j.Groups {
		watcher.engine.Sync(types.NamespacedName{Name: g.Name}, checks[i], g.endpoints())
	}
	late := newLateness(registry)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		m := measured{}
		m.Gaps, m.Probes = paces.take()
		if m.Late, err = late.take(); err != nil {
			return err
		}
		m.Live, m.Resident = memoryInUse()
		m.Live, m.Resident = m.Live-live, m.Resident-resident
		if err := json.NewEncoder(os.Stdout).Encode(m); err != nil {
			return err
		}
	}
	return nil
}

// memoryInUse returns how many bytes of heap and stacks are live, and how many the process has once
// nothing more can be given back.
func memoryInUse() (live, resident int64) {
	runtime.GC()
	debug.FreeOSMemory()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return int64(stats.HeapAlloc + stats.StackInuse), residentBytes(os.Getpid())
}

// residentBytes returns how much memory a process has, or 0 where that is not known.
func residentBytes(pid int) int64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	var size, resident int64
	if err != nil {
		return 0
	}
	if _, err := fmt.Sscan(string(text), &size, &resident); err != nil {
		return 0
	}
	return resident * int64(os.Getpagesize())
}

// watcher prints which verdicts have changed.
type watcher struct {
	engine   *probe.Engine
	first    map[string]int             // of a group's addresses
	verdicts map[string][]probe.Verdict // by group; the loop's own
}

func (w *watcher) notify(owner types.NamespacedName) {
	var text strings.Builder
	verdicts := w.verdicts[owner.Name]
	for i, state := range w.engine.States(owner) {
		if state.Verdict != verdicts[i] {
			verdicts[i] = state.Verdict
			fmt.Fprintf(&text, "%s %d %s\n", owner.Name, w.first[owner.Name]+i, state.Verdict)
		}
	}
	_, _ = os.Stdout.WriteString(text.String())
}

// paces notes when probes begin.
type paces struct {
	mu     sync.Mutex
	period time.Duration
	count  int
	last   []time.Time // by address, of the first group
	gaps   meter.Spread
	probes int
}

// summary returns 101 durations with the same percentiles, or all where there are no more.
func summary(s meter.Spread) meter.Spread {
	slices.Sort(s)
	if len(s) <= 101 {
		return s
	}
	few := make(meter.Spread, 101)
	for p := range few {
		few[p] = s[(len(s)-1)*p/100]
	}
	return few
}

func newPaces(j job) *paces {
	if !j.Pace {
		return nil
	}
	g := j.Groups[0]
	return &paces{period: g.Period, count: g.Count, last: make([]time.Time, g.Count)}
}

// permit returns the function that the engine calls before each probe, or nil where paces are not
// measured.
func (p *paces) permit() func(types.NamespacedName, netip.AddrPort) error {
	if p == nil {
		return nil
	}
	return func(_ types.NamespacedName, addr netip.AddrPort) error {
		i, now := indexOf(addr.Addr()), time.Now()
		if i >= p.count {
			return nil
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.probes++
		if !p.last[i].IsZero() {
			p.gaps = append(p.gaps, (now.Sub(p.last[i]) - p.period).Abs())
		}
		p.last[i] = now
		return nil
	}
}

// take returns by how much the times between two probes of a target differed from the period, since
// take was called last.
func (p *paces) take() (meter.Spread, int) {
	if p == nil {
		return nil, 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	gaps, probes := p.gaps, p.probes
	p.gaps, p.probes = nil, 0
	return summary(gaps), probes
}

// lateness reads the engine's histogram of that name.
type lateness struct {
	from   prometheus.Gatherer
	before map[float64]uint64
}

func newLateness(from prometheus.Gatherer) *lateness {
	return &lateness{from: from, before: map[float64]uint64{}}
}

// take returns the upper bound of the bucket within which 99 of 100 probes lie that have begun
// since it was called last; 0 where none has.
func (l *lateness) take() (float64, error) {
	families, err := l.from.Gather()
	if err != nil {
		return 0, err
	}
	for _, family := range families {
		if family.GetName() != "externalbackend_probe_lateness_seconds" {
			continue
		}
		h := family.GetMetric()[0].GetHistogram()
		all := h.GetSampleCount() - l.before[0]
		l.before[0] = h.GetSampleCount()
		worst := 0.0
		for _, bucket := range h.GetBucket() {
			upper, n := bucket.GetUpperBound(), bucket.GetCumulativeCount()
			if worst == 0 && float64(n-l.before[upper]) >= 0.99*float64(all) && all > 0 {
				worst = upper
			}
			l.before[upper] = n
		}
		return worst, nil
	}
	return 0, fmt.Errorf("the engine has no histogram of lateness")
}
