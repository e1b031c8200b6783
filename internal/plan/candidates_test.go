package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// drained is a plan of an ExternalBackend whose addresses drain for ten minutes.
func drained(published *endpointslice.PublishedEndpoints, targets ...v1alpha1.Target) Input {
	b := &v1alpha1.ExternalBackend{}
	b.Spec.Ports = []v1alpha1.Port{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}
	b.Spec.Targets, b.Spec.DrainSeconds = targets, new(int32(600))
	return Input{
		Backend: b, Families: Families{IPv4: true}, ServesPort: func(*v1alpha1.Port) bool { return true },
		Permit: func(string, netip.Addr, []Port) Refusal { return Refusal{} }, Published: published, Max: 100, Now: testNow,
	}
}

func at(target, addr string) Endpoint {
	return Endpoint{
		Target:  target,
		Addr:    netip.MustParseAddr(addr),
		Ports:   []Port{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		Ready:   true,
		Serving: true,
		Healthy: true,
	}
}

// TestOthersDoNotLeave: of what others publish behind the Service only what the spec names is taken
// over, whatever their targets were called; what is ours drains.
func TestOthersDoNotLeave(t *testing.T) {
	published := endpointslice.Published(
		inSlices(at("former", "203.0.113.2"), at("primary", "203.0.113.1")),
		at("primary", "203.0.113.3"),
		at("standby", "203.0.113.4"),
	)
	c := buildCandidates(drained(published, v1alpha1.Target{Name: "primary", Address: "203.0.113.4"}))
	expect(t, c.Endpoints, "primary 203.0.113.4", "former 203.0.113.2 leaves", "primary 203.0.113.1 leaves")
}

// TestLeavingAtTheBound: where there is no room for all, new addresses of a name come before those
// that leave it.
func TestLeavingAtTheBound(t *testing.T) {
	in := drained(standing(at("pool", "203.0.113.1"), at("pool", "203.0.113.2")), poolTarget)
	in.Max = 3
	in.Answers = map[string]Answer{
		"pool": {
			Status: AnswerCurrent,
			Addrs:  []Addr{{IP: netip.MustParseAddr("203.0.113.3")}, {IP: netip.MustParseAddr("203.0.113.4")}},
		},
	}
	c := buildCandidates(in)
	expect(t, c.Endpoints, "pool 203.0.113.3", "pool 203.0.113.4", "pool 203.0.113.1 leaves")
	if n := c.Notes[0].Truncated; n != 0 {
		t.Errorf("%d addresses are reported as truncated, none of which the name has", n)
	}
}

// TestDuplicatesByName: the target whose name comes first wins, wherever it stands in spec.
func TestDuplicatesByName(t *testing.T) {
	for _, order := range []string{"b a", "a b"} {
		var targets []v1alpha1.Target
		for name := range strings.FieldsSeq(order) {
			targets = append(targets, v1alpha1.Target{Name: name, Address: "203.0.113.1"})
		}
		c := buildCandidates(drained(standing(), targets...))
		expect(t, c.Endpoints, "a 203.0.113.1")
		if loser := strings.Index(order, "b") / 2; c.Notes[loser].Duplicates != 1 {
			t.Errorf("with %q the notes are %+v", order, c.Notes)
		}
	}
}

// TestSiblingClaims: of what two ExternalBackends on one Service claim, a leaving address loses,
// else the younger one's.
func TestSiblingClaims(t *testing.T) {
	const stays, leaves = "stays", "leaves"
	for _, tt := range []struct {
		ours, sibling string
		older         bool // the sibling is
		kept          bool // ours is
	}{
		{stays, stays, true, false},
		{stays, stays, false, true},
		{stays, leaves, true, true},
		{stays, leaves, false, true},
		{leaves, stays, true, false},
		{leaves, stays, false, false},
		{leaves, leaves, true, false},
		{leaves, leaves, false, true},
	} {
		var targets []v1alpha1.Target
		want := []string{"ours 203.0.113.1 leaves"}
		if tt.ours == stays {
			targets = []v1alpha1.Target{{Name: "ours", Address: "203.0.113.1"}}
			want = []string{"ours 203.0.113.1"}
		}
		if !tt.kept {
			want = nil
		}
		in := drained(standing(at("ours", "203.0.113.1")), targets...)
		sibling := []Endpoint{at("theirs", "203.0.113.1")}
		if tt.sibling == leaves {
			sibling[0].DrainUntil, sibling[0].Terminating = testNow.Add(time.Minute), true
		}
		if tt.older {
			in.OlderSiblings = sibling
		} else {
			in.YoungerSiblings = sibling
		}
		t.Run(fmt.Sprintf("ours %s, sibling %s, older: %t", tt.ours, tt.sibling, tt.older), func(t *testing.T) {
			c := buildCandidates(in)
			expect(t, c.Endpoints, want...)
		})
	}
}

// TestUnread: what the annotation tells nothing of stays after a restart while a name has no answer
// that may have led to it. Then it drains, as what has left. While the manager runs it knows what
// is its own, and all else goes at once.
func TestUnread(t *testing.T) {
	addr := netip.MustParseAddr("203.0.113.1")
	failed := Answer{Status: AnswerFailed, Reason: v1alpha1.ReasonResolutionFailed}
	elsewhere := Answer{Status: AnswerCurrent, Addrs: []Addr{{IP: netip.MustParseAddr("203.0.113.9")}}}
	disabled := poolTarget
	disabled.AdminState = v1alpha1.AdminStateDisabled
	for _, tt := range []struct {
		name   string
		target v1alpha1.Target
		answer Answer
		permit Permit
		named  []NamedAddr
		want   []string
	}{
		{"no answer yet", poolTarget, Answer{}, nil, nil, []string{" 203.0.113.1"}},
		{"resolution fails", poolTarget, failed, nil, nil, []string{" 203.0.113.1"}},
		{"a later plan", poolTarget, failed, nil, []NamedAddr{{addr, "pool.example.com"}}, []string{" 203.0.113.1"}},
		{"the name permits it", poolTarget, failed, partners, nil, []string{" 203.0.113.1"}},
		{"the name does not", v1alpha1.Target{Name: "pool", Hostname: "pool.example.org"}, failed, partners, nil, nil},
		{"not there in the plan before", poolTarget, failed, nil, []NamedAddr{}, nil},
		{"a disabled target", disabled, Answer{}, nil, nil, []string{" 203.0.113.1 leaves"}},
		{"the name is somewhere else", poolTarget, elsewhere, nil, []NamedAddr{{addr, "pool.example.com"}}, []string{"pool 203.0.113.9", " 203.0.113.1 leaves"}},
		{"the name does not exist", poolTarget, Answer{Status: AnswerFailed, Reason: v1alpha1.TargetReasonNameNotFound}, nil, nil, []string{" 203.0.113.1 leaves"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			slices := inSlices(at("pool", addr.String()))
			slices[0].Annotations = nil
			in := drained(endpointslice.Published(slices), tt.target)
			in.Answers, in.NamedAddrs = map[string]Answer{"pool": tt.answer}, tt.named
			if tt.permit != nil {
				in.Permit = tt.permit
			}
			c := buildCandidates(in)
			expect(t, c.Endpoints, tt.want...)
		})
	}
}

func expect(t *testing.T, endpoints []Endpoint, want ...string) {
	t.Helper()
	var got []string
	for i := range endpoints {
		text := endpoints[i].Target + " " + endpoints[i].Addr.String()
		if endpoints[i].Leaving() {
			text += " leaves"
		}
		got = append(got, text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// partners allows what a name of example.com led to, and nothing else.
func partners(name string, _ netip.Addr, _ []Port) Refusal {
	if strings.HasSuffix(name, ".example.com") {
		return Refusal{}
	}
	return Refusal{Denied: true, Kind: "not allowed"}
}

var (
	poolTarget = v1alpha1.Target{Name: "pool", Hostname: "pool.example.com"}
	srvTarget  = v1alpha1.Target{Name: "srv", SRVName: "_http._tcp.example.com"}
)

// named plans both, and returns what stands then, and is remembered.
func named() (endpoints []Endpoint, named []NamedAddr) {
	in := drained(standing(), poolTarget, srvTarget)
	in.Permit = partners
	in.Answers = map[string]Answer{
		"pool": {
			Status: AnswerCurrent,
			Addrs:  []Addr{{IP: netip.MustParseAddr("203.0.113.1")}, {IP: netip.MustParseAddr("203.0.113.2")}},
		},
		"srv": {Status: AnswerCurrent, Addrs: []Addr{{IP: netip.MustParseAddr("203.0.113.3"), Port: 8080}}},
	}
	c := buildCandidates(in)
	return c.Endpoints, c.NamedAddrs(nil)
}

// TestLeavingNames: an address that was published because of its name drains as what that name led
// to, as long as that is remembered; what slices say of it does not count.
func TestLeavingNames(t *testing.T) {
	endpoints, remembered := named()
	literal := v1alpha1.Target{Name: "pool", Address: "198.51.100.1"}
	elsewhere := v1alpha1.Target{Name: "pool", Hostname: "pool.example.org"}
	all := []string{"pool 203.0.113.1 leaves", "pool 203.0.113.2 leaves", "srv 203.0.113.3 leaves"}
	for _, tt := range []struct {
		name    string
		targets []v1alpha1.Target
		named   []NamedAddr
		want    []string
	}{
		{"targets that are gone", nil, remembered, all},
		{"targets of other names", []v1alpha1.Target{elsewhere, {Name: "new", Hostname: "new.example.com"}}, remembered, all},
		{"a target that is literal now", []v1alpha1.Target{literal}, remembered, all},
		{"after a restart", []v1alpha1.Target{srvTarget}, nil, all[2:]},
		{"planned without a name", []v1alpha1.Target{poolTarget}, []NamedAddr{{Addr: netip.MustParseAddr("203.0.113.1")}}, nil},
		{"not planned before", []v1alpha1.Target{poolTarget}, remembered[1:], all[1:]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 { // the names go from plan to plan
				in := drained(standing(endpoints...), tt.targets...)
				in.Permit, in.NamedAddrs = partners, tt.named
				c := buildCandidates(in)
				expect(t, c.Endpoints, tt.want...)
				tt.named = c.NamedAddrs(nil)
			}
		})
	}
}

// TestRefusedNames: under a spec that can't be acted on what stands is judged by the name that led
// to it, and without memory of that by its target's; whatever could be allowed under some name
// stays where there is neither.
func TestRefusedNames(t *testing.T) {
	endpoints, remembered := named()
	renamed := v1alpha1.Target{Name: "renamed", Hostname: "pool.example.com"}
	elsewhere := v1alpha1.Target{Name: "pool", Hostname: "pool.example.org"}
	all := []string{"pool 203.0.113.1", "pool 203.0.113.2", "srv 203.0.113.3"}
	never := func(addr netip.Addr, _ []Port) Refusal {
		return Refusal{Denied: addr == netip.MustParseAddr("203.0.113.2"), Kind: "never"}
	}
	for _, tt := range []struct {
		name    string
		targets []v1alpha1.Target
		named   []NamedAddr
		want    []string
	}{
		{"renamed", []v1alpha1.Target{renamed, srvTarget}, remembered, all},
		{"with another hostname", []v1alpha1.Target{elsewhere, srvTarget}, remembered, all},
		{"not planned before", []v1alpha1.Target{poolTarget, srvTarget}, remembered[1:], all[1:]},
		{"renamed, after a restart", []v1alpha1.Target{renamed, srvTarget}, nil, []string{all[0], all[2]}},
		{"with another hostname, after a restart", []v1alpha1.Target{elsewhere, srvTarget}, nil, all[2:]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := drained(nil, tt.targets...).Backend
			held := FilterPublished(b, endpoints, nil, tt.named, partners, never)
			expect(t, held.Kept, tt.want...)
			if n := len(held.Kept) + len(held.Refused); n != len(endpoints) || held.Changed != (len(held.Refused) > 0) {
				t.Errorf("%+v", held)
			}
			if again := FilterPublished(b, held.Kept, held.Refused, tt.named, partners, never); again.Changed ||
				len(again.Refused) != len(held.Refused) ||
				!maps.Equal(again.Reasons, held.Reasons) {
				t.Errorf("first %+v, then %+v", held, again)
			}
			all := func(string, netip.Addr, []Port) Refusal { return Refusal{} }
			back := FilterPublished(
				b,
				held.Kept,
				slices.Concat(held.Refused, held.Refused, held.Kept),
				tt.named,
				all,
				func(netip.Addr, []Port) Refusal { return Refusal{} },
			)
			if len(back.Kept) != len(endpoints) || len(back.Reasons) > 0 || back.Changed != held.Changed {
				t.Errorf("when all is permitted again: %+v", back)
			}
		})
	}
}

// TestDrainEndBounded: an end of draining that was written by a clock that runs ahead is brought
// back to drainSeconds from now, once.
func TestDrainEndBounded(t *testing.T) {
	ahead := at("pool", "203.0.113.1")
	ahead.DrainUntil, ahead.Terminating, ahead.Ready = testNow.Add(24*time.Hour), true, false
	in := drained(standing(ahead), poolTarget)
	drain := time.Duration(*in.Backend.Spec.DrainSeconds) * time.Second
	in.Answers = map[string]Answer{
		"pool": {Status: AnswerCurrent, Addrs: []Addr{{IP: netip.MustParseAddr("203.0.113.3")}}},
	}
	var until time.Time
	for i := range 3 {
		c := buildCandidates(in)
		p := slices.IndexFunc(c.Endpoints, func(e Endpoint) bool { return e.Addr == ahead.Addr })
		if p < 0 || drain == 0 {
			t.Fatalf("it has left: %v", c.Endpoints)
		}
		if e := c.Endpoints[p]; i == 0 {
			until = e.DrainUntil
		} else if !e.DrainUntil.Equal(until) {
			t.Errorf("its end moves from %v to %v", until, e.DrainUntil)
		}
		in.Published, in.Now = standing(c.Endpoints[p]), in.Now.Add(time.Second)
	}
	if left := until.Sub(testNow); left < drain || left > drain+time.Second {
		t.Errorf("it leaves in %v, not in %v", left, drain)
	}
}
