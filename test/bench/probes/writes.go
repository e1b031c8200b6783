package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/bench/meter"
	"github.com/external-backend/operator/test/harness/lab"
)

const (
	writeNamespace = "probes"
	backends       = 20 // ExternalBackends for each kind of death
	perBackend     = 5  // targets each, of which one dies in each round
	published      = backends * perBackend
	flips          = 100
	flipPort       = 9200
	writePatience  = time.Minute // bounds each wait
)

// The first addresses of each kind of death, and of the targets that flip.
const (
	firstVictim = published * iota
	firstHole
	firstWeb
	firstFlip
)

// sorts are the kinds of death that are measured.
var sorts = []struct {
	name  string
	first int
	check v1alpha1.HealthCheck
	port  uint16
}{
	{
		"killed process, TCP (refused)", firstVictim, v1alpha1.HealthCheck{TCPSocket: &v1alpha1.TCPSocket{}},
		portTCP + ofVictim,
	},
	{"dropped packets, TCP (black hole)", firstHole, v1alpha1.HealthCheck{TCPSocket: &v1alpha1.TCPSocket{}}, portTCP},
	{"killed process, HTTP kept alive", firstWeb, v1alpha1.HealthCheck{HTTPGet: &v1alpha1.HTTPGet{}}, portHTTP + ofVictim},
}

// writes measures how soon the manager, as `make build` compiles it, writes a death into a slice.
func writes(r *report) (err error) {
	l, err := lab.Open(r.ctx, devcluster.Options{WithoutProxy: true, WithoutDNS: true}, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	machine, err := l.AddMachine("targets")
	if err != nil {
		return err
	}
	if err := machine.AddAddresses(meter.Prefix); err != nil {
		return err
	}
	t, err := startTargets(machine.Namespace, r.identity)
	defer t.close()
	if err != nil {
		return err
	}
	listener, err := machine.Listen("tcp", fmt.Sprintf(":%d", flipPort))
	if err != nil {
		return err
	}
	flippers := meter.StartFlippers(listener)
	defer flippers.Close()

	processes := map[int]*exec.Cmd{} // by address
	for _, first := range []int{firstVictim, firstWeb} {
		some, err := startVictims(r.ctx, machine.Namespace, first, published)
		defer bury(some)
		if err != nil {
			return err
		}
		for i, p := range some {
			processes[first+i] = p
		}
	}
	return r.writes(l, t, processes, flippers)
}

func (r *report) writes(l *lab.Lab, t *targets, processes map[int]*exec.Cmd, flippers *meter.Flippers) error {
	ns := &corev1.Namespace{}
	ns.Name = writeNamespace
	if err := l.Client.Create(r.ctx, ns); err != nil {
		return err
	}
	watch, err := meter.WatchSlices(r.ctx, l.Client)
	if err != nil {
		return err
	}
	defer watch.Close()
	manager, err := l.StartManager(r.ctx)
	if err != nil {
		return err
	}
	defer manager.Kill()
	if err := publish(r.ctx, l, watch); err != nil {
		return fmt.Errorf("%w; the manager said:\n%s", err, manager.Tail())
	}
	r.title(
		"From a death to the slice that says so, %d deaths of each sort, each of another ExternalBackend; and from the last failure to the slice, %d flips",
		published,
		flips,
	)
	r.head("what", "p50", "p99", "largest", "goal", "")
	took := make([]meter.Spread, len(sorts))
	for round := range perBackend {
		for i := range sorts {
			some, err := dieOnce(r.ctx, t, watch, processes, i, round)
			if err != nil {
				return fmt.Errorf("%s: %w; the manager said:\n%s", sorts[i].name, err, manager.Tail())
			}
			took[i] = append(took[i], some...)
		}
	}
	for i, sort := range sorts {
		r.row(sort.name, seconds(took[i].At(50)), seconds(took[i].At(99)), seconds(took[i].At(100)), "", "")
	}
	flipped, err := flippers.Flip(r.ctx, watch, flips, func(netip.Addr) bool { return true })
	if err != nil {
		return fmt.Errorf("%w; the manager said:\n%s", err, manager.Tail())
	}
	r.row(
		"last failure to slice",
		meter.Milliseconds(flipped.At(50)),
		meter.Milliseconds(flipped.At(99)),
		meter.Milliseconds(flipped.At(100)),
		"p99 under 50 ms",
		r.judge("verdict to write: p99 "+meter.Milliseconds(flipped.At(99)), flipped.At(99) < 50*time.Millisecond),
	)
	return nil
}

// publish creates all ExternalBackends and waits until every target serves.
func publish(ctx context.Context, l *lab.Lab, watch *meter.SliceWatch) error {
	for i, sort := range sorts {
		check := sort.check
		check.PeriodSeconds = int32(detectPeriod / time.Second)
		check.TimeoutSeconds = int32(detectTimeout / time.Second)
		check.ConfirmPeriodMilliseconds = int32(detectConfirm / time.Millisecond)
		for j := range backends {
			b := newBackend(fmt.Sprintf("b%d-%d", i, j), sort.first+j*perBackend, perBackend, sort.port, check)
			if err := l.Client.Create(ctx, b); err != nil {
				return err
			}
		}
	}
	flipCheck := v1alpha1.HealthCheck{
		TCPSocket:        &v1alpha1.TCPSocket{Expect: "ok"},
		PeriodSeconds:    2,
		TimeoutSeconds:   1,
		FailureThreshold: 1,
	}
	if err := l.Client.Create(ctx, newBackend("flips", firstFlip, flips, flipPort, flipCheck)); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, writePatience)
	defer cancel()
	all := len(sorts)*published + flips
	_, err := watch.Await(ctx, all, all)
	return err
}

