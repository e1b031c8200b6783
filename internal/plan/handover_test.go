package plan

import (
	"net/netip"
	"testing"
)

// TestHandOver: what is shared says what it said before, and the others go only when that costs no
// request.
func TestHandOver(t *testing.T) {
	ports := []Port{{Name: "http", Port: 80, Protocol: "TCP"}}
	at := func(last byte, ready bool) Endpoint {
		return Endpoint{
			Addr:    netip.AddrFrom4([4]byte{203, 0, 113, last}),
			Ports:   ports,
			Ready:   ready,
			Serving: ready,
			Healthy: ready,
		}
	}
	for name, c := range map[string]struct {
		ours, others []Endpoint
		judged       bool
		ready        []bool // ours, once handed over
		settled      bool
	}{
		"nobody else":                       {ours: []Endpoint{at(1, false)}, ready: []bool{false}, settled: true},
		"shared, and ready by our verdict":  {ours: []Endpoint{at(1, true)}, others: []Endpoint{at(1, true)}, ready: []bool{true}, settled: true},
		"shared, unhealthy by our verdict":  {ours: []Endpoint{at(1, false)}, others: []Endpoint{at(1, true)}, judged: true, ready: []bool{true}, settled: true},
		"shared as standby, no verdict yet": {ours: []Endpoint{at(1, false), at(2, false)}, others: []Endpoint{at(1, true)}, ready: []bool{true, false}},
		"shared where it is not ready":      {ours: []Endpoint{at(1, false)}, others: []Endpoint{at(1, false), at(2, true)}, ready: []bool{false}},
		"nothing shared, none ready":        {ours: []Endpoint{at(1, false)}, others: []Endpoint{at(2, true)}, judged: true, ready: []bool{false}},
		"nothing shared, one ready":         {ours: []Endpoint{at(1, true)}, others: []Endpoint{at(2, true)}, ready: []bool{true}, settled: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, settled := HandOver(c.ours, c.others, c.judged)
			if settled != c.settled {
				t.Errorf("the others may go: %t, want %t", settled, c.settled)
			}
			for i := range got {
				if got[i].Ready != c.ready[i] {
					t.Errorf("%s ready=%t, want %t", got[i].Addr, got[i].Ready, c.ready[i])
				}
			}
		})
	}
}
