// Package controllers gives every ExternalBackend its Service and EndpointSlices, and keeps them
// current. A reconcile reads the cluster, hands names and endpoints to the engines
// (internal/resolve and internal/probe), plans with what they know, writes what the plan changes,
// and reports to users. This is the only package that talks to the API server.
package controllers

import (
	"fmt"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"

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
	// Protected are the Services behind which nothing may be published. default/kubernetes always
	// is one.
	Protected map[types.NamespacedName]bool
	// Witnesses say whom this replica asks about silence, and where it answers others.
	Witnesses Witnesses
	// Lease is that of this process. Without a name there is none, and its namespace is the
	// manager's.
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
	// Live reads from the API server itself: what is not cached, and what the cache may not show
	// yet.
	Live client.Reader
	// Fleet is nil if this process works for everything.
	Fleet    Fleet
	Recorder events.EventRecorder
	Resolver Resolver
	Prober   Prober
	Metrics  *Metrics
	Options  Options
	// Started is when the manager started.
	Started time.Time

	policies *policies
	refusals *refusalStore
	states   stateStore
	flights  flights
}

// forget drops all that is held for an ExternalBackend that is gone, or that another replica works
// for.
func (r *Reconciler) forget(key types.NamespacedName) {
	if r.states.peek(key) == nil {
		return
	}
	r.Prober.Forget(key)
	r.Resolver.Forget(key)
	r.Metrics.forget(key)
	r.refusals.forget(key)
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
	return r.permitAddress(owner.Namespace, name, addr)
}
