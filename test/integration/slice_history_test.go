package integration

import (
	"fmt"
	"slices"
	"sync"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// sliceHistory records every state of the slices behind a Service.
type sliceHistory struct {
	mu     sync.Mutex
	states []string
}

// recordSlices records until the test ends. A state reads like "ADDED ours
// 192.0.2.1:true,true,false": whether the endpoint is ready, serving and terminating.
func recordSlices(h *harness.Test, service string) *sliceHistory {
	h.T.Helper()
	w, err := h.Client.Watch(h.T.Context(), &discoveryv1.EndpointSliceList{}, client.InNamespace(h.Namespace),
		client.MatchingLabels{discoveryv1.LabelServiceName: service})
	if err != nil {
		h.T.Fatal(err)
	}
	s := &sliceHistory{}
	var done sync.WaitGroup
	done.Go(func() { // ends with Stop
		for event := range w.ResultChan() {
			if slice, ok := event.Object.(*discoveryv1.EndpointSlice); ok {
				s.add(event.Type, slice)
			}
		}
	})
	h.T.Cleanup(func() {
		w.Stop()
		done.Wait()
	})
	return s
}

func (s *sliceHistory) add(kind watch.EventType, slice *discoveryv1.EndpointSlice) {
	whose := "theirs"
	if slice.Labels[discoveryv1.LabelManagedBy] == v1alpha1.ManagedBy {
		whose = "ours"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range slice.Endpoints {
		is := func(c *bool, otherwise bool) bool { return c == nil && otherwise || c != nil && *c }
		s.states = append(s.states, fmt.Sprintf("%s %s %s:%t,%t,%t", kind, whose, e.Addresses[0],
			is(e.Conditions.Ready, true), is(e.Conditions.Serving, true), is(e.Conditions.Terminating, false)))
	}
}

// all returns all states so far.
func (s *sliceHistory) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.states)
}

// index returns the index of the first such state, and fails the test if there is none.
func (s *sliceHistory) index(h *harness.Test, state string) int {
	h.T.Helper()
	i := slices.Index(s.all(), state)
	if i < 0 {
		h.T.Fatalf("there is no state %q in %q", state, s.all())
	}
	return i
}
