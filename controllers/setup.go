package controllers

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
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

// CacheOptions keep everything out of memory that a reconcile never reads: all but the metadata of
// other people's EndpointSlices, and all but the addresses and ranges of Nodes.
func CacheOptions() cache.Options {
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&discoveryv1.EndpointSlice{}: {Transform: trimSlice},
			&corev1.Node{}:               {Transform: trimNode},
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
			TypeMeta:   n.TypeMeta,
			ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion},
			Spec:       corev1.NodeSpec{PodCIDR: n.Spec.PodCIDR, PodCIDRs: n.Spec.PodCIDRs},
			Status:     corev1.NodeStatus{Addresses: n.Status.Addresses},
		}, nil
	}
	return object, nil
}

// Setup creates the engines and the controller that joins them, and adds them to mgr. They run on
// the leader only.
func Setup(ctx context.Context, mgr ctrl.Manager, options Options, metrics prometheus.Registerer) error {
	recorder, err := newRecorder(ctx, mgr)
	if err != nil {
		return err
	}
	r := &Reconciler{
		Client:   timeoutClient{client.WithFieldOwner(mgr.GetClient(), v1alpha1.ManagedBy)},
		Live:     timeoutReader{mgr.GetAPIReader()},
		Recorder: recorder,
		Metrics:  NewMetrics(metrics),
		Options:  options,
		Started:  time.Now(),
		policies: &policies{client: mgr.GetClient(), options: options, wake: make(chan struct{}, 1)},
		refusals: newRefusalStore(),
	}

	engineNews := &engineQueue{lastWrite: func(key types.NamespacedName) time.Time {
		if state := r.states.peek(key); state != nil {
			return state.lastSliceWrite()
		}
		return time.Time{}
	}}
	r.flights.requeue = engineNews.notify

	sight := newSightEvents(r.Live, r.Recorder, options.Lease)
	prober := probe.New(probe.Options{
		Notify:         engineNews.notify,
		MaxConcurrent:  options.MaxConcurrentProbes,
		Permit:         r.PermitDial,
		Registerer:     metrics,
		Log:            mgr.GetLogger().WithName("probe"),
		BlindThreshold: options.BlindThreshold,
		Blind:          sight.changed,
	})
	resolver := resolve.New(resolve.Options{
		Notify:       engineNews.notify,
		ResolvConf:   options.ResolvConf,
		MaxAddresses: options.MaxAddressesPerName,
		Registerer:   metrics,
		Log:          mgr.GetLogger().WithName("resolve"),
	})
	r.Prober, r.Resolver = prober, resolver

	reporter := newPolicyReporter(r.Client, r.policies, r.refusals, r.Recorder)
	for _, start := range []leaderRunnable{prober.Start, resolver.Start, sight.run, reporter.run, r.flights.wait} {
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
