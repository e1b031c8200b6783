package fleet

import (
	"fmt"
	"math"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

// keys returns Services as people name them.
func keys(n int) []types.NamespacedName {
	out := make([]types.NamespacedName, n)
	for i := range out {
		out[i] = types.NamespacedName{Namespace: fmt.Sprint("team-", i%20), Name: fmt.Sprint("backend-", i)}
	}
	return out
}

// names returns the Leases of replicas.
func names(n int) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = LeaseName(fmt.Sprintf("external-backend-controller-manager-6d5f8b7c9-%05d", i))
	}
	return out
}

func owners(members []string, of []types.NamespacedName) map[types.NamespacedName]string {
	share, out := newShare("", true, 0, members), map[types.NamespacedName]string{}
	for _, key := range of {
		out[key] = share.Owner(key)
	}
	return out
}

// A replica that joins or leaves only moves what it gets or had, and the shares are nearly even. Up
// to four replicas have 15 % more or less than an even share at most. More have what chance allows.
func TestOwnershipIsEvenAndMovesLittle(t *testing.T) {
	all := keys(1000)
	for n := 2; n <= 8; n++ {
		even := len(all) / n
		tolerance := even * 15 / 100
		if n > 4 {
			tolerance = int(4 * math.Sqrt(float64(even)))
		}
		before, after := owners(names(n-1), all), owners(names(n), all)
		joined, moved, counts := names(n)[n-1], 0, map[string]int{}
		for _, key := range all {
			counts[after[key]]++
			if before[key] == after[key] {
				continue
			}
			moved++
			if after[key] != joined {
				t.Fatalf("%s moved from %s to %s, though only %s joined", key, before[key], after[key], joined)
			}
		}
		if n == 4 && moved > 270 {
			t.Errorf("the fourth replica moves %d of %d", moved, len(all))
		}
		for member, count := range counts {
			if count > even+tolerance || count < even-tolerance {
				t.Errorf("of %d replicas, %s has %d of %d", n, member, count, len(all))
			}
		}
	}
}

// The order in which members are known changes nothing, and without members nobody owns anything.
func TestOwnershipDependsOnMembersOnly(t *testing.T) {
	all := keys(100)
	a, b := owners([]string{"a", "b", "c"}, all), owners([]string{"c", "a", "b"}, all)
	for _, key := range all {
		if a[key] != b[key] || a[key] == "" {
			t.Errorf("%s belongs to %q and to %q", key, a[key], b[key])
		}
	}
	if got := newShare("a", true, 0, nil).Owner(all[0]); got != "" {
		t.Errorf("without members, %s belongs to %q", all[0], got)
	}
	if newShare("a", false, 0, []string{"a"}).Owns(all[0]) {
		t.Error("a replica that does not work owns something")
	}
}

// BenchmarkReassign finds the owners of a million endpoints' ExternalBackends among 50 replicas.
func BenchmarkReassign(b *testing.B) {
	all, members := keys(10_000), names(50)
	for b.Loop() {
		share := newShare(members[0], true, 0, members)
		for _, key := range all {
			share.Owns(key)
		}
	}
}
