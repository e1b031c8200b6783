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

// recorder checks every state of every EndpointSlice, Service and ExternalBackend in some
// namespaces from its start on, without a gap.
type recorder struct {
	h          *harness.Test
	rules      rules
	namespaces []string
	watches    sync.WaitGroup
	cancel     context.CancelFunc

	mu        sync.Mutex
	states    int
	published map[string]bool // addresses and names that were ever published
	breaches  []string
}

// rules say what the operator may publish, and what status must not contain.
type rules struct {
	address func(netip.Addr) bool // reports whether an address may be published
	name    func(string) bool     // reports whether a name may be published
	secret  func(netip.Addr) bool // reports whether an address must not be in status
}

// startRecorder starts a recorder, which ends with finish or with the test.
func startRecorder(h *harness.Test, rules rules, namespaces ...string) *recorder {
	h.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &recorder{h: h, rules: rules, namespaces: namespaces, cancel: cancel, published: map[string]bool{}}
	h.T.Cleanup(func() { r.close() })
	for _, list := range lists() {
		if err := h.Client.List(h.T.Context(), list, client.Limit(1)); err != nil {
			h.T.Fatal(err)
		}
		watcher, err := watchtools.NewRetryWatcherWithContext(ctx, list.GetResourceVersion(), follow{h.Client, list})
		if err != nil {
			h.T.Fatal(err)
		}
		r.watches.Go(func() {
			defer watcher.Stop()
			for event := range watcher.ResultChan() {
				r.check(event)
			}
			if ctx.Err() == nil {
				r.breach("the watch of %T ended", list)
			}
		})
	}
	return r
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

// check checks one state.
func (r *recorder) check(event watch.Event) {
	if event.Type == watch.Error {
		r.breach("a watch failed: %v", apierrors.FromObject(event.Object))
		return
	}
	object, ok := event.Object.(client.Object)
	if !ok || event.Type == watch.Deleted || !slices.Contains(r.namespaces, object.GetNamespace()) {
		return
	}
	r.mu.Lock()
	r.states++
	r.mu.Unlock()
	for what, is := range publishedBy(object) {
		r.mu.Lock()
		r.published[what] = true
		r.mu.Unlock()
		if !r.allows(what) {
			r.breach("%s publishes %s", is, what)
		}
	}
	if b, ok := object.(*v1alpha1.ExternalBackend); ok {
		status, _ := json.Marshal(b.Status)
		if a, found := findAddress(string(status), r.rules.secret); found {
			r.breach("the status of %s contains %s: %s", b.Name, a, status)
		}
	}
}

// publishedBy returns the addresses and names that an object publishes, each with the object's
// name.
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

func (r *recorder) allows(what string) bool {
	if a, err := netip.ParseAddr(what); err == nil {
		return r.rules.address(a)
	}
	return r.rules.name(what)
}

func (r *recorder) breach(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.breaches = append(r.breaches, fmt.Sprintf(format, args...))
}

// wasPublished reports whether an address or a name was published at any time.
func (r *recorder) wasPublished(what string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.published[what]
}

func (r *recorder) close() {
	r.cancel()
	r.watches.Wait()
}

// finish ends the recorder, and fails the test for each breach of the rules.
func (r *recorder) finish() {
	r.h.T.Helper()
	for _, list := range lists() { // a watch may be late
		if err := r.h.Client.List(r.h.T.Context(), list); err != nil {
			r.h.T.Fatal(err)
		}
		_ = meta.EachListItem(list, func(o runtime.Object) error {
			r.check(watch.Event{Type: watch.Modified, Object: o})
			return nil
		})
	}
	r.close()
	r.h.T.Logf("%d states were checked", r.states)
	if r.states == 0 {
		r.h.T.Error("no state was checked")
	}
	for _, b := range r.breaches[:min(len(r.breaches), 20)] {
		r.h.T.Error(b)
	}
	if n := len(r.breaches); n > 20 {
		r.h.T.Errorf("there were %d breaches in all", n)
	}
}

// hasSuffix returns a function that reports whether a name has one of these suffixes.
func hasSuffix(suffixes ...string) func(string) bool {
	return func(name string) bool {
		return slices.ContainsFunc(suffixes, func(s string) bool { return strings.HasSuffix(name, s) })
	}
}
