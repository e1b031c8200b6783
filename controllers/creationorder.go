package controllers

import (
	"cmp"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// creationOrder puts the slices that the API server refused to create behind all others, the last
// refused last. If it refuses only some, all others are created nevertheless.
type creationOrder struct {
	// refused holds the number of the last attempt of each refused slice, by name.
	refused  map[string]int
	attempts int
}

// refuse records that the API server refused to create s.
func (o *creationOrder) refuse(s *discoveryv1.EndpointSlice) {
	o.attempts++
	o.refused[s.Name] = o.attempts
}

// sort returns the slices in the order in which to create them, and forgets all that are no longer
// planned.
func (o *creationOrder) sort(create []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	before := o.refused
	o.refused = map[string]int{}
	if len(before) == 0 {
		return create
	}

	for _, s := range create {
		if n, ok := before[s.Name]; ok {
			o.refused[s.Name] = n
		}
	}
	return slices.SortedStableFunc(slices.Values(create), func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Compare(o.refused[a.Name], o.refused[b.Name])
	})
}
