package plan

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestOnlyKnownTrafficDistributionsGetHints: trafficDistribution is an open set of words. Endpoints
// get hints for those that we know.
func TestOnlyKnownTrafficDistributionsGetHints(t *testing.T) {
	for distribution, want := range map[string][2]bool{
		"PreferClose":    {true, false},
		"PreferSameZone": {true, false},
		"PreferSameNode": {true, true},
		"PreferFar":      {false, false},
	} {
		var s corev1.Service
		s.Spec.TrafficDistribution = &distribution
		if got := TraitsOf(&s); got.ZoneHints != want[0] || got.NodeHints != want[1] {
			t.Errorf("%s: zones %t, nodes %t", distribution, got.ZoneHints, got.NodeHints)
		}
	}
	if got := TraitsOf(&corev1.Service{}); got.ZoneHints || got.NodeHints {
		t.Error("hints without trafficDistribution")
	}
}
