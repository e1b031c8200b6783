package plan

import (
	"bytes"
	"encoding/json"
	"flag"

	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// scenario is the story of one ExternalBackend: what is published after a step is what the next one
// finds.
type scenario struct {
	Steps []scenarioStep `json:"steps"`
}

// scenarioStep is what happens to it before the next plan.
type scenarioStep struct {
	Name string `json:"name"`
	// Spec is merged into the spec (RFC 7386).
	Spec json.RawMessage `json:"spec"`
	// Answers replace those of the targets they name.
	Answers map[string]Answer `json:"answers"`
	// Verdicts, by "target@address", replace those of the endpoints they name: Healthy, or a reason of
	// being unhealthy.
	Verdicts map[string]string `json:"verdicts"`
	// Denied are the addresses that policy refuses from now on, by kind.
	Denied map[string]string `json:"denied"`
	// Families are those that the Service has from now on.
	Families []corev1.IPFamily `json:"families"`
	// After is how much time passes.
	After metav1.Duration `json:"after"`
	// Restart loses all that is held in memory, the engines' verdicts and answers among it.
	Restart bool `json:"restart"`
	// Annotation is what somebody has put in place of ours on every slice.
	Annotation *string `json:"annotation"`
	// Max is --max-endpoints-per-backend from now on.
	Max int `json:"max"`
}

var update = flag.Bool("update", false, "write the golden files anew")

// world is the state that a scenario goes through.
type world struct {
	backend  *v1alpha1.ExternalBackend
	service  *corev1.Service
	slices   map[string]*discoveryv1.EndpointSlice
	answers  map[string]Answer
	verdicts map[string]string
	denied   map[string]string
	rules    int // the generation of denied
	families []corev1.IPFamily
	max      int
	now      time.Time
	tier     *TierState
	cache    Cache
	probes   []Probe
	named    []NamedAddr
	engine   map[ProbeID]ProbeState
	status   v1alpha1.ExternalBackendStatus
	known    TargetMemory
	out      bytes.Buffer
}

func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/scenarios/*.in.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".in.yaml"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var s scenario
			if err := yaml.UnmarshalStrict(text, &s); err != nil {
				t.Fatal(err)
			}
			golden := strings.TrimSuffix(file, ".in.yaml") + ".out.txt"
			got := runScenario(t, s)
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("%s (-want +got), -update to accept:\n%s", golden, diff)
			}
		})
	}
}

func runScenario(t *testing.T, s scenario) string {
	w := &world{
		backend: &v1alpha1.ExternalBackend{
			ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: "default", UID: "uid-of-shop"},
		},
		slices: map[string]*discoveryv1.EndpointSlice{}, answers: map[string]Answer{},
		verdicts: map[string]string{}, denied: map[string]string{},
		families: []corev1.IPFamily{corev1.IPv4Protocol}, max: 10000, now: testNow,
	}
	for _, step := range s.Steps {
		w.take(t, step)
		w.plan(t)
	}
	return w.out.String()
}

func (w *world) take(t *testing.T, s scenarioStep) {
	fmt.Fprintf(&w.out, "## %s\n", s.Name)
	if len(s.Spec) > 0 {
		before, _ := json.Marshal(w.backend.Spec)
		after, err := jsonpatch.MergePatch(before, s.Spec)
		if err != nil {
			t.Fatal(err)
		}
		w.backend.Spec = v1alpha1.ExternalBackendSpec{}
		if err := yaml.UnmarshalStrict(after, &w.backend.Spec); err != nil {
			t.Fatal(err)
		}
		w.backend.Generation++
	}
	w.now = w.now.Add(s.After.Duration)
	if s.Restart {
		w.restart()
	}
	if s.Annotation != nil {
		for name, slice := range w.slices {
			slice = slice.DeepCopy()
			slice.Annotations[annotationEndpoints] = *s.Annotation
			w.slices[name] = slice
		}
	}
	maps.Copy(w.answers, s.Answers)
	maps.Copy(w.verdicts, s.Verdicts)
	if s.Denied != nil {
		w.denied = s.Denied
		w.rules++
	}
	if s.Families != nil {
		w.families = s.Families
	}
	if s.Max > 0 {
		w.max = s.Max
	}
}

func (w *world) restart() {
	w.tier, w.cache, w.probes, w.named, w.engine = nil, Cache{}, nil, nil, nil
	w.verdicts, w.answers = map[string]string{}, map[string]Answer{}
}

// plan goes the way that the controller goes. It returns what had to be written.
func (w *world) plan(t *testing.T) (changes endpointslice.Changes) {
	if invalid := Validate(w.backend, w.service); invalid != "" {
		w.report(StatusInput{Invalid: invalid})
		return changes
	}
	w.planService(t)
	existing := w.list()
	published := endpointslice.Published(existing)
	before := w.backend.DeepCopy()
	c := w.cache.Candidates(Input{
		Backend: w.backend, Families: FamiliesOf(w.service), Headless: Headless(w.service),
		ServesPort: func(p *v1alpha1.Port) bool { return ServesPort(w.service, p) },
		Answers:    maps.Clone(w.answers), Permit: w.permit, Rules: w.rules, Published: published, Status: w.status,
		Probes: w.probes, NamedAddrs: w.named, Max: w.max, Now: w.now,
	}, endpointslice.Template{
		Namespace: "default", Service: w.service.Name, Backend: "shop", Headless: Headless(w.service),
		ZoneHints: w.service.Spec.TrafficDistribution != nil, Max: 100,
	})
	w.probes, _ = c.Probes(w.probes)
	w.named = c.NamedAddrs(w.named)
	p := Publish(
		PublishInput{
			Backend:         w.backend,
			Published:       published,
			State:           w.states(),
			Tier:            w.tier,
			PublishNotReady: w.service.Spec.PublishNotReadyAddresses,
			Now:             w.now,
		},
		&c,
	)
	w.tier = &p.Tier
	changes = w.cache.Slices(&c, p.Conditions)
	for _, s := range slices.Concat(changes.Create, changes.Update) {
		w.slices[s.Name] = s
	}
	for _, s := range changes.Delete {
		delete(w.slices, s.Name)
	}
	if diff := cmp.Diff(before, w.backend); diff != "" {
		t.Errorf("planning changed its input:\n%s", diff)
	}
	w.report(
		StatusInput{References: &References{}, Programmed: v1alpha1.ReasonProgrammed, Candidates: &c, Publication: &p},
	)
	fmt.Fprintf(&w.out, "slices %s\n", verbs(changes))
	if !p.Next.IsZero() {
		fmt.Fprintf(&w.out, "next look in %s\n", p.Next.Sub(w.now))
	}
	return changes
}

// planService writes the Service as often as the plan wants, playing the API server's part.
func (w *world) planService(t *testing.T) {
	for range 4 {
		p := Service(w.backend, w.service, false)
		if p.Write == nil {
			return
		}
		w.service = p.Write
		w.service.UID = cmpOr(w.service.UID, "uid-of-service")
		if w.service.Spec.Type != corev1.ServiceTypeExternalName {
			w.service.Spec.IPFamilies = w.families
			if w.service.Spec.ClusterIP == "" {
				w.service.Spec.ClusterIP = "10.96.0.10"
			}
		}
	}
	if p := Service(w.backend, w.service, false); p.Write != nil {
		t.Errorf("the Service does not settle:\n%s", cmp.Diff(w.service, p.Write))
	}
}

func cmpOr(a, b types.UID) types.UID {
	if a != "" {
		return a
	}
	return b
}

func (w *world) permit(_ string, addr netip.Addr, _ []Port) Refusal {
	kind := w.denied[addr.String()]
	return Refusal{Denied: kind != "", Kind: kind}
}

// states plays the probing engine: a seed is the verdict of an endpoint that it has not seen
// before.
func (w *world) states() func(int) ProbeState {
	out := map[ProbeID]ProbeState{}
	for _, p := range w.probes {
		id := p.ID
		state, known := w.engine[id]
		if !known {
			state.Verdict = p.InitialVerdict
		}
		switch v := w.verdicts[fmt.Sprintf("%s@%s", id.Target, id.Addr)]; v {
		case "":
		case "Healthy":
			state = ProbeState{Verdict: Healthy}
		default:
			state = ProbeState{Verdict: Unhealthy, Reason: v}
		}
		out[id] = state
	}
	w.engine = out
	return func(i int) ProbeState { return out[w.probes[i].ID] }
}

func (w *world) list() []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, s := range w.slices {
		out = append(out, s)
	}
	return out
}

// report prints what stands and what users read, and hands status on.
func (w *world) report(in StatusInput) {
	in.Backend, in.Previous, in.TargetMemory, in.Now = w.backend, w.status, w.known, w.now
	report := Status(in)
	w.status, w.known = report.Status, report.TargetMemory
	fmt.Fprintf(&w.out, "Service %s %s %v\n", w.status.ServiceType, w.service.Spec.ClusterIP, w.service.Spec.IPFamilies)
	published := endpointslice.Published(w.list()).Endpoints()
	slices.SortFunc(published, func(a, b Endpoint) int {
		return strings.Compare(a.Addr.String()+portText(a.Ports), b.Addr.String()+portText(b.Ports))
	})
	for _, e := range published {
		flags := ""
		for _, f := range []struct {
			set  bool
			text string
		}{{e.Ready, " ready"}, {e.Serving, " serving"}, {e.Terminating, " terminating"}} {
			if f.set {
				flags += f.text
			}
		}
		fmt.Fprintf(&w.out, "  %s %s %s:%s", e.Target, e.Addr, portText(e.Ports), flags)
		if !e.DrainUntil.IsZero() {
			fmt.Fprintf(&w.out, " (leaves in %s)", e.DrainUntil.Sub(w.now))
		}
		if e.Hostname != "" {
			fmt.Fprintf(&w.out, " hostname=%s", e.Hostname)
		}
		w.out.WriteByte('\n')
	}
	s := w.status
	if s.Endpoints != nil {
		fmt.Fprintf(
			&w.out,
			"ready %s, healthy %d, unhealthy %d",
			s.Endpoints.ReadyOfTotal,
			s.Endpoints.Healthy,
			s.Endpoints.Unhealthy,
		)
		if s.ActiveTier != nil {
			fmt.Fprintf(&w.out, ", tier %d", *s.ActiveTier)
		}
		w.out.WriteByte('\n')
	}
	for _, t := range s.Targets {
		fmt.Fprintf(
			&w.out,
			"  %s: %s, health %s, tier %d, %d of %d ready, since %s %v\n",
			t.Name,
			t.State,
			orDash(t.Health),
			t.Tier,
			t.Endpoints.Ready,
			t.Endpoints.Total,
			t.LastTransitionTime.UTC().Format("15:04:05"),
			t.Addresses,
		)
		if t.Reason != "" {
			fmt.Fprintf(&w.out, "    %s: %s\n", t.Reason, t.Message)
		}
	}
	for _, c := range s.Conditions {
		if c.Status != metav1.ConditionTrue || c.Type == v1alpha1.ConditionReady || c.Reason != c.Type {
			fmt.Fprintf(&w.out, "%s=%s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
}

func portText(ports []Port) string {
	var out []string
	for _, p := range ports {
		out = append(out, fmt.Sprintf("%s=%d/%s", p.Name, p.Port, p.Protocol))
	}
	return strings.Join(out, ",")
}

func orDash(h v1alpha1.TargetHealth) v1alpha1.TargetHealth {
	if h == "" {
		return "-"
	}
	return h
}
