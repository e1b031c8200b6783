package controllers

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/probe"
)

// attached is an ExternalBackend on the Service of that name.
func attached(name, service string) *v1alpha1.ExternalBackend {
	b := &v1alpha1.ExternalBackend{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: shop.Namespace, UID: types.UID("uid-of-" + name)},
	}
	b.Spec.ServiceRef = &v1alpha1.ServiceReference{Name: service}
	return b
}

// TestSiblingsAreWoken: what comes, goes or leaves a Service wakes the others on it, before all
// ordinary work.
func TestSiblingsAreWoken(t *testing.T) {
	one := attached("one", "web")
	env := newTestEnv(t, one, attached("two", "web"), attached("other", "db"), attached("last", "cache"))
	edited, dying, moved := one.DeepCopy(), one.DeepCopy(), attached("one", "db")
	edited.Generation++
	dying.DeletionTimestamp = new(metav1.Now())
	moved.UID = "another"
	h := env.reconciler.siblingHandler()
	for _, tt := range []struct {
		name string
		tell func(priorityqueue.PriorityQueue[reconcile.Request])
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
		tt.tell(q)
		var got []string
		for range tt.want {
			request, priority, _ := q.GetWithPriority()
			got = append(got, request.Name)
			if priority != urgentPriority {
				t.Errorf("%s: %s is woken with priority %d", tt.name, request.Name, priority)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, tt.want) || q.Len() > 0 {
			t.Errorf("%s: woken are %v and %d more, want %v", tt.name, got, q.Len(), tt.want)
		}
		q.ShutDown()
	}
}

// TestSiblingGoes: an address that an ExternalBackend on the same Service leaves behind is
// published anew, as ready as it was, while the garbage collector has yet to take the slices,
// however the other one is deleted and whoever is older.
func TestSiblingGoes(t *testing.T) {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: shop.Namespace, UID: "uid-of-web"},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.9", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	adopted := service.DeepCopy()
	adopted.Labels = map[string]string{v1alpha1.LabelName: "former"}
	adopted.Annotations = map[string]string{"external-backend.io/adopted": "true"}
	for _, spec := range []string{
		strings.Replace(literalSpec, "{ports", "{serviceRef: {name: web}, ports", 1),
		strings.Replace(literalSpec, "{ports", "{service: {name: web, adoptionPolicy: IfSelectorless}, ports", 1),
	} {
		for _, foreground := range []bool{false, true} {
			former := attached("former", "web")
			behind := service
			if strings.Contains(spec, "adoptionPolicy") {
				former.Spec = v1alpha1.ExternalBackendSpec{Service: &v1alpha1.Service{Name: "web"}}
				behind = adopted
			}
			slice := &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{
					Name:      "former-1",
					Namespace: shop.Namespace,
					UID:       "uid-of-slice",
					Labels: map[string]string{
						discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: v1alpha1.ManagedBy, v1alpha1.LabelName: former.Name,
					},
					OwnerReferences: []metav1.OwnerReference{
						*metav1.NewControllerRef(former, v1alpha1.GroupVersion.WithKind("ExternalBackend")),
					},
				},
				AddressType: discoveryv1.AddressTypeIPv4,
				Ports: []discoveryv1.EndpointPort{
					{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)},
				},
				Endpoints: []discoveryv1.Endpoint{{
					Addresses: []string{
						"203.0.113.1",
					}, Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
				}},
			}
			former.Finalizers = []string{"none"}
			if foreground {
				former.Finalizers = []string{metav1.FinalizerDeleteDependents}
			}
			env := newTestEnv(t, behind.DeepCopy(), former, slice)
			env.what = spec
			setVerdict(probe.Healthy, 2, 3)(env) // nobody has probed the other one yet
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
