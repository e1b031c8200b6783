package controllers

import (
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestNameReused: a slice that was made under the name of a deleted one is not forgotten while the
// cache still shows that one.
func TestNameReused(t *testing.T) {
	var memories memories
	m := memories.of(shop)
	slice := func(uid types.UID, version string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "shop-v4", UID: uid, ResourceVersion: version}}
	}
	old, anew := slice("old", "7"), slice("new", "9")
	now := time.Unix(1_000_000, 0)
	m.deletedSlice(old)
	m.createdSlice(anew, now)
	for range 3 {
		if got := m.latest([]*discoveryv1.EndpointSlice{old}, now); len(got) != 1 || got[0] != anew {
			t.Fatalf("with the deleted slice in the cache: %v, want the new one", got)
		}
	}
	if got := m.latest([]*discoveryv1.EndpointSlice{slice("new", "9")}, now); len(got) != 1 || got[0].UID != "new" ||
		len(m.slices)+len(m.deleted) != 0 {
		t.Errorf("with the new one in the cache: %v, and still remembered: %v, %v", got, m.slices, m.deleted)
	}
}
