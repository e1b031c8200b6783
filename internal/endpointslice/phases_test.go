package endpointslice

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// TestUpdatesAreWrittenInNamedPhases shows the phase of each kind of update.
func TestUpdatesAreWrittenInNamedPhases(t *testing.T) {
	for _, tt := range []struct {
		effects effects
		want    string
	}{
		{effects{beforeMove: true, makesReady: true}, "makes ready before a move"},
		{effects{makesReady: true, gains: true}, "makes ready"},
		{effects{makesReady: true, takesReady: true}, "makes and takes ready"},
		{effects{beforeMove: true, makesReady: true, takesReady: true}, "before a move"},
		{effects{beforeMove: true}, "before a move"},
		{effects{receivesUpdated: true, gains: true, makesReady: true}, "makes ready after a move"},
		{effects{gains: true, loses: true}, "gains endpoints"},
		{effects{receivesUpdated: true, gains: true, makesReady: true, takesReady: true}, "gains endpoints"},
		{effects{}, "changes endpoints"},
		{effects{gains: true, takesReady: true}, "gains endpoints, takes ready"},
		{effects{loses: true, makesReady: true, takesReady: true}, "makes ready, loses endpoints"},
		{effects{loses: true}, "takes ready or loses endpoints"},
		{effects{takesReady: true}, "takes ready or loses endpoints"},
	} {
		if got := writePhases[newSliceUpdate(nil, tt.effects).phase].name; got != tt.want {
			t.Errorf("%+v is written in phase %q, want %q", tt.effects, got, tt.want)
		}
	}
}

// TestTierTakesOverWithoutGap: a tier takes over from a tier in another group of slices, and after
// every write an endpoint is ready, whatever else changes.
func TestTierTakesOverWithoutGap(t *testing.T) {
	in := func(target, addr string, port int32, ready bool) Endpoint {
		e := at(target, addr)
		e.Ports, e.Ready = []Port{{Name: "http", Port: port, Protocol: "TCP"}}, ready
		return e
	}
	// Three slices become half-empty and change, so that one has to be compacted.
	var full, halfEmpty []Endpoint
	for i, zone := range []string{"a", "c", "d"} {
		for j := range 4 {
			e := in(zone, fmt.Sprintf("10.0.%d.%d", i, j+1), 1, i+j == 0)
			e.Zone = zone
			full = append(full, e)
			if j < 2 {
				e.Ready, e.Serving = false, e.Ready
				halfEmpty = append(halfEmpty, e)
			}
		}
	}
	for name, c := range map[string]struct{ before, after []Endpoint }{
		"one moves, the other loses one": {
			[]Endpoint{in("a", "203.0.113.1", 1, true), in("b", "203.0.113.2", 2, false), in("b", "203.0.113.3", 2, false)},
			[]Endpoint{in("a", "203.0.113.9", 1, false), in("b", "203.0.113.2", 2, true)},
		},
		"one grows, the other loses one": {
			[]Endpoint{in("a", "203.0.113.1", 1, true), in("b", "203.0.113.2", 2, false), in("b", "203.0.113.3", 2, false)},
			[]Endpoint{in("a", "203.0.113.1", 1, false), in("a", "203.0.113.9", 1, false), in("b", "203.0.113.2", 2, true)},
		},
		"one is compacted, the other grows": {
			append(slices.Clone(full), in("b", "203.0.113.2", 2, false)),
			append(slices.Clone(halfEmpty), in("b", "203.0.113.2", 2, true), in("b", "203.0.113.3", 2, true)),
		},
	} {
		t.Run(name, func(t *testing.T) {
			template, stored := testTemplate(4), cluster{}
			stored.plan(t, template, c.before)
			for i, w := range writesOf(changesOf(template, c.after, stored.list())) {
				stored.apply(t, w)
				if !slices.ContainsFunc(Published(stored.list()).Endpoints(), func(e Endpoint) bool { return e.Ready }) {
					t.Errorf("after write %d, %s %s, nothing is ready", i+1, w.verb, w.slice.Name)
				}
			}
		})
	}
}

// TestMovedEndpointsHaveOneCondition: three slices become half-empty, and the conditions of all
// their endpoints change. One slice is compacted, and no endpoint ever has different conditions in
// two slices.
func TestMovedEndpointsHaveOneCondition(t *testing.T) {
	stored := cluster{}
	before := pool("a", "", 0, 30)
	stored.plan(t, testTemplate(10), before)
	var after []Endpoint
	for i, e := range before {
		if i%10 < 3 {
			e.Ready, e.Serving, e.Healthy = false, false, false
			after = append(after, e)
		}
	}
	changes := changesOf(testTemplate(10), after, stored.list())
	if got := verbs(changes); got != "+0 ~3 -1" {
		t.Errorf("%s: want every slice written, and one of them deleted then", got)
	}
	for i, w := range writesOf(changes) {
		stored.apply(t, w)
		says := map[netip.Addr]bool{}
		for _, s := range stored {
			for j := range s.Endpoints {
				e, _ := readEndpoint(&s.Endpoints[j], s.AddressType)
				if ready, ok := says[e.Addr]; ok && ready != e.Ready {
					t.Errorf("after write %d %s is ready and not", i+1, e.Addr)
				}
				says[e.Addr] = e.Ready
			}
		}
	}
	if len(stored) != 2 {
		t.Errorf("%d slices are left", len(stored))
	}
}
