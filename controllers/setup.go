package controllers

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/fleet"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

// +kubebuilder:rbac:groups=external-backend.io,resources=externalbackends,verbs=list;watch
// +kubebuilder:rbac:groups=external-backend.io,resources=externalbackends/status,verbs=patch
// +kubebuilder:rbac:groups=external-backend.io,resources=externalbackends/finalizers,verbs=update
// +kubebuilder:rbac:groups=external-backend.io,resources=externalbackendpolicies,verbs=list;watch
// +kubebuilder:rbac:groups=external-backend.io,resources=externalbackendpolicies/status,verbs=patch
// +kubebuilder:rbac:groups=external-backend.io,resources=externalbackendoverrides,verbs=list;watch;delete
// +kubebuilder:rbac:groups=external-backend.io,resources=externalbackendoverrides/status,verbs=patch
// We never delete a Service. The right to do so is needed to set its owner where the admission
// plugin OwnerReferencesPermissionEnforcement is enabled, as on OpenShift.
// +kubebuilder:rbac:groups="",resources=services,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups="",resources=services/finalizers,verbs=update
// +kubebuilder:rbac:groups="",resources=endpoints,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups="",resources=namespaces;nodes,verbs=list;watch
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices,verbs=get;list;watch;create;update;delete
// +kubebuilder:rbac:groups=discovery.k8s.io,resources=endpointslices/restricted,verbs=create
// +kubebuilder:rbac:groups=networking.k8s.io,resources=servicecidrs,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch

// CacheOptions keep everything out of memory that a reconcile never reads: all but the metadata
// of other people's EndpointSlices, all but the zones, addresses and ranges of Nodes, and the
// Leases of other namespaces than the manager's.
func CacheOptions(namespace string) cache.Options {
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&discoveryv1.EndpointSlice{}: {Transform: trimSlice},
			&corev1.Node{}:               {Transform: trimNode},
			&coordinationv1.Lease{}:      {Namespaces: map[string]cache.Config{namespace: {}}},
		},
	}
}

func trimSlice(object any) (any, error) {
	if s, ok := object.(*discoveryv1.EndpointSlice); ok {
		s.ManagedFields = nil
		if !ours(s) {
			s.Endpoints, s.Ports, s.Annotations = nil, nil, nil
		}
	}
	return object, nil
}

func trimNode(object any) (any, error) {
	if n, ok := object.(*corev1.Node); ok {
		return &corev1.Node{
			TypeMeta: n.TypeMeta,
			ObjectMeta: metav1.ObjectMeta{
				Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion,
				Labels: map[string]string{corev1.LabelTopologyZone: n.Labels[corev1.LabelTopologyZone]},
			},
			Spec:   corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs},
			Status: corev1.NodeStatus{Addresses: n.Status.Addresses},
		}, nil
	}
	return object, nil
}

// Setup creates the engines and the controller that joins them, and adds them to mgr. replica says
// what they work for; nil: for everything. With leader election they run on the leader only.
func Setup(
	ctx context.Context, mgr ctrl.Manager, options Options, replica *fleet.Replica, metrics prometheus.Registerer,
) error {
	recorder, err := newRecorder(ctx, mgr)
	if err != nil {
		return err
	}
	var share Fleet // an interface that is nil without a replica
	if replica != nil {
		share = replica
	}
	r := &Reconciler{
		Fleet:    share,
		Live:     timeoutReader{mgr.GetAPIReader()},
		Recorder: recorder,
		Metrics:  NewMetrics(metrics),
		Options:  options,
		Started:  time.Now(),
		policies: &policies{client: mgr.GetClient(), options: options, wake: make(chan struct{}, 1)},
		refusals: newRefusalStore(),
	}
	r.Client = boundedClient{client.WithFieldOwner(mgr.GetClient(), v1alpha1.ManagedBy), r.mayWrite}

	engineNews := &engineQueue{lastWrite: func(key types.NamespacedName) time.Time {
		if state := r.states.peek(key); state != nil {
			return state.lastSliceWrite()
		}
		return time.Time{}
	}}
	r.flights.requeue = engineNews.notify

	about := newReplicaEvents(r.Live, r.Recorder, options.Lease)
	var prober *probe.Engine
	others := newWitnesses(ctx, mgr, r, replica, metrics,
		func(key types.NamespacedName, id probe.ID, o probe.Opinions) { prober.Hear(key, id, o) })
	RegisterShare(metrics, func() bool { return r.works(mgr.Elected()) }, others.isAside, r.states.count)
	probing := probe.Options{
		Notify:         engineNews.notify,
		MaxConcurrent:  options.MaxConcurrentProbes,
		Permit:         r.PermitDial,
		Registerer:     metrics,
		Log:            mgr.GetLogger().WithName("probe"),
		BlindThreshold: options.BlindThreshold,
		Blind:          about.sight,
	}
	if others != nil {
		probing.Witnesses = others.panel
		others.agreement = newWatchAgreement(others.subjects, func() (int, int) { return prober.Overruled() }, replica, about)
	}
	prober = probe.New(probing)
	resolver := resolve.New(resolve.Options{
		Notify:       engineNews.notify,
		ResolvConf:   options.ResolvConf,
		MaxAddresses: options.MaxAddressesPerName,
		Registerer:   metrics,
		Log:          mgr.GetLogger().WithName("resolve"),
	})
	r.Prober, r.Resolver = prober, resolver

	if replica != nil {
		replica.OnChange(func(mayWriteAgain bool) {
			engineNews.add(r.shareChanged(ctx, mayWriteAgain))
			r.refusals.notify()
			others.changed()
		})
		if err := mgr.Add(replica); err != nil {
			return err
		}
	}
	reporter := newPolicyReporter(r)
	starts := []leaderRunnable{prober.Start, resolver.Start, about.run, reporter.run, r.flights.wait}
	starts = append(starts, others.starts()...)
	for _, start := range starts {
		if err := mgr.Add(start); err != nil {
			return err
		}
	}
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	return r.addController(mgr, engineNews)
}

// leaderRunnable runs on the leader only.
type leaderRunnable func(context.Context) error

// Start calls the function.
func (r leaderRunnable) Start(ctx context.Context) error { return r(ctx) }

// NeedLeaderElection makes the manager run it on the leader only.
func (r leaderRunnable) NeedLeaderElection() bool { return true }
