package plugin

import (
	"context"
	"reflect"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/view"
)

const (
	// redrawPeriod is how often a watched screen is drawn at most.
	redrawPeriod = time.Second
	// refreshPeriod is how often it is drawn at least, because ages change, and slices without status.
	refreshPeriod = 10 * time.Second
	// clearScreen moves the cursor of a terminal to its first line and clears it.
	clearScreen = "\x1b[H\x1b[2J"
)

// watchBackend shows one ExternalBackend until ctx ends.
func (p *plugin) watchBackend(
	ctx context.Context, c client.WithWatch, key types.NamespacedName, o statusOptions,
) error {
	var last *view.Backend
	show := func() error {
		objects, err := readBackend(ctx, c, key.Namespace, key.Name)
		if err != nil {
			return describeReadError(err, key)
		}
		b := view.Build(objects)
		if !isTerminal(p.Out) && last != nil && reflect.DeepEqual(*last, b) {
			return nil
		}
		repeated := last != nil
		last = &b
		return p.redraw(o.all, repeated, func(s *screen) { s.writeBackend(&b) })
	}

	f := follow(ctx, c, client.InNamespace(key.Namespace), client.MatchingFields{"metadata.name": key.Name})
	defer f.stop()
	return showRepeatedly(ctx, f.changed, show)
}

// watchList shows the ExternalBackends of a namespace until ctx ends; "" for all.
func (p *plugin) watchList(ctx context.Context, c client.WithWatch, namespace string, o statusOptions) error {
	var probe v1alpha1.ExternalBackendList
	if err := c.List(ctx, &probe, client.InNamespace(namespace), client.Limit(1)); err != nil {
		return describeListError(err, namespace)
	}
	f := follow(ctx, c, client.InNamespace(namespace))
	defer f.stop()
	var last []view.Row
	drawn := false
	show := func() error {
		rows := make([]view.Row, 0, len(last))
		for _, b := range f.backends.List() {
			rows = append(rows, view.BuildRow(b.(*v1alpha1.ExternalBackend)))
		}
		view.SortRows(rows)
		if !isTerminal(p.Out) && drawn && equalRows(rows, last) {
			return nil
		}
		repeated := drawn
		last, drawn = rows, true
		return p.redraw(o.all, repeated, func(s *screen) { s.writeRows(rows, namespace) })
	}

	select { // the first list
	case <-f.changed:
	case <-ctx.Done():
		return nil
	}
	return showRepeatedly(ctx, f.changed, show)
}

// redraw draws a screen in place of the last one, or below it where there is no terminal.
func (p *plugin) redraw(all, repeated bool, draw func(*screen)) error {
	s := p.newScreen(all)
	switch {
	case isTerminal(p.Out):
		s.WriteString(clearScreen)
	case repeated:
		s.linef("\n--- %s", s.now.UTC().Format(time.RFC3339))
	}
	draw(s)
	_, err := s.WriteTo(p.Out)
	return err
}

// showRepeatedly shows at once, after changes, and every refreshPeriod, until ctx ends.
func showRepeatedly(ctx context.Context, changed <-chan struct{}, show func() error) error {
	refresh := time.NewTicker(refreshPeriod)
	defer refresh.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		if err := show(); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		pause.Reset(redrawPeriod)
		select {
		case <-ctx.Done():
			return nil
		case <-pause.C:
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-refresh.C:
		}
	}
}

// followed are ExternalBackends that are kept current.
type followed struct {
	backends cache.Store
	// changed has a value once they have changed, and once they are first known.
	changed chan struct{}
	// stop ends following them.
	stop func()
}

// follow keeps the ExternalBackends that options select current, until ctx or stop ends that.
func follow(ctx context.Context, c client.WithWatch, options ...client.ListOption) *followed {
	f := &followed{changed: make(chan struct{}, 1)}
	with := func(raw metav1.ListOptions) []client.ListOption {
		return append(slices.Clip(options), &client.ListOptions{Raw: &raw})
	}
	var controller cache.Controller
	f.backends, controller = cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, raw metav1.ListOptions) (runtime.Object, error) {
				list := &v1alpha1.ExternalBackendList{}
				return list, c.List(ctx, list, with(raw)...)
			},
			WatchFuncWithContext: func(ctx context.Context, raw metav1.ListOptions) (watch.Interface, error) {
				return c.Watch(ctx, &v1alpha1.ExternalBackendList{}, with(raw)...)
			},
		},
		ObjectType: &v1alpha1.ExternalBackend{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { f.signal() },
			UpdateFunc: func(any, any) { f.signal() },
			DeleteFunc: func(any) { f.signal() },
		},
	})

	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { controller.RunWithContext(ctx) })
	running.Go(func() {
		if cache.WaitForCacheSync(ctx.Done(), controller.HasSynced) {
			f.signal()
		}
	})
	f.stop = func() {
		cancel()
		running.Wait()
	}
	return f
}

func (f *followed) signal() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}
