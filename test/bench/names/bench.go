package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/bench/meter"
	"github.com/external-backend/operator/test/harness/lab"
)

const (
	namespace = "names"
	zone      = "names.example"
	timeout   = 5 * time.Minute // of a row

	// quiet is the shortest time between two changes of a lane. The operator coalesces changes within
	// less than that.
	quiet = 400 * time.Millisecond
)

// row is one line of the table.
type row struct {
	name           string
	backends, each int // ExternalBackends, and names of each
	ttl            time.Duration
	lanes          int // the names are divided among them; each lane changes one name at a time
	changes        int // of each lane
}

var rows = []row{
	{"100 ExternalBackends of 1 name, TTL 5 s", 100, 1, 5 * time.Second, 100, 3},
	{"the same, TTL 10 s", 100, 1, 10 * time.Second, 100, 2},
	{"20 of 5 names, in each one change at a time, TTL 5 s", 20, 5, 5 * time.Second, 20, 10},
	{"1 of 100 names, which change whenever they will, TTL 5 s", 1, 100, 5 * time.Second, 100, 3},
}

// bench holds what all rows use.
type bench struct {
	lab       *lab.Lab
	authority *lab.Machine
	dns       *devcluster.Nameserver
	relay     *relay
	watch     *meter.SliceWatch
	manager   *lab.Manager

	mu    sync.Mutex // held while the zone is written
	zone  map[string]netip.Addr
	ttl   time.Duration
	given int // addresses used so far
}

func open(ctx context.Context, l *lab.Lab) (b *bench, err error) {
	b = &bench{lab: l, zone: map[string]netip.Addr{}}
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	if b.authority, err = l.AddMachine("authority"); err != nil {
		return b, err
	}
	if b.dns, err = b.authority.StartDNS(ctx, map[string]string{zone: ""}, ""); err != nil {
		return b, err
	}
	if b.relay, err = startRelay(b.authority); err != nil {
		return b, err
	}
	ns := &corev1.Namespace{}
	ns.Name = namespace
	if err := l.Client.Create(ctx, ns); err != nil {
		return b, err
	}
	if b.watch, err = meter.WatchSlices(ctx, l.Client); err != nil {
		return b, err
	}
	b.manager, err = l.StartManager(ctx)
	return b, err
}

