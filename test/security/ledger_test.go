package security

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// ledger has every state of every EndpointSlice, Service and ExternalBackend of some namespaces,
// from its opening on: not one is missed.
type ledger struct {
	h          *harness.Test
	judge      judge
	namespaces []string
	watches    sync.WaitGroup
	cancel     context.CancelFunc

	mu        sync.Mutex
	states    int
	published map[string]bool // addresses and names that ever were
	breaches  []string
}

// judge says what is wrong with what the operator publishes, or with what it tells of a backend.
type judge struct {
	address func(netip.Addr) bool // may be published
	name    func(string) bool     // may be published as a name
	secret  func(netip.Addr) bool // may not be told
}

// openLedger begins to write. Close it in the end.
func openLedger(h *harness.Test, judge judge, namespaces ...string) *ledger {
	h.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &ledger{h: h, judge: judge, namespaces: namespaces, cancel: cancel, published: map[string]bool{}}
	h.T.Cleanup(func() { l.close() })
	for _, list := range lists() {
		if err := h.Client.List(h.T.Context(), list, client.Limit(1)); err != nil {
			h.T.Fatal(err)
		}
		watcher, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), follow{h.Client, list})
		if err != nil {
			h.T.Fatal(err)
		}
		l.watches.Go(func() {
			defer watcher.Stop()
			for event := range watcher.ResultChan() {
				l.enter(event)
			}
			if ctx.Err() == nil {
				l.breach("the watch of %T ended", list)
			}
		})
	}
	return l
}

func lists() []client.ObjectList {
	return []client.ObjectList{&discoveryv1.EndpointSliceList{}, &corev1.ServiceList{}, &v1alpha1.ExternalBackendList{}}
}

// follow watches all objects of a list's kind.
type follow struct {
	client.WithWatch
	list client.ObjectList
}

var _ cache.WatcherWithContext = follow{}

func (f follow) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	return f.WithWatch.Watch(ctx, f.list, &client.ListOptions{Raw: &options})
}

// enter judges one state.
func (l *ledger) enter(event watch.Event) {
	if event.Type == watch.Error {
		l.breach("a watch failed: %v", apierrors.FromObject(event.Object))
		return
	}
	object, ok := event.Object.(client.Object)
	if !ok || event.Type == watch.Deleted || !slices.Contains(l.namespaces, object.GetNamespace()) {
		return
	}
	l.mu.Lock()
	l.states++
	l.mu.Unlock()
	for what, is := range publishedBy(object) {
		l.mu.Lock()
		l.published[what] = true
		l.mu.Unlock()
		if !l.allows(what) {
			l.breach("%s publishes %s", is, what)
		}
	}
	if b, ok := object.(*v1alpha1.ExternalBackend); ok {
		status, _ := json.Marshal(b.Status)
		if a, found := named(string(status), l.judge.secret); found {
			l.breach("the status of %s tells %s: %s", b.Name, a, status)
		}
	}
}

// publishedBy are the addresses and names that an object of the operator's publishes.
func publishedBy(object runtime.Object) map[string]string {
	out := map[string]string{}
	switch o := object.(type) {
	case *discoveryv1.EndpointSlice:
		for _, e := range o.Endpoints {
			for _, a := range e.Addresses {
				out[a] = fmt.Sprintf("slice %s/%s (resource version %s)", o.Namespace, o.Name, o.ResourceVersion)
			}
		}
	case *corev1.Service:
		if o.Spec.ExternalName != "" {
			out[o.Spec.ExternalName] = fmt.Sprintf("Service %s/%s", o.Namespace, o.Name)
		}
	}
	return out
}

func (l *ledger) allows(what string) bool {
	if a, err := netip.ParseAddr(what); err == nil {
		return l.judge.address(a)
	}
	return l.judge.name(what)
}

func (l *ledger) breach(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.breaches = append(l.breaches, fmt.Sprintf(format, args...))
}

// ever tells whether an address or a name was published at any time.
func (l *ledger) ever(what string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.published[what]
}

func (l *ledger) close() {
	l.cancel()
	l.watches.Wait()
}

// settle ends the writing, and fails the test for each breach.
func (l *ledger) settle() {
	l.h.T.Helper()
	for _, list := range lists() { // what a watch is late with
		if err := l.h.Client.List(l.h.T.Context(), list); err != nil {
			l.h.T.Fatal(err)
		}
		_ = meta.EachListItem(list, func(o runtime.Object) error {
			l.enter(watch.Event{Type: watch.Modified, Object: o})
			return nil
		})
	}
	l.close()
	l.h.T.Logf("%d states were looked at", l.states)
	if l.states == 0 {
		l.h.T.Error("nothing was looked at")
	}
	for _, b := range l.breaches[:min(len(l.breaches), 20)] {
		l.h.T.Error(b)
	}
	if n := len(l.breaches); n > 20 {
		l.h.T.Errorf("there were %d breaches in all", n)
	}
}

// hasSuffix is for names.
func hasSuffix(suffixes ...string) func(string) bool {
	return func(name string) bool {
		return slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) })
	}
}