func newBackend(name string, first, n int, port uint16, check v1alpha1.HealthCheck) *v1alpha1.ExternalBackend {
	b := &v1alpha1.ExternalBackend{}
	b.Namespace, b.Name = writeNamespace, name
	b.Spec.Ports = []v1alpha1.Port{{Name: "main", Port: int32(port), Protocol: corev1.ProtocolTCP}}
	b.Spec.HealthCheck = &check
	for i := range n {
		b.Spec.Targets = append(
			b.Spec.Targets,
			v1alpha1.Target{Name: fmt.Sprintf("t%d", i), Address: meter.Address(first + i).String()},
		)
	}
	return b
}

// dieOnce ends one target of each ExternalBackend of a kind, and measures how long it takes until
// the watch has delivered the slices.
func dieOnce(
	ctx context.Context, t *targets, watch *meter.SliceWatch, processes map[int]*exec.Cmd, sort, round int,
) (meter.Spread, error) {
	ctx, cancel := context.WithTimeout(ctx, writePatience)
	defer cancel()
	// Deaths come after a pause, at any moment of a period.
	if err := sleep(ctx, time.Second+rand.N(detectPeriod)); err != nil {
		return nil, err
	}
	dead := every(perBackend, sorts[sort].first+round, backends)
	died := make([]time.Time, backends)
	var drops []netip.AddrPort
	for i, target := range dead {
		died[i] = time.Now()
		if p := processes[target]; p != nil {
			if err := p.Process.Kill(); err != nil {
				return nil, err
			}
		} else {
			drops = append(drops, netip.AddrPortFrom(meter.Address(target), 0))
		}
	}
	if len(drops) > 0 {
		if err := t.namespace.Drop(drops...); err != nil {
			return nil, err
		}
	}
	var took meter.Spread
	for i, target := range dead {
		at, err := watch.AwaitFlip(ctx, meter.Address(target), died[i])
		if err != nil {
			return nil, err
		}
		took = append(took, at.Sub(died[i]))
	}
	return took, nil
}