func (b *bench) close() {
	var errs []error
	if b.manager != nil {
		errs = append(errs, b.manager.Stop())
	}
	if b.watch != nil {
		b.watch.Close()
	}
	if b.relay != nil {
		errs = append(errs, b.relay.close())
	}
	if b.dns != nil {
		errs = append(errs, b.dns.Close())
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func (b *bench) run(ctx context.Context) error {
	fmt.Println("| names | changes | slice writes | beyond the TTL | from the first answer | the slowest | load average |")
	fmt.Println("|---|---|---|---|---|---|---|")
	for i, r := range rows {
		if err := b.measure(ctx, i, r); err != nil {
			return fmt.Errorf("%s: %w; the manager said:\n%s", r.name, err, b.manager.Tail())
		}
	}
	return nil
}

// measure measures and prints one row.
func (b *bench) measure(ctx context.Context, number int, r row) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	names, err := b.publish(ctx, number, r)
	if err != nil {
		return err
	}
	counter, err := b.lab.CountWrites()
	if err != nil {
		return err
	}
	changes, err := b.change(ctx, names, r)
	if err != nil {
		return err
	}
	var beyond, own meter.Spread
	for _, c := range changes {
		beyond, own = append(beyond, c.published.Sub(c.due)), append(own, c.published.Sub(c.answered))
	}
	writes, err := counter.Since()
	if err != nil {
		return err
	}
	load, err := meter.LoadAverage()
	if err != nil {
		return err
	}
	sliceWrites := 0
	for _, w := range writes {
		if w.Resource == "endpointslices" {
			sliceWrites++
		}
	}
	fmt.Printf("| %s | %d | %d | %s | %s | %s | %s |\n",
		r.name, len(changes), sliceWrites, beyond, own, b.slowest(changes), load)
	return b.lab.Client.DeleteAllOf(ctx, &v1alpha1.ExternalBackend{}, client.InNamespace(namespace))
}

// publish creates the names and ExternalBackends of a row, and waits until all addresses are
// published.
func (b *bench) publish(ctx context.Context, number int, r row) (names []string, err error) {
	b.mu.Lock()
	clear(b.zone)
	b.ttl = r.ttl
	for i := range r.backends * r.each {
		names = append(names, fmt.Sprintf("r%d-n%d", number, i))
		b.zone[names[i]] = b.nextLocked()
	}
	first := maps.Clone(b.zone)
	err = b.writeLocked(ctx)
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	for i := range r.backends {
		backend := &v1alpha1.ExternalBackend{}
		backend.Namespace, backend.Name = namespace, fmt.Sprintf("r%d-b%d", number, i)
		backend.Spec.Ports = []v1alpha1.Port{{Name: "postgres", Port: 5432, Protocol: corev1.ProtocolTCP}}
		backend.Spec.DNS = &v1alpha1.DNS{Nameservers: []string{b.authority.At4(relayPort).String()}}
		for _, name := range names[i*r.each : (i+1)*r.each] {
			backend.Spec.Targets = append(backend.Spec.Targets, v1alpha1.Target{Name: name, Hostname: name + "." + zone})
		}
		if err := b.lab.Client.Create(ctx, backend); err != nil {
			return nil, err
		}
	}
	for _, addr := range first {
		if _, err := b.watch.AwaitAddress(ctx, addr); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// change holds when the change of a record reached each stage on its way to the slice.
type change struct {
	due time.Time // the change was made, and the last answer before has expired
	switchover
	published time.Time
}

// around is how long before and after a slow change slowest counts the others.
const around = 250 * time.Millisecond

// slowest describes the slowest hundredth of the changes: the time of each stage, and how much else
// went on.
func (b *bench) slowest(changes []change) string {
	slices.SortFunc(changes, func(x, y change) int {
		return cmp.Compare(y.published.Sub(y.due), x.published.Sub(x.due))
	})
	var parts []string
	for _, c := range changes[:(len(changes)+99)/100] {
		from, to := c.answered.Add(-around), c.answered.Add(around)
		beside := 0
		for _, other := range changes {
			if other.answered.After(from) && other.answered.Before(to) {
				beside++
			}
		}
		parts = append(parts,
			fmt.Sprintf("asked %s late, answered in %s, published in %s (%d questions and %d changes within %v)",
				meter.Milliseconds(c.asked.Sub(c.due)), meter.Milliseconds(c.answered.Sub(c.asked)),
				meter.Milliseconds(c.published.Sub(c.answered)), b.relay.askedWithin(from, to), beside, 2*around),
		)
	}
	return strings.Join(parts, "; ")
}

// change changes names in all lanes at the same time.
func (b *bench) change(ctx context.Context, names []string, r row) (changes []change, err error) {
	var lanes sync.WaitGroup
	var mu sync.Mutex
	width := len(names) / r.lanes
	for lane := range r.lanes {
		lanes.Go(func() {
			for i := range r.changes {
				c, e := b.changeOne(ctx, names[lane*width+i%width], r.ttl)
				mu.Lock()
				if e != nil {
					err = errors.Join(err, e)
					mu.Unlock()
					return
				}
				changes = append(changes, c)
				mu.Unlock()
			}
		})
	}
	lanes.Wait()
	return changes, err
}

// changeOne changes one name at a random moment.
func (b *bench) changeOne(ctx context.Context, name string, ttl time.Duration) (change, error) {
	select {
	case <-time.After(quiet + rand.N(2*ttl)):
	case <-ctx.Done():
		return change{}, ctx.Err()
	}
	b.mu.Lock()
	addr, made := b.nextLocked(), time.Now()
	b.zone[name] = addr
	err := b.writeLocked(ctx)
	b.mu.Unlock()
	if err != nil {
		return change{}, err
	}
	published, err := b.watch.AwaitAddress(ctx, addr)
	if err != nil {
		return change{}, fmt.Errorf("%s turns to %s: %w", name, addr, err)
	}
	s, ok := b.relay.switchTo(addr)
	if !ok {
		return change{}, fmt.Errorf("%s was published and never answered for %s", addr, name)
	}
	due := s.expired
	if made.After(due) {
		due = made
	}
	return change{due: due, switchover: s, published: published}, nil
}

// nextLocked returns an address that was not used before.
func (b *bench) nextLocked() netip.Addr {
	b.given++
	return meter.Address(b.given)
}

func (b *bench) writeLocked(ctx context.Context) error {
	var records strings.Builder
	for name, addr := range b.zone {
		fmt.Fprintf(&records, "%s %d A %s\n", name, int(b.ttl.Seconds()), addr)
	}
	return b.dns.SetZone(ctx, zone, records.String())
}
