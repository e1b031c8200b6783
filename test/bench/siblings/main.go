// Command siblings measures a race between the operator and the garbage collector. Two
// ExternalBackends claim the same address, and one of them is deleted. Then the sibling publishes
// the address, and the garbage collector deletes the slice of the first. The command measures how
// long after the deletion each of the two happens, and for how long the address is in no slice.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
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
	namespace = "siblings"
	deletions = 40
	patience  = 20 * time.Second // bounds each wait
	pause     = 700 * time.Millisecond
)

func main() {
	meter.Main(devcluster.Options{WithoutProxy: true}, run)
}

func run(ctx context.Context, l *lab.Lab) error {
	ns := &corev1.Namespace{}
	ns.Name = namespace
	if err := l.Client.Create(ctx, ns); err != nil {
		return err
	}
	manager, err := l.StartManager(ctx)
	if err != nil {
		return err
	}
	defer func() {
		if err := manager.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	for _, way := range ways {
		if err := measure(ctx, l.Client, way); err != nil {
			return fmt.Errorf("%s: %w; the manager said:\n%s", way.name, err, manager.Tail())
		}
	}
	return nil
}

// way is how two ExternalBackends come to share a Service.
type way struct {
	name string
	spec func(service string) v1alpha1.ExternalBackendSpec
}

var ways = []way{
	{"serviceRef", func(service string) v1alpha1.ExternalBackendSpec {
		return v1alpha1.ExternalBackendSpec{ServiceRef: &v1alpha1.ServiceReference{Name: service}}
	}},
	{"adopted", func(service string) v1alpha1.ExternalBackendSpec {
		adopt := v1alpha1.Service{Name: service, AdoptionPolicy: v1alpha1.AdoptionPolicyIfSelectorless}
		return v1alpha1.ExternalBackendSpec{Service: &adopt}
	}},
}

// measure deletes one of two ExternalBackends, many times, and prints the times.
func measure(ctx context.Context, c client.WithWatch, way way) error {
	var taken, collected, gap meter.Spread
	gaps := 0
	for i := range deletions {
		t, err := takeOver(ctx, c, way, fmt.Sprintf("%s-%d", way.name[:5], i))
		if err != nil {
			return err
		}
		taken, collected = append(taken, t.taken), append(collected, t.collected)
		if d := t.taken - t.collected; d > 0 {
			gaps++
			gap = append(gap, d)
		}
	}
	load, err := meter.LoadAverage()
	if err != nil {
		return err
	}
	fmt.Printf("%s: sibling published after %v; collected after %v; %d of %d with a gap",
		way.name, taken, collected, gaps, deletions)
	if gaps > 0 {
		fmt.Printf(" of %v", gap)
	}
	fmt.Printf("; load average %s\n", load)
	return nil
}

// times are the times from the deletion until the sibling publishes the address, and until the
// garbage collector deletes the slice.
type times struct{ taken, collected time.Duration }

// takeOver creates two ExternalBackends behind a Service, and deletes the first.
func takeOver(ctx context.Context, c client.WithWatch, way way, service string) (t times, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s := &corev1.Service{}
	s.Namespace, s.Name = namespace, service
	s.Spec.Ports = []corev1.ServicePort{{Name: "web", Port: 80}}
	if err := c.Create(ctx, s); err != nil {
		return t, err
	}
	slices, err := c.Watch(ctx, &discoveryv1.EndpointSliceList{}, client.InNamespace(namespace),
		client.MatchingLabels{discoveryv1.LabelServiceName: service})
	if err != nil {
		return t, err
	}
	defer slices.Stop()
	first, second := backend(way, service, "-1"), backend(way, service, "-2")
	if err := c.Create(ctx, first); err != nil {
		return t, err
	}
	published := func(e watch.Event, name string) bool { return e.Type == watch.Added && name == first.Name }
	if err := await(ctx, slices, published); err != nil {
		return t, err
	}
	time.Sleep(300 * time.Millisecond) // the creation times decide which one is older
	if err := c.Create(ctx, second); err != nil {
		return t, err
	}
	time.Sleep(pause) // until the operator has nothing left to do for the second one

	backends, err := c.Watch(ctx, &v1alpha1.ExternalBackendList{}, client.InNamespace(namespace))
	if err != nil {
		return t, err
	}
	defer backends.Stop()
	var deleted, taken, gone time.Time
	var wait sync.WaitGroup
	wait.Go(func() {
		for e := range backends.ResultChan() {
			if b, ok := e.Object.(*v1alpha1.ExternalBackend); ok && e.Type == watch.Deleted && b.Name == first.Name {
				deleted = time.Now()
				return
			}
		}
	})
	if err := c.Delete(ctx, first); err != nil {
		return t, err
	}
	err = await(ctx, slices, func(e watch.Event, name string) bool {
		switch {
		case e.Type == watch.Deleted && name == first.Name:
			gone = time.Now()
		case e.Type != watch.Deleted && name == second.Name && taken.IsZero():
			taken = time.Now()
		}
		return !gone.IsZero() && !taken.IsZero()
	})
	backends.Stop()
	wait.Wait()
	if err != nil {
		return t, err
	}
	return times{taken.Sub(deleted), gone.Sub(deleted)}, c.Delete(context.WithoutCancel(ctx), second)
}

func backend(way way, service, suffix string) *v1alpha1.ExternalBackend {
	b := &v1alpha1.ExternalBackend{}
	b.Namespace, b.Name = namespace, service+suffix
	b.Spec = way.spec(service)
	b.Spec.Ports = []v1alpha1.Port{{Name: "web", Port: 80}}
	b.Spec.Targets = []v1alpha1.Target{{Name: "a", Address: "198.51.100.1"}}
	return b
}

// await reads events until wanted reports true. name is the ExternalBackend of the slice.
func await(ctx context.Context, w watch.Interface, wanted func(e watch.Event, name string) bool) error {
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return fmt.Errorf("the watch of slices has ended")
			}
			slice, ok := e.Object.(*discoveryv1.EndpointSlice)
			if ok && wanted(e, slice.Labels[v1alpha1.LabelName]) {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
