// Command fleet measures how long health is not followed when a replica of the manager ends. Three
// replicas share ExternalBackends with one target each. A target begins to fail, and at the same
// moment nothing else happens, the replica that works for it is killed, or it ends in order. The
// command measures how long after that the slice says so. It also counts the writes of slices.
// There should be two in each round.
//
// Before that, it measures how long after a target has fallen silent the slice says so, with two
// witnesses and without any.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/bench/meter"
	"github.com/external-backend/operator/test/harness/lab"
)

const (
	namespace = "fleet"
	replicas  = 3
	backends  = 360
	firstPort = 8001
	rounds    = 10               // of each way to end
	patience  = 40 * time.Second // bounds each wait

	// silentRounds is how often silentTargets targets fall silent together.
	silentRounds  = 12
	silentTargets = 10
)

func main() { meter.Main(devcluster.Options{WithoutProxy: true}, run) }

// bench is a fleet with its ExternalBackends.
type bench struct {
	lab      *lab.Lab
	managers []*lab.Manager
	machine  *lab.Machine // with the targets
	servers  []*lab.Server
	slices   watch.Interface
	ready    map[string]bool      // by ExternalBackend, as the watch has shown it
	changed  map[string]time.Time // when it showed that
	failed   map[int]bool         // the targets that failed before: one that returns often is held back
	written  int
}

func run(ctx context.Context, l *lab.Lab) (err error) {
	b := &bench{lab: l, ready: map[string]bool{}, changed: map[string]time.Time{}, failed: map[int]bool{}}
	defer func() {
		for _, m := range b.managers {
			err = errors.Join(err, m.Stop())
		}
	}()
	if err := b.open(ctx); err != nil {
		return err
	}
	defer b.slices.Stop()
	if err := b.silence(ctx, "with two witnesses"); err != nil {
		return err
	}
	if err := b.restart(ctx, "--witnesses=0"); err != nil {
		return err
	}
	if err := b.silence(ctx, "without witnesses"); err != nil {
		return err
	}
	if err := b.restart(ctx); err != nil {
		return err
	}
	for _, way := range []struct {
		name string
		end  func(*lab.Manager) error // nil: the replica does not end
	}{
		{"alive", nil},
		{"killed", func(m *lab.Manager) error { m.Kill(); return nil }},
		{"ended in order", func(m *lab.Manager) error { return m.Stop() }},
	} {
		if err := b.measure(ctx, way.name, way.end); err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
	}
	return nil
}

// open starts the servers and the replicas, and applies the ExternalBackends.
func (b *bench) open(ctx context.Context) error {
	ns := &corev1.Namespace{}
	ns.Name = namespace
	if err := b.lab.Client.Create(ctx, ns); err != nil {
		return err
	}
	machine, err := b.lab.AddMachine("targets")
	if err != nil {
		return err
	}
	b.machine = machine
	for i := range backends {
		server, err := machine.Serve("http", firstPort+i)
		if err != nil {
			return err
		}
		b.servers = append(b.servers, server)
		if err := b.lab.Client.Create(ctx, backend(i, machine.V4.String())); err != nil {
			return err
		}
	}
	for range replicas {
		if err := b.start(ctx); err != nil {
			return err
		}
	}
	b.slices, err = b.lab.Client.Watch(ctx, &discoveryv1.EndpointSliceList{}, client.InNamespace(namespace))
	if err != nil {
		return err
	}
	for i := range backends {
		if err := b.await(ctx, i, true); err != nil {
			return err
		}
	}
	return nil
}

func backend(i int, address string) *v1alpha1.ExternalBackend {
	b := &v1alpha1.ExternalBackend{}
	b.Namespace, b.Name = namespace, name(i)
	b.Spec.Ports = []v1alpha1.Port{{Name: "web", Port: 80, TargetPort: int32(firstPort + i)}}
	b.Spec.Targets = []v1alpha1.Target{{Name: "a", Address: address}}
	b.Spec.HealthCheck = &v1alpha1.HealthCheck{
		HTTPGet: &v1alpha1.HTTPGet{Path: lab.HealthPath}, PeriodSeconds: 1, TimeoutSeconds: 1,
	}
	return b
}

func (b *bench) start(ctx context.Context, flags ...string) error {
	m, err := b.lab.StartManager(ctx, append(flags, "--leader-elect")...)
	if err == nil {
		b.managers = append(b.managers, m)
	}
	return err
}

// restart replaces all replicas.
func (b *bench) restart(ctx context.Context, flags ...string) error {
	for _, m := range b.managers {
		if err := m.Stop(); err != nil {
			return err
		}
	}
	b.managers = nil
	for range replicas {
		if err := b.start(ctx, flags...); err != nil {
			return err
		}
	}
	_, err := b.shareOf(ctx, b.managers[0])
	return err
}

