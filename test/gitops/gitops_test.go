package gitops

import (
	"os"
	"path/filepath"
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
				var o unstructured.Unstructured
				readYAML(t, filepath.Join(folder, test.InputPath), &o.Object)
				is, err := ArgoHealth(t.Context(), customizations, &o)
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
