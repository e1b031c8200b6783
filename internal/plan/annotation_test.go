package plan

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

	"github.com/external-backend/operator/api/v1alpha1"
)

var equalAddrs = cmpopts.EquateComparable(netip.Addr{})

// attributed is three endpoints of two targets in one slice.
func attributed(t *testing.T) *discoveryv1.EndpointSlice {
	t.Helper()
	desired := append(pool("a", "", 0, 2), pool("b", "", 5, 1)...)
	desired[2].Rank, desired[2].DrainUntil, desired[2].Terminating, desired[2].Ready = 3, time.Unix(1_763_683_200, 0).UTC(), true, false
	s := Slices(testTemplate(5), desired, nil).Create[0]
	if got, want := s.Annotations[v1alpha1.AnnotationEndpoints], "a*2~3576,b/3@1763683200~d2ed"; got != want {
		t.Errorf("annotation %q, want %q", got, want)
	}
	if diff := gocmp.Diff(desired, Published([]*discoveryv1.EndpointSlice{s}).Endpoints(), equalAddrs); diff != "" {
		t.Errorf("read back (-want +got):\n%s", diff)
	}
	return s
}

// TestPublishedTargets: an endpoint is of a target only where the annotation was written for just this endpoint.
func TestPublishedTargets(t *testing.T) {
	tests := []struct {
		name string
		edit func(s *discoveryv1.EndpointSlice)
		want string
	}{
		{"as written", func(*discoveryv1.EndpointSlice) {}, "a a b"},
		{"no annotation", func(s *discoveryv1.EndpointSlice) { s.Annotations = nil }, ". . ."},
		{"garbage", setAnnotation("\x00~*@/,,~,"), ". . ."},
		{"a target renamed", setAnnotation("c*2~3576,b/3@1763683200~d2ed"), ". . b"},
		{"a drain prolonged", setAnnotation("a*2~3576,b/3@1763683201~d2ed"), "a a ."},
		{"a run too many", setAnnotation("a*2~3576,b/3@1763683200~d2ed,c~0000"), "a a b"},
		{"a count too great", setAnnotation("a*65535~3576"), ". . ."},
		{"a count beyond reason", setAnnotation("a*99999999999999999999~3576"), ". . ."},
		{"a count of none", setAnnotation("a*0~3576,b/3@1763683200~d2ed"), ". . ."},
		{"a rank beyond reason", setAnnotation("a*2~3576,b/300@1763683200~d2ed"), "a a ."},
		{"an address changed", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses[0] = "10.0.0.77" }, ". . b"},
		{"an endpoint removed", func(s *discoveryv1.EndpointSlice) { s.Endpoints = s.Endpoints[1:] }, ". ."},
		{"an endpoint added", func(s *discoveryv1.EndpointSlice) { s.Endpoints = append(s.Endpoints, s.Endpoints[0]) }, "a a b"},
		{"two swapped", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0], s.Endpoints[1] = s.Endpoints[1], s.Endpoints[0] }, ". . b"},
		{"an endpoint without address", func(s *discoveryv1.EndpointSlice) { s.Endpoints[1].Addresses = nil }, ". b"},
		{"an address that is none", func(s *discoveryv1.EndpointSlice) { s.Endpoints[1].Addresses[0] = "host" }, ". b"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := attributed(t)
			test.edit(s)
			var got []string
			for _, e := range Published([]*discoveryv1.EndpointSlice{s}).Endpoints() {
				if e.Target == "" && (e.Rank != 0 || !e.DrainUntil.IsZero()) {
					t.Errorf("of no target, yet %+v", e)
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

func setAnnotation(text string) func(*discoveryv1.EndpointSlice) {
	return func(s *discoveryv1.EndpointSlice) { s.Annotations[v1alpha1.AnnotationEndpoints] = text }
}

// TestPublishedForeign reads slices that others wrote: fields may be missing, endpoints may be doubled.
func TestPublishedForeign(t *testing.T) {
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
	names := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "b"}, AddressType: discoveryv1.AddressTypeFQDN, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"db.example.com"}}}}
	ports := []Port{{Port: 80, Protocol: corev1.ProtocolTCP}}
	want := []Endpoint{
		{Addr: netip.MustParseAddr("10.0.0.1"), Ports: ports, Ready: true, Serving: true},
		{Addr: netip.MustParseAddr("10.0.0.3"), Ports: ports},
	}
	if diff := gocmp.Diff(want, Published([]*discoveryv1.EndpointSlice{names, foreign}).Endpoints(), equalAddrs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestPublishedTwice: of an endpoint in two slices the copy with a target tells more.
func TestPublishedTwice(t *testing.T) {
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

// TestAnnotationSize: an annotation may have 256 KiB, all of an object together.
func TestAnnotationSize(t *testing.T) {
	var r runEncoder
	for i := range maxPerSlice {
		r.add(&Endpoint{Target: fmt.Sprintf("%063d", i), Rank: 127, DrainUntil: time.Unix(9_999_999_999, 0)}, "10.0.0.1")
	}
	if n := len(r.bytes()); n > 90<<10 {
		t.Errorf("%d bytes", n)
	}
}

func FuzzPublished(f *testing.F) {
	f.Add("a*2~3576,b/3@1763683200~d2ed", "10.0.0.1")
	f.Add("*~,/@", "::1%1")
	f.Fuzz(func(t *testing.T, annotation, address string) {
		s := attributed(t)
		s.Annotations[v1alpha1.AnnotationEndpoints] = annotation
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
