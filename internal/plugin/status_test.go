package plugin

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/view"
)

var update = flag.Bool("update", false, "write the golden files again")

// golden compares text with a file of testdata.
func golden(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s (-want +got), -update to accept:\n%s", file, diff)
	}
}

const threeTargets = `
ports: [{name: sql, port: 5432}]
targets:
- {name: blue, address: 192.0.2.1, zone: a}
- {name: green, address: 192.0.2.2, zone: b}
- {name: spare, address: 198.51.100.7, tier: 1}
healthCheck: {tcpSocket: {}}`

const names = `
ports: [{name: http, port: 80}]
targets:
- {name: api, hostname: api.example.com}
- {name: gone, hostname: gone.example.com}
- {name: pool, srvName: _http._tcp.example.com}
healthCheck: {httpGet: {path: /ready}}`

// verdictsOf returns the verdicts of threeTargets.
func verdictsOf(blue, green, spare string) map[string]string {
	return map[string]string{"blue": blue, "green": green, "spare": spare}
}

func allHealthy() map[string]string { return verdictsOf("Healthy", "Healthy", "Healthy") }

// screens returns a world for each golden file.
func screens(t *testing.T) map[string]world {
	night := []eventsv1.Event{
		eventAt(47*time.Minute, corev1.EventTypeWarning, "TierChanged", "Tier 1 is active in place of tier 0."),
		eventAt(26*time.Hour, corev1.EventTypeNormal, "ServiceCreated", "Service \"db\" is created."),
	}
	failing := verdictsOf(v1alpha1.TargetReasonConnectionRefused, v1alpha1.TargetReasonTimeout, "Healthy")
	policy := v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: "databases"}}
	policy.Spec.Mode = v1alpha1.PolicyModeAudit

	return map[string]world{
		"healthy":  {spec: threeTargets, verdicts: allHealthy(), policies: []v1alpha1.ExternalBackendPolicy{policy}},
		"failover": {spec: threeTargets, verdicts: failing, events: night},
		"down":     {spec: threeTargets, verdicts: verdictsOf("Timeout", "Timeout", "Timeout")},
		"starting": {spec: threeTargets},
		"pinned": {spec: threeTargets, verdicts: allHealthy(), overrides: []v1alpha1.ExternalBackendOverride{
			overrideOf(t, "night-shift", "pinnedTier: 1"),
			overrideOf(t, "second", "targets: [{name: blue, adminState: Draining}]"),
		}},
		"draining": {spec: threeTargets, verdicts: allHealthy(), overrides: []v1alpha1.ExternalBackendOverride{
			overrideOf(t, "night-shift", "targets: [{name: blue, adminState: Draining}, {name: spare, adminState: Disabled}]"),
		}},
		"names": {spec: names, verdicts: map[string]string{"api": "Healthy", "pool": "UnexpectedStatus"},
			answers: map[string]plan.Answer{
				"api": {Status: plan.AnswerStale, Reason: v1alpha1.ReasonServingStale, Cause: "SERVFAIL",
					Addrs: []plan.Addr{{IP: addr("192.0.2.10")}, {IP: addr("192.0.2.11")}}},
				"gone": {Status: plan.AnswerFailed, Reason: v1alpha1.TargetReasonNameNotFound, Cause: "NXDOMAIN"},
				"pool": {Status: plan.AnswerCurrent, Addrs: []plan.Addr{
					{IP: addr("192.0.2.20"), Port: 8080}, {IP: addr("192.0.2.21"), Port: 8081, Rank: 1}}},
			}},
		"denied": {spec: threeTargets, verdicts: allHealthy(), denied: map[string]string{"192.0.2.2": "not allowed by any policy"}},
		"conflict": {spec: threeTargets, verdicts: allHealthy(), change: func(s *plan.StatusInput) {
			s.Programmed, s.ProgrammedMessage = v1alpha1.ReasonServiceConflict, "Service \"db\" has a selector."
		}},
	}
}

// viewOf returns what `status` shows. One replica works for everything.
func viewOf(o *view.Objects) *view.Backend {
	b := view.Build(o)
	b.Replica = &view.Replica{Namespace: "external-backend-system"}
	if o.WhyUnread(view.PartLeases) == nil {
		b.Replica.Name = "external-backend-controller-manager-7c9d4b-fm8zt"
	}
	return &b
}

// screenOf returns what `status` prints without colours.
func screenOf(o *view.Objects, all bool) string {
	s := &screen{now: testNow, all: all}
	s.writeBackend(viewOf(o))
	return s.String()
}

// TestStatusScreens compares the screen of each state with its golden file.
func TestStatusScreens(t *testing.T) {
	for name, w := range screens(t) {
		t.Run(name, func(t *testing.T) { golden(t, "status-"+name, screenOf(w.objects(t), false)) })
	}
}

