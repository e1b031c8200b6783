package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/bench/meter"
	"github.com/external-backend/operator/test/harness/lab"
)

const (
	namespace = "scale"

	backends   = 100  // of literal targets
	perBackend = 1000 // targets each
	all        = backends * perBackend
	names      = 10 // of the ExternalBackend with many addresses
	perName    = 1000
	one        = names * perName

	// Long periods keep the prober's share of the CPU small. This benchmark does not measure how soon
	// a failure is detected.
	periodOfMany = 120
	periodOfOne  = 60

	flips    = 100
	settle   = 25 * time.Second // more than twice the minimum time between two writes of a status
	rest     = 2 * time.Minute
	patience = 8 * time.Minute // bounds each wait
)

// bench is the state that all phases share.
type bench struct {
	lab     *lab.Lab
	manager *lab.Manager
	targets *targets
	slices  *meter.SliceWatch
	table   *tabwriter.Writer
}

func open(ctx context.Context, l *lab.Lab) (b *bench, err error) {
	b = &bench{lab: l, table: tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.targets, err = b.startTargets(ctx); err != nil {
		return b, err
	}
	ns := &corev1.Namespace{}
	ns.Name = namespace
	if err := l.Client.Create(ctx, ns); err != nil {
		return b, err
	}
	if b.slices, err = meter.WatchSlices(ctx, l.Client); err != nil {
		return b, err
	}
	b.manager, err = l.StartManager(ctx)
	return b, err
}

func (b *bench) startTargets(ctx context.Context) (*targets, error) {
	machine, err := b.lab.AddMachine("targets")
	if err != nil {
		return nil, err
	}
	if err := machine.AddAddresses(meter.Prefix); err != nil {
		return nil, err
	}
	t := &targets{machine: machine}
	if t.dns, err = machine.StartDNS(ctx, map[string]string{zone: records(names, perName, all)}, ""); err != nil {
		return nil, err
	}
	listener, err := machine.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		return nil, errors.Join(err, t.dns.Close())
	}
	t.Flippers = meter.StartFlippers(listener)
	return t, nil
}

