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

// candidatesCase is a row of the tables that test buildCandidates. Addresses are written in short:
// ".1" is 203.0.113.1.
type candidatesCase struct {
	name    string
	targets []v1alpha1.Target
	answers map[string]Answer
	// published are the endpoints in our slices.
	published []Endpoint
	// change is applied to the input, if it is not nil.
	change func(*Input)
	// want are the targets and addresses of the candidates, in order, and whether they leave.
	want []string
	// wantNotes are the notes of targets that have some.
	wantNotes []string
}

func runCandidates(t *testing.T, cases []candidatesCase) {
	t.Helper()
	for _, tt := range cases {
		t.Run(tt.name, func(t *testing.T) {
			in := inputWithDrain(standing(tt.published...), tt.targets...)
			in.Answers = tt.answers
			if tt.change != nil {
				tt.change(&in)
			}
			c := buildCandidates(in)
			expectEndpoints(t, c.Endpoints, tt.want...)
			if diff := cmp.Diff(tt.wantNotes, noteTexts(in.Backend, &c)); diff != "" {
				t.Errorf("notes (-want +got):\n%s", diff)
			}
		})
	}
}

// TestExpandTargets covers pass 1: an endpoint for each address that policy and IP family allow.
func TestExpandTargets(t *testing.T) {
	answers := map[string]Answer{"pool": answer(".2", ".1")}
	runCandidates(t, []candidatesCase{
		{
			name:    "targets come in the order of their names",
			targets: []v1alpha1.Target{literal("b", ".2"), literal("a", ".1")},
			want:    []string{"a .1", "b .2"},
		},
		{
			name:    "addresses of a name come in the order of the answer",
			targets: []v1alpha1.Target{poolTarget}, answers: answers,
			want: []string{"pool .2", "pool .1"},
		},
		{
			name:    "a name without an answer has none",
			targets: []v1alpha1.Target{poolTarget, literal("a", ".1")},
			want:    []string{"a .1"},
		},
		{
			name:    "a Disabled target has none",
			targets: []v1alpha1.Target{withState(poolTarget, v1alpha1.AdminStateDisabled)}, answers: answers,
		},
		{
			name:    "a Draining target has all",
			targets: []v1alpha1.Target{withState(poolTarget, v1alpha1.AdminStateDraining)}, answers: answers,
			want: []string{"pool .2", "pool .1"},
		},
		{
			name:    "policy denies an address",
			targets: []v1alpha1.Target{poolTarget}, answers: answers, published: []Endpoint{at("pool", ".1")},
			change:    func(in *Input) { in.Permit = refuse(".1", Refusal{Denied: true, Kind: "no rule"}) },
			want:      []string{"pool .2"},
			wantNotes: []string{"pool: denied (no rule)"},
		},
		{
			name:    "policy would deny an address",
			targets: []v1alpha1.Target{poolTarget}, answers: answers,
			change:    func(in *Input) { in.Permit = refuse(".1", Refusal{WouldDeny: true, Kind: "no rule"}) },
			want:      []string{"pool .2", "pool .1"},
			wantNotes: []string{"pool: audited (no rule)"},
		},
		{
			name:    "what only discovery denies stays if it is published",
			targets: []v1alpha1.Target{poolTarget}, answers: answers, published: []Endpoint{at("pool", ".1")},
			change: func(in *Input) {
				in.Permit = func(string, netip.Addr, []Port) Refusal {
					return Refusal{Denied: true, KeepPublished: true, Kind: "of this cluster"}
				}
			},
			want:      []string{"pool .1"},
			wantNotes: []string{"pool: denied (of this cluster)"},
		},
		{
			name:      "the Service does not serve IPv6",
			targets:   []v1alpha1.Target{literal("a", "2001:db8::1"), literal("b", ".1")},
			want:      []string{"b .1"},
			wantNotes: []string{"a: 1 of another family"},
		},
		{
			name:    "the Service has no port of the spec",
			targets: []v1alpha1.Target{literal("a", ".1")},
			change:  func(in *Input) { in.ServesPort = func(*v1alpha1.Port) bool { return false } },
		},
	})
}

