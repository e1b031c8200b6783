package dataplane

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// publishedByHand lists the ways in which people publish external addresses without the operator.
var publishedByHand = []struct {
	name, documents string // documents has the Service's name and two addresses as arguments
	// ended returns nil once these endpoints are no longer published.
	ended func(h *harness.Test, service string) error
}{
	{"slice", `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-by-hand, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
ports: [{name: web, port: 8080}]
endpoints: [{addresses: ["%[2]s"]}, {addresses: ["%[3]s"]}]
`, (*harness.Test).OnlyOurs},
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
		return h.OnlyOurs(service)
	}},
}

// watchReady watches the slices behind a Service. The function that it returns ends the watch, and
// fails the test unless there was a ready endpoint at every moment. (kube-proxy combines changes,
// so it does not show each state.)
func watchReady(h *harness.Test, service string) (wantAlwaysReady func()) {
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
				return // the watch failed or was stopped
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
		none := slices.ContainsFunc(history, func(line string) bool { return strings.HasPrefix(line, "0 ") })
		if none || len(history) < 2 {
			h.T.Errorf("%s did not have a ready endpoint at every moment:\n%s", service, strings.Join(history, "\n"))
		}
	}
}

// The adoption of a Service whose endpoints were written by hand loses no request and keeps the
// ClusterIP. In the end, the endpoints have the verdicts of the checks.
func TestAdoptionLosesNoRequest(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	for _, way := range publishedByHand {
		for _, shared := range []bool{true, false} {
			name := way.name + map[bool]string{true: "-shared", false: "-replaced"}[shared]
			t.Run(name, func(t *testing.T) {
				h := h.Sub(t)
				p := newPair(h, "http", 8080)
				old := []*lab.Machine{p.a, p.b}
				if !shared { // the old addresses are not in the spec
					old = []*lab.Machine{h.Machine("old1"), h.Machine("old2")}
					h.Serve(old[0], "http", 8080)
					h.Serve(old[1], "http", 8080)
				}
				h.ApplyService(name, "ipFamilyPolicy: SingleStack, ipFamilies: [IPv4], ports: [{name: web, port: 80}]")
				h.Apply(way.documents, name, old[0].V4, old[1].V4)
				h.WaitRoutes(name, old[0].At4(8080), old[1].At4(8080))
				service := h.Service(name)
				load := startLoad(h, clusterAddrs(h, name, 80)[0])
				load.waitAnswerFrom(old[0])
				load.waitAnswerFrom(old[1])

				wantAlwaysReady := watchReady(h, name)

				p.sicken(true) // the checks contradict the endpoints written by hand
				p.sa.SetSick(!shared)
				h.ApplyBackend(name, `
service: {adoptionPolicy: IfSelectorless}
ports: [{name: web, port: 80, targetPort: 8080}]
targets: %s
healthCheck: %s
`, targets("a", p.a.V4, "b", p.b.V4), harness.HTTPCheck)
				if !shared {
					// The endpoints written by hand stay until one of ours is ready.
					h.WaitChecked(p.sa, p.sb)
					load.waitMore()
					h.WaitRoutes(name, old[0].At4(8080), old[1].At4(8080))
					p.sa.SetSick(false)
				}
				h.WaitReady(name)
				h.Eventually("the endpoints written by hand to end", func() error { return way.ended(h, name) })
				h.WaitStates(name, harness.States{p.a.At4(8080): harness.Healthy, p.b.At4(8080): harness.Unhealthy})
				h.WaitRoutes(name, p.a.At4(8080))
				load.waitAnswerFrom(p.a)
				load.waitMore()
				load.stopWithoutLoss()
				wantAlwaysReady()
				wantAnswers(h, "http", clusterAddrs(h, name, 80)[0], p.a)
				h.WaitEvent(name, "Adopted")
				if is := h.Service(name); is.UID != service.UID || is.Spec.ClusterIP != service.Spec.ClusterIP ||
					len(is.OwnerReferences) > 0 {
					t.Errorf("the Service has changed: %v", is.ObjectMeta)
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
				h.Service(name) // fails the test if the Service is gone
			})
		}
	}
}
