package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	discoveryclient "k8s.io/client-go/kubernetes/typed/discovery/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/endpointslice"
	endpointsliceutil "k8s.io/endpointslice/util"

	planner "github.com/external-backend/operator/internal/endpointslice"
)

// perSlice is the maximum number of endpoints per slice for both contenders.
const perSlice = 100

// contender changes a store to a wanted state. prepare turns the state into the contender's input,
// and is not measured.
type contender interface {
	name() string
	prepare(state)
	sync(existing []*discoveryv1.EndpointSlice, into *store)
}

func address(id int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(id >> 16), byte(id >> 8), byte(id)})
}

// ours is the planner in internal/endpointslice.
type ours struct {
	template planner.Template
	ports    []planner.Port
	desired  []planner.Endpoint
}

func newOurs() *ours {
	return &ours{
		template: planner.Template{
			Namespace: "shop", Service: "orders", Backend: "orders", Max: perSlice,
			Owner: &metav1.OwnerReference{
				APIVersion:         "v1",
				Kind:               "Service",
				Name:               "orders",
				UID:                "orders-uid",
				Controller:         new(true),
				BlockOwnerDeletion: new(true),
			},
		},
		ports: []planner.Port{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
	}
}

func (o *ours) name() string { return "ours" }

func (o *ours) prepare(s state) {
	o.desired = make([]planner.Endpoint, len(s))
	for i, b := range s {
		// Upstream sets the node of every endpoint, so we set it, too.
		o.desired[i] = planner.Endpoint{
			Target: cmp.Or(b.zone, "pool"), Addr: address(b.id), Ports: o.ports,
			Zone: b.zone, NodeName: "node-" + b.zone,
			Conditions: planner.Conditions{Ready: b.ready, Serving: b.ready, Healthy: b.ready},
		}
	}
}

func (o *ours) sync(existing []*discoveryv1.EndpointSlice, st *store) {
	_, changes := planner.Plan(o.template, o.desired, nil, existing)
	for _, s := range changes.Create {
		st.create(s)
	}
	for _, s := range changes.Update {
		st.update(s)
	}
	for _, s := range changes.Delete {
		st.delete(s.Name)
	}
}

// upstream is the reconciler of the endpointslice controller.
type upstream struct {
	reconciler *endpointslice.Reconciler
	client     *client
	service    *corev1.Service
	pods       []*corev1.Pod
	cache      map[backend]*corev1.Pod
}

func newUpstream() *upstream {
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{})
	for _, zone := range []string{"", "a", "b", "c"} {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "node-" + zone, Labels: map[string]string{corev1.LabelTopologyZone: zone}},
		}
		if err := nodes.Add(node); err != nil {
			panic(err) // every Node has a name
		}
	}
	c := &client{}
	return &upstream{
		reconciler: endpointslice.NewReconciler(c, corelisters.NewNodeLister(nodes), perSlice,
			endpointsliceutil.NewEndpointSliceTracker(), nil, nil, "endpointslice-controller.k8s.io"),
		client: c,
		service: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", UID: "orders-uid"},
			Spec: corev1.ServiceSpec{
				ClusterIP: "10.96.0.1", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
				Selector: map[string]string{"app": "orders"},
				Ports: []corev1.ServicePort{
					{Name: "http", Port: 80, TargetPort: intstr.FromInt32(80), Protocol: corev1.ProtocolTCP},
				},
			},
		},
		cache: map[backend]*corev1.Pod{},
	}
}

func (u *upstream) name() string { return "upstream" }

func (u *upstream) prepare(s state) {
	u.pods = make([]*corev1.Pod, len(s))
	for i, b := range s {
		if u.cache[b] == nil {
			u.cache[b] = newPod(b)
		}
		u.pods[i] = u.cache[b]
	}
}

func newPod(b backend) *corev1.Pod {
	ip, name, status := address(b.id).String(), "orders-"+strconv.Itoa(b.id), corev1.ConditionFalse
	if b.ready {
		status = corev1.ConditionTrue
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop",
			Name:      name,
			UID:       types.UID(name),
			Labels:    map[string]string{"app": "orders"},
		},
		Spec: corev1.PodSpec{NodeName: "node-" + b.zone},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: status}},
		},
	}
}

func (u *upstream) sync(existing []*discoveryv1.EndpointSlice, st *store) {
	u.client.store = st
	if err := u.reconciler.Reconcile(logr.Discard(), u.service, u.pods, existing, time.Time{}); err != nil {
		panic(err) // the store never returns an error
	}
}

// client is the part of a clientset that the reconciler uses. It writes to a store.
type client struct {
	kubernetes.Interface
	discoveryclient.DiscoveryV1Interface
	discoveryclient.EndpointSliceInterface
	store *store
}

func (c *client) DiscoveryV1() discoveryclient.DiscoveryV1Interface { return c }

func (c *client) EndpointSlices(string) discoveryclient.EndpointSliceInterface { return c }

func (c *client) Create(_ context.Context, s *discoveryv1.EndpointSlice,
	_ metav1.CreateOptions) (*discoveryv1.EndpointSlice, error) {
	s.Name = fmt.Sprintf("%s%05d", s.GenerateName, c.store.created)
	s.UID = types.UID(s.Name)
	c.store.create(s)
	return s, nil
}

func (c *client) Update(_ context.Context, s *discoveryv1.EndpointSlice,
	_ metav1.UpdateOptions) (*discoveryv1.EndpointSlice, error) {
	c.store.update(s)
	return s, nil
}

func (c *client) Delete(_ context.Context, name string, _ metav1.DeleteOptions) error {
	c.store.delete(name)
	return nil
}
