package fleet

import (
	"fmt"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// leaseOf returns the Lease of a replica, which was renewed some time before now.
func leaseOf(replica string, before time.Duration, now time.Time) coordinationv1.Lease {
	lease := coordinationv1.Lease{}
	lease.Name = LeaseName(replica)
	lease.Spec.HolderIdentity = new(replica + "_1")
	lease.Spec.RenewTime = &metav1.MicroTime{Time: now.Add(-before)}
	lease.Spec.LeaseDurationSeconds = new(int32(leaseDuration / time.Second))
	return lease
}

// Somebody who reads the Leases finds the owners that the replicas find. Leases that have ended
// long ago, or that nobody holds, don't count.
func TestOwnerByLeasesIsThatOfReplicas(t *testing.T) {
	now := time.Now()
	unheld := leaseOf("unheld", 0, now)
	unheld.Spec.HolderIdentity = new("")
	leases := []coordinationv1.Lease{
		leaseOf("a", 0, now), leaseOf("b", leaseDuration+maxClockError, now), leaseOf("ahead", -maxClockError, now),
		leaseOf("dead", leaseDuration+maxClockError+time.Second, now), unheld,
		{ObjectMeta: metav1.ObjectMeta{Name: LeaseName("empty")}},
	}

	share := newShare("", true, 0, []string{LeaseName("b"), LeaseName("ahead"), LeaseName("a")})
	found := map[string]bool{}
	for _, key := range keys(100) {
		got := OwnerByLeases(leases, key, now)
		if found[got] = true; LeaseName(got) != share.Owner(key) {
			t.Errorf("%s belongs to %s, and by the Leases to %s", key, share.Owner(key), got)
		}
	}
	if len(found) != 3 {
		t.Errorf("the owners are %v", found)
	}
	if got := OwnerByLeases(leases[3:], keys(1)[0], now); got != "" {
		t.Errorf("without a live replica, the owner is %q", got)
	}
}

// A replica that is set aside owns nothing, unless all are.
func TestOwnerByLeasesIsNotSetAside(t *testing.T) {
	now, all := time.Now(), keys(50)
	leases := []coordinationv1.Lease{leaseOf("a", 0, now), leaseOf("b", 0, now)}
	owners := func() map[string]bool {
		found := map[string]bool{}
		for _, key := range all {
			found[OwnerByLeases(leases, key, now)] = true
		}
		return found
	}
	for i, want := range []string{"map[a:true b:true]", "map[b:true]", "map[a:true b:true]"} {
		if got := fmt.Sprint(owners()); got != want {
			t.Errorf("with %d replicas set aside, the owners are %s, want %s", i, got, want)
		}
		if i < len(leases) {
			leases[i].Annotations = map[string]string{annotationSetAside: "true"}
		}
	}
}
