package plugin

import (
	"context"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/internal/fleet"
	"github.com/external-backend/operator/internal/view"
)

// maxReplicas bounds the Leases that are read. No fleet has as many replicas.
const maxReplicas = 500

// findReplica adds the replica that works for an ExternalBackend. It computes it from the Leases
// in the manager's namespace, as the replicas do.
func (p *plugin) findReplica(ctx context.Context, c client.Reader, namespace string, b *view.Backend) {
	b.Replica = &view.Replica{Namespace: namespace}
	var leases coordinationv1.LeaseList
	err := c.List(ctx, &leases, client.InNamespace(namespace), client.HasLabels{fleet.LabelReplica},
		client.Limit(maxReplicas))
	if err != nil {
		unread := view.Unread{Part: view.PartLeases, Why: err.Error()}
		if apierrors.IsForbidden(err) {
			unread.Right = "list leases.coordination.k8s.io in namespace " + namespace
			unread.Why = "you may not " + unread.Right
		}
		b.Unread = append(b.Unread, unread)
		return
	}

	key := types.NamespacedName{Namespace: b.Namespace, Name: b.Service.Name}
	b.Replica.Name = fleet.OwnerByLeases(leases.Items, key, p.now())
}