// TestKeepLeaving covers pass 2: what was published and is no longer wanted stays until it has
// drained.
func TestKeepLeaving(t *testing.T) {
	published := []Endpoint{at("pool", ".1"), at("pool", ".2")}
	one := []v1alpha1.Target{literal("pool", ".1")}
	runCandidates(t, []candidatesCase{
		{
			name: "an address that left the spec drains", targets: one, published: published,
			want: []string{"pool .1", "pool .2 leaves"},
		},
		{
			name: "an address that left its name drains", targets: []v1alpha1.Target{poolTarget},
			answers: map[string]Answer{"pool": answer(".1")}, published: published,
			want: []string{"pool .1", "pool .2 leaves"},
		},
		{
			name: "without drainSeconds it goes at once", targets: one, published: published,
			change: func(in *Input) { in.Backend.Spec.DrainSeconds = nil },
			want:   []string{"pool .1"},
		},
		{
			name: "what policy denies goes at once", targets: one, published: published,
			change: func(in *Input) { in.Permit = refuse(".2", Refusal{Denied: true, Kind: "no rule"}) },
			want:   []string{"pool .1"},
		},
		{
			name:      "what a Disabled target published goes at once",
			targets:   []v1alpha1.Target{withState(literal("pool", ".1"), v1alpha1.AdminStateDisabled)},
			published: published,
		},
		{
			name: "what the Service does not serve goes at once", targets: one, published: published,
			change: func(in *Input) { in.Backend.Spec.Ports[0].Name = "web" },
			want:   []string{"pool .1"},
		},
		{
			name: "what has drained goes", targets: one,
			published: []Endpoint{leavingAt("pool", ".1", 0), leavingAt("pool", ".2", 0), leavingAt("pool", ".3", time.Second)},
			want:      []string{"pool .1", "pool .3 leaves"},
		},
		{
			name: "what others publish does not drain", targets: []v1alpha1.Target{literal("primary", ".4")},
			change: func(in *Input) {
				ours := inSlices(at("former", ".2"), at("primary", ".1"))
				in.Published = endpointslice.Published(ours, at("primary", ".3"), at("standby", ".4"))
			},
			want: []string{"primary .4", "former .2 leaves", "primary .1 leaves"},
		},
	})
}

// TestUnreadEndpointsWaitForAnswers covers endpoints that the annotation says nothing about. After
// a restart they stay while a name that may have led to them has no answer, and drain when all
// have. While the manager runs it knows its own endpoints, and all others go at once.
func TestUnreadEndpointsWaitForAnswers(t *testing.T) {
	failed := Answer{Status: AnswerFailed, Reason: v1alpha1.ReasonResolutionFailed}
	notFound := Answer{Status: AnswerFailed, Reason: v1alpha1.TargetReasonNameNotFound}
	disabled := withState(poolTarget, v1alpha1.AdminStateDisabled)
	example := v1alpha1.Target{Name: "pool", Hostname: "pool.example.org"}
	remembered := []NamedAddr{{addr(".1"), "pool.example.com"}}
	for _, tt := range []struct {
		name   string
		target v1alpha1.Target
		answer Answer
		permit Permit
		named  []NamedAddr
		want   []string
	}{
		{"no answer yet", poolTarget, Answer{}, nil, nil, []string{" .1"}},
		{"resolution fails", poolTarget, failed, nil, nil, []string{" .1"}},
		{"resolution fails in a later plan", poolTarget, failed, nil, remembered, []string{" .1"}},
		{"policy allows it under the name", poolTarget, failed, permitExampleCom, nil, []string{" .1"}},
		{"policy denies it under the name", example, failed, permitExampleCom, nil, nil},
		{"the previous plan did not have it", poolTarget, failed, nil, []NamedAddr{}, nil},
		{"the target is Disabled", disabled, Answer{}, nil, nil, []string{" .1 leaves"}},
		{"the name leads elsewhere", poolTarget, answer(".9"), nil, remembered, []string{"pool .9", " .1 leaves"}},
		{"the name does not exist", poolTarget, notFound, nil, nil, []string{" .1 leaves"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			slices := inSlices(at("pool", ".1"))
			slices[0].Annotations = nil
			in := inputWithDrain(endpointslice.Published(slices), tt.target)
			in.Answers, in.NamedAddrs = map[string]Answer{"pool": tt.answer}, tt.named
			if tt.permit != nil {
				in.Permit = tt.permit
			}
			c := buildCandidates(in)
			expectEndpoints(t, c.Endpoints, tt.want...)
		})
	}
}

