package dataplane

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// byHand are the ways in which people publish external addresses without the operator.
var byHand = []struct {
	name, documents string // with the Service's name and an address twice
	ended           func(h *harness.Test, service string) error
}{
	{"slice", `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-by-hand, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: web, port: 8080}]
endpoints: [{addresses: ["%[2]s"]}, {addresses: ["%[3]s"]}]
`, onlyOurs},
	{"endpoints", `
apiVersion: v1
kind: Endpoints
metadata: {name: %[1]s}
subsets: [{addresses: [{ip: %[2]s}, {ip: %[3]s}], ports: [{name: web, port: 8080}]}]
`, func(h *harness.Test, service string) error {
		var e corev1.Endpoints
		if err := h.Client.Get(h.T.Context(), h.Key(service), &e); err != nil {
			return err
		}
		if e.Labels[discoveryv1.LabelSkipMirror] != "true" {
			return fmt.Errorf("the Endpoints' labels are %v", e.Labels)
		}
		return onlyOurs(h, service)
	}},
}

// onlyOurs wants every slice behind the Service to be the operator's.
func onlyOurs(h *harness.Test, service string) error {
	h.T.Helper()
	all := h.Slices(service)
	for _, s := range all {
		if by := s.Labels[discoveryv1.LabelManagedBy]; by != v1alpha1.ManagedBy {
			return fmt.Errorf("slice %s is managed by %q", s.Name, by)
		}
	}
	if len(all) == 0 {
		return errors.New("there is no slice")
	}
	return nil
}

// watchReady watches the slices behind a Service. The function it returns ends that, and wants
// every single state on the way to have had a ready endpoint: kube-proxy, which gathers changes,
// may not have seen each.
func watchReady(h *harness.Test, service string) (always func()) {
	h.T.Helper()
	watcher, err := h.Client.Watch(h.T.Context(), &discoveryv1.EndpointSliceList{}, client.InNamespace(h.Namespace),
		client.MatchingLabels{discoveryv1.LabelServiceName: service})
	if err != nil {
		h.T.Fatal(err)
	}
	var history []string
	var done sync.WaitGroup
	done.Go(func() {
		ready := map[string]int{}
		for event := range watcher.ResultChan() {
			slice, ok := event.Object.(*discoveryv1.EndpointSlice)
			if !ok {
				return // an error, as stopping is one too
			}
			delete(ready, slice.Name)
			if event.Type != watch.Deleted {
				for _, e := range slice.Endpoints {
					if e.Conditions.Ready == nil || *e.Conditions.Ready {
						ready[slice.Name]++
					}
				}
			}
			sum := 0
			for _, n := range ready {
				sum += n
			}
			history = append(history, fmt.Sprintf("%d ready: %s %s", sum, event.Type, slice.Name))
		}
	})
	return func() {
		h.T.Helper()
		watcher.Stop()
		done.Wait()
		if slices.ContainsFunc(history, func(line string) bool { return strings.HasPrefix(line, "0 ") }) || len(history) < 2 {
			h.T.Errorf("behind %s there was not always a ready endpoint:\n%s", service, strings.Join(history, "\n"))
		}
	}
}

// TestAdoption takes over a Service whose endpoints were written by hand, under load. No request is
// lost, the ClusterIP stays, and what the checks say applies in the end.
func TestAdoption(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	for _, way := range byHand {
		for _, shared := range []bool{true, false} {
			name := way.name + map[bool]string{true: "-shared", false: "-replaced"}[shared]
			t.Run(name, func(t *testing.T) {
				h := h.Sub(t)
				p := newPair(h, "http", 8080)
				old := []*lab.Machine{p.a, p.b}
				if !shared { // others than those in the spec
					old = []*lab.Machine{h.Machine("old1"), h.Machine("old2")}
					h.Serve(old[0], "http", 8080)
					h.Serve(old[1], "http", 8080)
				}
				h.Apply(
					"apiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4], ports: [{name: web, port: 80}]}",
					name,
				)
				h.Apply(way.documents, name, old[0].V4, old[1].V4)
				h.WaitRoutes(name, old[0].At4(8080), old[1].At4(8080))
				service := h.Service(name)
				load := startLoad(h, clusterAddrs(h, name, 80)[0])
				load.reaches(old[0])
				load.reaches(old[1])

				alwaysReady := watchReady(h, name)

				p.sicken(true) // the checks will know better than whoever wrote by hand
				p.sa.SetSick(!shared)
				h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: %s}
spec:
  service: {adoptionPolicy: IfSelectorless}
  ports: [{name: web, port: 80, targetPort: 8080}]
  targets: %s
  healthCheck: %s
`, name, targets("a", p.a.V4, "b", p.b.V4), httpCheck)
				if !shared {
					// Until one of ours is ready, those by hand go on.
					probed(h, p.sa, p.sb)
					load.more()
					h.WaitRoutes(name, old[0].At4(8080), old[1].At4(8080))
					p.sa.SetSick(false)
				}
				h.WaitReady(name)
				h.Eventually("what was written by hand to stop", func() error { return way.ended(h, name) })
				h.WaitStates(name, harness.States{p.a.At4(8080): harness.Healthy, p.b.At4(8080): harness.Unhealthy})
				h.WaitRoutes(name, p.a.At4(8080))
				load.reaches(p.a)
				load.more()
				load.stopUnharmed()
				alwaysReady()
				wantAnswers(h, "http", clusterAddrs(h, name, 80)[0], p.a)
				h.WaitEvent(name, "Adopted")
				if is := h.Service(name); is.UID != service.UID || is.Spec.ClusterIP != service.Spec.ClusterIP ||
					len(is.OwnerReferences) > 0 {
					t.Errorf("the Service is not what it was: %v", is.ObjectMeta)
				}

				if err := h.Client.Delete(t.Context(), h.Backend(name)); err != nil {
					t.Fatal(err)
				}
				h.Eventually("the slices to go", func() error {
					if left := h.Slices(name); len(left) > 0 {
						return fmt.Errorf("%d are left", len(left))
					}
					return nil
				})
				h.Service(name) // survives
			})
		}
	}
}
