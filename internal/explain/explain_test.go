package explain

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
)

var update = flag.Bool("update", false, "write the golden files again")

const (
	oneTarget = `
ports: [{port: 5432}]
targets: [{name: a, address: 192.0.2.1}]
healthCheck: {tcpSocket: {}}`
	twoTargets = `
ports: [{port: 5432}]
targets: [{name: a, address: 192.0.2.1}, {name: b, address: 192.0.2.2}]
healthCheck: {tcpSocket: {}}`
	twoTiers = `
ports: [{port: 5432}]
targets: [{name: a, address: 192.0.2.1}, {name: b, address: 192.0.2.2, tier: 1}]
healthCheck: {tcpSocket: {}}`
	oneName = `
ports: [{port: 5432}]
targets: [{name: a, hostname: a.example.com}]`
	bothHealthy = "Healthy"
)

// a state is one row of the table: what is explained, and where the chain names the word.
type state struct {
	world world
	what  string
	// link names the word. cause reports whether it is the first "no" of an endpoint without traffic.
	link  string
	cause bool
}

// allHealthy are the verdicts of both targets.
func allHealthy() map[string]string { return map[string]string{"a": bothHealthy, "b": bothHealthy} }

// states returns a state for each word of the API that says why.
func states(t *testing.T) map[string]state {
	programmed := func(reason string) func(*plan.StatusInput) {
		return func(s *plan.StatusInput) { s.Programmed, s.ProgrammedMessage = reason, "It can't be." }
	}
	answer := func(status plan.AnswerStatus, reason string) map[string]plan.Answer {
		return map[string]plan.Answer{"a": {Status: status, Reason: reason, Cause: "SERVFAIL"}}
	}
	references := func(reason string) func(*plan.StatusInput) {
		return func(s *plan.StatusInput) {
			s.References = &plan.References{Reason: reason, Message: "spec.healthCheck.tls.clientCertificateRef: Secret"}
		}
	}
	healthy, unresolved := map[string]string{"a": bothHealthy}, answer(plan.AnswerFailed, v1alpha1.ReasonResolutionFailed)
	override := func(spec string) []v1alpha1.ExternalBackendOverride {
		return []v1alpha1.ExternalBackendOverride{overrideOf(t, "night-shift", spec)}
	}
	out := map[string]state{
		v1alpha1.ReasonPending: {world: world{spec: oneTarget}, link: LinkVerdict, cause: true},
		v1alpha1.ReasonInvalidSpec: {world: world{spec: oneTarget, withdrawn: true, change: func(s *plan.StatusInput) {
			*s = plan.StatusInput{Backend: s.Backend, Invalid: "spec.targets: is wrong", Now: s.Now}
		}}, link: LinkSpec, cause: true},
		v1alpha1.ReasonRefNotFound: {world: world{spec: oneTarget, change: references(v1alpha1.ReasonRefNotFound)},
			link: LinkVerdict, cause: true},
		v1alpha1.ReasonRefNotPermitted: {world: world{spec: oneTarget, change: references(v1alpha1.ReasonRefNotPermitted)},
			link: LinkVerdict, cause: true},
		v1alpha1.ReasonInvalidRef: {world: world{spec: oneTarget, change: references(v1alpha1.ReasonInvalidRef)},
			link: LinkVerdict, cause: true},
		v1alpha1.ReasonTargetDenied: {world: world{spec: oneTarget, denied: map[string]string{"192.0.2.1": "not allowed"}},
			link: LinkPolicy, cause: true},
		v1alpha1.ReasonWouldDeny: {world: world{spec: oneTarget, verdicts: healthy, audited: true,
			denied: map[string]string{"192.0.2.1": "not allowed"}}, link: LinkPolicy},
		v1alpha1.ReasonResolutionFailed: {world: world{spec: oneName, answers: unresolved}, link: LinkName, cause: true},
		v1alpha1.TargetReasonNameNotFound: {world: world{spec: oneName,
			answers: answer(plan.AnswerFailed, v1alpha1.TargetReasonNameNotFound)}, link: LinkName, cause: true},
		v1alpha1.ReasonServingStale: {world: world{spec: oneName, answers: map[string]plan.Answer{"a": {
			Status: plan.AnswerStale, Reason: v1alpha1.ReasonServingStale, Cause: "timeout", Addrs: addrs("192.0.2.1"),
		}}}, link: LinkName},
		v1alpha1.ReasonServiceConflict: {world: world{spec: oneTarget, withdrawn: true,
			change: programmed(v1alpha1.ReasonServiceConflict)}, link: LinkSlice, cause: true},
		v1alpha1.ReasonServiceNotFound: {world: world{spec: oneTarget, verdicts: healthy, withdrawn: true, noService: true,
			change: programmed(v1alpha1.ReasonServiceNotFound)}, link: LinkSlice, cause: true},
		v1alpha1.ReasonPortMismatch: {world: world{spec: oneTarget, withdrawn: true,
			change: programmed(v1alpha1.ReasonPortMismatch)}, link: LinkSlice, cause: true},
		v1alpha1.ReasonApplyFailed: {world: world{spec: oneTarget, withdrawn: true,
			change: programmed(v1alpha1.ReasonApplyFailed)}, link: LinkSlice, cause: true},
		v1alpha1.ReasonNotProbed: {world: world{spec: oneName,
			answers: map[string]plan.Answer{"a": {Status: plan.AnswerCurrent, Addrs: addrs("192.0.2.1")}}}, link: LinkVerdict},
		v1alpha1.ReasonNoEndpoints: {world: world{spec: oneName + "\nhealthCheck: {tcpSocket: {}}", answers: unresolved},
			link: LinkVerdict},
		v1alpha1.ReasonSomeUnhealthy: {world: world{spec: twoTargets,
			verdicts: map[string]string{"a": "Healthy", "b": "Timeout"}}, link: LinkVerdict, cause: true},
		v1alpha1.ReasonAllUnhealthy: {world: world{spec: oneTarget, verdicts: map[string]string{"a": "Timeout"}},
			link: LinkVerdict, cause: true},
		v1alpha1.ReasonDraining: {world: world{verdicts: allHealthy(), spec: `
ports: [{port: 5432}]
targets: [{name: a, address: 192.0.2.1, adminState: Draining}, {name: b, address: 192.0.2.2}]
healthCheck: {tcpSocket: {}}`}, what: "a", link: LinkSpec, cause: true},
		v1alpha1.ReasonNoReadyEndpoints: {world: world{spec: oneTarget}, link: LinkKubeProxy},
		v1alpha1.TargetReasonDuplicateAddress: {world: world{spec: oneTarget,
			sibling: []endpointslice.Endpoint{endpointAt("192.0.2.1")}}, link: LinkDuplicate, cause: true},
		v1alpha1.TargetReasonFamilyNotServed: {world: world{spec: `
ports: [{port: 5432}]
targets: [{name: a, address: "2001:db8::1"}]`}, link: LinkFamily, cause: true},
		v1alpha1.TargetReasonTruncated: {world: world{spec: twoTargets, verdicts: allHealthy(), max: 1}, what: "b",
			link: LinkLimit, cause: true},

		v1alpha1.ReasonApplied: {world: world{spec: twoTargets, verdicts: allHealthy(),
			overrides: override("targets: [{name: a, adminState: Draining}]")}, what: "a", link: LinkOverride, cause: true},
		v1alpha1.ReasonTargetNotFound: {world: world{spec: oneTarget, verdicts: healthy,
			overrides: override("targets: [{name: z, adminState: Draining}]")}, link: LinkOverride},
		v1alpha1.ReasonTierNotFound: {world: world{spec: oneTarget, verdicts: healthy, overrides: override("pinnedTier: 9")},
			link: LinkOverride},
		v1alpha1.ReasonExpired: {world: world{spec: oneTarget, verdicts: healthy,
			overrides: override("{pinnedTier: 0, expirationTime: 2026-11-23T02:30:00Z}")}, link: LinkOverride},
		v1alpha1.ReasonSuperseded: {world: world{spec: oneTarget, verdicts: healthy,
			overrides: slices.Concat(override("pinnedTier: 0"), override("pinnedTier: 0"))}, link: LinkOverride},
	}
	for _, word := range goodWords {
		out[word] = state{world: world{spec: oneTarget, verdicts: healthy}, link: goodLinks[word]}
	}
	for _, word := range words(t, "TargetReason") {
		if _, ok := out[word]; !ok { // what a probe sees
			verdicts := map[string]string{"a": word}
			out[word] = state{world: world{spec: oneTarget, verdicts: verdicts}, link: LinkVerdict, cause: true}
		}
	}
	return out
}

