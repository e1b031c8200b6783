package plan

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// PlayedStep is what a scenario had come to before a plan, and what that plan made of it. It is for
// tests of packages that plan without the memory of a manager.
type PlayedStep struct {
	Name string
	// Backend, Service and Slices are the objects before the plan; the others are what it went by.
	Backend  *v1alpha1.ExternalBackend
	Service  *corev1.Service
	Slices   []*discoveryv1.EndpointSlice
	Siblings []Sibling
	Foreign  []Endpoint
	Answers  map[string]Answer
	Permit   Permit
	State    func(*Probe) ProbeState
	Families []corev1.IPFamily
	Max      int
	Now      time.Time
	// WroteService, WroteSlices and WroteStatus are the objects after the plan. Planned reports
	// whether there was one: a spec may be invalid, or a Service somebody else's.
	WroteService *corev1.Service
	WroteStatus  v1alpha1.ExternalBackendStatus
	WroteSlices  []*discoveryv1.EndpointSlice
	Planned      bool
}

// PlayScenarios plays all scenarios. After each step it plans three times as a manager would that
// has just started: with what the engines know by then, without it, and without Service and slices.
func PlayScenarios(t *testing.T, visit func(t *testing.T, s PlayedStep)) {
	files, err := filepath.Glob("testdata/scenarios/*.in.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			var played scenario
			if err := yaml.UnmarshalStrict(text, &played); err != nil {
				t.Fatal(err)
			}
			sim := newSimulation()
			for _, step := range played.Steps {
				sim.take(t, step)
				sim.plan(t)
				visit(t, sim.started(t, step.Name+", started", maps.Clone(sim.answers), maps.Clone(sim.verdicts)))
				visit(t, sim.started(t, step.Name+", nothing known", sim.seeds(), nil))
				fresh := *sim
				fresh.slices, fresh.service, fresh.status = nil, nil, v1alpha1.ExternalBackendStatus{}
				if fresh.backend.Spec.ServiceRef != nil {
					fresh.service = sim.service
				}
				visit(t, fresh.started(t, step.Name+", fresh", maps.Clone(sim.answers), maps.Clone(sim.verdicts)))
			}
		})
	}
}

// seeds are the answers of a resolver that has just started.
func (s *simulation) seeds() map[string]Answer {
	out := map[string]Answer{}
	for target, addrs := range PublishedAddrs(s.backend, endpointslice.Published(s.sliceList())) {
		out[target] = Answer{Status: AnswerPending, Addrs: addrs}
	}
	return out
}

func (s *simulation) sliceList() []*discoveryv1.EndpointSlice {
	return slices.Collect(maps.Values(s.slices))
}

// started plans with a copy of s that has no memory.
func (s *simulation) started(
	t *testing.T, name string, answers map[string]Answer, verdicts map[string]string,
) PlayedStep {
	c := *s
	c.out, c.slices, c.memory = bytes.Buffer{}, map[string]*discoveryv1.EndpointSlice{}, nil
	maps.Copy(c.slices, s.slices)
	c.restart()
	c.answers, c.verdicts = answers, verdicts
	c.backend = s.backend.DeepCopy()
	c.backend.Status = c.status
	step := PlayedStep{
		Name: name, Backend: c.backend, Service: c.service, Slices: c.sliceList(),
		Siblings: []Sibling{{Name: "sibling", Older: true, Endpoints: c.older}, {Name: "sibling", Endpoints: c.younger}},
		Foreign:  c.foreign, Answers: answers, Permit: c.permit, Families: c.families, Max: c.max, Now: c.now,
		State: func(p *Probe) ProbeState {
			return c.judge(p, ProbeState{Verdict: p.SeedVerdict})
		},
	}
	if Validate(c.backend, c.service) != "" {
		return step
	}
	c.plan(t)
	step.WroteService, step.WroteSlices, step.Planned = c.service, c.sliceList(), c.tier != nil
	step.WroteStatus = c.status
	return step
}
