package plan

import "testing"

// TestIgnoredHintsAreExplained says which hints kube-proxy ignores because endpoints lack a zone or
// a node.
func TestIgnoredHintsAreExplained(t *testing.T) {
	const all = "kube-proxy will ignore all trafficDistribution hints, because some targets have no "
	zoneA, zoneB, nodeOnly := Endpoint{Zone: "a"}, Endpoint{Zone: "b"}, Endpoint{NodeName: "n"}
	both := Endpoint{Zone: "a", NodeName: "n"}
	for _, tt := range []struct {
		name      string
		nodes     bool
		endpoints []Endpoint
		want      string
	}{
		{"all have zones", false, []Endpoint{zoneA, zoneB}, ""},
		{"one has no zone", false, []Endpoint{zoneA, nodeOnly}, all + "zone."},
		{"all have nodes and zones", true, []Endpoint{both}, ""},
		{
			"one has no node", true, []Endpoint{both, zoneA},
			"kube-proxy will ignore all hints for nodes and go by zones alone, because some targets have no nodeName.",
		},
		{
			"one has no zone where nodes are preferred", true, []Endpoint{both, nodeOnly},
			"kube-proxy will ignore all hints for zones, because some targets have no zone.",
		},
		{"one has no node and one no zone", true, []Endpoint{zoneA, nodeOnly}, all + "nodeName and some no zone."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := ExplainIgnoredHints(&Candidates{Endpoints: tt.endpoints}, tt.nodes); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