func (b *bench) close() {
	if b.manager != nil {
		if err := b.manager.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	if b.slices != nil {
		b.slices.Close()
	}
	if t := b.targets; t != nil {
		t.Close()
		if err := t.dns.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
}

func (b *bench) run(ctx context.Context) error {
	fmt.Fprintln(b.table,
		"phase\ttime\tslice writes\tof them created\tother writes\tmanager CPU\tmanager RSS\tload average")
	steps := []struct {
		name string
		do   func(context.Context) (string, error)
	}{
		{fmt.Sprintf("%d x %d, without checks", backends, perBackend), b.publishMany},
		{"a check is added to each, all probed", b.addChecks},
		{fmt.Sprintf("1 x %d from DNS, with checks", one), b.publishOne},
		{fmt.Sprintf("%d flips in 1 x %d", flips, one), b.flipping(ofOne)},
		{fmt.Sprintf("%d flips in %d x %d", flips, backends, perBackend), b.flipping(ofMany)},
		{"statuses settle", b.sleeping(settle)},
		{"rest", b.sleeping(rest)},
	}
	for _, step := range steps {
		if err := b.measure(ctx, step.name, step.do); err != nil {
			return fmt.Errorf("%s: %w; the manager's log:\n%s", step.name, err, b.manager.Tail())
		}
	}
	return b.table.Flush()
}

// measure runs a phase and prints its line. do returns the time that it took, as text.
func (b *bench) measure(ctx context.Context, name string, do func(context.Context) (string, error)) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	counter, err := b.lab.CountWrites()
	if err != nil {
		return err
	}
	before, err := b.manager.Metrics(ctx)
	if err != nil {
		return err
	}
	events := b.slices.Count()
	took, err := do(ctx)
	if err != nil {
		return err
	}
	writes, err := counter.Since()
	if err != nil {
		return err
	}
	after, err := b.manager.Metrics(ctx)
	if err != nil {
		return err
	}
	sliceWrites, others := tally(writes)
	created := b.slices.Count()[watch.Added] - events[watch.Added]
	load, err := meter.LoadAverage()
	if err != nil {
		return err
	}
	cpu := after["process_cpu_seconds_total"] - before["process_cpu_seconds_total"]
	line := fmt.Sprintf("%s\t%s\t%d\t%d\t%s\t%.2f s\t%.0f MiB\t%s", name, took, sliceWrites, created, others, cpu,
		after["process_resident_memory_bytes"]/(1<<20), load)
	fmt.Fprintln(os.Stderr, strings.ReplaceAll(line, "\t", " | ")) // the table is printed at the end
	fmt.Fprintln(b.table, line)
	return nil
}

// tally counts writes of slices, including refused ones, and returns the other writes by resource.
func tally(writes []lab.Write) (sliceWrites int, others string) {
	counts := map[string]int{}
	var resources []string
	for _, w := range writes {
		if w.Resource == "endpointslices" {
			sliceWrites++
			continue
		}
		if counts[w.Resource]++; counts[w.Resource] == 1 {
			resources = append(resources, w.Resource)
		}
	}
	if len(resources) == 0 {
		return sliceWrites, "0"
	}
	slices.Sort(resources)
	for i, r := range resources {
		resources[i] = fmt.Sprintf("%d %s", counts[r], r)
	}
	return sliceWrites, strings.Join(resources, ", ")
}

func newBackend(name string) *v1alpha1.ExternalBackend {
	b := &v1alpha1.ExternalBackend{}
	b.Namespace, b.Name = namespace, name
	b.Spec.Ports = []v1alpha1.Port{{Name: "postgres", Port: port, Protocol: corev1.ProtocolTCP}}
	return b
}

// check returns a health check that needs one answer for a verdict.
func check(periodSeconds int32) *v1alpha1.HealthCheck {
	return &v1alpha1.HealthCheck{
		TCPSocket:        &v1alpha1.TCPSocket{Expect: "ok"},
		PeriodSeconds:    periodSeconds,
		FailureThreshold: 1,
	}
}

// publishMany creates the ExternalBackends of literal targets.
func (b *bench) publishMany(ctx context.Context) (string, error) {
	start := time.Now()
	for i := range backends {
		backend := newBackend(fmt.Sprintf("many-%d", i))
		for j := range perBackend {
			backend.Spec.Targets = append(backend.Spec.Targets,
				v1alpha1.Target{Name: fmt.Sprintf("t%d", j), Address: meter.Address(i*perBackend + j).String()})
		}
		if err := b.lab.Client.Create(ctx, backend); err != nil {
			return "", err
		}
	}
	created := time.Since(start)
	end, err := b.slices.Await(ctx, all, all)
	return fmt.Sprintf("%.1f s (%.1f s to create them)", end.Sub(start).Seconds(), created.Seconds()), err
}

// addChecks adds a check to each of them, and waits for as many successful probes as there are
// endpoints.
func (b *bench) addChecks(ctx context.Context) (string, error) {
	start := time.Now()
	for i := range backends {
		backend := newBackend(fmt.Sprintf("many-%d", i))
		base := backend.DeepCopy()
		backend.Spec.HealthCheck = check(periodOfMany)
		if err := b.lab.Client.Patch(ctx, backend, client.MergeFrom(base)); err != nil {
			return "", err
		}
	}
	patched := time.Since(start)
	err := b.awaitProbes(ctx, all)
	return fmt.Sprintf("%.1f s (%.1f s to patch them)", time.Since(start).Seconds(), patched.Seconds()), err
}

// awaitProbes waits until n probes were successful.
func (b *bench) awaitProbes(ctx context.Context, n float64) error {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		metrics, err := b.manager.Metrics(ctx)
		if err != nil {
			return err
		}
		var probes float64
		for series, value := range metrics {
			if strings.HasPrefix(series, "externalbackend_probe_total{") && strings.Contains(series, `result="success"`) {
				probes += value
			}
		}
		if probes >= n {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return fmt.Errorf("%w, after %.0f probes of %.0f", ctx.Err(), probes, n)
		}
	}
}

// publishOne creates the ExternalBackend with many addresses. Its endpoints are not ready until
// their first verdict.
func (b *bench) publishOne(ctx context.Context) (string, error) {
	backend := newBackend("one")
	backend.Spec.DNS = &v1alpha1.DNS{Nameservers: []string{b.targets.machine.At4(53).String()}}
	for i := range names {
		backend.Spec.Targets = append(backend.Spec.Targets,
			v1alpha1.Target{Name: fmt.Sprintf("n%d", i), Hostname: fmt.Sprintf("n%d.%s", i, zone)})
	}
	backend.Spec.HealthCheck = check(periodOfOne)
	start := time.Now()
	if err := b.lab.Client.Create(ctx, backend); err != nil {
		return "", err
	}
	published, err := b.slices.Await(ctx, all+one, 0)
	if err != nil {
		return "", err
	}
	ready, err := b.slices.Await(ctx, all+one, all+one)
	return fmt.Sprintf("%.1f s; all serving %.1f s", published.Sub(start).Seconds(), ready.Sub(start).Seconds()), err
}

// sleeping is a phase without changes.
func (b *bench) sleeping(d time.Duration) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		select {
		case <-time.After(d):
			return d.String(), nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

var (
	firstOfOne = meter.Address(all)

	ofOne  = func(a netip.Addr) bool { return a.Compare(firstOfOne) >= 0 }
	ofMany = func(a netip.Addr) bool { return a.Compare(firstOfOne) < 0 }
)

// flipping is a phase that measures flips of wanted targets.
func (b *bench) flipping(wanted func(netip.Addr) bool) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		took, err := b.targets.Flip(ctx, b.slices, flips, wanted)
		if err != nil {
			return "", err
		}
		return took.String(), nil
	}
}
