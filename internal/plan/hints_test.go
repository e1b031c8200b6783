package plan

import "testing"

func TestHintsIgnored(t *testing.T) {
	for _, tt := range []struct {
		name  string
		nodes bool
		of    []Endpoint
		want  string
	}{
		{"zones all there", false, []Endpoint{{Zone: "a"}, {Zone: "b"}}, ""},
		{"a zone lacks", false, []Endpoint{{Zone: "a"}, {NodeName: "n"}}, "kube-proxy will ignore all trafficDistribution hints, because some targets have no zone."},
		{"nodes and zones all there", true, []Endpoint{{Zone: "a", NodeName: "n"}}, ""},
		{"a node lacks", true, []Endpoint{{Zone: "a", NodeName: "n"}, {Zone: "a"}}, "kube-proxy will ignore all hints for nodes and go by zones alone, because some targets have no nodeName."},
		{"a zone lacks where nodes are preferred", true, []Endpoint{{Zone: "a", NodeName: "n"}, {NodeName: "n"}}, "kube-proxy will ignore all hints for zones, because some targets have no zone."},
		{"both lack", true, []Endpoint{{Zone: "a"}, {NodeName: "n"}}, "kube-proxy will ignore all trafficDistribution hints, because some targets have no nodeName and some no zone."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := ExplainIgnoredHints(&Candidates{Endpoints: tt.of}, tt.nodes); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}
}
