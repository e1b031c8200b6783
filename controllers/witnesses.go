package controllers

import (
	"context"
	"crypto/tls"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/fleet"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/witness"
)

// Witnesses say how the replicas ask each other about endpoints that are silent.
type Witnesses struct {
	// Count is how many other replicas are asked, 0 to 4.
	Count int
	// Address is where this replica answers, as host:port.
	Address string
	// Certificate is what it shows. The others know it by the fingerprint in its Lease.
	Certificate tls.Certificate
}

// distances of peers: the farther it is, the less fails together with this replica.
const (
	otherZone = iota
	otherNode
	sameNode
)

// witnesses joins the prober to other replicas.
type witnesses struct {
	panel    *witness.Panel
	server   *witness.Server
	subjects *subjects
	// agreement gives the share of this replica away, and takes it again.
	agreement *watchAgreement
}

// isAside reports whether this replica has given its share away.
func (w *witnesses) isAside() bool { return w != nil && w.agreement.aside.Load() }

// changed notes that the other replicas may be others now.
func (w *witnesses) changed() {
	if w != nil {
		w.server.Changed()
	}
}

// starts returns what runs as long as the manager.
func (w *witnesses) starts() []leaderRunnable {
	if w == nil {
		return nil
	}
	return []leaderRunnable{w.panel.Start, w.server.Start, w.agreement.run}
}

// newWitnesses returns nil if no other replica is ever asked. hear takes opinions.
func newWitnesses(
	ctx context.Context, mgr ctrl.Manager, r *Reconciler, replica *fleet.Replica, metrics prometheus.Registerer,
	hear func(types.NamespacedName, probe.ID, probe.Opinions),
) *witnesses {
	options := r.Options.Witnesses
	if replica == nil || options.Count == 0 {
		return nil
	}
	peers := func() []witness.Peer { return r.peers(ctx, replica) }
	w := &witnesses{subjects: newSubjects(r)}
	w.panel = witness.NewPanel(witness.PanelOptions{
		Count: options.Count, Certificate: options.Certificate, Peers: peers, Hear: hear, Registerer: metrics,
		Generation: func(key types.NamespacedName) (int64, bool) {
			var b v1alpha1.ExternalBackend
			err := r.Get(ctx, key, &b, client.UnsafeDisableDeepCopy)
			return b.Generation, err == nil
		},
		Log: mgr.GetLogger().WithName("witness"),
	})
	w.server = witness.NewServer(witness.ServerOptions{
		Address: options.Address, Certificate: options.Certificate, Peers: peers,
		Subject: w.subjects.find, Permit: w.subjects.permit, Registerer: metrics,
		Log: mgr.GetLogger().WithName("witness"),
	})
	return w
}

// peers returns the other replicas that live and can be reached.
func (r *Reconciler) peers(ctx context.Context, replica *fleet.Replica) []witness.Peer {
	own := replica.Contact().Node
	var out []witness.Peer
	for _, p := range replica.Peers() {
		distance := sameNode
		if own != "" && p.Node != "" && own != p.Node {
			distance = otherNode
			if zone := r.zoneOf(ctx, own); zone != "" && r.zoneOf(ctx, p.Node) != zone {
				distance = otherZone
			}
		}
		out = append(out, witness.Peer{
			Name: p.Lease, Address: p.Address, Fingerprint: p.Fingerprint, Distance: distance,
		})
	}
	return out
}

// zoneOf returns the zone of a Node, or "".
func (r *Reconciler) zoneOf(ctx context.Context, name string) string {
	var node corev1.Node
	if err := r.Get(ctx, client.ObjectKey{Name: name}, &node, client.UnsafeDisableDeepCopy); err != nil {
		return ""
	}
	return node.Labels[corev1.LabelTopologyZone]
}
