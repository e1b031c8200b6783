// Package writecache lays what we wrote to the API server over what an informer cache shows, so
// that a reconcile reads its own writes. Without it a plan made while the cache is behind, or while
// its watch is broken, would be based on the past.
//
// A wrong belief does no harm: it shows as a conflict, after which the API server is asked and the
// answer is recorded here.
package writecache

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// CreationTimeout is how long a created object counts as existing before the cache has shown it. It
// only has to exceed the delay of the cache: an object that is created twice by mistake gets an
// "already exists" from the API server.
const CreationTimeout = time.Minute

// Overlay holds the Service and the slices of one ExternalBackend as our last writes left them,
// until the cache shows them. The zero Overlay is empty. It is safe for concurrent use.
type Overlay struct {
	mu      sync.Mutex
	service write[*corev1.Service]
	slices  map[string]write[*discoveryv1.EndpointSlice] // by name
	deleted map[types.UID]bool                           // slices that we deleted
}

// write is an object as the API server returned it.
type write[T metav1.Object] struct {
	object T
	// created is when we created the object. It is zero once the cache has shown it.
	created time.Time
}

// awaited reports whether the cache may still come to show the object, which it does not show now.
func (w write[T]) awaited(now time.Time) bool { return now.Sub(w.created) < CreationTimeout }

// Service returns the newer of the Service of that name that the cache shows, nil for none, and the
// one that we wrote. It drops our write when the cache has caught up, or when it was to a Service
// of another name.
func (o *Overlay) Service(name string, cached *corev1.Service, now time.Time) *corev1.Service {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := o.service.object
	switch {
	case w == nil, w.Name != name:
	case cached != nil && Newer(w.ResourceVersion, cached.ResourceVersion):
		o.service.created = time.Time{}
		return w
	case cached == nil && o.service.awaited(now):
		return w
	}

	o.service = write[*corev1.Service]{}
	return cached
}

// Slices does for slices what Service does for the Service. It also leaves out the slices that we
// deleted.
func (o *Overlay) Slices(cached []*discoveryv1.EndpointSlice, now time.Time) []*discoveryv1.EndpointSlice {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := make([]*discoveryv1.EndpointSlice, 0, len(cached)+len(o.slices))
	slices := map[string]write[*discoveryv1.EndpointSlice]{}
	deleted := map[types.UID]bool{}
	shown := make(map[string]bool, len(cached))

	for _, s := range cached {
		if o.deleted[s.UID] { // a new slice may have its name by now
			deleted[s.UID] = true
			continue
		}
		shown[s.Name] = true
		if w, ok := o.slices[s.Name]; ok && Newer(w.object.ResourceVersion, s.ResourceVersion) {
			s = w.object
			slices[s.Name] = write[*discoveryv1.EndpointSlice]{object: s}
		}
		out = append(out, s)
	}

	for name, w := range o.slices {
		if !shown[name] && w.awaited(now) {
			out = append(out, w.object)
			slices[name] = w
		}
	}

	o.slices, o.deleted = slices, deleted
	return out
}

// AwaitingCache reports whether the cache has yet to show an object that we created.
func (o *Overlay) AwaitingCache() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.slices {
		if !w.created.IsZero() {
			return true
		}
	}
	return !o.service.created.IsZero()
}

// ServiceCreated records a Service that we created.
func (o *Overlay) ServiceCreated(s *corev1.Service, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.service = write[*corev1.Service]{object: s, created: now}
}

// ServiceUpdated records a Service that we updated.
func (o *Overlay) ServiceUpdated(s *corev1.Service) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.service.object = s
}

// SliceCreated records a slice that we created, or found at the API server.
func (o *Overlay) SliceCreated(s *discoveryv1.EndpointSlice, now time.Time) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.setSlice(s, now)
}

// SliceUpdated records a slice that we updated.
func (o *Overlay) SliceUpdated(s *discoveryv1.EndpointSlice) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.setSlice(s, o.slices[s.Name].created)
}

// SliceDeleted records that a slice is gone from the API server.
func (o *Overlay) SliceDeleted(s *discoveryv1.EndpointSlice) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.slices, s.Name)
	if o.deleted == nil {
		o.deleted = map[types.UID]bool{}
	}
	o.deleted[s.UID] = true
}

// DeletionSeen records that a watch reports the deletion of an object, by whomever. An object that
// was deleted right after its creation may never be in the cache when somebody looks: without this
// it would count as existing until CreationTimeout is over.
func (o *Overlay) DeletionSeen(object metav1.Object) {
	o.mu.Lock()
	defer o.mu.Unlock()
	uid := object.GetUID()
	if s := o.service.object; s != nil && s.UID == uid {
		o.service = write[*corev1.Service]{}
	}
	if w, ok := o.slices[object.GetName()]; ok && w.object.UID == uid {
		delete(o.slices, object.GetName())
	}
}

// setSlice is called with mu held.
func (o *Overlay) setSlice(s *discoveryv1.EndpointSlice, created time.Time) {
	if o.slices == nil {
		o.slices = map[string]write[*discoveryv1.EndpointSlice]{}
	}
	o.slices[s.Name] = write[*discoveryv1.EndpointSlice]{object: s, created: created}
}

// Newer reports whether resource version a came after b. A version that is no number is never
// newer.
func Newer(a, b string) bool {
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order > 0
}
