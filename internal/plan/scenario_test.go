package plan

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	jsonpatch "github.com/evanphx/json-patch/v5"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files again")

// scenario is a sequence of changes to one ExternalBackend. What a step publishes is what the next
// one finds.
type scenario struct {
	Steps []scenarioStep `json:"steps"`
}

// scenarioStep is what changes before the next plan.
type scenarioStep struct {
	Name string `json:"name"`
	// Spec is merged into the spec (RFC 7386).
	Spec json.RawMessage `json:"spec"`
	// Service replaces the live Service, as somebody else would write it.
	Service *corev1.Service `json:"service"`
	// Foreign are the endpoints that somebody else publishes behind the Service from now on.
	Foreign []scenarioEndpoint `json:"foreign"`
	// Older and Younger are what an older and a younger sibling publish from now on.
	Older   []scenarioEndpoint `json:"older"`
	Younger []scenarioEndpoint `json:"younger"`
	// Answers replace those of the targets that they name.
	Answers map[string]Answer `json:"answers"`
	// Verdicts replace those of the endpoints that they name, as "target@address". Each is Healthy, or
	// a reason for being unhealthy.
	Verdicts map[string]string `json:"verdicts"`
	// Denied are the addresses that policy refuses from now on, by kind.
	Denied map[string]string `json:"denied"`
	// Families are those that the Service has from now on.
	Families []corev1.IPFamily `json:"families"`
	// After is how much time passes.
	After metav1.Duration `json:"after"`
	// Restart clears the memory of the manager, with the verdicts and answers of the engines.
	Restart bool `json:"restart"`
	// Annotation replaces ours on every slice, as somebody else would write it.
	Annotation *string `json:"annotation"`
	// Max is --max-endpoints-per-backend from now on.
	Max int `json:"max"`
}

// scenarioEndpoint is a ready endpoint for the first port of the spec. Draining ones leave a minute
// later.
type scenarioEndpoint struct {
	Address  string `json:"address"`
	Draining bool   `json:"draining"`
}

// TestScenarios plays the scenarios in testdata, and compares what is published and what users read
// after each step with golden files.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/scenarios/*.in.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(file, ".in.yaml")
		t.Run(filepath.Base(name), func(t *testing.T) { playScenario(t, file, name+".out.txt") })
	}
}

func playScenario(t *testing.T, file, golden string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var s scenario
	if err := yaml.UnmarshalStrict(text, &s); err != nil {
		t.Fatal(err)
	}

	sim := newSimulation()
	for _, step := range s.Steps {
		sim.take(t, step)
		sim.plan(t)
	}
	got := sim.out.String()
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
}

func (s *simulation) take(t *testing.T, step scenarioStep) {
	fmt.Fprintf(&s.out, "## %s\n", step.Name)
	if len(step.Spec) > 0 {
		s.mergeSpec(t, step.Spec)
	}
	s.now = s.now.Add(step.After.Duration)
	if step.Restart {
		s.restart()
	}
	if step.Annotation != nil {
		for name, slice := range s.slices {
			slice = slice.DeepCopy()
			slice.Annotations[annotationEndpoints] = *step.Annotation
			s.slices[name] = slice
		}
	}
	if step.Service != nil {
		s.service = step.Service
	}
	maps.Copy(s.answers, step.Answers)
	maps.Copy(s.verdicts, step.Verdicts)
	if step.Denied != nil {
		s.denied = step.Denied
		s.rules++
	}
	if step.Families != nil {
		s.families = step.Families
	}
	if step.Max > 0 {
		s.max = step.Max
	}
	for to, from := range map[*[]Endpoint][]scenarioEndpoint{
		&s.foreign: step.Foreign, &s.older: step.Older, &s.younger: step.Younger,
	} {
		if from != nil {
			*to = s.endpoints(from)
		}
	}
}

func (s *simulation) mergeSpec(t *testing.T, patch json.RawMessage) {
	before, _ := json.Marshal(s.backend.Spec)
	after, err := jsonpatch.MergePatch(before, patch)
	if err != nil {
		t.Fatal(err)
	}
	s.backend.Spec = v1alpha1.ExternalBackendSpec{}
	if err := yaml.UnmarshalStrict(after, &s.backend.Spec); err != nil {
		t.Fatal(err)
	}
	s.backend.Generation++
}

func (s *simulation) endpoints(list []scenarioEndpoint) []Endpoint {
	p := &s.backend.Spec.Ports[0]
	ports := []Port{{Name: p.Name, Port: p.EffectiveTargetPort(), Protocol: p.EffectiveProtocol()}}
	out := []Endpoint{}
	for _, e := range list {
		endpoint := at("", e.Address)
		if e.Draining {
			endpoint.Ready, endpoint.Terminating = false, true
			endpoint.DrainUntil = s.now.Add(time.Minute)
		}
		endpoint.Ports = ports
		out = append(out, endpoint)
	}
	return out
}

func (s *simulation) permit(_ string, addr netip.Addr, _ []Port) Refusal {
	kind := s.denied[addr.String()]
	return Refusal{Denied: kind != "", Kind: kind}
}
