package controllers

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

// +kubebuilder:rbac:groups=external-backend.io,resources=externalbackends,verbs=list;watch
// +kubebuilder:rbac:groups=external-backend.io,resources=externalbackends/status,verbs=patch
// +kubebuilder:rbac:groups=external-backend.io,resources=externalbackends/finalizers,verbs=update
// +kubebuilder:rbac:groups=external-backend.io,resources=externalbackendpolicies,verbs=list;watch
// No Service is ever deleted: that right is what it takes to give one its owner back (admission
// plugin OwnerReferencesPermissionEnforcement, as on OpenShift).
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups="",resources=services/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=endpoints,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=namespaces;nodes,verbs=list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices/restricted,verbs=create
// +kubebuilder:rbac:groups=networking.k8s.io,resources=servicecidrs,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// flipGap is how long after a write of slices the next flips of the same ExternalBackend are
// gathered, so that a burst costs one write and a single flip no wait.
const flipGap = 250 * time.Millisecond

// flipPriority is that of what the engines tell, and of siblings of a deleted ExternalBackend, in
// the workqueue: above the 0 of what users change, so that neither waits for somebody's many new
// objects.
const flipPriority = 10

// maxRetry is the longest time between two tries after an error: nothing is ever given up on, and
// an API server that is back is used within seconds.
const maxRetry = 5 * time.Second

// CacheOptions keep out of memory what reconciling never reads: all but the metadata of other
// people's EndpointSlices, and of Nodes all but addresses and ranges.
func CacheOptions() cache.Options {
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&discoveryv1.EndpointSlice{}: {Transform: func(object any) (any, error) {
				if s, ok := object.(*discoveryv1.EndpointSlice); ok {
					s.ManagedFields = nil
					if !ours(s) {
						s.Endpoints, s.Ports, s.Annotations = nil, nil, nil
					}
				}
				return object, nil
			}},
			&corev1.Node{}: {Transform: func(object any) (any, error) {
				if n, ok := object.(*corev1.Node); ok {
					return &corev1.Node{
						TypeMeta:   n.TypeMeta,
						ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion},
						Spec:       corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs},
						Status:     corev1.NodeStatus{Addresses: n.Status.Addresses},
					}, nil
				}
				return object, nil
			}},
		},
	}
}

// Setup makes the engines and the controller that joins them, and adds all to mgr. Engines and
// controller run on the leader alone.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options, metrics prometheus.Registerer) error {
	recorder, err := newRecorder(ctx, mgr)
	if err != nil {
		return err
	}
	r := &Reconciler{
		Client:   timed{client.WithFieldOwner(mgr.GetClient(), v1alpha1.ManagedBy)},
		Live:     timedReader{mgr.GetAPIReader()},
		Recorder: recorder,
		Metrics:  NewMetrics(metrics),
		Options:  options,
		Started:  time.Now(),
		policies: &policies{
			client: mgr.GetClient(), declared: options.ClusterCIDRs, defaultDeny: options.DefaultDeny, clusterDomain: options.ClusterDomain,
			changes: make(chan struct{}, 1),
		},
	}
	var flips flipQueue
	r.flights.requeue = flips.notify
	flips.lastWrite = func(key types.NamespacedName) time.Time {
		if m := r.memories.peek(key); m != nil {
			return m.lastWrite()
		}
		return time.Time{}
	}
	sight := newSightEvents(r.Live, r.Recorder, options.Lease)
	prober := probe.New(probe.Options{
		Notify: flips.notify, MaxConcurrent: options.MaxConcurrentProbes, Permit: r.PermitDial, Registerer: metrics, Log: mgr.GetLogger().WithName("probe"),
		BlindThreshold: options.BlindThreshold, Blind: sight.changed,
	})
	resolver := resolve.New(resolve.Options{
		Notify: flips.notify, ResolvConf: options.ResolvConf, MaxAddresses: options.MaxAddressesPerName, Registerer: metrics, Log: mgr.GetLogger().WithName("resolve"),
	})
	r.Prober, r.Resolver = prober, resolver
	for _, start := range []func(context.Context) error{prober.Start, resolver.Start, sight.run, r.flights.wait} {
		if err := mgr.Add(runnable(start)); err != nil {
			return err
		}
	}
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	return r.addController(mgr, &flips)
}

// runnable runs on the leader alone.
type runnable func(context.Context) error

