package read

import (
	"context"
	"slices"
	"sync"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Changed is told an object before and after a change; nil for one that does not exist. Both are
// nil when Err or Doubt has changed.
type Changed func(before, after client.Object)

// Kept are objects that are kept current by a list and a watch. Without the right to watch, they
// are listed now and then.
type Kept struct {
	changed Changed
	store   cache.Store
	cancel  context.CancelFunc
	running sync.WaitGroup

	known     chan struct{} // closed once the objects are known, or why they are not
	knownOnce sync.Once

	mu         sync.Mutex
	listError  error
	watchError error
}

// Keep keeps the objects that options select current, until ctx or Stop ends that. list is an empty
// list of their kind.
func Keep(
	ctx context.Context, c client.WithWatch, list client.ObjectList, changed Changed, options ...client.ListOption,
) *Kept {
	k := &Kept{changed: changed, known: make(chan struct{})}
	with := func(raw metav1.ListOptions) []client.ListOption {
		return append(slices.Clip(options), &client.ListOptions{Raw: &raw})
	}
	quiet := logr.Discard() // Err and Doubt say what is wrong
	var controller cache.Controller
	k.store, controller = cache.NewInformerWithOptions(cache.InformerOptions{
		Logger: &quiet,
		ListerWatcher: plainLists{&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, raw metav1.ListOptions) (runtime.Object, error) {
				list := list.DeepCopyObject().(client.ObjectList)
				err := c.List(ctx, list, with(raw)...)
				k.note(ctx, &k.listError, err)
				return list, err
			},
			WatchFuncWithContext: func(ctx context.Context, raw metav1.ListOptions) (watch.Interface, error) {
				watching, err := c.Watch(ctx, list.DeepCopyObject().(client.ObjectList), with(raw)...)
				k.note(ctx, &k.watchError, err)
				return watching, err
			},
		}},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(o any) { k.tell(nil, o) },
			UpdateFunc: k.tell,
			DeleteFunc: func(o any) { k.tell(o, nil) },
		},
	})

	ctx, k.cancel = context.WithCancel(logr.NewContext(ctx, quiet))
	k.running.Go(func() { controller.RunWithContext(ctx) })
	k.running.Go(func() {
		select {
		case <-ctx.Done():
		case <-controller.HasSyncedChecker().Done():
			k.becomeKnown()
		}
	})
	return k
}

// plainLists lists and then watches. Streamed lists would report a missing right as that to watch.
type plainLists struct{ *cache.ListWatch }

// IsWatchListSemanticsUnSupported tells client-go not to stream lists.
func (plainLists) IsWatchListSemanticsUnSupported() bool { return true }

// Stop ends keeping the objects current.
func (k *Kept) Stop() {
	k.cancel()
	k.running.Wait()
}

// Wait waits until the objects are known, or why they are not.
func (k *Kept) Wait(ctx context.Context) error {
	select {
	case <-k.known:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Objects returns the objects in any order. They are shared: nobody changes them.
func (k *Kept) Objects() []any { return k.store.List() }

// Err returns why the objects could not be listed the last time.
func (k *Kept) Err() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.listError
}

// Doubt returns why the objects may be out of date.
func (k *Kept) Doubt() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.listError != nil {
		return k.listError
	}
	return k.watchError
}

func (k *Kept) becomeKnown() { k.knownOnce.Do(func() { close(k.known) }) }

// note remembers the outcome of a list or a watch.
func (k *Kept) note(ctx context.Context, place *error, err error) {
	if ctx.Err() != nil {
		return // we end it ourselves
	}
	k.mu.Lock()
	news := textOf(*place) != textOf(err)
	*place = err
	k.mu.Unlock()
	if err != nil && place == &k.listError {
		k.becomeKnown()
	}
	if news {
		k.changed(nil, nil)
	}
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// tell tells about a change. Listing again is none.
func (k *Kept) tell(before, after any) {
	a, b := objectOf(before), objectOf(after)
	if a != nil && b != nil && a.GetUID() == b.GetUID() && a.GetResourceVersion() == b.GetResourceVersion() {
		return
	}
	k.changed(a, b)
}

// objectOf returns an object that an informer tells about.
func objectOf(o any) client.Object {
	if last, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = last.Obj
	}
	object, _ := o.(client.Object)
	return object
}