// TestResolveConflicts covers pass 3: of two endpoints with one ip:port for one Service port, one
// wins.
func TestResolveConflicts(t *testing.T) {
	withTier := func(t v1alpha1.Target, tier int32) v1alpha1.Target {
		t.Tier = &tier
		return t
	}
	withPort := func(t v1alpha1.Target, port int32) v1alpha1.Target {
		t.Ports = []v1alpha1.TargetPort{{Name: "http", TargetPort: port}}
		return t
	}
	runCandidates(t, []candidatesCase{
		{
			name:      "the target whose name comes first wins",
			targets:   []v1alpha1.Target{literal("b", ".1"), literal("a", ".1")},
			want:      []string{"a .1"},
			wantNotes: []string{`b: 1 duplicate of target "a"`},
		},
		{
			name:      "the lower tier wins before the name",
			targets:   []v1alpha1.Target{withTier(literal("a", ".1"), 1), literal("b", ".1")},
			want:      []string{"b .1"},
			wantNotes: []string{`a: 1 duplicate of target "b"`},
		},
		{
			name: "an Active target wins before the name",
			targets: []v1alpha1.Target{
				withState(literal("a", ".1"), v1alpha1.AdminStateDraining), literal("b", ".1"),
			},
			want:      []string{"b .1"},
			wantNotes: []string{`a: 1 duplicate of target "b"`},
		},
		{
			name:    "other ports do not conflict",
			targets: []v1alpha1.Target{literal("a", ".1"), withPort(literal("b", ".1"), 81)},
			want:    []string{"a .1", "b .1"},
		},
		{
			name:    "the loser of one port loses all",
			targets: []v1alpha1.Target{literal("a", ".1"), withPort(literal("b", ".1"), 81)},
			change: func(in *Input) {
				in.Backend.Spec.Ports = append(in.Backend.Spec.Ports, v1alpha1.Port{Name: "admin", Port: 90})
			},
			want:      []string{"a .1"},
			wantNotes: []string{`b: 1 duplicate of target "a"`},
		},
		{
			name:    "an older sibling wins, and has a name for people",
			targets: []v1alpha1.Target{literal("a", ".1"), literal("b", ".2")},
			change: func(in *Input) {
				in.Siblings = []Sibling{{Name: "older", Older: true, Endpoints: []Endpoint{at("theirs", ".1")}}}
			},
			want:      []string{"b .2"},
			wantNotes: []string{`a: 1 duplicate of ExternalBackend "older"`},
		},
	})
}

// TestLeavingEndpointLosesToSiblings covers one address that this ExternalBackend and a sibling
// publish. A leaving endpoint loses to one that stays; else the older ExternalBackend wins.
func TestLeavingEndpointLosesToSiblings(t *testing.T) {
	const stays, drains = "stays", "drains"
	for _, tt := range []struct {
		ours, sibling string
		siblingOlder  bool
		kept          bool // ours is
	}{
		{stays, stays, true, false},
		{stays, stays, false, true},
		{stays, drains, true, true},
		{stays, drains, false, true},
		{drains, stays, true, false},
		{drains, stays, false, false},
		{drains, drains, true, false},
		{drains, drains, false, true},
	} {
		name := fmt.Sprintf("ours %s, sibling %s, sibling older: %t", tt.ours, tt.sibling, tt.siblingOlder)
		t.Run(name, func(t *testing.T) {
			var targets []v1alpha1.Target
			want := []string{"ours .1 leaves"}
			if tt.ours == stays {
				targets = []v1alpha1.Target{literal("ours", ".1")}
				want = []string{"ours .1"}
			}
			if !tt.kept {
				want = nil
			}

			in := inputWithDrain(standing(at("ours", ".1")), targets...)
			sibling := []Endpoint{at("theirs", ".1")}
			if tt.sibling == drains {
				sibling[0] = leavingAt("theirs", ".1", time.Minute)
			}
			in.Siblings = []Sibling{{Older: tt.siblingOlder, Endpoints: sibling}}
			c := buildCandidates(in)
			expectEndpoints(t, c.Endpoints, want...)
		})
	}
}