func (r runnable) Start(ctx context.Context) error { return r(ctx) }
func (r runnable) NeedLeaderElection() bool        { return true }

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, i := range indexes() {
		if err := indexer.IndexField(ctx, i.object, i.field, i.values); err != nil {
			return err
		}
	}
	return nil
}

// index finds objects in the cache by a field.
type index struct {
	object client.Object
	field  string
	values client.IndexerFunc
}

func indexes() []index {
	label := func(name string) client.IndexerFunc {
		return func(o client.Object) []string {
			if v := o.GetLabels()[name]; v != "" {
				return []string{v}
			}
			return nil
		}
	}
	labelled := func(o client.Object) []string {
		if o.GetLabels()[discoveryv1.LabelManagedBy] != v1alpha1.ManagedBy {
			return nil
		}
		return label(v1alpha1.LabelName)(o)
	}
	controlled := func(o client.Object) []string {
		s := o.(*discoveryv1.EndpointSlice)
		if owner := metav1.GetControllerOf(s); owner != nil && (ours(s) || s.Labels[discoveryv1.LabelManagedBy] == "") {
			return []string{string(owner.UID)}
		}
		return nil
	}
	serviceOf := func(o client.Object) []string { return []string{plan.ServiceName(o.(*v1alpha1.ExternalBackend))} }
	return []index{
		{&discoveryv1.EndpointSlice{}, indexBackend, labelled},
		{&discoveryv1.EndpointSlice{}, indexOwner, controlled},
		{&discoveryv1.EndpointSlice{}, indexService, label(discoveryv1.LabelServiceName)},
		{&v1alpha1.ExternalBackend{}, indexService, serviceOf},
	}
}

// addController watches all that a reconcile reads.
func (r *Reconciler) addController(mgr ctrl.Manager, flips *flipQueue) error {
	endpoints := &metav1.PartialObjectMetadata{}
	endpoints.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Endpoints"))
	r.policies.tell = func(ctx context.Context, differs func(netip.Addr) bool) { flips.add(r.concerned(ctx, differs)) }
	if err := mgr.Add(runnable(r.policies.run)); err != nil {
		return err
	}
	rules, ranges := watchChanges(r.policies.changed), watchChanges(r.policies.signal)
	specs := predicate.Funcs{UpdateFunc: specChanged}
	return ctrl.NewControllerManagedBy(mgr).
		Named("externalbackend").
		For(&v1alpha1.ExternalBackend{}, builder.WithPredicates(predicate.Or(specs, predicate.Funcs{UpdateFunc: r.statusEdited}))).
		Watches(&v1alpha1.ExternalBackend{}, r.wakeSiblings()).
		Watches(&corev1.Service{}, r.watchWritten(r.ofService)).
		Watches(endpoints, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			return r.behind(ctx, o.GetNamespace(), o.GetName())
		}), builder.OnlyMetadata).
		Watches(&discoveryv1.EndpointSlice{}, r.watchWritten(r.ofSlice)).
		Watches(&v1alpha1.ExternalBackendPolicy{}, rules, builder.WithPredicates(specs)).
		Watches(&corev1.Node{}, ranges, builder.WithPredicates(predicate.Funcs{UpdateFunc: rangesChanged})).
		Watches(&networkingv1.ServiceCIDR{}, ranges,
			builder.WithPredicates(predicate.Funcs{UpdateFunc: serviceRangesChanged})).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(func(ctx context.Context, o client.Object) []reconcile.Request {
			r.policies.namespaceChanged(ctx, o.GetName())
			return r.backends(ctx, client.InNamespace(o.GetName()))
		}), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WatchesRawSource(source.Func(flips.start)).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: workers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](50*time.Millisecond, maxRetry),
		}).
		Complete(r)
}

// watchWritten handles the events of a kind that we write: it enqueues the ExternalBackends that an
// object concerns. A deletion is recorded in their overlays first.
func (r *Reconciler) watchWritten(concerned handler.MapFunc) handler.EventHandler {
	return writtenHandler{handler.EnqueueRequestsFromMapFunc(concerned), func(ctx context.Context, deleted client.Object) {
		for _, request := range concerned(ctx, deleted) {
			if m := r.memories.peek(request.NamespacedName); m != nil {
				m.writes.DeletionSeen(deleted)
			}
		}
	}}
}

// writtenHandler calls deletionSeen before it enqueues requests because of a deletion.
type writtenHandler struct {
	handler.EventHandler
	deletionSeen func(context.Context, client.Object)
}

