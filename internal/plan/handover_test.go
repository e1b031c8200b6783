package plan

import "testing"

// TestHandoverCostsNoRequest hands an adopted Service over. Shared endpoints keep the conditions of
// their earlier publisher, and its endpoints go only when that costs no request.
func TestHandoverCostsNoRequest(t *testing.T) {
	ready := func(address string) Endpoint { return at("", address) }
	notReady := func(address string) Endpoint {
		e := at("", address)
		e.Ready, e.Serving, e.Healthy = false, false, false
		return e
	}
	for _, tt := range []struct {
		name         string
		ours, others []Endpoint
		allVerdicts  bool
		wantReady    []bool // of ours
		wantDone     bool
	}{
		{
			name: "nobody else publishes",
			ours: []Endpoint{notReady(".1")}, wantReady: []bool{false}, wantDone: true,
		},
		{
			name: "shared, and ready by our verdict",
			ours: []Endpoint{ready(".1")}, others: []Endpoint{ready(".1")},
			wantReady: []bool{true}, wantDone: true,
		},
		{
			name: "shared, and unhealthy by our verdict",
			ours: []Endpoint{notReady(".1")}, others: []Endpoint{ready(".1")}, allVerdicts: true,
			wantReady: []bool{true}, wantDone: true,
		},
		{
			name: "shared as standby, and without a verdict",
			ours: []Endpoint{notReady(".1"), notReady(".2")}, others: []Endpoint{ready(".1")},
			wantReady: []bool{true, false},
		},
		{
			name: "shared where it is not ready",
			ours: []Endpoint{notReady(".1")}, others: []Endpoint{notReady(".1"), ready(".2")},
			wantReady: []bool{false},
		},
		{
			name: "nothing shared, and none ready",
			ours: []Endpoint{notReady(".1")}, others: []Endpoint{ready(".2")}, allVerdicts: true,
			wantReady: []bool{false},
		},
		{
			name: "nothing shared, and one ready",
			ours: []Endpoint{ready(".1")}, others: []Endpoint{ready(".2")},
			wantReady: []bool{true}, wantDone: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var conditions []Conditions
			for _, e := range tt.ours {
				conditions = append(conditions, e.Conditions)
			}
			got, done := HandOver(tt.ours, conditions, tt.others, tt.allVerdicts)
			if done != tt.wantDone {
				t.Errorf("the others may go: %t, want %t", done, tt.wantDone)
			}
			for i := range got {
				if got[i].Ready != tt.wantReady[i] {
					t.Errorf("%s ready=%t, want %t", tt.ours[i].Addr, got[i].Ready, tt.wantReady[i])
				}
			}
		})
	}
}
