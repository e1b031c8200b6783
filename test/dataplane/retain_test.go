package dataplane

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/test/harness"
)

// retained is an ExternalBackend whose Service must keep its endpoints, whatever happens to the
// ExternalBackend. Machine a is healthy, machine b is not.
type retained struct {
	h    *harness.Test
	pair pair
	spec string // of the ExternalBackend
	want harness.States
}

// publishRetained applies an ExternalBackend with these further lines in its spec, and waits until
// its endpoints are published.
func publishRetained(h *harness.Test, more string) retained {
	h.T.Helper()
	p := newPair(h, "http", 8080)
	r := retained{h: h, pair: p, spec: fmt.Sprintf(`
%s
ports: [{name: web, port: 80, targetPort: 8080}]
targets: %s
healthCheck: %s
`, more, targets("a", p.a.V4, "b", p.b.V4), harness.HTTPCheck)}
	r.want = harness.States{p.a.At4(8080): harness.Healthy, p.b.At4(8080): harness.Unhealthy}
	p.sicken(true)
	h.ApplyBackend("web", r.spec)
	r.check()
	return r
}

// check waits until the endpoints and kube-proxy's rules are as wanted.
func (r retained) check() {
	r.h.T.Helper()
	r.h.WaitStates("web", r.want)
	r.h.WaitRoutes("web", r.pair.a.At4(8080))
}

// underLoad sends requests while it calls do. No request may be lost, and no endpoint of the
// Service may change.
func (r retained) underLoad(do func(waitMore func())) {
	r.h.T.Helper()
	before := r.pair.sb.Requests()
	wantUnchanged := watchUnchanged(r.h, "web")
	load := startLoad(r.h, clusterAddrs(r.h, "web", 80)[0])
	load.waitMore()
	do(load.waitMore)
	load.waitMore()
	load.stopWithoutLoss()
	wantUnchanged()
	r.check()
	if n := r.pair.sb.Requests() - before; n > 0 {
		r.h.T.Errorf("%d requests reached the unhealthy backend", n)
	}
}

// watchUnchanged watches the slices behind a Service. The function that it returns ends the watch,
// and fails the test if an endpoint or a condition has changed.
func watchUnchanged(h *harness.Test, service string) (wantUnchanged func()) {
	h.T.Helper()
	before := map[string]string{}
	for _, s := range h.Slices(service) {
		before[s.Name] = states(&s)
	}
	watcher, err := h.Client.Watch(h.T.Context(), &discoveryv1.EndpointSliceList{}, client.InNamespace(h.Namespace),
		client.MatchingLabels{discoveryv1.LabelServiceName: service})
	if err != nil {
		h.T.Fatal(err)
	}
	var changes []string
	seen := 0
	var done sync.WaitGroup
	done.Go(func() {
		for event := range watcher.ResultChan() {
			s, ok := event.Object.(*discoveryv1.EndpointSlice)
			if !ok {
				return // the watch failed or was stopped
			}
			seen++
			if now := states(s); event.Type == watch.Deleted || now != before[s.Name] {
				changes = append(changes, fmt.Sprintf("%s %s: was %s, is %s", event.Type, s.Name, before[s.Name], now))
			}
		}
	})
	return func() {
		h.T.Helper()
		watcher.Stop()
		done.Wait()
		if len(changes) > 0 || seen == 0 {
			h.T.Errorf("of %d events, these changed endpoints:\n%s", seen, strings.Join(changes, "\n"))
		}
		h.T.Logf("%d writes of slices behind %s, none of which changed an endpoint", seen-len(before), service)
	}
}

// states returns the endpoints of a slice with their conditions.
func states(s *discoveryv1.EndpointSlice) string {
	var texts []string
	for _, e := range s.Endpoints {
		c := e.Conditions
		texts = append(texts, fmt.Sprintf("%s ready=%t serving=%t terminating=%t",
			e.Addresses[0], *c.Ready, *c.Serving, *c.Terminating))
	}
	return strings.Join(texts, ", ")
}

// owners returns the owner references of an object, with kinds and UIDs.
func owners(o client.Object) string {
	var texts []string
	for _, ref := range o.GetOwnerReferences() {
		texts = append(texts, fmt.Sprintf("%s %s controller=%t", ref.Kind, ref.UID, ref.Controller != nil && *ref.Controller))
	}
	return strings.Join(texts, ", ")
}

