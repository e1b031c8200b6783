package controllers

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/probe"
)

// TestSiblingsAreEnqueuedUrgently: an ExternalBackend that is created, deleted or replaced enqueues
// the others on its Service before all ordinary work.
func TestSiblingsAreEnqueuedUrgently(t *testing.T) {
	one := attachedBackend("one", "web")
	env := newTestEnv(t, one,
		attachedBackend("two", "web"), attachedBackend("other", "db"), attachedBackend("last", "cache"))
	edited, dying, moved := one.DeepCopy(), one.DeepCopy(), attachedBackend("one", "db")
	edited.Generation++
	dying.DeletionTimestamp = new(metav1.Now())
	moved.UID = "another"
	h := env.reconciler.siblingHandler()
	for _, tt := range []struct {
		name string
		do   func(priorityqueue.PriorityQueue[reconcile.Request])
		want []string
	}{
		{"deleted", func(q priorityqueue.PriorityQueue[reconcile.Request]) {
			h.Delete(t.Context(), event.DeleteEvent{Object: one}, q)
		}, []string{"two"}},
		{"being deleted", func(q priorityqueue.PriorityQueue[reconcile.Request]) {
			h.Update(t.Context(), event.UpdateEvent{ObjectOld: one, ObjectNew: dying}, q)
		}, []string{"two"}},
		{"created", func(q priorityqueue.PriorityQueue[reconcile.Request]) {
			h.Create(t.Context(), event.CreateEvent{Object: one}, q)
		}, []string{"two"}},
		{"replaced by one on another Service", func(q priorityqueue.PriorityQueue[reconcile.Request]) {
			h.Update(t.Context(), event.UpdateEvent{ObjectOld: one, ObjectNew: moved}, q)
		}, []string{"other", "two"}},
		{"edited", func(q priorityqueue.PriorityQueue[reconcile.Request]) {
			h.Update(t.Context(), event.UpdateEvent{ObjectOld: one, ObjectNew: edited}, q)
		}, nil},
		{"listed at the start", func(q priorityqueue.PriorityQueue[reconcile.Request]) {
			h.Create(t.Context(), event.CreateEvent{Object: one, IsInInitialList: true}, q)
		}, nil},
	} {
		q := priorityqueue.New[reconcile.Request](tt.name)
		tt.do(q)
		var got []string
		for range tt.want {
			request, priority, _ := q.GetWithPriority()
			got = append(got, request.Name)
			if priority != urgentPriority {
				t.Errorf("%s: %s is enqueued with priority %d", tt.name, request.Name, priority)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, tt.want) || q.Len() > 0 {
			t.Errorf("%s: enqueued are %v and %d more, want %v", tt.name, got, q.Len(), tt.want)
		}
		q.ShutDown()
	}
}

// TestAddressOfADeletedSiblingStaysReady: an address that a deleted sibling had is published by us
// before the garbage collector deletes the sibling's slices. It is as ready as before, in whatever
// way the sibling is deleted and whichever is older.
func TestAddressOfADeletedSiblingStaysReady(t *testing.T) {
	service := theirService()
	service.Name, service.UID = "web", "uid-of-web"
	adopted := service.DeepCopy()
	adopted.Labels = map[string]string{v1alpha1.LabelName: "former"}
	adopted.Annotations = map[string]string{"external-backend.io/adopted": "true"}
	for _, spec := range []string{
		strings.Replace(literalSpec, "{ports", "{serviceRef: {name: web}, ports", 1),
		strings.Replace(literalSpec, "{ports", "{service: {name: web, adoptionPolicy: IfSelectorless}, ports", 1),
	} {
		for _, foreground := range []bool{false, true} {
			former := attachedBackend("former", "web")
			behind := service
			if strings.Contains(spec, "adoptionPolicy") {
				former.Spec = v1alpha1.ExternalBackendSpec{Service: &v1alpha1.Service{Name: "web"}}
				behind = adopted
			}
			slice := sliceOf(former, "web", true)
			former.Finalizers = []string{"none"}
			if foreground {
				former.Finalizers = []string{metav1.FinalizerDeleteDependents}
			}
			env := newTestEnv(t, behind.DeepCopy(), former, slice)
			env.what = spec
			setVerdict(probe.Healthy, 2, 3)(env) // the other address has not been probed yet
			env.spec(spec)
			env.settle()
			if n := env.ready("http")["203.0.113.1"]; n != 1 {
				t.Fatalf("%s: before, 203.0.113.1 is ready %d times", spec, n)
			}

			env.ok(env.live.Delete(t.Context(), former))
			if !foreground {
				env.ok(env.live.Get(t.Context(), client.ObjectKeyFromObject(former), former))
				former.Finalizers = nil
				env.ok(env.live.Update(t.Context(), former))
			}
			env.refresh()
			env.settle()
			env.ok(env.live.Delete(t.Context(), slice)) // as the garbage collector does
			env.writes++
			env.expectReady("http", "203.0.113.1", "203.0.113.2")
			env.settle()
			env.expectReady("http", "203.0.113.1", "203.0.113.2")
		}
	}
}

// siblingAt returns an ExternalBackend on Service theirs, and its slice with 203.0.113.1 at a port.
func siblingAt(name string, port int32, drainUntil time.Time) []client.Object {
	b := attachedBackend(name, "theirs")
	leaving := !drainUntil.IsZero()
	e := endpointslice.Endpoint{
		Target: "theirs", Addr: netip.MustParseAddr("203.0.113.1"),
		Ports:      []endpointslice.Port{{Name: "http", Port: port, Protocol: corev1.ProtocolTCP}},
		DrainUntil: drainUntil,
		Conditions: endpointslice.Conditions{Ready: !leaving, Serving: true, Healthy: true, Terminating: leaving},
	}
	_, changes := endpointslice.Plan(endpointslice.Template{
		Namespace: shop.Namespace, Service: "theirs", Backend: name, Max: 100,
		Owner: metav1.NewControllerRef(b, v1alpha1.GroupVersion.WithKind("ExternalBackend")),
	}, []endpointslice.Endpoint{e}, nil, nil)
	slice := changes.Create[0]
	slice.UID = types.UID("uid-of-slice-of-" + name)
	return []client.Object{b, slice}
}

// TestDuplicateAddressNamesTheSiblingOfThePort: of several siblings on one address, a message names
// the one that publishes the same port.
func TestDuplicateAddressNamesTheSiblingOfThePort(t *testing.T) {
	for range 5 {
		env := newTestEnv(t, theirService())
		for i, name := range []string{"bar1", "bar2", "bar3"} {
			for _, o := range siblingAt(name, 8079+int32(i), time.Time{}) {
				env.ok(env.live.Create(t.Context(), o))
			}
		}
		env.spec(strings.Replace(literalSpec, "{ports", "{serviceRef: {name: theirs}, ports", 1))
		env.refresh()
		env.settle()
		a := env.backend().Status.Targets[0]
		if a.Reason != v1alpha1.TargetReasonDuplicateAddress || !strings.Contains(a.Message, `"bar2"`) {
			t.Errorf("target %s has reason %s: %s", a.Name, a.Reason, a.Message)
		}
	}
}

// TestDrainingAddressIsFreeForSiblings: an address that drains at one ExternalBackend on a Service
// may be published by another one, older or younger.
func TestDrainingAddressIsFreeForSiblings(t *testing.T) {
	spec := strings.Replace(literalSpec, "{ports", "{serviceRef: {name: theirs}, drainSeconds: 600, ports", 1)
	service := theirService()
	t.Run("ours takes an older one's", func(t *testing.T) {
		env := newTestEnv(t, append(siblingAt("bar", 8080, time.Now().Add(10*time.Minute)), service.DeepCopy())...)
		setVerdict(probe.Healthy, 1, 3)(env)
		env.spec(spec)
		env.settle()
		if n := env.backend().Status.Endpoints.Ready; n != 2 {
			t.Errorf("%d of 2 healthy targets are ready while an older ExternalBackend lets one of them go", n)
		}
	})
	t.Run("a younger one takes ours", func(t *testing.T) {
		env := newTestEnv(t, service.DeepCopy())
		setVerdict(probe.Healthy, 1, 3)(env)
		env.spec(spec)
		env.settle()
		env.spec(strings.Replace(spec, "{name: a, address: 203.0.113.1}, ", "", 1))
		env.settle()
		draining := env.endpoints()[netip.MustParseAddr("203.0.113.1")]
		if !draining.Terminating {
			t.Fatalf("what has left spec is published as %+v", draining)
		}

		for _, o := range siblingAt("zoo", 8080, time.Time{}) {
			env.ok(env.live.Create(t.Context(), o))
		}
		env.settle()
		env.state() // fails if an address is published twice
	})
}

// TestAddressKeepsItsHealthWhenItPassesToASibling: an address that passes from one ExternalBackend
// on a Service to another keeps its health until a probe says otherwise.
func TestAddressKeepsItsHealthWhenItPassesToASibling(t *testing.T) {
	const attached = `{serviceRef: {name: theirs}, ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}],
		targets: [{name: a, address: 203.0.113.1}], healthCheck: {tcpSocket: {}}}`
	service := theirService()
	for _, tt := range []struct {
		sibling string // the one whose name comes first counts as older
		well    bool
	}{{"zoo", true}, {"zoo", false}, {"bar", true}, {"bar", false}} {
		well := tt.well
		sibling := attachedBackend(tt.sibling, "theirs")
		slice := sliceOf(sibling, "theirs", well)
		env := newTestEnv(t, service.DeepCopy(), sibling, slice)
		env.spec(attached)
		env.settle()
		if n := len(env.endpoints()); n != 1 {
			t.Fatalf("%d endpoints", n)
		}

		own := func() *discoveryv1.EndpointSlice {
			for _, o := range env.objects() {
				if s, ok := o.(*discoveryv1.EndpointSlice); ok && s.Labels[v1alpha1.LabelName] == shop.Name {
					return s
				}
			}
			return nil
		}
		env.ok(env.live.Delete(t.Context(), slice))
		env.refresh()
		env.settle()
		if s := own(); s == nil || *s.Endpoints[0].Conditions.Ready != well {
			t.Errorf("an address that was ready=%t with %s is published as %v", well, tt.sibling, s)
		}
	}
}

// sliceOf returns a slice of a sibling behind a Service, with one endpoint at 203.0.113.1.
func sliceOf(sibling *v1alpha1.ExternalBackend, service string, ready bool) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name:      sibling.Name + "-1",
			Namespace: shop.Namespace,
			UID:       types.UID("uid-of-slice-of-" + sibling.Name),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: service,
				discoveryv1.LabelManagedBy:   v1alpha1.ManagedBy,
				v1alpha1.LabelName:           sibling.Name,
			},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(sibling, v1alpha1.GroupVersion.WithKind("ExternalBackend")),
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{
			Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP),
		}},
		Endpoints: []discoveryv1.Endpoint{{
			Addresses:  []string{"203.0.113.1"},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &ready, Terminating: new(false)},
		}},
	}
}
