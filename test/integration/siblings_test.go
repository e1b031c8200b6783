package integration

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/test/harness"
)

// gaps watches the slices behind a Service until the test ends, and tells how often an address that
// was ready there was so in none of them.
func gaps(h *harness.Test, service, address string) (count func() int) {
	h.T.Helper()
	w, err := h.Client.Watch(h.T.Context(), &discoveryv1.EndpointSliceList{}, client.InNamespace(h.Namespace), client.MatchingLabels{discoveryv1.LabelServiceName: service})
	if err != nil {
		h.T.Fatal(err)
	}
	var mu sync.Mutex
	n := 0
	var done sync.WaitGroup
	done.Go(func() { // ends with Stop
		ready, was := map[string]bool{}, false
		for event := range w.ResultChan() {
			slice, ok := event.Object.(*discoveryv1.EndpointSlice)
			if !ok {
				continue
			}
			ready[slice.Name] = event.Type != watch.Deleted && slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool {
				return slices.Contains(e.Addresses, address) && *e.Conditions.Ready
			})
			is := slices.Contains(slices.Collect(maps.Values(ready)), true)
			mu.Lock()
			if was && !is {
				n++
			}
			mu.Unlock()
			was = is
		}
	})
	h.T.Cleanup(func() {
		w.Stop()
		done.Wait()
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return n
	}
}

// TestSiblingTakesOver: an address that two ExternalBackends on one Service name stays ready at every
// moment when the one that publishes it is deleted, however that is done.
func TestSiblingTakesOver(t *testing.T) {
	h := parallel(t)
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {ports: [{name: web, port: 80}]}"
	for _, how := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
		for kind, spec := range map[string]string{
			"ref":   "serviceRef: {name: %s}\nports: [{name: web, port: 80}]\ntargets: [{name: a, address: 198.51.100.1}]",
			"adopt": "service: {name: %s, adoptionPolicy: IfSelectorless}\nports: [{name: web, port: 80}]\ntargets: [{name: a, address: 198.51.100.1}]",
		} {
			t.Run(kind+string(how), func(t *testing.T) {
				h := h.Sub(t)
				name := kind + map[bool]string{true: "-fg", false: "-bg"}[how == metav1.DeletePropagationForeground]
				h.Apply(fmt.Sprintf(service, name))
				first, second := name+"-1", name+"-2"
				apply(h, first, spec, name)
				h.WaitReady(first)
				apply(h, second, spec, name)
				if kind == "ref" {
					waitTarget(h, second, "a", "Unprobed", "DuplicateAddress")
				} else {
					waitConflict(h, second)
				}
				count := gaps(h, name, "198.51.100.1")

				b := h.Backend(first)
				remove(h, b, client.PropagationPolicy(how))
				waitGone(h, b, first)
				h.WaitReady(second)
				h.Eventually("the slices of the deleted one to go", func() error {
					for _, s := range h.Slices(name) {
						if s.Labels["external-backend.io/name"] == first {
							return fmt.Errorf("there is %s", s.Name)
						}
					}
					return nil
				})
				if n := count(); n > 0 {
					t.Errorf("the address was ready nowhere %d times", n)
				}
			})
		}
	}
}