// TestWhatCannotBeReadIsUnknown: a user who may read nothing but ExternalBackends sees what the
// status says, and for all else that it is unknown and which right is missing.
func TestWhatCannotBeReadIsUnknown(t *testing.T) {
	w := screens(t)["pinned"]
	o := w.objects(t)
	blind := &view.Objects{Backend: o.Backend}
	for _, part := range []view.Part{
		view.PartEvents, view.PartNamespace, view.PartOverrides, view.PartPolicies, view.PartService, view.PartSlices,
		view.PartLeases,
	} {
		blind.Unread = append(blind.Unread, view.Unread{Part: part, Right: "list x", Why: "you may not list x"})
	}
	golden(t, "status-blind", screenOf(blind, false))
}

// TestSlicesThatDifferFromStatusAreNamed: slices of somebody else are listed, and a difference
// between our slices and status is said.
func TestSlicesThatDifferFromStatusAreNamed(t *testing.T) {
	w := screens(t)["healthy"]
	o := w.objects(t)
	o.Slices[0].Endpoints = o.Slices[0].Endpoints[:2]
	o.Slices = append(o.Slices, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "db-by-hand", Labels: map[string]string{discoveryv1.LabelServiceName: "db"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"203.0.113.9"}}},
	})
	golden(t, "status-differs", screenOf(o, true))
}

// TestHostileTextIsPrintable: names, messages and events come from others. None of them can control
// the terminal.
func TestHostileTextIsPrintable(t *testing.T) {
	w := screens(t)["failover"]
	o := w.objects(t)
	hostile := "\x1b[2J\x1b]0;owned\x07\r\n\u202e\u009b31m"
	o.Backend.Status.Targets[0].Message = hostile
	o.Backend.Status.Conditions[0].Message = hostile
	o.Events[0].Note = hostile
	o.Service.Spec.ClusterIPs = []string{hostile}
	o.Unread = []view.Unread{{Part: view.PartSiblings, Why: hostile}}

	text := screenOf(o, false)
	for _, r := range "\x1b\x07\r\u202e\u009b" {
		if strings.ContainsRune(text, r) {
			t.Errorf("the screen has the character %U", r)
		}
	}
	if strings.Contains(text, "owned\n") {
		t.Error("a text of others begins a new line")
	}
}

// TestColoursOnlyOnTerminals: a screen without colours is the same text without its styles.
func TestColoursOnlyOnTerminals(t *testing.T) {
	if hasColours(&bytes.Buffer{}) {
		t.Error("a buffer has colours")
	}
	w := screens(t)["failover"]
	coloured := &screen{now: testNow, colours: true}
	coloured.writeBackend(viewOf(w.objects(t)))
	text := coloured.String()
	if !strings.Contains(text, "\x1b[31m") {
		t.Error("nothing is red")
	}
	for _, look := range []style{bold, faint, bad, good, warn} {
		text = strings.ReplaceAll(text, "\x1b["+string(look)+"m", "")
	}
	if diff := cmp.Diff(screenOf(w.objects(t), false), strings.ReplaceAll(text, "\x1b[0m", "")); diff != "" {
		t.Error(diff)
	}
}

// manyTargets returns what was read about an ExternalBackend with a thousand targets, some of which
// are unhealthy.
func manyTargets(t testing.TB) *view.Objects {
	var spec strings.Builder
	spec.WriteString("ports: [{port: 80}]\nhealthCheck: {tcpSocket: {}}\ntargets:\n")
	w := world{verdicts: map[string]string{}}
	for i := range 1000 {
		fmt.Fprintf(&spec, "- {name: t%04d, address: 10.1.%d.%d}\n", i, i/250, i%250+1)
		w.verdicts[fmt.Sprintf("t%04d", i)] = []string{"Healthy", "Timeout"}[boolToInt(i%10 == 3)]
	}
	w.spec = spec.String()
	return w.objects(t)
}

func boolToInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// TestTargetsThatStatusOmitsComeFromSlices: status lists 64 targets. The others are shown as the
// slices show them, the unhealthy ones first.
func TestTargetsThatStatusOmitsComeFromSlices(t *testing.T) {
	b := view.Build(manyTargets(t))
	if len(b.Targets) != 1000 {
		t.Fatalf("%d targets", len(b.Targets))
	}
	for i, target := range b.Targets {
		want := v1alpha1.TargetStateHealthy
		if i < 100 {
			want = v1alpha1.TargetStateUnhealthy
		}
		if target.State != want || target.Omitted != (i >= v1alpha1.MaxStatusTargets) || target.Total != 1 {
			t.Fatalf("target %d: %+v", i, target)
		}
	}
}

// BenchmarkStatusOfThousandTargets measures the pure part of `status`.
func BenchmarkStatusOfThousandTargets(b *testing.B) {
	o := manyTargets(b)
	for b.Loop() {
		screenOf(o, false)
	}
}

// TestGuideShowsRealScreens: the output that the guide shows is that of the golden files.
func TestGuideShowsRealScreens(t *testing.T) {
	guide, err := os.ReadFile(filepath.Join("..", "..", "docs", "plugin.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"status-failover", "preview-pin"} {
		screen, err := os.ReadFile(filepath.Join("testdata", name+".golden"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(guide), string(screen)) {
			t.Errorf("docs/plugin.md does not have testdata/%s.golden", name)
		}
	}
}