// Changes of deletionPolicy set the owners of Service and slices, and lose no request. This holds
// for a Service that we create and for one that serviceRef names.
func TestDeletionPolicyChangesLoseNoRequest(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	for name, more := range map[string]string{
		"created":    "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}",
		"serviceRef": "serviceRef: {name: web}",
	} {
		t.Run(name, func(t *testing.T) {
			h := harness.New(t)
			if name == "serviceRef" {
				h.ApplyService("web", "ipFamilyPolicy: SingleStack, ipFamilies: [IPv4], ports: [{name: web, port: 80}]")
			}
			r := publishRetained(h, more)
			h.WaitReady("web")
			writes := h.CountWrites()
			r.underLoad(func(waitMore func()) {
				for _, policy := range []string{"Retain", "Delete"} {
					h.ApplyBackend("web", "deletionPolicy: "+policy+r.spec)
					b := h.WaitReady("web")
					service := h.Service("web")
					ofBackend := fmt.Sprintf("ExternalBackend %s controller=true", b.UID)
					want := map[string][2]string{
						"created Delete":    {ofBackend, fmt.Sprintf("Service %s controller=true", service.UID)},
						"created Retain":    {"", fmt.Sprintf("Service %s controller=true", service.UID)},
						"serviceRef Delete": {"", ofBackend},
						"serviceRef Retain": {"", fmt.Sprintf("Service %s controller=false", service.UID)},
					}[name+" "+policy]
					if got := owners(service); got != want[0] {
						t.Errorf("%s: the Service belongs to %q, not %q", policy, got, want[0])
					}
					for _, s := range h.Slices("web") {
						if got := owners(&s); got != want[1] {
							t.Errorf("%s: slice %s belongs to %q, not %q", policy, s.Name, got, want[1])
						}
					}
					waitMore()
				}
			})
			t.Logf("written: %v", writes.Of("services", "endpointslices"))
		})
	}
}

// With deletionPolicy Retain, traffic flows while the CRD, and with it every ExternalBackend, is
// deleted and installed again. Service and slices stay the same objects.
func TestReinstalledCRDLosesNoRequest(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	r := publishRetained(h, "deletionPolicy: Retain\nservice: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}")
	h.WaitReady("web")
	service, before := h.Service("web"), h.Slices("web")
	r.underLoad(func(waitMore func()) {
		kubectl(h, "delete", "crd", "externalbackends.external-backend.io")
		waitMore()
		kubectl(h, "apply", "--server-side", "-k", "../../config/crd")
		kubectl(h, "wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
		waitMore()
		h.ApplyBackend("web", r.spec)
		h.Within(2*time.Minute, "the manager to find the kind again", func() error { // the manager asks twice a minute
			b := h.Backend("web")
			if b.Status.ObservedGeneration != b.Generation {
				return errors.New("the manager has not seen the ExternalBackend")
			}
			return nil
		})
		h.WaitReady("web")
		h.WaitChecked(r.pair.sa, r.pair.sb)
	})
	if is := h.Service("web"); is.UID != service.UID || is.Spec.ClusterIP != service.Spec.ClusterIP ||
		len(is.OwnerReferences) > 0 {
		t.Errorf("the Service has changed: %v", is.ObjectMeta)
	}
	same := func(a, b discoveryv1.EndpointSlice) bool { return a.UID == b.UID }
	if now := h.Slices("web"); !slices.EqualFunc(now, before, same) {
		t.Errorf("the slices were replaced: %v", now)
	}
}

// An ExternalBackend that is deleted with --cascade=orphan leaves Service and slices, which it
// takes over when it is created again. No request is lost.
func TestCascadeOrphanLosesNoRequest(t *testing.T) {
	h := harness.New(t)
	h.StartManager("--orphan-grace=0")
	for name, more := range map[string]string{
		"created":    "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}",
		"serviceRef": "serviceRef: {name: web}",
	} {
		t.Run(name, func(t *testing.T) {
			h := harness.New(t)
			if name == "serviceRef" {
				h.ApplyService("web", "ipFamilyPolicy: SingleStack, ipFamilies: [IPv4], ports: [{name: web, port: 80}]")
			}
			r := publishRetained(h, more)
			h.WaitReady("web")
			service := h.Service("web")
			r.underLoad(func(waitMore func()) {
				kubectl(h, "delete", "extbe", "web", "-n", h.Namespace, "--cascade=orphan")
				waitMore()
				if got := owners(h.Service("web")); got != "" {
					t.Errorf("the Service belongs to %q", got)
				}
				h.ApplyBackend("web", r.spec)
				h.WaitReady("web")
				h.WaitChecked(r.pair.sa, r.pair.sb)
			})
			if is := h.Service("web"); is.UID != service.UID {
				t.Error("the Service was replaced")
			}
		})
	}
}

// kubectl runs kubectl, which must succeed.
func kubectl(h *harness.Test, args ...string) (stdout string) {
	h.T.Helper()
	stdout, err := h.Kubectl(h.T.Context(), args...)
	if err != nil {
		h.T.Fatal(err)
	}
	return stdout
}
