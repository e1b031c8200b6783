package endpointslice

import (
	"fmt"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// BenchmarkSlices plans one step at 100 endpoints to a slice; the first creation at 100,000 too.
func BenchmarkSlices(b *testing.B) {
	template := testTemplate(100)
	bench := func(name string, desired []Endpoint, existing []*discoveryv1.EndpointSlice, writes int) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if n := len(writesOf(changesOf(template, desired, existing))); n != writes {
					b.Fatalf("%d writes", n)
				}
			}
		})
	}
	for _, n := range []int{1000, 10_000, 100_000} {
		desired := pool("a", "z1", 0, n)
		existing := changesOf(template, desired, nil).Create
		flipped := pool("a", "z1", 0, n)
		flipped[n/2].Ready, flipped[n/2].Serving, flipped[n/2].Healthy = false, false, false
		bench(fmt.Sprintf("create/%d", n), desired, nil, n/100)
		bench(fmt.Sprintf("rest/%d", n), desired, existing, 0)
		bench(fmt.Sprintf("flip/%d", n), flipped, existing, 1)
		bench(fmt.Sprintf("remove/%d", n), nil, existing, n/100)
	}
}

// BenchmarkPublished creates the index of published endpoints, which is read on first use.
func BenchmarkPublished(b *testing.B) {
	existing := changesOf(testTemplate(100), pool("a", "z1", 0, 10_000), nil).Create
	b.ReportAllocs()
	for b.Loop() {
		Published(existing)
	}
}
