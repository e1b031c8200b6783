package gitops

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

const customizations = "../../config/argocd/resource_customizations"

// healthTest is Argo CD's own format of health_test.yaml.
type healthTest struct {
	Tests []struct {
		HealthStatus struct{ Status, Message string }
		InputPath    string
	}
}

// TestHealthChecksOfArgoCD runs health_test.yaml beside each health check as Argo CD's own tests
// do, and wants every recorded object to be in it.
func TestHealthChecksOfArgoCD(t *testing.T) {
	scripts, err := filepath.Glob(customizations + "/*/*/health.lua")
	if err != nil || len(scripts) == 0 {
		t.Fatal("no health check found:", err)
	}
	for _, script := range scripts {
		folder := filepath.Dir(script)
		t.Run(filepath.Base(folder), func(t *testing.T) {
			var list healthTest
			readYAML(t, filepath.Join(folder, "health_test.yaml"), &list)
			tried := map[string]bool{}
			for _, test := range list.Tests {
				tried[test.InputPath] = true
				o := readObject(t, filepath.Join(folder, test.InputPath))
				is, err := ArgoHealth(t.Context(), customizations, o)
				if want := (Health{test.HealthStatus.Status, test.HealthStatus.Message}); err != nil || is != want {
					t.Errorf("%s: %+v (%v), not %+v", test.InputPath, is, err, want)
				}
			}
			recorded, err := filepath.Glob(filepath.Join(folder, "testdata", "*.yaml"))
			if err != nil || len(recorded) == 0 {
				t.Fatal("no recorded object found:", err)
			}
			for _, path := range recorded {
				if name := "testdata/" + filepath.Base(path); !tried[name] {
					t.Errorf("health_test.yaml does not try %s", name)
				}
			}
		})
	}
}

// TestKstatusOfRecordedStates: kstatus judges every recorded object as expected. One that was
// edited since is in progress, one that has no status yet, too, and one that is being deleted is
// terminating.
func TestKstatusOfRecordedStates(t *testing.T) {
	for kind, states := range States {
		recorded, err := filepath.Glob(filepath.Join(customizations, "*", kind, "testdata", "*.yaml"))
		if err != nil || len(recorded) != len(states) {
			t.Errorf("%d objects of kind %s are recorded (%v), not %d", len(recorded), kind, err, len(states))
		}
		for _, path := range recorded {
			name := strings.TrimSuffix(filepath.Base(path), ".yaml")
			t.Run(kind+"/"+name, func(t *testing.T) {
				o := readObject(t, path)
				for _, variant := range []struct {
					what string
					o    *unstructured.Unstructured
					want string
				}{
					{"as recorded", o, states[name]},
					{"edited", Edited(o), "InProgress"},
					{"new", New(o), "InProgress"},
					{"deleted", Deleted(o), "Terminating"},
				} {
					if is, err := Kstatus(variant.o); err != nil || is != variant.want {
						t.Errorf("%s: kstatus says %q, %v, not %q", variant.what, is, err, variant.want)
					}
					is, err := ArgoHealth(t.Context(), customizations, variant.o)
					if err != nil || variant.want == "InProgress" && variant.o != o && is.Status != "Progressing" {
						t.Errorf("%s: Argo CD says %+v, %v, not Progressing", variant.what, is, err)
					}
				}
			})
		}
	}
}

// readObject reads an object with integers as integers, which kstatus wants.
func readObject(t *testing.T, path string) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	json, err := yaml.YAMLToJSON(text)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(json); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return o
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
