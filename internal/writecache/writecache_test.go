package writecache

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Writes take place at start. What is read is read one second later, unless a row says otherwise.
var start = time.Unix(1_000_000, 0)

func slice(uid types.UID, version string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "shop-v4", UID: uid, ResourceVersion: version}}
}

func service(uid types.UID, version string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "shop", UID: uid, ResourceVersion: version}}
}

// version names an object by its UID and resource version.
func version(o metav1.Object) string { return string(o.GetUID()) + "@" + o.GetResourceVersion() }

// TestSlicesShowTheNewerOfCacheAndWrites has a row for each way in which a slice that we wrote and
// the slice that the cache shows may differ. Each row reads twice, because reading drops what the
// cache has caught up with.
func TestSlicesShowTheNewerOfCacheAndWrites(t *testing.T) {
	for _, row := range []struct {
		name   string
		write  func(*Overlay)
		cached []*discoveryv1.EndpointSlice
		after  time.Duration
		want   string // "" for none
		awaits bool
	}{
		{name: "no writes, not in the cache"},
		{
			name: "no writes, in the cache", cached: []*discoveryv1.EndpointSlice{slice("a", "5")}, want: "a@5",
		},
		{
			name:  "created, not yet in the cache",
			write: func(o *Overlay) { o.SliceCreated(slice("a", "5"), start) },
			want:  "a@5", awaits: true,
		},
		{
			name:  "created, never in the cache",
			write: func(o *Overlay) { o.SliceCreated(slice("a", "5"), start) },
			after: CreationTimeout,
		},
		{
			name:   "created, in the cache",
			write:  func(o *Overlay) { o.SliceCreated(slice("a", "5"), start) },
			cached: []*discoveryv1.EndpointSlice{slice("a", "5")}, want: "a@5",
		},
		{
			name: "created and updated, not yet in the cache",
			write: func(o *Overlay) {
				o.SliceCreated(slice("a", "5"), start)
				o.SliceUpdated(slice("a", "7"))
			},
			want: "a@7", awaits: true,
		},
		{
			name: "an update does not prolong the wait for a creation",
			write: func(o *Overlay) {
				o.SliceCreated(slice("a", "5"), start)
				o.SliceUpdated(slice("a", "7"))
			},
			after: CreationTimeout,
		},
		{
			name: "created and updated, the cache shows the creation",
			write: func(o *Overlay) {
				o.SliceCreated(slice("a", "5"), start)
				o.SliceUpdated(slice("a", "7"))
			},
			cached: []*discoveryv1.EndpointSlice{slice("a", "5")}, want: "a@7",
		},
		{
			name:   "updated, the cache is behind for long",
			write:  func(o *Overlay) { o.SliceUpdated(slice("a", "7")) },
			cached: []*discoveryv1.EndpointSlice{slice("a", "5")}, after: time.Hour, want: "a@7",
		},
		{
			name:   "updated, the cache shows a later change by somebody else",
			write:  func(o *Overlay) { o.SliceUpdated(slice("a", "7")) },
			cached: []*discoveryv1.EndpointSlice{slice("a", "9")}, want: "a@9",
		},
		{
			name:  "updated, gone from the cache",
			write: func(o *Overlay) { o.SliceUpdated(slice("a", "7")) },
		},
		{
			name:   "updated, versions are no numbers",
			write:  func(o *Overlay) { o.SliceUpdated(slice("a", "x")) },
			cached: []*discoveryv1.EndpointSlice{slice("a", "5")}, want: "a@5",
		},
		{
			name:   "deleted, still in the cache",
			write:  func(o *Overlay) { o.SliceDeleted(slice("a", "5")) },
			cached: []*discoveryv1.EndpointSlice{slice("a", "5")},
		},
		{
			name: "created and deleted, not in the cache",
			write: func(o *Overlay) {
				o.SliceCreated(slice("a", "5"), start)
				o.SliceDeleted(slice("a", "5"))
			},
		},
		{
			name: "deleted and created again under its name, the cache shows the deleted one",
			write: func(o *Overlay) {
				o.SliceDeleted(slice("a", "5"))
				o.SliceCreated(slice("b", "7"), start)
			},
			cached: []*discoveryv1.EndpointSlice{slice("a", "5")}, want: "b@7", awaits: true,
		},
		{
			name: "deleted and created again under its name, the cache shows the new one",
			write: func(o *Overlay) {
				o.SliceDeleted(slice("a", "5"))
				o.SliceCreated(slice("b", "7"), start)
			},
			cached: []*discoveryv1.EndpointSlice{slice("b", "7")}, want: "b@7",
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			var o Overlay
			if row.write != nil {
				row.write(&o)
			}
			for range 2 {
				var got string
				for _, s := range o.Slices(row.cached, start.Add(max(row.after, time.Second))) {
					got += version(s)
				}
				if got != row.want || o.AwaitingCache() != row.awaits {
					t.Errorf("slices %q, awaiting the cache %t; want %q, %t", got, o.AwaitingCache(), row.want, row.awaits)
				}
			}
		})
	}
}

