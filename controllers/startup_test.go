package controllers

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/external-backend/operator/api/v1alpha1"
)

// countingCache is a cache of ExternalBackends and their slices, one of each behind a Service. It
// finds them by index, as the manager's cache does, and counts what it hands out.
type countingCache struct {
	client.Client
	backends map[types.NamespacedName]v1alpha1.ExternalBackend // by Service
	lists    int
	items    int
	compiles bool // policy, which is compiled for the first reconcile anyway
}

func (c *countingCache) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	c.lists++
	var o client.ListOptions
	o.ApplyOptions(options)
	service := types.NamespacedName{Namespace: o.Namespace}
	if o.FieldSelector != nil {
		service.Name, _ = o.FieldSelector.RequiresExactMatch(indexService)
	}
	switch list := list.(type) {
	case *v1alpha1.ExternalBackendList:
		for at, b := range c.backends {
			if service.Name != "" {
				b = c.backends[service]
			} else if service.Namespace != "" && at.Namespace != service.Namespace {
				continue
			}
			c.items++
			list.Items = append(list.Items, b)
			if service.Name != "" {
				break
			}
		}
	case *discoveryv1.EndpointSliceList:
		c.items++
		list.Items = []discoveryv1.EndpointSlice{*sliceOn(service)}
	}
	return nil
}

func sliceOn(service types.NamespacedName) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: service.Namespace, Name: service.Name + "-v4-0", Labels: map[string]string{
			discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: v1alpha1.ManagedBy,
			v1alpha1.LabelName: service.Name,
		},
	}}
}

// start feeds the event handlers what a manager is fed when it starts, or takes the lead, in a
// cluster of that size: the initial list of each kind.
func start(ctx context.Context, nodes, backends int) *countingCache {
	c := &countingCache{backends: map[types.NamespacedName]v1alpha1.ExternalBackend{}}
	for i := range backends {
		b := v1alpha1.ExternalBackend{}
		b.Namespace, b.Name = fmt.Sprintf("namespace-%d", i), fmt.Sprintf("backend-%d", i)
		c.backends[client.ObjectKeyFromObject(&b)] = b
	}
	r := &Reconciler{Client: c, policies: &policies{wake: make(chan struct{}, 1)}, refusals: newRefusalStore()}
	queue := priorityqueue.New[reconcile.Request]("start")
	defer queue.ShutDown()
	feed := func(h handler.EventHandler, o client.Object) {
		h.Create(ctx, event.CreateEvent{Object: o, IsInInitialList: true}, queue)
	}

	for range nodes {
		feed(policyHandler(r.policies.rangesChanged), &corev1.Node{})
		feed(policyHandler(r.policies.rulesChanged), &v1alpha1.ExternalBackendPolicy{})
	}
	onService := handler.EnqueueRequestsFromMapFunc(r.requestsForService)
	onSlice := handler.EnqueueRequestsFromMapFunc(r.requestsForSlice)
	for service, b := range c.backends {
		feed(&handler.EnqueueRequestForObject{}, &b)
		feed(r.siblingHandler(), &b)
		feed(onService, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: service.Namespace, Name: service.Name}})
		feed(onSlice, sliceOn(service))
	}
	c.compiles = len(r.policies.wake) > 0
	return c
}

// TestStartReadsEachObjectOnce wants the work of the event handlers at the start to grow with the
// number of objects, and not with Nodes or policies times ExternalBackends: a manager that is busy
// with it misses the time limit of its caches, and never starts.
func TestStartReadsEachObjectOnce(t *testing.T) {
	const backends = 100
	few, many := start(t.Context(), 0, backends), start(t.Context(), 1000, backends)
	if many.lists != few.lists || many.items != few.items {
		t.Errorf("1,000 Nodes and policies cause %d lists of %d objects; without them there are %d of %d",
			many.lists, many.items, few.lists, few.items)
	}
	if many.compiles {
		t.Error("the initial lists of Nodes and policies have policy compiled")
	}
	// Two for each Service, one for each slice.
	if most := 3 * backends; few.lists > most || few.items > most {
		t.Errorf("%d lists of %d objects for %d ExternalBackends", few.lists, few.items, backends)
	}
}

// BenchmarkStart measures what the event handlers cost before the first reconcile.
func BenchmarkStart(b *testing.B) {
	for _, size := range []int{1000, 5000} {
		b.Run(fmt.Sprintf("%d Nodes and policies, %[1]d ExternalBackends", size), func(b *testing.B) {
			for b.Loop() {
				start(b.Context(), size, size)
			}
		})
	}
}
