package read

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/view"
)

// followed is an ExternalBackend that is followed.
type followed struct {
	*follower
	changes atomic.Int64
	changed chan struct{}
}

// follow follows db until the test ends.
func follow(t *testing.T, w *world) *followed {
	t.Helper()
	source := NewSource(w, "shop")
	stop := source.Start(t.Context(), func() {})
	f := &followed{changed: make(chan struct{}, 1)}
	_, end := source.Follow(t.Context(), "shop", "db", func() {
		f.changes.Add(1)
		select {
		case f.changed <- struct{}{}:
		default:
		}
	})
	for one := range source.followers {
		f.follower = one
	}
	t.Cleanup(func() {
		end()
		stop()
	})
	return f
}

// see reads after changes until it finds what is wanted.
func (f *followed) see(t *testing.T, wanted func(*view.Objects) bool) *view.Objects {
	t.Helper()
	for {
		o, err := f.read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if wanted(o) {
			return o
		}
		<-f.changed
	}
}

// partsOf returns all objects of one ExternalBackend by their names.
func partsOf(o *view.Objects) map[string]client.Object {
	parts := map[string]client.Object{"backend": o.Backend}
	add := func(part client.Object) { parts[part.GetName()] = part }
	if o.Service != nil {
		parts["service"] = o.Service
	}
	if o.Namespace != nil {
		add(o.Namespace)
	}
	for _, s := range o.Slices {
		add(s)
	}
	for i := range o.Overrides {
		add(&o.Overrides[i])
	}
	for i := range o.Siblings {
		add(&o.Siblings[i])
	}
	for i := range o.Policies {
		add(&o.Policies[i])
	}
	for i := range o.Events {
		add(&o.Events[i])
	}
	return parts
}

// A change of anything that belongs to the followed ExternalBackend is seen without asking the API
// server again. Nothing of another ExternalBackend is told.
func TestOnlyOwnChangesAreTold(t *testing.T) {
	policy := &v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: "databases"}}
	sibling := &v1alpha1.ExternalBackend{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "second"}}
	sibling.Spec.Service = &v1alpha1.Service{Name: "db"}
	own, others := objectsAbout("db"), objectsAbout("other")
	own = append(own, policy, sibling, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	w := newWorld(t, append(append([]client.Object{}, own...), others...))
	f := follow(t, w)
	first := f.see(t, func(*view.Objects) bool { return true })
	if parts := partsOf(first); len(parts) != len(own) || len(first.Unread) > 0 {
		t.Fatalf("%d parts of %d are read: %v, unread %v", len(parts), len(own), parts, first.Unread)
	}
	for range kindsOfOne {
		<-w.watched
	}
	asked, changes := w.asked.Load(), f.changes.Load()

	for _, o := range others {
		w.annotate(t, o, "once")
		w.annotate(t, o, "twice")
	}
	for _, o := range own {
		w.annotate(t, o, "seen")
	}
	f.see(t, func(o *view.Objects) bool {
		seen := 0
		for _, part := range partsOf(o) {
			if part.GetAnnotations()["text"] == "seen" {
				seen++
			}
		}
		return seen == len(own)
	})
	if n := f.changes.Load() - changes; n > int64(len(own)) {
		t.Errorf("%d changes are told, and only %d are its own", n, len(own))
	}
	if n := w.asked.Load() - asked; n > 0 {
		t.Errorf("the API server is asked %d times", n)
	}
}

// What may not be listed is unread, with the right that is missing. An object that may be gotten is
// read all the same.
func TestFollowerNamesMissingRights(t *testing.T) {
	w := newWorld(t, append(objectsAbout("db"), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}),
		"*v1.EndpointSliceList", "*v1.ServiceList", "*v1.NamespaceList")
	o := follow(t, w).see(t, func(*view.Objects) bool { return true })
	if len(o.Unread) != 1 || o.Unread[0].Right != "list endpointslices.discovery.k8s.io in namespace shop" {
		t.Errorf("unread: %+v", o.Unread)
	}
	if o.Service == nil || o.Namespace == nil {
		t.Error("the Service or the Namespace may be gotten, and is not read")
	}
}

// Once an ExternalBackend has another Service, the objects of the first one are not kept any more.
func TestFollowerForgetsFormerService(t *testing.T) {
	objects := objectsAbout("db")
	w := newWorld(t, append(objects, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "new"}}))
	f := follow(t, w)
	f.see(t, func(o *view.Objects) bool { return o.Service.Name == "db" })
	kept := len(f.kept)
	for range kindsOfOne {
		<-w.watched
	}
	b := objects[0].DeepCopyObject().(*v1alpha1.ExternalBackend)
	b.Spec.Service = &v1alpha1.Service{Name: "new"}
	if err := w.Patch(t.Context(), b, client.MergeFrom(objects[0])); err != nil {
		t.Fatal(err)
	}
	f.see(t, func(o *view.Objects) bool { return o.Service != nil && o.Service.Name == "new" })
	if len(f.kept) != kept {
		t.Errorf("%d lists are kept, and were %d before", len(f.kept), kept)
	}
}

// Only the namespace of the source is followed, and an ExternalBackend that does not exist is an
// error that says so.
func TestFollowerSaysWhatIsNotThere(t *testing.T) {
	source := NewSource(newWorld(t, nil), "shop")
	defer source.Start(t.Context(), func() {})()
	for key, want := range map[client.ObjectKey]string{
		{Namespace: "elsewhere", Name: "db"}: "only namespace shop is followed here",
		{Namespace: "shop", Name: "db"}:      `there is no ExternalBackend "db" in namespace "shop"`,
	} {
		read, stop := source.Follow(t.Context(), key.Namespace, key.Name, func() {})
		if _, err := read(context.Background()); err == nil || err.Error() != want {
			t.Errorf("%v: %v", key, err)
		}
		stop()
	}
}

// If the ExternalBackends can't be listed, the page is told that what it shows may be out of date.
func TestRowsSayWhyTheyMayBeOutOfDate(t *testing.T) {
	w := newWorld(t, nil, "*v1alpha1.ExternalBackendList")
	source := NewSource(w, "shop")
	told := make(chan struct{}, 100)
	defer source.Start(t.Context(), func() { told <- struct{}{} })()
	<-told
	if rows, notice := source.Rows(); len(rows) > 0 || !strings.Contains(notice, "forbidden") {
		t.Errorf("%v, %q", rows, notice)
	}
}