// goodLinks are the words of conditions that are True if nothing is wrong, and their links.
var goodLinks = map[string]string{
	v1alpha1.ReasonAccepted: LinkSpec, v1alpha1.ReasonPermitted: LinkPolicy, v1alpha1.ReasonProgrammed: LinkSlice,
	v1alpha1.ReasonHealthy: LinkVerdict, v1alpha1.ReasonReady: LinkKubeProxy,
}

var goodWords = slices.Collect(maps.Keys(goodLinks))

// unexplained are the words that no chain needs: two of conditions that are True, and one of an
// override whose ExternalBackend does not exist, so that there is nothing to explain.
var unexplained = []string{
	v1alpha1.ReasonResolvedRefs, v1alpha1.ReasonNamesResolved, v1alpha1.ReasonBackendNotFound,
}

func addrs(list ...string) []plan.Addr {
	var out []plan.Addr
	for _, a := range list {
		out = append(out, plan.Addr{IP: endpointAt(a).Addr})
	}
	return out
}

// words returns the values of the constants of the API with a prefix, as its source has them.
func words(t *testing.T, prefix string) []string {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../api/v1alpha1/words.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if ok && strings.HasPrefix(spec.Names[0].Name, prefix) {
			value, err := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, value)
		}
		return true
	})
	return out
}