func (h writtenHandler) Delete(
	ctx context.Context, e event.DeleteEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request],
) {
	h.deletionSeen(ctx, e.Object)
	h.EventHandler.Delete(ctx, e, queue)
}

// watchChanges handles the events of what policy is compiled from. What is there at the start is no
// change: the first view is compiled from all of it.
func watchChanges(changed func()) handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	return handler.Funcs{
		CreateFunc: func(_ context.Context, e event.CreateEvent, _ queue) {
			if !e.IsInInitialList {
				changed()
			}
		},
		UpdateFunc: func(context.Context, event.UpdateEvent, queue) { changed() },
		DeleteFunc: func(context.Context, event.DeleteEvent, queue) { changed() },
	}
}

// wakeSiblings has the other ExternalBackends on a Service reconciled when one comes, goes or
// leaves it: a sibling takes over what one that is deleted published, without waiting for the
// garbage collector, which may still be faster. At the start all are reconciled anyway.
func (r *Reconciler) wakeSiblings() handler.EventHandler {
	type queue = workqueue.TypedRateLimitingInterface[reconcile.Request]
	wake := func(ctx context.Context, q queue, o client.Object) {
		for _, sibling := range r.behind(ctx, o.GetNamespace(), plan.ServiceName(o.(*v1alpha1.ExternalBackend))) {
			if sibling.Name != o.GetName() {
				addUrgent(q, sibling, 0)
			}
		}
	}
	return handler.Funcs{
		CreateFunc: func(ctx context.Context, e event.CreateEvent, q queue) {
			if !e.IsInInitialList {
				wake(ctx, q, e.Object)
			}
		},
		UpdateFunc: func(ctx context.Context, e event.UpdateEvent, q queue) {
			if e.ObjectOld.GetUID() != e.ObjectNew.GetUID() || e.ObjectOld.GetDeletionTimestamp().IsZero() != e.ObjectNew.GetDeletionTimestamp().IsZero() {
				wake(ctx, q, e.ObjectOld) // another one of that name may be on another Service
				wake(ctx, q, e.ObjectNew)
			}
		},
		DeleteFunc: func(ctx context.Context, e event.DeleteEvent, q queue) { wake(ctx, q, e.Object) },
	}
}

// specChanged: it was edited, or the object was deleted and made anew, which a watch that was
// interrupted shows as one update, from generation 1 to generation 1.
func specChanged(e event.UpdateEvent) bool {
	return e.ObjectOld.GetGeneration() != e.ObjectNew.GetGeneration() || e.ObjectOld.GetUID() != e.ObjectNew.GetUID()
}

// serviceRangesChanged: a cluster has become dual stack. ServiceCIDRs have no generation.
func serviceRangesChanged(e event.UpdateEvent) bool {
	before, ok1 := e.ObjectOld.(*networkingv1.ServiceCIDR)
	after, ok2 := e.ObjectNew.(*networkingv1.ServiceCIDR)
	return !ok1 || !ok2 || !slices.Equal(before.Spec.CIDRs, after.Spec.CIDRs) || before.UID != after.UID
}

// statusEdited: the status says something else than what was written last.
func (r *Reconciler) statusEdited(e event.UpdateEvent) bool {
	before, ok1 := e.ObjectOld.(*v1alpha1.ExternalBackend)
	after, ok2 := e.ObjectNew.(*v1alpha1.ExternalBackend)
	if !ok1 || !ok2 || equality.Semantic.DeepEqual(before.Status, after.Status) {
		return false
	}
	m := r.memories.peek(client.ObjectKeyFromObject(after))
	return m == nil || m.writtenStatus() != after.ResourceVersion
}

// rangesChanged: only addresses and ranges of a Node matter; the cache holds nothing else.
func rangesChanged(e event.UpdateEvent) bool {
	before, ok1 := e.ObjectOld.(*corev1.Node)
	after, ok2 := e.ObjectNew.(*corev1.Node)
	return !ok1 || !ok2 || !equality.Semantic.DeepEqual(before.Spec, after.Spec) || !equality.Semantic.DeepEqual(before.Status, after.Status)
}