// TestEnforceLimit covers pass 4: published endpoints come first, then new ones, then leaving ones.
func TestEnforceLimit(t *testing.T) {
	runCandidates(t, []candidatesCase{
		{
			name:    "published endpoints come before new ones",
			targets: []v1alpha1.Target{literal("a", ".1"), literal("b", ".2"), literal("c", ".3")},
			change:  func(in *Input) { in.Published, in.Max = standing(at("c", ".3")), 2 },
			want:    []string{"a .1", "c .3"}, wantNotes: []string{"b: 1 above the limit"},
		},
		{
			name:    "new endpoints come before leaving ones, and these are not reported",
			targets: []v1alpha1.Target{poolTarget}, answers: map[string]Answer{"pool": answer(".3", ".4")},
			published: []Endpoint{at("pool", ".1"), at("pool", ".2")},
			change:    func(in *Input) { in.Max = 3 },
			want:      []string{"pool .3", "pool .4", "pool .1 leaves"},
		},
	})
}

// TestUnreadEndpointsGetTheirTierBack plans slices whose annotation is gone. The target at an
// address says which tier was active, and what was read stays as it is.
func TestUnreadEndpointsGetTheirTierBack(t *testing.T) {
	list := inSlices(at("a", ".1"))
	list[0].Annotations = nil
	published := endpointslice.Published(list)
	before := slices.Clone(published.Endpoints())
	target := literal("a", ".1")
	target.Tier = new(int32(3))

	c := buildCandidates(inputWithDrain(published, target))
	state := PublishedTier(c.publishedEndpoints(published))
	if state.Active == nil || *state.Active != 3 {
		t.Errorf("%+v was active", state)
	}
	sameAddr := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	if diff := cmp.Diff(before, published.Endpoints(), sameAddr); diff != "" || !before[0].Unread {
		t.Errorf("planning changed what was read:\n%s", diff)
	}
}

// planNamedTargets plans poolTarget and srvTarget. It returns the endpoints, and the names that the
// next plan remembers.
func planNamedTargets() ([]Endpoint, []NamedAddr) {
	in := inputWithDrain(standing(), poolTarget, srvTarget)
	in.Permit = permitExampleCom
	srv := answer(".3")
	srv.Addrs[0].Port = 8080
	in.Answers = map[string]Answer{"pool": answer(".1", ".2"), "srv": srv}
	c := buildCandidates(in)
	return c.Endpoints, c.NamedAddrs(nil)
}

// TestLeavingIsJudgedByRememberedName plans what leaves after it was published because of its
// name. Policy judges it by the name of the previous plan, whatever the slices say.
func TestLeavingIsJudgedByRememberedName(t *testing.T) {
	endpoints, remembered := planNamedTargets()
	nowLiteral := v1alpha1.Target{Name: "pool", Address: "198.51.100.1"}
	elsewhere := v1alpha1.Target{Name: "pool", Hostname: "pool.example.org"}
	other := v1alpha1.Target{Name: "new", Hostname: "new.example.com"}
	all := []string{"pool .1 leaves", "pool .2 leaves", "srv .3 leaves"}
	for _, tt := range []struct {
		name    string
		targets []v1alpha1.Target
		named   []NamedAddr
		want    []string
	}{
		{"the targets are gone", nil, remembered, all},
		{"the targets have other names", []v1alpha1.Target{elsewhere, other}, remembered, all},
		{"the target is literal now", []v1alpha1.Target{nowLiteral}, remembered, all},
		{"after a restart", []v1alpha1.Target{srvTarget}, nil, all[2:]},
		{"planned without a name", []v1alpha1.Target{poolTarget}, []NamedAddr{{Addr: addr(".1")}}, nil},
		{"not in the previous plan", []v1alpha1.Target{poolTarget}, remembered[1:], all[1:]},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for range 2 { // each plan hands the names to the next
				in := inputWithDrain(standing(endpoints...), tt.targets...)
				in.Permit, in.NamedAddrs = permitExampleCom, tt.named
				c := buildCandidates(in)
				expectEndpoints(t, c.Endpoints, tt.want...)
				tt.named = c.NamedAddrs(nil)
			}
		})
	}
}