// TestEveryReasonIsExplained walks the words of the API. For each there is a state in which the
// right link names it; where the endpoint gets no traffic because of it, that link is the first
// "no".
func TestEveryReasonIsExplained(t *testing.T) {
	all := states(t)
	known := slices.Concat(words(t, "Reason"), words(t, "TargetReason"))
	if len(known) < 40 {
		t.Fatalf("only %d words were found", len(known))
	}
	for _, word := range known {
		if slices.Contains(unexplained, word) {
			continue
		}
		s, ok := all[word]
		if !ok {
			t.Errorf("%s has no state in this test: how does a chain explain it?", word)
			continue
		}
		t.Run(word, func(t *testing.T) { s.check(t, word) })
	}
}

func (s state) check(t *testing.T, word string) {
	chain, err := Explain(s.world.input(t), s.what)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(chain.Links, func(l Link) bool { return l.ID == s.link })
	l := &chain.Links[i]
	if l.Reason != word && !strings.Contains(strings.Join(l.Evidence, "\n"), "("+word+")") {
		t.Errorf("link %s does not name %s:\n%s", s.link, word, chain.Text())
	}
	if s.cause && chain.Cause != i {
		t.Errorf("link %s is not the cause:\n%s", s.link, chain.Text())
	}
	if s.cause && l.Hint == "" {
		t.Errorf("there is no hint:\n%s", chain.Text())
	}
	if !s.cause && chain.Cause == i && chain.GetsTraffic == No {
		t.Errorf("link %s is the cause, and the table says that it is not:\n%s", s.link, chain.Text())
	}
}

// TestChainsMatchGoldenFiles shows whole chains as a terminal does.
func TestChainsMatchGoldenFiles(t *testing.T) {
	pin := []v1alpha1.ExternalBackendOverride{overrideOf(t, "night-shift", "pinnedTier: 1")}
	drain := []v1alpha1.ExternalBackendOverride{overrideOf(t, "night-shift", "targets: [{name: a, adminState: Draining}]")}
	for name, s := range map[string]state{
		"healthy":   {world: world{spec: twoTargets, verdicts: allHealthy()}, what: "192.0.2.2"},
		"refused":   {world: world{spec: twoTargets, verdicts: map[string]string{"a": "Healthy", "b": "ConnectionRefused"}}},
		"standby":   {world: world{spec: twoTiers, verdicts: allHealthy()}, what: "b"},
		"pinned":    {world: world{spec: twoTiers, verdicts: allHealthy(), overrides: pin}, what: "a"},
		"drained":   {world: world{spec: twoTiers, verdicts: allHealthy(), overrides: drain}, what: "a"},
		"denied":    {world: world{spec: oneTarget, denied: map[string]string{"192.0.2.1": "not allowed by any policy"}}},
		"duplicate": {world: world{spec: oneTarget, sibling: []endpointslice.Endpoint{endpointAt("192.0.2.1")}}},
		"left":      {world: world{before: twoTargets, verdicts: allHealthy(), spec: oneTarget + "\ndrainSeconds: 60"}, what: "192.0.2.2"},
		"last-resort": {world: world{verdicts: allHealthy(), spec: `
ports: [{port: 5432}]
targets: [{name: a, address: 192.0.2.1, adminState: Draining}]
healthCheck: {tcpSocket: {}}`}},
		"fail-open": {world: world{verdicts: map[string]string{"a": "Timeout"},
			spec: oneTarget + "\nfailover: {whenNoTierQualifies: AllEndpoints}"}},
		"headless": {world: world{spec: oneTarget + "\nservice: {type: Headless}", verdicts: allHealthy()}},
		"alias": {world: world{spec: `
ports: [{port: 5432}]
service: {type: ExternalName}
targets: [{name: a, hostname: a.example.com}]`}},
		"unseen": {world: world{spec: oneTarget, unseen: true}},
	} {
		t.Run(name, func(t *testing.T) {
			chain, err := Explain(s.world.input(t), s.what)
			if err != nil {
				t.Fatal(err)
			}
			compareWithFile(t, chain.Text(), filepath.Join("testdata", name+".golden"))
		})
	}
}

