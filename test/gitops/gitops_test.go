package gitops

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
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

// actionTest is Argo CD's own format of action_test.yaml.
type actionTest struct {
	DiscoveryTests []struct {
		InputPath string
		Result    []map[string]any
	}
	ActionTests []struct {
		Action, InputPath, ExpectedOutputPath, ExpectedErrorMessage string
		Parameters                                                  map[string]string
	}
}

// TestActionsOfArgoCD runs action_test.yaml beside the actions as Argo CD's own tests do. The
// clock's zone is far from UTC, which an action must not take for UTC.
func TestActionsOfArgoCD(t *testing.T) {
	now := time.Date(2026, 12, 31, 22, 30, 0, 0, time.UTC).In(time.FixedZone("far", -9*3600))
	tests, err := filepath.Glob(customizations + "/*/*/actions/action_test.yaml")
	if err != nil || len(tests) != 2 {
		t.Fatalf("the tests of actions are %q, %v", tests, err)
	}
	for _, path := range tests {
		folder := filepath.Dir(path)
		var list actionTest
		readYAML(t, path, &list)
		for _, test := range list.DiscoveryTests {
			actions, err := ArgoActions(t.Context(), customizations, readObject(t, filepath.Join(folder, test.InputPath)))
			want := map[string]any{}
			for _, action := range test.Result {
				name := action["name"].(string)
				delete(action, "name")
				if _, ok := action["disabled"]; !ok {
					action["disabled"] = false
				}
				want[name] = action
			}
			if diff := cmp.Diff(want, actions); err != nil || diff != "" {
				t.Errorf("%s: %v, -want +got:\n%s", test.InputPath, err, diff)
			}
		}

		for _, test := range list.ActionTests {
			o := readObject(t, filepath.Join(folder, test.InputPath))
			impacts, err := ArgoAction(t.Context(), customizations, test.Action, o, test.Parameters, now)
			switch {
			case test.ExpectedErrorMessage != "":
				if err == nil || err.Error() != test.ExpectedErrorMessage {
					t.Errorf("%s %v: %v, not %q", test.Action, test.Parameters, err, test.ExpectedErrorMessage)
				}
			case err != nil || len(impacts) != 1:
				t.Errorf("%s %v: %v, %v", test.Action, test.Parameters, impacts, err)
			default:
				want := readObject(t, filepath.Join(folder, test.ExpectedOutputPath))
				if diff := cmp.Diff(want.Object, impacts[0].Object.Object); diff != "" {
					t.Errorf("%s %v, -want +got:\n%s", test.Action, test.Parameters, diff)
				}
			}
		}
	}
}

// An action of Argo CD calls no other script. So each has the whole text, and they differ only in
// what they set: drain and disable in the adminState alone, pin in its parameter, too.
func TestActionsDifferOnlyInWhatTheySet(t *testing.T) {
	text := func(action string) string {
		content, err := os.ReadFile(customizations + "/external-backend.io/ExternalBackend/actions/" + action + "/action.lua")
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	if strings.Replace(text("drain"), `"Draining"`, `"Disabled"`, 1) != text("disable") {
		t.Error("drain and disable differ in more")
	}
	common := func(action, sets string) string {
		_, rest, _ := strings.Cut(text(action), "\nlocal hours = ")
		return strings.Replace(rest, sets, "", 1)
	}
	pin := common("pin", "pinnedTier = tier")
	if pin == "" || pin != common("drain", `targets = {{name = target, adminState = "Draining"}}`) {
		t.Error("pin and drain differ in more")
	}
}