// TestDrainEndIsBounded plans an end of draining that a clock ahead of ours has written. It becomes
// drainSeconds from now, and then stays.
func TestDrainEndIsBounded(t *testing.T) {
	in := inputWithDrain(standing(leavingAt("pool", ".1", 24*time.Hour)), poolTarget)
	in.Answers = map[string]Answer{"pool": answer(".3")}
	drain := in.Backend.Spec.EffectiveDrain()
	var until time.Time
	for i := range 3 {
		c := buildCandidates(in)
		p := slices.IndexFunc(c.Endpoints, func(e Endpoint) bool { return e.Addr == addr(".1") })
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

var (
	poolTarget = v1alpha1.Target{Name: "pool", Hostname: "pool.example.com"}
	srvTarget  = v1alpha1.Target{Name: "srv", SRVName: "_http._tcp.example.com"}
)

func literal(name, address string) v1alpha1.Target {
	return v1alpha1.Target{Name: name, Address: addr(address).String()}
}

func withState(t v1alpha1.Target, state v1alpha1.AdminState) v1alpha1.Target {
	t.AdminState = state
	return t
}

func answer(addrs ...string) Answer {
	a := Answer{Status: AnswerCurrent}
	for _, text := range addrs {
		a.Addrs = append(a.Addrs, Addr{IP: addr(text)})
	}
	return a
}

// addr parses an address. ".1" is short for 203.0.113.1.
func addr(text string) netip.Addr {
	if strings.HasPrefix(text, ".") {
		text = "203.0.113" + text
	}
	return netip.MustParseAddr(text)
}

// at is a healthy endpoint.
func at(target, address string) Endpoint {
	return Endpoint{
		Target: target, Addr: addr(address),
		Ports:      []Port{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		Conditions: Conditions{Ready: true, Serving: true, Healthy: true},
	}
}

// leavingAt is an endpoint that drains for some time from now.
func leavingAt(target, address string, left time.Duration) Endpoint {
	e := at(target, address)
	e.DrainUntil, e.Terminating, e.Ready = testNow.Add(left), true, false
	return e
}

// refuse is a policy that says r about one address and allows the others.
func refuse(address string, r Refusal) Permit {
	return func(_ string, a netip.Addr, _ []Port) Refusal {
		if a == addr(address) {
			return r
		}
		return Refusal{}
	}
}

// permitExampleCom is a policy that allows only addresses that a name of example.com led to.
func permitExampleCom(name string, _ netip.Addr, _ []Port) Refusal {
	if strings.HasSuffix(name, ".example.com") {
		return Refusal{}
	}
	return Refusal{Denied: true, Kind: "not allowed"}
}

// inputWithDrain is the input of an ExternalBackend whose addresses drain for ten minutes.
func inputWithDrain(published *endpointslice.PublishedEndpoints, targets ...v1alpha1.Target) Input {
	b := &v1alpha1.ExternalBackend{}
	b.Spec.Ports = []v1alpha1.Port{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}
	b.Spec.Targets, b.Spec.DrainSeconds = targets, new(int32(600))
	return Input{
		Backend: b, Families: Families{IPv4: true}, ServesPort: func(*v1alpha1.Port) bool { return true },
		Permit: func(string, netip.Addr, []Port) Refusal { return Refusal{} }, Published: published, Max: 100, Now: testNow,
	}
}

func expectEndpoints(t *testing.T, endpoints []Endpoint, want ...string) {
	t.Helper()
	var got []string
	for i := range endpoints {
		address := strings.TrimPrefix(endpoints[i].Addr.String(), "203.0.113")
		text := endpoints[i].Target + " " + address
		if endpoints[i].Leaving() {
			text += " leaves"
		}
		got = append(got, text)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("endpoints (-want +got):\n%s", diff)
	}
}

// noteTexts are the notes of the targets, but for their answers.
func noteTexts(b *v1alpha1.ExternalBackend, c *Candidates) (texts []string) {
	for i := range c.Notes {
		n, name := &c.Notes[i], b.Spec.Targets[i].Name
		if n.Denied != "" {
			texts = append(texts, fmt.Sprintf("%s: denied (%s)", name, n.Denied))
		}
		if n.Audited != "" {
			texts = append(texts, fmt.Sprintf("%s: audited (%s)", name, n.Audited))
		}
		if n.Duplicates > 0 {
			texts = append(texts, fmt.Sprintf("%s: %d duplicate of %s", name, n.Duplicates, n.Winner))
		}
		if n.OtherFamily > 0 {
			texts = append(texts, fmt.Sprintf("%s: %d of another family", name, n.OtherFamily))
		}
		if n.Truncated > 0 {
			texts = append(texts, fmt.Sprintf("%s: %d above the limit", name, n.Truncated))
		}
	}
	return texts
}
