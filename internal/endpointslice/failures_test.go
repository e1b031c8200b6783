package endpointslice

import (
	"slices"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestCrashInCompactionLeavesTheDeletion: after a crash between the receiver's update and the
// donor's deletion only the deletion is planned.
func TestCrashInCompactionLeavesTheDeletion(t *testing.T) {
	stored := cluster{}
	stored.plan(t, testTemplate(4), pool("a", "", 0, 8))
	left := slices.Concat(pool("a", "", 0, 1), pool("a", "", 4, 2))
	compaction := changesOf(testTemplate(4), left, stored.list())
	if verbs(compaction) != "+0 ~1 -1" {
		t.Fatal(verbs(compaction))
	}
	stored.apply(t, write{"update", compaction.Update[0]})
	again := changesOf(testTemplate(4), left, stored.list())
	if verbs(again) != "+0 ~0 -1" || again.Delete[0].Name != compaction.Delete[0].Name {
		t.Errorf("%s after the crash", verbs(again))
	}
}

// TestDonorWaitsForFailedReceiver: a slice is not deleted while its endpoints are published nowhere
// elsewhere.
func TestDonorWaitsForFailedReceiver(t *testing.T) {
	stored := cluster{}
	stored.plan(t, testTemplate(4), pool("a", "", 0, 8))
	compaction := changesOf(testTemplate(4), slices.Concat(pool("a", "", 0, 1), pool("a", "", 4, 2)), stored.list())
	receiver, donor := compaction.Update[0], compaction.Delete[0]
	unrelated := changesOf(testTemplate(4), pool("a", "", 50, 1), nil).Create[0]
	otherPort := receiver.DeepCopy()
	otherPort.Ports[0].Port = new(int32(81))
	for _, test := range []struct {
		name   string
		next   *discoveryv1.EndpointSlice
		failed []*discoveryv1.EndpointSlice
		want   bool
	}{
		{"nothing failed", nil, nil, false},
		{"its receiver failed", nil, []*discoveryv1.EndpointSlice{unrelated, receiver}, true},
		{"another failed", nil, []*discoveryv1.EndpointSlice{unrelated}, false},
		{"its receiver has other ports", nil, []*discoveryv1.EndpointSlice{otherPort}, true},
		{"an update that keeps all", donor, []*discoveryv1.EndpointSlice{receiver}, false},
		{"an update that keeps nothing", unrelated, []*discoveryv1.EndpointSlice{receiver}, true},
	} {
		if got := WouldUnpublish(donor, test.next, test.failed); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

// TestKeepReadyKeepsHealthyEndpoints: endpoints that can not hand over their traffic stay ready if
// they are healthy, and the annotation agrees.
func TestKeepReadyKeepsHealthyEndpoints(t *testing.T) {
	endpoints := func(ready bool) []Endpoint {
		healthy, dead, leaving := at("a", "203.0.113.1"), at("b", "203.0.113.2"), at("c", "203.0.113.3")
		dead.Healthy = ready
		for _, e := range []*Endpoint{&healthy, &dead, &leaving} {
			e.Ready, e.Serving = ready, ready
		}
		leaving.Terminating = !ready
		return []Endpoint{healthy, dead, leaving}
	}
	current, next := inSlices(endpoints(true)...)[0], inSlices(endpoints(false)...)[0]
	KeepReady(current, next)
	want := endpoints(false)
	want[0].Ready, want[0].Serving = true, true
	if diff := gocmp.Diff(want, Published([]*discoveryv1.EndpointSlice{next}).Endpoints(), equalAddrs); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if kept := inSlices(want...)[0]; kept.Annotations[annotationEndpoints] != next.Annotations[annotationEndpoints] {
		t.Errorf(
			"annotation %q, a plan would write %q",
			next.Annotations[annotationEndpoints],
			kept.Annotations[annotationEndpoints],
		)
	}
}

// TestRetainedSliceWithoutPortsIsUpdated: somebody may remove a slice's ports.
func TestRetainedSliceWithoutPortsIsUpdated(t *testing.T) {
	want := at("a", "203.0.113.1")
	bare := want
	bare.Ports = nil
	for _, tt := range [][2]Endpoint{{bare, want}, {want, bare}} {
		got := ForPostponed([]Endpoint{tt[0]}, []Endpoint{tt[1]})
		if len(got) != 1 || got[0].Addr != want.Addr || len(got[0].Ports) != len(tt[0].Ports) {
			t.Errorf("%v follows %v as %v", tt[0], tt[1], got)
		}
	}
}
