package endpointslice

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// step is the writes of one step, as the golden files have them.
type step struct {
	Create []*discoveryv1.EndpointSlice `json:"create,omitempty"`
	Update []*discoveryv1.EndpointSlice `json:"update,omitempty"`
	Delete []string                     `json:"delete,omitempty"`
}

// TestPlansMatchGoldenFiles shows whole plans: testdata/NAME.in.yaml has what is wanted in each
// step, NAME.out.yaml the writes of each step.
func TestPlansMatchGoldenFiles(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, input := range inputs {
		t.Run(strings.TrimSuffix(filepath.Base(input), ".in.yaml"), func(t *testing.T) {
			got, err := yaml.Marshal(planSteps(t, input))
			if err != nil {
				t.Fatal(err)
			}
			compareWithFile(t, got, strings.Replace(input, ".in.", ".out.", 1))
		})
	}
}

// planSteps returns the writes of each step in the file.
func planSteps(t *testing.T, input string) (out []step) {
	text, err := os.ReadFile(input)
	if err != nil {
		t.Fatal(err)
	}
	var in struct {
		Template Template // what the steps share
		Steps    []struct {
			Template Template
			Desired  []Endpoint
		}
	}
	if err := yaml.UnmarshalStrict(text, &in); err != nil {
		t.Fatal(err)
	}

	stored := cluster{}
	for _, next := range in.Steps {
		changes := stored.plan(t, next.Template, next.Desired)
		got := step{Create: changes.Create, Update: changes.Update}
		for _, s := range changes.Delete {
			got.Delete = append(got.Delete, s.Name)
		}
		out = append(out, got)
	}
	return out
}

// compareWithFile compares got with a golden file, or writes it with -update.
func compareWithFile(t *testing.T, got []byte, golden string) {
	if *update {
		if err := os.WriteFile(golden, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got), -update rewrites it:\n%s", golden, diff)
	}
}
