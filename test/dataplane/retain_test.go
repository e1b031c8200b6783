package dataplane

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// kept is an ExternalBackend whose Service must outlive what happens to it: a serves, b is sick.
type kept struct {
	h    *harness.Test
	pair pair
	spec string // of the ExternalBackend
	want harness.States
}

// publishKept applies it, with what more says of its spec, and waits until it is as it should be.
func publishKept(h *harness.Test, more string) kept {
	h.T.Helper()
	p := newPair(h, "http", 8080)
	k := kept{h: h, pair: p, spec: fmt.Sprintf(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: web}
spec:
  %s
  ports: [{name: web, port: 80, targetPort: 8080}]
  targets: %s
  healthCheck: %s
`, more, targets("a", p.a.V4, "b", p.b.V4), httpCheck)}
	k.want = harness.States{p.a.At4(8080): harness.Healthy, p.b.At4(8080): harness.Unhealthy}
	p.sicken(true)
	h.Apply(k.spec)
	k.check()
	return k
}

// check waits until endpoints and routes are as they should be.
func (k kept) check() {
	k.h.T.Helper()
	k.h.WaitStates("web", k.want)
	k.h.WaitRoutes("web", k.pair.a.At4(8080))
}

// underLoad sends requests while it does something, of which none may be lost and at which no
// endpoint of the Service may change.
func (k kept) underLoad(do func(more func())) {
	k.h.T.Helper()
	before := k.pair.sb.Requests()
	unchanged := watchUnchanged(k.h, "web")
	load := startLoad(k.h, clusterAddrs(k.h, "web", 80)[0])
	load.more()
	do(load.more)
	load.more()
	load.stopUnharmed()
	unchanged()
	k.check()
	if n := k.pair.sb.Requests() - before; n > 0 {
		k.h.T.Errorf("%d requests reached the unhealthy backend", n)
	}
}

// watchUnchanged watches the slices behind a Service. The function it returns ends that, and wants
// no endpoint and no condition to have changed.
func watchUnchanged(h *harness.Test, service string) (unchanged func()) {
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
				return // an error, as stopping is one too
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
			h.T.Errorf("%d events, of which changed endpoints:\n%s", seen, strings.Join(changes, "\n"))
		}
		h.T.Logf("%d writes of slices behind %s, none of which changed an endpoint", seen-len(before), service)
	}
}

// states is what a slice says of its endpoints.
func states(s *discoveryv1.EndpointSlice) string {
	var texts []string
	for _, e := range s.Endpoints {
		texts = append(
			texts,
			fmt.Sprintf("%s ready=%t serving=%t terminating=%t", e.Addresses[0], *e.Conditions.Ready,
				*e.Conditions.Serving, *e.Conditions.Terminating),
		)
	}
	return strings.Join(texts, ", ")
}

// owners are the kinds and UIDs of those to whom an object belongs.
func owners(o client.Object) string {
	var texts []string
	for _, ref := range o.GetOwnerReferences() {
		texts = append(texts, fmt.Sprintf("%s %s controller=%t", ref.Kind, ref.UID, ref.Controller != nil && *ref.Controller))
	}
	return strings.Join(texts, ", ")
}

// backup is what a backup tool has of it.
type backup struct {
	service *corev1.Service
	slices  []discoveryv1.EndpointSlice
	backend *v1alpha1.ExternalBackend
}

// lose takes a backup, and deletes everything.
func (k kept) lose() backup {
	h := k.h
	h.T.Helper()
	saved := backup{h.Service("web"), h.Slices("web"), h.Backend("web")}
	must := func(err error) {
		h.T.Helper()
		if err != nil {
			h.T.Fatal(err)
		}
	}
	must(h.Client.Delete(h.T.Context(), h.Backend("web")))
	h.Eventually("all to go", func() error {
		if err := h.Client.Get(h.T.Context(), h.Key("web"), &corev1.Service{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the Service: %v", err)
		}
		if n := len(h.Slices("web")); n > 0 {
			return fmt.Errorf("%d slices", n)
		}
		return nil
	})
	return saved
}

// restore creates an object as a backup tool does: it gets another UID and belongs to nobody.
func (k kept) restore(o client.Object) {
	k.h.T.Helper()
	o.SetUID("")
	o.SetResourceVersion("")
	o.SetOwnerReferences(nil)
	o.SetManagedFields(nil)
	o.SetCreationTimestamp(metav1.Time{})
	if err := k.h.Client.Create(k.h.T.Context(), o); err != nil {
		k.h.T.Fatal(err)
	}
}

// wantTakenUp waits until the ExternalBackend is Ready, and wants the Service and the slices to be
// those that were restored, and to have their owners.
func (k kept) wantTakenUp(saved backup) {
	h := k.h
	h.T.Helper()
	b := h.WaitReady("web")
	service := h.Service("web")
	if service.UID != saved.service.UID || service.Spec.ClusterIP != saved.service.Spec.ClusterIP {
		h.T.Errorf("the Service is %s with %s, not %s with %s", service.UID, service.Spec.ClusterIP, saved.service.UID,
			saved.service.Spec.ClusterIP)
	}
	if got, want := owners(service), fmt.Sprintf("ExternalBackend %s controller=true", b.UID); got != want {
		h.T.Errorf("the Service belongs to %q, not %q", got, want)
	}
	now := h.Slices("web")
	if len(now) != len(saved.slices) {
		h.T.Fatalf("there are %d slices, not %d", len(now), len(saved.slices))
	}
	for i := range now {
		if now[i].UID != saved.slices[i].UID {
			h.T.Errorf("slice %s is another one", now[i].Name)
		}
		if got, want := owners(&now[i]), fmt.Sprintf("Service %s controller=true", service.UID); got != want {
			h.T.Errorf("slice %s belongs to %q, not %q", now[i].Name, got, want)
		}
	}
}

// TestRestore brings everything back in a backup tool's order: the Service, then its slices, both
// with other UIDs and without owners, at last the ExternalBackend. From the moment at which traffic
// flows no request is lost and no endpoint changes.
func TestRestore(t *testing.T) {
	serve := func(k kept, saved backup) {
		k.h.T.Helper()
		k.restore(saved.service)
		for i := range saved.slices {
			k.restore(&saved.slices[i])
		}
		k.check()
	}
	t.Run("while the manager runs", func(t *testing.T) {
		h := harness.New(t)
		h.StartManager("--orphan-grace=0") // however long the ExternalBackend takes to come
		k := publishKept(h, "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}")
		saved := k.lose()
		serve(k, saved)
		k.underLoad(func(more func()) {
			more()
			k.restore(saved.backend)
			k.wantTakenUp(saved)
			probed(h, k.pair.sa, k.pair.sb)
		})
	})
	t.Run("before the manager starts", func(t *testing.T) {
		h := harness.New(t)
		m := h.StartManager()
		k := publishKept(h, "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}")
		saved := k.lose()
		m.Stop()
		serve(k, saved)
		k.underLoad(func(more func()) {
			k.restore(saved.backend)
			more()
			h.StartManager()
			k.wantTakenUp(saved)
			probed(h, k.pair.sa, k.pair.sb)
		})
	})
	t.Run("the manager starts before the ExternalBackend is there", func(t *testing.T) {
		h := harness.New(t)
		m := h.StartManager()
		k := publishKept(h, "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}")
		saved := k.lose()
		m.Stop()
		serve(k, saved)
		k.underLoad(func(more func()) {
			h.StartManager("--orphan-grace=0")
			more()
			k.restore(saved.backend)
			k.wantTakenUp(saved)
			probed(h, k.pair.sa, k.pair.sb)
		})
	})
}

// TestRestoreOfTheServiceLast: where slices and ExternalBackend are there first, the Service is
// waited for, and keeps its ClusterIP.
func TestRestoreOfTheServiceLast(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	k := publishKept(h, "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}")
	saved := k.lose()
	for i := range saved.slices {
		k.restore(&saved.slices[i])
	}
	unchanged := watchUnchanged(h, "web")
	k.restore(saved.backend)
	h.WaitCondition("web", v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonServiceNotFound)
	k.restore(saved.service)
	k.wantTakenUp(saved)
	unchanged()
	k.check()
	wantAnswers(h, "http", clusterAddrs(h, "web", 80)[0], k.pair.a)
}

// TestOrphansGo: what nobody needs any more is deleted: slices without owner, Service and
// ExternalBackend.
func TestOrphansGo(t *testing.T) {
	h := harness.New(t)
	h.StartManager("--orphan-grace=3s")
	k := publishKept(h, "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}")
	saved := k.lose()
	k.restore(saved.service)
	for i := range saved.slices {
		k.restore(&saved.slices[i])
	}
	k.underLoad(func(more func()) {
		made := h.Slices("web")[0].CreationTimestamp
		h.Eventually("more than the grace to be over", func() error {
			if age := time.Since(made.Time); age < 5*time.Second {
				return fmt.Errorf("%v is over", age)
			}
			return nil
		})
	})
	if err := h.Client.Delete(t.Context(), h.Service("web")); err != nil {
		t.Fatal(err)
	}
	h.Eventually("the slices to go", func() error {
		if n := len(h.Slices("web")); n > 0 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
}

// TestChangeOfDeletionPolicy changes the policy to and fro under load, for a Service of ours and
// for one of somebody else's.
func TestChangeOfDeletionPolicy(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	for name, more := range map[string]string{
		"created":    "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}",
		"serviceRef": "serviceRef: {name: web}",
	} {
		t.Run(name, func(t *testing.T) {
			h := harness.New(t)
			if name == "serviceRef" {
				h.Apply(
					"apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4], ports: [{name: web, port: 80}]}")
			}
			k := publishKept(h, more)
			h.WaitReady("web")
			writes := h.CountWrites()
			k.underLoad(func(more func()) {
				for _, policy := range []string{"Retain", "Delete"} {
					h.Apply(strings.Replace(k.spec, "spec:", "spec:\n  deletionPolicy: "+policy, 1))
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
					more()
				}
			})
			t.Logf("written: %v", writes.Of("services", "endpointslices"))
		})
	}
}

// TestCRDReinstalled deletes the CRD under a running manager, and with it every ExternalBackend;
// then it installs both again.
func TestCRDReinstalled(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	k := publishKept(h, "deletionPolicy: Retain\n  service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}")
	h.WaitReady("web")
	service, before := h.Service("web"), h.Slices("web")
	k.underLoad(func(more func()) {
		kubectl(h, "delete", "crd", "externalbackends.external-backend.io")
		more()
		kubectl(h, "apply", "--server-side", "-k", "../../config/crd")
		kubectl(h, "wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
		more()
		h.Apply(k.spec)
		h.Within(2*time.Minute, "the manager to find the kind again", func() error { // it asks twice a minute
			b := h.Backend("web")
			if b.Status.ObservedGeneration != b.Generation {
				return errors.New("nobody has seen the ExternalBackend")
			}
			return nil
		})
		h.WaitReady("web")
		probed(h, k.pair.sa, k.pair.sb)
	})
	if is := h.Service("web"); is.UID != service.UID || is.Spec.ClusterIP != service.Spec.ClusterIP ||
		len(is.OwnerReferences) > 0 {
		t.Errorf("the Service is not what it was: %v", is.ObjectMeta)
	}
	same := func(a, b discoveryv1.EndpointSlice) bool { return a.UID == b.UID }
	if now := h.Slices("web"); !slices.EqualFunc(now, before, same) {
		t.Errorf("the slices are others: %v", now)
	}
}

// TestCascadeOrphan deletes an ExternalBackend without Retain, and keeps what it owns, while the
// manager runs; then it comes back.
func TestCascadeOrphan(t *testing.T) {
	h := harness.New(t)
	h.StartManager("--orphan-grace=0")
	for name, more := range map[string]string{
		"created":    "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}",
		"serviceRef": "serviceRef: {name: web}",
	} {
		t.Run(name, func(t *testing.T) {
			h := harness.New(t)
			if name == "serviceRef" {
				h.Apply(
					"apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4], ports: [{name: web, port: 80}]}")
			}
			k := publishKept(h, more)
			h.WaitReady("web")
			service := h.Service("web")
			k.underLoad(func(more func()) {
				kubectl(h, "delete", "extbe", "web", "-n", h.Namespace, "--cascade=orphan")
				more()
				if got := owners(h.Service("web")); got != "" {
					t.Errorf("the Service belongs to %q", got)
				}
				h.Apply(k.spec)
				h.WaitReady("web")
				probed(h, k.pair.sa, k.pair.sb)
			})
			if is := h.Service("web"); is.UID != service.UID {
				t.Error("the Service is another one")
			}
		})
	}
}

func kubectl(h *harness.Test, args ...string) {
	h.T.Helper()
	if _, err := h.Kubectl(h.T.Context(), args...); err != nil {
		h.T.Fatal(err)
	}
}
