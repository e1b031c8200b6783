package endpointslice

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var equalAddrs = cmpopts.EquateComparable(netip.Addr{})

// attributed returns a slice with three endpoints of two targets.
func attributed(t *testing.T) *discoveryv1.EndpointSlice {
	t.Helper()
	desired := append(pool("a", "", 0, 2), pool("b", "", 5, 1)...)
	for i := range 2 { // healthy standbys
		desired[i].Tier, desired[i].Ready, desired[i].Serving = 1, false, false
	}
	desired[2].Tier, desired[2].Rank, desired[2].DrainUntil = 5, 3, time.Unix(1_763_683_200, 0).UTC()
	desired[2].Terminating, desired[2].Ready, desired[2].Healthy = true, false, false // fail-open
	s := changesOf(testTemplate(5), desired, nil).Create[0]
	if got, want := s.Annotations[annotationEndpoints], "v1:a^1+*2~7b93,b^5/3!@1763683200~1c36"; got != want {
		t.Errorf("annotation %q, want %q", got, want)
	}
	if diff := gocmp.Diff(desired, Published([]*discoveryv1.EndpointSlice{s}).Endpoints(), equalAddrs); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	return s
}

// TestEndpointHasOnlyTheTargetWrittenForIt edits slices: an endpoint only has a target if the
// annotation was written for exactly this endpoint.
func TestEndpointHasOnlyTheTargetWrittenForIt(t *testing.T) {
	tests := []struct {
		name string
		edit func(s *discoveryv1.EndpointSlice)
		want string
	}{
		{"as written", func(*discoveryv1.EndpointSlice) {}, "a a b"},
		{"no annotation", func(s *discoveryv1.EndpointSlice) { s.Annotations = nil }, ". . ."},
		{"garbage", setAnnotation("\x00~*@/,,~,"), ". . ."},
		{"a target renamed", setAnnotation("v1:c^1+*2~7b93,b^5/3!@1763683200~1c36"), ". . b"},
		{"a drain prolonged", setAnnotation("v1:a^1+*2~7b93,b^5/3!@1763683201~1c36"), "a a ."},
		{"a run too many", setAnnotation("v1:a^1+*2~7b93,b^5/3!@1763683200~1c36,c~0000"), "a a b"},
		{"a count too great", setAnnotation("v1:a^1+*65535~7b93"), ". . ."},
		{"a count beyond reason", setAnnotation("v1:a^1+*99999999999999999999~7b93"), ". . ."},
		{"a count of none", setAnnotation("v1:a^1+*0~7b93,b^5/3!@1763683200~1c36"), ". . ."},
		{"a tier beyond reason", setAnnotation("v1:a^1+*2~7b93,b^128/3!@1763683200~1c36"), "a a ."},
		{"health turned round", setAnnotation("v1:a^1!*2~7b93,b^5/3!@1763683200~1c36"), ". . b"},
		{"another version", setAnnotation("v2:a^1+*2~7b93,b^5/3!@1763683200~1c36"), ". . ."},
		{"no version", setAnnotation("a^1+*2~7b93,b^5/3!@1763683200~1c36"), ". . ."},
		{"a rank beyond reason", setAnnotation("v1:a^1+*2~7b93,b^5/300!@1763683200~1c36"), "a a ."},
		{"an address changed", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses[0] = "10.0.0.77" }, ". . b"},
		{"an endpoint removed", func(s *discoveryv1.EndpointSlice) { s.Endpoints = s.Endpoints[1:] }, ". ."},
		{
			"an endpoint added",
			func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, s.Endpoints[0]) },
			"a a b",
		},
		{
			"two swapped",
			func(s *discoveryv1.EndpointSlice) { s.Endpoints[0], s.Endpoints[1] = s.Endpoints[1], s.Endpoints[0] },
			". . b",
		},
		{"an endpoint without address", func(s *discoveryv1.EndpointSlice) { s.Endpoints[1].Addresses = nil }, ". b"},
		{"an address that is none", func(s *discoveryv1.EndpointSlice) { s.Endpoints[1].Addresses[0] = "host" }, ". b"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := attributed(t)
			test.edit(s)
			var got []string
			for _, e := range Published([]*discoveryv1.EndpointSlice{s}).Endpoints() {
				if e.Target == "" && (e.Rank != 0 || e.Tier != 0 || !e.DrainUntil.IsZero() || e.Healthy != e.Serving) ||
					e.Unread != (e.Target == "") {
					t.Errorf("an endpoint without a target has attributes: %+v", e)
				}
				if e.Target == "" {
					e.Target = "."
				}
				got = append(got, e.Target)
			}
			if diff := gocmp.Diff(test.want, strings.Join(got, " ")); diff != "" {
				t.Errorf("targets (-want +got):\n%s", diff)
			}
		})
	}
}