// TestServiceShowsTheNewerOfCacheAndWrite is the same for the Service.
func TestServiceShowsTheNewerOfCacheAndWrite(t *testing.T) {
	for _, row := range []struct {
		name   string
		write  func(*Overlay)
		cached *corev1.Service
		after  time.Duration
		want   string // "" for none
		awaits bool
	}{
		{name: "no write, not in the cache"},
		{name: "no write, in the cache", cached: service("a", "5"), want: "a@5"},
		{
			name:  "created, not yet in the cache",
			write: func(o *Overlay) { o.ServiceCreated(service("a", "5"), start) },
			want:  "a@5", awaits: true,
		},
		{
			name:  "created, never in the cache",
			write: func(o *Overlay) { o.ServiceCreated(service("a", "5"), start) },
			after: CreationTimeout,
		},
		{
			name:   "created, in the cache",
			write:  func(o *Overlay) { o.ServiceCreated(service("a", "5"), start) },
			cached: service("a", "5"), want: "a@5",
		},
		{
			name: "created and updated, not yet in the cache",
			write: func(o *Overlay) {
				o.ServiceCreated(service("a", "5"), start)
				o.ServiceUpdated(service("a", "7"))
			},
			want: "a@7", awaits: true,
		},
		{
			name:   "updated, the cache is behind for long",
			write:  func(o *Overlay) { o.ServiceUpdated(service("a", "7")) },
			cached: service("a", "5"), after: time.Hour, want: "a@7",
		},
		{
			name:   "updated, the cache shows a later change by somebody else",
			write:  func(o *Overlay) { o.ServiceUpdated(service("a", "7")) },
			cached: service("a", "9"), want: "a@9",
		},
		{
			name:  "updated, gone from the cache",
			write: func(o *Overlay) { o.ServiceUpdated(service("a", "7")) },
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			var o Overlay
			if row.write != nil {
				row.write(&o)
			}
			for range 2 {
				var got string
				if s := o.Service("shop", row.cached, start.Add(max(row.after, time.Second))); s != nil {
					got = version(s)
				}
				if got != row.want || o.AwaitingCache() != row.awaits {
					t.Errorf("Service %q, awaiting the cache %t; want %q, %t", got, o.AwaitingCache(), row.want, row.awaits)
				}
			}
		})
	}
}

// TestServiceOfAnotherNameIsNoWriteOfOurs reads the Service of another name, as after a change of
// serviceRef. Our write to the former Service stands for it neither now nor later.
func TestServiceOfAnotherNameIsNoWriteOfOurs(t *testing.T) {
	var o Overlay
	o.ServiceCreated(service("a", "7"), start)
	for _, cached := range []*corev1.Service{nil, service("other", "5")} {
		if got := o.Service("other", cached, start); got != cached {
			t.Errorf("Service %v, want the %v that the cache shows", got, cached)
		}
	}
	if o.AwaitingCache() {
		t.Error("the cache is awaited although nobody asks for the Service any more")
	}
}

// TestNothingIsKeptThatTheCacheShows checks that an Overlay is empty again once the cache shows all
// writes: there may be thousands of ExternalBackends.
func TestNothingIsKeptThatTheCacheShows(t *testing.T) {
	var o Overlay
	o.ServiceCreated(service("s", "4"), start)
	o.SliceDeleted(slice("a", "5"))
	o.SliceCreated(slice("b", "7"), start)

	o.Service("shop", service("s", "4"), start)
	o.Slices([]*discoveryv1.EndpointSlice{slice("b", "7")}, start)

	if o.service.object != nil || len(o.slices)+len(o.deleted) != 0 {
		t.Errorf("still kept: %v, %v, %v", o.service.object, o.slices, o.deleted)
	}
}

// TestDeletionSeenDropsThatObjectOnly: an object that is deleted before the cache shows it no
// longer counts as existing. An object of the same name with another UID still does.
func TestDeletionSeenDropsThatObjectOnly(t *testing.T) {
	var o Overlay
	o.ServiceCreated(service("s", "4"), start)
	o.SliceCreated(slice("a", "5"), start)
	exist := func() (bool, int) { return o.Service("shop", nil, start) != nil, len(o.Slices(nil, start)) }

	o.DeletionSeen(service("old", "3"))
	o.DeletionSeen(slice("old", "3"))
	if service, slices := exist(); !service || slices != 1 {
		t.Errorf("after the deletion of predecessors: Service %t, %d slices", service, slices)
	}
	o.DeletionSeen(slice("a", "6"))
	if service, slices := exist(); !service || slices != 0 {
		t.Errorf("after the deletion of the slice: Service %t, %d slices", service, slices)
	}
	o.DeletionSeen(service("s", "7"))
	if service, slices := exist(); service || slices != 0 || o.AwaitingCache() {
		t.Errorf("after the deletion of the Service: Service %t, awaiting the cache %t", service, o.AwaitingCache())
	}
}

// TestNewerComparesVersionsAsNumbers: "10" is newer than "9", and what is no number is never newer.
func TestNewerComparesVersionsAsNumbers(t *testing.T) {
	for _, row := range []struct {
		a, b string
		want bool
	}{
		{"10", "9", true},
		{"9", "10", false},
		{"9", "9", false},
		{"x", "9", false},
		{"9", "x", false},
		{"9", "", false},
	} {
		if got := Newer(row.a, row.b); got != row.want {
			t.Errorf("Newer(%q, %q) is %t", row.a, row.b, got)
		}
	}
}
