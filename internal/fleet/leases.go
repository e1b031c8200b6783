package fleet

import (
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
)

// LabelReplica is the label that only the Leases of replicas have.
const LabelReplica = labelReplica

// OwnerByLeases returns the name of the replica that works for key, as it follows from the Leases
// of all replicas. It is for somebody who reads the Leases once, and takes a replica for live up
// to a minute longer than the replicas do, since clocks may differ. It returns "" if no replica
// is live.
func OwnerByLeases(leases []coordinationv1.Lease, key types.NamespacedName, now time.Time) string {
	var members, aside []string
	for i := range leases {
		lease, is := &leases[i], recordOf(&leases[i])
		switch {
		case is.holder == "" || now.Sub(is.renewed) > is.duration+maxClockError:
		case is.aside:
			aside = append(aside, lease.Name)
		default:
			members = append(members, lease.Name)
		}
	}
	if len(members) == 0 { // all are set aside, so none gives its share away
		members = aside
	}
	return strings.TrimPrefix(newShare("", false, 0, members).Owner(key), leasePrefix)
}