// TestLateStatusIsNotTakenForHealth explains an endpoint that has just become unhealthy. Slices say
// so at once, and status says it later.
func TestLateStatusIsNotTakenForHealth(t *testing.T) {
	before := world{spec: twoTargets, verdicts: allHealthy()}
	now := world{spec: twoTargets, verdicts: map[string]string{"a": "Healthy", "b": "Timeout"}}
	in := now.input(t)
	in.Backend.Status = before.input(t).Backend.Status
	chain, err := Explain(in, "b")
	if err != nil {
		t.Fatal(err)
	}
	if chain.Cause < 0 || chain.Links[chain.Cause].ID != LinkVerdict ||
		!strings.HasPrefix(chain.Links[chain.Cause].Evidence[0], "It is unhealthy: its slice says so.") {
		t.Errorf("the cause is not the verdict of the slice:\n%s", chain.Text())
	}
}

// TestUnknownIsSaid explains an ExternalBackend to somebody who may read nothing else. What is not
// known is unknown, and no link guesses.
func TestUnknownIsSaid(t *testing.T) {
	w := world{spec: oneTarget, verdicts: allHealthy()}
	in := w.input(t)
	in.Service, in.Slices, in.Policies = nil, nil, nil
	in.ServiceUnread, in.SlicesUnread = "you may not get services", "you may not list endpointslices"
	in.PoliciesUnread = "you may not list externalbackendpolicies"
	chain, err := Explain(in, "a")
	if err != nil {
		t.Fatal(err)
	}
	if chain.GetsTraffic != Unknown || chain.Cause != -1 {
		t.Errorf("GetsTraffic is %s, cause %d", chain.GetsTraffic, chain.Cause)
	}
	compareWithFile(t, chain.Text(), "testdata/unreadable.golden")
}

// TestOverrideIsTheCause explains a target that an override takes out of traffic, also to somebody
// who may not read overrides: status gives it away. That another tier is then active is no cause.
func TestOverrideIsTheCause(t *testing.T) {
	for _, spec := range []string{twoTargets, twoTiers} { // without target a, tier 1 becomes active
		for _, state := range []string{"Disabled", "Draining"} {
			w := world{spec: spec, verdicts: allHealthy(), overrides: []v1alpha1.ExternalBackendOverride{
				overrideOf(t, "night-shift", "targets: [{name: a, adminState: "+state+"}]")}}
			in := w.input(t)
			for _, unread := range []string{"", "you may not list externalbackendoverrides"} {
				if unread != "" {
					in.Overrides, in.OverridesUnread = nil, unread
				}
				chain, err := Explain(in, "a")
				if err != nil {
					t.Fatal(err)
				}
				if chain.Cause < 0 || chain.Links[chain.Cause].ID != LinkOverride || chain.Links[chain.Cause].Reason != state {
					t.Error(chain.Text())
				}
			}
		}
	}
}

// TestRuleIsNamed finds the policy and the rule that allow an endpoint.
func TestRuleIsNamed(t *testing.T) {
	policy := v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: "databases"}}
	policy.Spec.NamespaceSelector = metav1.LabelSelector{}
	policy.Spec.Allow = []v1alpha1.PolicyRule{{CIDRs: []string{"198.51.100.0/24"}}, {CIDRs: []string{"192.0.2.0/24"}}}
	w := world{spec: oneTarget, verdicts: allHealthy(), policies: []v1alpha1.ExternalBackendPolicy{policy}}
	chain, err := Explain(w.input(t), "a")
	if err != nil {
		t.Fatal(err)
	}
	evidence := strings.Join(chain.Links[2].Evidence, "\n")
	if want := `It goes by spec.allow[1] of ExternalBackendPolicy "databases".`; !strings.Contains(evidence, want) {
		t.Errorf("evidence is %q, want %q in it", evidence, want)
	}
}

// TestUnknownTargetIsAnError names the targets that there are.
func TestUnknownTargetIsAnError(t *testing.T) {
	w := world{spec: twoTargets}
	for what, want := range map[string]string{"c": "its targets are a, b", "192.0.2.9": "has the address 192.0.2.9"} {
		_, err := Explain(w.input(t), what)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("explain %s: error is %v, want %q in it", what, err, want)
		}
	}
}

// TestTerminalIsNotSteered prints no control character of a message.
func TestTerminalIsNotSteered(t *testing.T) {
	l := Link{Title: "x", Answer: No, Evidence: []string{"red \x1b[31m\n> no  forged"}}
	var out strings.Builder
	l.write(&out, true)
	if text := out.String(); strings.Contains(text, "\x1b") || strings.Count(text, "\n") != 2 {
		t.Errorf("printed %q", text)
	}
}

// compareWithFile compares got with a golden file, or writes it with -update.
func compareWithFile(t *testing.T, got, golden string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("%s (-want +got), -update rewrites it:\n%s", golden, diff)
	}
}
