package plugin

import (
	"context"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/read"
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
		objects, err := read.Backend(ctx, c, key.Namespace, key.Name)
		if err != nil {
			return read.DescribeError(err, key)
		}
		b := view.Build(objects)
		p.findReplica(ctx, c, o.managerNamespace, &b)
		if !isTerminal(p.Out) && last != nil && reflect.DeepEqual(*last, b) {
			return nil
		}
		repeated := last != nil
		last = &b
		return p.redraw(o.all, repeated, func(s *screen) { s.writeBackend(&b) })
	}

	backends, changed := follow(ctx, c, client.InNamespace(key.Namespace),
		client.MatchingFields{"metadata.name": key.Name})
	defer backends.Stop()
	return showRepeatedly(ctx, changed, show)
}

// watchList shows the ExternalBackends of a namespace until ctx ends; "" for all.
func (p *plugin) watchList(ctx context.Context, c client.WithWatch, namespace string, o statusOptions) error {
	var probe v1alpha1.ExternalBackendList
	if err := c.List(ctx, &probe, client.InNamespace(namespace), client.Limit(1)); err != nil {
		return describeListError(err, namespace)
	}
	backends, changed := follow(ctx, c, client.InNamespace(namespace))
	defer backends.Stop()
	var last []view.Row
	drawn := false
	show := func() error {
		rows := make([]view.Row, 0, len(last))
		for _, b := range backends.Objects() {
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

	if backends.Wait(ctx) != nil {
		return nil
	}
	return showRepeatedly(ctx, changed, show)
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

// follow keeps the ExternalBackends that options select current. changed has a value once they have
// changed.
func follow(
	ctx context.Context, c client.WithWatch, options ...client.ListOption,
) (backends *read.Kept, changed <-chan struct{}) {
	signal := make(chan struct{}, 1)
	note := func(_, _ client.Object) {
		select {
		case signal <- struct{}{}:
		default:
		}
	}
	return read.Keep(ctx, c, &v1alpha1.ExternalBackendList{}, note, options...), signal
}
