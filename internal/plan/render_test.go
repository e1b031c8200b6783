package plan_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/render"
)

// TestRenderedObjectsAreThoseWritten renders every step of every scenario, and compares the result
// byte by byte with what a manager writes that has just started.
func TestRenderedObjectsAreThoseWritten(t *testing.T) {
	steps := 0
	plan.PlayScenarios(t, func(t *testing.T, s plan.PlayedStep) {
		steps++
		got, err := render.Render(render.Input{
			Backend: s.Backend, Service: s.Service, Slices: s.Slices, Siblings: s.Siblings, Handover: s.Foreign,
			Families: s.Families, Answers: s.Answers, Permit: s.Permit, State: s.State,
			MaxPerSlice: render.DefaultMaxPerSlice, MaxPerBackend: s.Max, Now: s.Now,
		})
		if (err == nil) != s.Planned {
			t.Fatalf("%s: rendered with error %v, and the manager planned: %t", s.Name, err, s.Planned)
		}
		if err != nil {
			return
		}
		want := textOf(t, s.Service == nil, s.WroteService, s.WroteSlices)
		if s.Backend.Spec.ServiceRef != nil {
			got.Service = s.Service // not ours to write
		}
		if text := textOf(t, s.Service == nil, got.Service, got.Slices); text != want {
			t.Errorf("%s (-written +rendered):\n%s", s.Name, cmp.Diff(want, text))
		}
	})
	if steps < 100 {
		t.Errorf("only %d steps were rendered", steps)
	}
}

// textOf returns the objects as YAML. Of a new Service it leaves out what only the API server
// knows: the UID, the cluster IP and the IP families.
func textOf(t *testing.T, isNew bool, s *corev1.Service, list []*discoveryv1.EndpointSlice) string {
	t.Helper()
	if isNew {
		s = s.DeepCopy()
		s.UID, s.Spec.IPFamilies = "", nil
		if s.Spec.ClusterIP != corev1.ClusterIPNone {
			s.Spec.ClusterIP = ""
		}
	}
	list = append([]*discoveryv1.EndpointSlice{}, list...) // an empty list, not none
	slices.SortFunc(list, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	text, err := yaml.Marshal(map[string]any{"service": s, "slices": list})
	if err != nil {
		t.Fatal(err)
	}
	if isNew {
		return strings.ReplaceAll(string(text), "uid: uid-of-service", `uid: ""`)
	}
	return string(text)
}