// silence makes targets fall silent that never failed, and prints how long after that their slices
// said so.
func (b *bench) silence(ctx context.Context, how string) error {
	if _, err := b.shareOf(ctx, b.managers[0]); err != nil {
		return err
	}
	var found meter.Spread
	for range silentRounds {
		var victims []int
		var addrs []netip.AddrPort
		for i := 0; i < backends && len(victims) < silentTargets; i++ {
			if !b.failed[i] {
				b.failed[i] = true
				victims, addrs = append(victims, i), append(addrs, b.machine.At4(uint16(firstPort+i)))
			}
		}
		began := time.Now()
		if err := b.machine.Drop(addrs...); err != nil {
			return err
		}
		for _, i := range victims {
			if err := b.await(ctx, i, false); err != nil {
				return fmt.Errorf("%s: %w", how, err)
			}
			found = append(found, b.changed[name(i)].Sub(began))
		}
		if err := b.machine.Undrop(addrs...); err != nil {
			return err
		}
		for _, i := range victims {
			if err := b.await(ctx, i, true); err != nil {
				return fmt.Errorf("%s: %w", how, err)
			}
		}
	}
	fmt.Printf("%s: a silence is published after %v\n", how, found)
	return nil
}

// measure ends a replica and replaces it, many times, and prints how long health was not followed.
func (b *bench) measure(ctx context.Context, way string, end func(*lab.Manager) error) error {
	var found meter.Spread
	before := b.written
	for range rounds {
		took, err := b.round(ctx, end)
		if err != nil {
			return err
		}
		found = append(found, took)
	}
	load, err := meter.LoadAverage()
	if err != nil {
		return err
	}
	fmt.Printf("%s: a death in its share is published after %v; %d writes of slices in %d rounds; load average %s\n",
		way, found, b.written-before, rounds, load)
	return nil
}

// round ends the oldest replica while a target of its share begins to fail.
func (b *bench) round(ctx context.Context, end func(*lab.Manager) error) (time.Duration, error) {
	m := b.managers[0]
	victim, err := b.shareOf(ctx, m)
	if err != nil {
		return 0, err
	}
	b.failed[victim] = true
	began := time.Now()
	b.servers[victim].SetSick(true)
	ended := make(chan error, 1)
	if end == nil {
		ended <- nil
	} else {
		b.managers = b.managers[1:]
		go func() { ended <- end(m) }() // the end of the round waits for it
	}
	err = b.await(ctx, victim, false)
	took := time.Since(began)
	if err := errors.Join(err, <-ended); err != nil {
		return 0, err
	}
	b.servers[victim].SetSick(false)
	if err := b.await(ctx, victim, true); err != nil {
		return 0, err
	}
	if end == nil {
		return took, nil
	}
	return took, b.start(ctx)
}

// shareOf waits until all replicas work and each ExternalBackend has one of them. It returns one of
// the share of m.
func (b *bench) shareOf(ctx context.Context, m *lab.Manager) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		owned, working, own := 0, 0, -1
		for _, other := range b.managers {
			metrics, err := other.Metrics(ctx)
			if err != nil {
				return 0, err
			}
			owned += int(metrics["externalbackend_owned"])
			working += int(metrics["externalbackend_replica_working"])
			if other == m {
				own = b.anyOf(metrics)
			}
		}
		if owned == backends && working == replicas && own >= 0 {
			return own, nil
		}
		select {
		case <-ctx.Done():
			return 0, fmt.Errorf("%d of %d replicas work, for %d ExternalBackends", working, replicas, owned)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// anyOf returns an ExternalBackend that has series and whose target has not failed, or -1.
func (b *bench) anyOf(metrics map[string]float64) int {
	for i := range backends {
		if b.failed[i] {
			continue
		}
		for series := range metrics {
			if strings.HasPrefix(series, "externalbackend_ready{") && strings.Contains(series, strconv.Quote(name(i))) {
				return i
			}
		}
	}
	return -1
}

// await reads events of slices until that of an ExternalBackend is ready, or is not.
func (b *bench) await(ctx context.Context, i int, ready bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for b.ready[name(i)] != ready {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s did not become ready %t: %w", name(i), ready, ctx.Err())
		case e, ok := <-b.slices.ResultChan():
			if !ok {
				return errors.New("the watch of slices has ended")
			}
			b.note(e)
		}
	}
	return nil
}

// note keeps what an event says.
func (b *bench) note(e watch.Event) {
	slice, ok := e.Object.(*discoveryv1.EndpointSlice)
	if !ok || len(slice.Endpoints) == 0 {
		return
	}
	if e.Type == watch.Modified {
		b.written++
	}
	owner, ready := slice.Labels[v1alpha1.LabelName], *slice.Endpoints[0].Conditions.Ready
	if b.ready[owner] != ready {
		b.changed[owner] = time.Now()
	}
	b.ready[owner] = ready
}

func name(i int) string { return fmt.Sprint("b", i) }
