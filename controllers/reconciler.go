// Package controllers gives every ExternalBackend its Service and EndpointSlices, and keeps them
// current. A reconcile reads the cluster, hands names and endpoints to the engines (internal/resolve
// and internal/probe), plans with what they know, writes what the plan changes, and reports to
// users. This is the only package that talks to the API server.
package controllers

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

// Options are the flags of the manager that a reconcile goes by.
type Options struct {
	MaxEndpointsPerSlice   int // 1 to 1000
	MaxEndpointsPerBackend int
	MaxConcurrentProbes    int
	BlindThreshold         int // percent; at 0 the prober never takes itself for blind
	MaxAddressesPerName    int
	ResolvConf             string
	ClusterDomain          string
	ClusterCIDRs           []netip.Prefix
	DefaultDeny            bool
	// OrphanGrace is how long slices without owner, ExternalBackend and Service are kept.
	OrphanGrace time.Duration
	// Protected are the Services behind which nothing may be published. default/kubernetes always is
	// one.
	Protected map[types.NamespacedName]bool
	// Lease is that of the manager. Without a name there is none, and its namespace is the manager's.
	Lease types.NamespacedName
}

// Resolver keeps names resolved; it is *resolve.Engine.
type Resolver interface {
	Sync(owner types.NamespacedName, config resolve.Config, names []resolve.Wanted)
	Snapshot(owner types.NamespacedName) map[resolve.Question]resolve.Answer
	Forget(owner types.NamespacedName)
}

// Prober keeps endpoints probed; it is *probe.Engine.
type Prober interface {
	Sync(owner types.NamespacedName, check *probe.Check, endpoints []probe.Endpoint)
	// States are parallel to the endpoints of the last Sync.
	States(owner types.NamespacedName) []probe.State
	Forget(owner types.NamespacedName)
}

// Reconciler brings Services and EndpointSlices to what ExternalBackends, names, probes and
// policies say.
type Reconciler struct {
	client.Client
	// Live reads from the API server itself: what is not cached, and what the cache may not show yet.
	Live     client.Reader
	Recorder events.EventRecorder
	Resolver Resolver
	Prober   Prober
	Metrics  *Metrics
	Options  Options
	// Started is when the manager started.
	Started time.Time

	policies *policies
	states   stateStore
	flights  flights
}

// maxAttempts bounds how often a reconcile plans again at once because a write showed that the cache
// was behind.
const maxAttempts = 3

// Reconcile brings the objects of one ExternalBackend to its spec. If the API server is slow, it
// returns early, and returns the result when it is called again.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return r.flights.run(ctx, req, r.reconcile)
}

func (r *Reconciler) reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var b v1alpha1.ExternalBackend
	err := r.Get(ctx, req.NamespacedName, &b)
	switch {
	case apierrors.IsNotFound(err):
		r.forget(req.NamespacedName)
		next, err := r.removeOrphans(ctx, req.NamespacedName)
		return ctrl.Result{RequeueAfter: r.after(next)}, err
	case err != nil:
		return ctrl.Result{}, err
	case collected(&b):
		r.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	return r.reconcileBackend(ctx, &b)
}

// reconcileBackend observes the cluster, acts, and reports.
func (r *Reconciler) reconcileBackend(ctx context.Context, b *v1alpha1.ExternalBackend) (ctrl.Result, error) {
	key := client.ObjectKeyFromObject(b)
	state := r.states.of(key)
	if state.uid != b.UID { // a new object of that name
		r.forget(key)
		state = r.states.of(key)
		state.uid = b.UID
	}

	var events []pendingEvent
	for attempt := 1; ; attempt++ {
		observed, err := r.observe(ctx, b, state)
		if err != nil {
			return ctrl.Result{}, err
		}
		if finished, err := r.finished(ctx, b, observed); finished || err != nil {
			r.forget(key)
			return ctrl.Result{}, err
		}

		rec := newReconciliation(r, observed, state, events)
		rec.act(ctx)
		if rec.result.stale && attempt < maxAttempts {
			events = rec.result.events
			continue
		}
		return rec.finish(ctx)
	}
}

// act writes the Service, decides about the slices, and does what was decided. It reports nothing.
func (r *reconciliation) act(ctx context.Context) {
	r.ownService(ctx)

	conflict, why := r.conflict()
	if r.observed.specKnown {
		r.updateReferences(ctx)
		if conflict == noConflict && r.backend.DeletionTimestamp.IsZero() {
			conflict = r.bringService(ctx)
		}
	}
	d := decide(situation{
		backend: r.backend, specKnown: r.observed.specKnown, conflict: conflict,
		service: r.service, hasSlices: len(r.slices) > 0,
	})

	if d.programmed != "" && d.programmed != v1alpha1.ReasonProgrammed {
		r.result.fail(d.programmed, cmp.Or(why, serviceNotFound(r.backend)), nil)
	}
	if conflict == otherConflict {
		r.assumePorts()
	}
	switch d.action {
	case keep:
	case withdrawDenied:
		r.withdrawDenied(ctx)
	case withdraw:
		r.withdraw(ctx)
	case reportEmpty:
		r.reportWithdrawn()
	case publishName:
		r.publishName(ctx)
	case publish:
		r.publish(ctx)
	}
	r.result.status.Programmed = cmp.Or(r.result.status.Programmed, d.programmed)
}

// updateReferences reads the Secrets and ConfigMaps of the spec, if that is due.
func (r *reconciliation) updateReferences(ctx context.Context) {
	refs := r.readReferences(ctx, r.backend, r.state.planning.refs)
	r.state.planning.refs = refs
	r.result.next = earlier(refs.next(r.backend), r.observed.retainedUntil)
	r.result.status.References = &refs.problem
}

// finish reports what was done, and returns when to reconcile again.
func (r *reconciliation) finish(ctx context.Context) (ctrl.Result, error) {
	statusDue, err := r.report(ctx)
	if err := cmp.Or(r.result.err, err); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: r.requeueAfter(statusDue)}, nil
}

// forget drops all that is held for an ExternalBackend that is gone.
func (r *Reconciler) forget(key types.NamespacedName) {
	r.Prober.Forget(key)
	r.Resolver.Forget(key)
	r.Metrics.forget(key)
	r.states.forget(key)
}

func (r *Reconciler) now() time.Time { return time.Now() }

// after returns how long to wait until at; 0 for never.
func (r *Reconciler) after(at time.Time) time.Duration {
	if at.IsZero() {
		return 0
	}
	return max(at.Sub(r.now()), time.Millisecond)
}

// earlier returns the earlier of two times. Zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// PermitDial asks policy once more, at the moment at which the prober dials. It never blocks: it
// uses the policy that is compiled already.
func (r *Reconciler) PermitDial(owner types.NamespacedName, addr netip.AddrPort) error {
	state := r.states.peek(owner)
	if state == nil {
		return fmt.Errorf("%s is not known", owner)
	}
	name, ok := state.engines.mayDial(addr)
	if !ok {
		return fmt.Errorf("an address that %s does not name", owner)
	}
	view := r.policies.compiled(owner.Namespace)
	if view == nil {
		return fmt.Errorf("nobody knows yet what namespace %s may use", owner.Namespace)
	}
	if d := view.Target(name, addr.Addr(), policy.Port{Protocol: corev1.ProtocolTCP, Port: addr.Port()}); !d.Keep(true) {
		return fmt.Errorf("policy refuses it: %s", d.Kind)
	}
	return nil
}
