package endpointslice

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// TestNamesAreValidAndUnique compares the names that similarly named backends get.
func TestNamesAreValidAndUnique(t *testing.T) {
	long := strings.Repeat("a", 62)
	used := map[string]string{}
	ipv6 := Endpoint{Addr: netip.MustParseAddr("2001:db8::1"), Ports: httpPorts}
	for _, backend := range []string{"a", "a-v4", long + "b", long + "c"} {
		template := testTemplate(1)
		template.Backend = backend
		for _, s := range changesOf(template, append(pool("t", "", 0, 12), ipv6), nil).Create {
			if problems := validation.IsDNS1123Label(s.Name); len(problems) > 0 {
				t.Errorf("%q: %v", s.Name, problems)
			}
			if other, ok := used[s.Name]; ok {
				t.Errorf("%q is a slice of %q and of %q", s.Name, other, backend)
			}
			used[s.Name] = backend
		}
	}
	if len(used) != 4*13 {
		t.Errorf("%d names", len(used))
	}
	for name := range used { // a backend that is named like another's slice
		if len(name) < 40 {
			template := testTemplate(1)
			template.Backend = strings.TrimSuffix(name, "-0")
			for _, s := range changesOf(template, pool("t", "", 0, 12), nil).Create {
				if used[s.Name] != "" {
					t.Errorf("%q is taken", s.Name)
				}
			}
		}
	}
}

// TestStaleCacheCreatesNothingTwice: a repeated creation has the name of the first one, and a free
// number is used again.
func TestStaleCacheCreatesNothingTwice(t *testing.T) {
	stored := cluster{}
	first := stored.plan(t, testTemplate(2), pool("a", "", 0, 6))
	if again := changesOf(testTemplate(2), pool("a", "", 0, 6), nil); gocmp.Diff(first, again) != "" {
		t.Error("the same plan creates slices of other names")
	}
	stored.plan(t, testTemplate(2), slices.Concat(pool("a", "", 0, 2), pool("a", "", 4, 2)))
	names := slices.Sorted(maps.Keys(stored))
	stored.plan(t, testTemplate(2), slices.Concat(pool("a", "", 0, 2), pool("a", "", 4, 4)))
	var want []string
	for _, s := range first.Create {
		want = append(want, s.Name)
	}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(stored)); len(names) != 2 || !slices.Equal(got, want) {
		t.Errorf("%v, then %v, want %v", names, got, want)
	}
}

// TestForeignMetadataStays: our labels, annotations and owner are enforced, and those of others
// stay.
func TestForeignMetadataStays(t *testing.T) {
	template := testTemplate(5)
	template.Labels = map[string]string{
		"team":                           "shop",
		"tier":                           "db",
		"kubernetes.io/service-name":     "evil",
		"service.kubernetes.io/headless": "",
	}
	stored := cluster{}
	stored.plan(t, template, pool("a", "", 0, 1))
	foreign := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "x", UID: "u-2"}
	usurper := metav1.OwnerReference{APIVersion: "v1", Kind: "Service", Name: "y", UID: "u-3", Controller: new(true)}
	var name string
	for _, s := range stored {
		name = s.Name
		s.ResourceVersion = "17"
		s.Finalizers = []string{"example.com/hold"}
		s.Labels["example.com/theirs"], s.Annotations["example.com/theirs"] = "1", "1"
		s.Labels["kubernetes.io/service-name"] = "elsewhere"
		s.OwnerReferences = []metav1.OwnerReference{foreign, usurper}
	}
	template.Labels = map[string]string{"tier": "cache"}
	if got := verbs(stored.plan(t, template, pool("a", "", 0, 1))); got != "+0 ~1 -0" {
		t.Fatal(got)
	}
	s := stored[name]
	want := metav1.ObjectMeta{
		Name: name, Namespace: "shop", ResourceVersion: "17", Finalizers: []string{"example.com/hold"},
		Labels: map[string]string{
			"kubernetes.io/service-name":             "orders",
			"endpointslice.kubernetes.io/managed-by": "external-backend.io",
			"external-backend.io/name":               "orders-db",
			"tier":                                   "cache",
			"example.com/theirs":                     "1",
		},
		Annotations: map[string]string{
			"external-backend.io/endpoints": s.Annotations["external-backend.io/endpoints"],
			"external-backend.io/labels":    "tier",
			"example.com/theirs":            "1",
		},
		OwnerReferences: []metav1.OwnerReference{foreign, *template.Owner},
	}
	if diff := gocmp.Diff(want, s.ObjectMeta); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	s.OwnerReferences = append(s.OwnerReferences, *template.Owner)
	if got := verbs(stored.plan(t, template, pool("a", "", 0, 1))); got != "+0 ~1 -0" ||
		len(stored[name].OwnerReferences) != 2 {
		t.Errorf("owners %v", stored[name].OwnerReferences)
	}
	template.Owner = nil
	if got := verbs(stored.plan(t, template, pool("a", "", 0, 1))); got != "+0 ~0 -0" {
		t.Errorf("%s without an owner to enforce", got)
	}
}