// setAnnotation returns an edit that sets the annotation.
func setAnnotation(text string) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) { s.Annotations[annotationEndpoints] = text }
}

// TestIncompleteSlicesAreRead reads slices that others wrote: fields may be missing, endpoints may
// be there twice.
func TestIncompleteSlicesAreRead(t *testing.T) {
	foreign := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "a"},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: new(int32(80))}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.0.0.1", "10.0.0.2"}},
			{Addresses: []string{"10.0.0.3"}, Conditions: discoveryv1.EndpointConditions{Ready: new(false)}},
			{Addresses: []string{"2001:db8::1"}},
			{Addresses: []string{"10.0.0.3"}},
		},
	}
	names := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "b"},
		AddressType: discoveryv1.AddressTypeFQDN,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"db.example.com"}}},
	}
	ports := []Port{{Port: 80, Protocol: corev1.ProtocolTCP}}
	ready := Conditions{Ready: true, Serving: true, Healthy: true, Unread: true}
	want := []Endpoint{
		{Addr: netip.MustParseAddr("10.0.0.1"), Ports: ports, Conditions: ready},
		{Addr: netip.MustParseAddr("10.0.0.3"), Ports: ports, Conditions: Conditions{Unread: true}},
	}
	got := Published([]*discoveryv1.EndpointSlice{names, foreign}).Endpoints()
	if diff := gocmp.Diff(want, got, equalAddrs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestDoubledEndpointKeepsItsTarget: of an endpoint in two slices the one with a target is read.
func TestDoubledEndpointKeepsItsTarget(t *testing.T) {
	ours := attributed(t)
	copied := ours.DeepCopy()
	copied.Name = "a"
	copied.Annotations = nil
	copied.Endpoints = append(copied.Endpoints, discoveryv1.Endpoint{Addresses: []string{"10.9.9.9"}})
	got := Published([]*discoveryv1.EndpointSlice{copied, ours}).Endpoints()
	if len(got) != 4 || got[0].Target != "a" || got[2].Target != "b" || got[3].Target != "" {
		t.Errorf("%+v", got)
	}
}

// TestAnnotationFitsIntoAnObject: all annotations of an object may have 256 KiB together.
func TestAnnotationFitsIntoAnObject(t *testing.T) {
	var r annotationEncoder
	for i := range maxPerSlice {
		e := Endpoint{
			Target: fmt.Sprintf("%063d", i), Tier: 127, Rank: 127, DrainUntil: time.Unix(9_999_999_999, 0),
			Conditions: Conditions{Healthy: true},
		}
		r.add(&e, &e.Conditions, "10.0.0.1")
	}
	if n := len(r.bytes()); n > 95<<10 {
		t.Errorf("%d bytes", n)
	}
}

// FuzzPublished reads arbitrary annotations and addresses, and checks that a plan repairs them.
func FuzzPublished(f *testing.F) {
	f.Add("v1:a^1+*2~7b93,b^5/3!@1763683200~1c36", "10.0.0.1")
	f.Add("*~,/@", "::1%1")
	f.Fuzz(func(t *testing.T, annotation, address string) {
		s := attributed(t)
		s.Annotations[annotationEndpoints] = annotation
		s.Endpoints[0].Addresses[0] = address
		if got := Published([]*discoveryv1.EndpointSlice{s}).Endpoints(); len(got) > 3 {
			t.Errorf("%+v", got)
		}
		stored := cluster{s.Name: s}
		stored.plan(t, testTemplate(5), pool("a", "", 0, 3))
		if again := stored.plan(t, testTemplate(5), pool("a", "", 0, 3)); verbs(again) != "+0 ~0 -0" {
			t.Errorf("%s after the plan", verbs(again))
		}
	})
}