// ofSlice: a slice concerns the ExternalBackend that wrote it, be it gone, and all others on the
// same Service.
func (r *Reconciler) ofSlice(ctx context.Context, o client.Object) []reconcile.Request {
	labels := o.GetLabels()
	requests := r.behind(ctx, o.GetNamespace(), labels[discoveryv1.LabelServiceName])
	if labels[discoveryv1.LabelManagedBy] == v1alpha1.ManagedBy && labels[v1alpha1.LabelName] != "" {
		requests = append(requests, request(o.GetNamespace(), labels[v1alpha1.LabelName]))
	}
	return requests
}

// behind are the ExternalBackends on a Service.
func (r *Reconciler) behind(ctx context.Context, namespace, service string) []reconcile.Request {
	if service == "" {
		return nil
	}
	return r.backends(ctx, client.InNamespace(namespace), client.MatchingFields{indexService: service})
}

// backends are all ExternalBackends that the options choose.
func (r *Reconciler) backends(ctx context.Context, options ...client.ListOption) []reconcile.Request {
	var list v1alpha1.ExternalBackendList
	if err := r.List(ctx, &list, append(options, client.UnsafeDisableDeepCopy)...); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Can't list ExternalBackends from the cache")
		return nil
	}
	requests := make([]reconcile.Request, len(list.Items))
	for i := range list.Items {
		requests[i] = request(list.Items[i].Namespace, list.Items[i].Name)
	}
	return requests
}

// concerned are the ExternalBackends with an address that differs tells of: one of spec, of an
// answer or of a slice. All are where differs is nil.
func (r *Reconciler) concerned(ctx context.Context, differs func(netip.Addr) bool) []reconcile.Request {
	all := r.backends(ctx)
	if differs == nil {
		return all
	}
	return slices.DeleteFunc(all, func(request reconcile.Request) bool {
		var b v1alpha1.ExternalBackend
		if err := r.Get(ctx, request.NamespacedName, &b); err != nil {
			return apierrors.IsNotFound(err)
		}
		own, err := r.slicesOf(ctx, request.NamespacedName)
		return err == nil && !slices.ContainsFunc(addressesOf(&b, own, r.Resolver.Snapshot(request.NamespacedName)), differs)
	})
}

// addressesOf are all addresses about which policy decides for b.
func addressesOf(b *v1alpha1.ExternalBackend, own []*discoveryv1.EndpointSlice, answers map[resolve.Question]resolve.Answer) []netip.Addr {
	var out []netip.Addr
	add := func(text string) {
		if a, err := netip.ParseAddr(text); err == nil {
			out = append(out, a)
		}
	}
	for i := range b.Spec.Targets {
		add(b.Spec.Targets[i].Address)
	}
	if b.Spec.DNS != nil {
		for _, text := range b.Spec.DNS.Nameservers {
			if ns, err := parseNameserver(text, b.Spec.DNS.Transport); err == nil {
				out = append(out, ns.Addr())
			}
		}
	}
	for _, answer := range answers {
		for i := range answer.Addrs {
			out = append(out, answer.Addrs[i].IP)
		}
	}
	for _, s := range own {
		for i := range s.Endpoints {
			for _, text := range s.Endpoints[i].Addresses {
				add(text)
			}
		}
	}
	return out
}

func request(namespace, name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Namespace: namespace, Name: name}}
}

// flipQueue carries the engines' news into the workqueue: keys alone, gathered for flipGap after a
// write.
type flipQueue struct {
	lastWrite func(types.NamespacedName) time.Time

	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
}

func (f *flipQueue) start(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.queue = queue
	return nil
}

// add has requests reconciled in their turn.
func (f *flipQueue) add(requests []reconcile.Request) {
	f.mu.Lock()
	queue := f.queue
	f.mu.Unlock()
	if queue == nil {
		return
	}
	for _, request := range requests {
		queue.Add(request)
	}
}

// notify never blocks. Before the controller runs there is nothing to tell: its first reconciles
// see everything.
func (f *flipQueue) notify(key types.NamespacedName) {
	f.mu.Lock()
	queue := f.queue
	f.mu.Unlock()
	if queue == nil {
		return
	}
	addUrgent(queue, reconcile.Request{NamespacedName: key}, max(0, flipGap-time.Since(f.lastWrite(key))))
}

// addUrgent has a request reconciled after a while, before those of ordinary events.
func addUrgent(queue workqueue.TypedRateLimitingInterface[reconcile.Request], request reconcile.Request, after time.Duration) {
	if q, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		q.AddWithOpts(priorityqueue.AddOpts{After: after, Priority: new(flipPriority)}, request)
		return
	}
	queue.AddAfter(request, after)
}
