package plan

import (
	"fmt"
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

// drainingInput is a plan of an ExternalBackend whose addresses drain for ten minutes.
func drainingInput(published *endpointslice.PublishedEndpoints, targets ...v1alpha1.Target) Input {
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
	c := buildCandidates(drainingInput(published, v1alpha1.Target{Name: "primary", Address: "203.0.113.4"}))
	expectEndpoints(t, c.Endpoints, "primary 203.0.113.4", "former 203.0.113.2 leaves", "primary 203.0.113.1 leaves")
}

// TestLeavingAtTheBound: where there is no room for all, new addresses of a name come before those
// that leave it.
func TestLeavingAtTheBound(t *testing.T) {
	in := drainingInput(standing(at("pool", "203.0.113.1"), at("pool", "203.0.113.2")), poolTarget)
	in.Max = 3
	in.Answers = map[string]Answer{
		"pool": {
			Status: AnswerCurrent,
			Addrs:  []Addr{{IP: netip.MustParseAddr("203.0.113.3")}, {IP: netip.MustParseAddr("203.0.113.4")}},
		},
	}
	c := buildCandidates(in)
	expectEndpoints(t, c.Endpoints, "pool 203.0.113.3", "pool 203.0.113.4", "pool 203.0.113.1 leaves")
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
		c := buildCandidates(drainingInput(standing(), targets...))
		expectEndpoints(t, c.Endpoints, "a 203.0.113.1")
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
		in := drainingInput(standing(at("ours", "203.0.113.1")), targets...)
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
			expectEndpoints(t, c.Endpoints, want...)
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
		{"the name permits it", poolTarget, failed, permitExampleCom, nil, []string{" 203.0.113.1"}},
		{"the name does not", v1alpha1.Target{Name: "pool", Hostname: "pool.example.org"}, failed, permitExampleCom, nil, nil},
		{"not there in the plan before", poolTarget, failed, nil, []NamedAddr{}, nil},
		{"a disabled target", disabled, Answer{}, nil, nil, []string{" 203.0.113.1 leaves"}},
		{"the name is somewhere else", poolTarget, elsewhere, nil, []NamedAddr{{addr, "pool.example.com"}}, []string{"pool 203.0.113.9", " 203.0.113.1 leaves"}},
		{"the name does not exist", poolTarget, Answer{Status: AnswerFailed, Reason: v1alpha1.TargetReasonNameNotFound}, nil, nil, []string{" 203.0.113.1 leaves"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			slices := inSlices(at("pool", addr.String()))
			slices[0].Annotations = nil
			in := drainingInput(endpointslice.Published(slices), tt.target)
			in.Answers, in.NamedAddrs = map[string]Answer{"pool": tt.answer}, tt.named
			if tt.permit != nil {
				in.Permit = tt.permit
			}
			c := buildCandidates(in)
			expectEndpoints(t, c.Endpoints, tt.want...)
		})
	}
}

func expectEndpoints(t *testing.T, endpoints []Endpoint, want ...string) {
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

// permitExampleCom allows what a name of example.com led to, and nothing else.
func permitExampleCom(name string, _ netip.Addr, _ []Port) Refusal {
	if strings.HasSuffix(name, ".example.com") {
		return Refusal{}
	}
	return Refusal{Denied: true, Kind: "not allowed"}
}

var (
	poolTarget = v1alpha1.Target{Name: "pool", Hostname: "pool.example.com"}
	srvTarget  = v1alpha1.Target{Name: "srv", SRVName: "_http._tcp.example.com"}
)

// planNamedTargets plans both, and returns what stands then, and is remembered.
func planNamedTargets() (endpoints []Endpoint, named []NamedAddr) {
	in := drainingInput(standing(), poolTarget, srvTarget)
	in.Permit = permitExampleCom
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
	endpoints, remembered := planNamedTargets()
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
				in := drainingInput(standing(endpoints...), tt.targets...)
				in.Permit, in.NamedAddrs = permitExampleCom, tt.named
				c := buildCandidates(in)
				expectEndpoints(t, c.Endpoints, tt.want...)
				tt.named = c.NamedAddrs(nil)
			}
		})
	}
}

// TestDrainEndBounded: an end of draining that was written by a clock that runs ahead is brought
// back to drainSeconds from now, once.
func TestDrainEndBounded(t *testing.T) {
	ahead := at("pool", "203.0.113.1")
	ahead.DrainUntil, ahead.Terminating, ahead.Ready = testNow.Add(24*time.Hour), true, false
	in := drainingInput(standing(ahead), poolTarget)
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
