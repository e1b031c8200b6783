package compatibility

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const (
	current  = "../../config/crd/bases"
	released = "released"
	accepted = "accepted.yaml"
)

var release = flag.String("release", "",
	"take today's CustomResourceDefinitions and defaults for those of this release")

// acceptance is a breaking change that users are told about.
type acceptance struct {
	Definition string `json:"definition"` // the file
	Change     string `json:"change"`     // as the test reports it
	Reason     string `json:"reason"`     // why it is worth it, and what users do
}

const acceptedHead = `# The breaking changes since the last release that are meant. Each has the words of the test,
# and a reason; CHANGELOG.md tells users. "make released-crds" empties the list.
`

// TestMain stores today's definitions and defaults if -release asks for it.
func TestMain(m *testing.M) {
	flag.Parse()
	if *release != "" {
		if err := store(*release); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func store(version string) error {
	defaults, err := yaml.Marshal(Defaults())
	if err != nil {
		return err
	}
	files := map[string][]byte{
		filepath.Join(released, "VERSION"):       []byte(version + "\n"),
		filepath.Join(released, "defaults.yaml"): defaults,
		accepted:                                 []byte(acceptedHead + "[]\n"),
	}
	paths, err := filepath.Glob(filepath.Join(current, "*.yaml"))
	if err != nil {
		return err
	}
	for _, path := range paths {
		if files[filepath.Join(released, filepath.Base(path))], err = os.ReadFile(path); err != nil {
			return err
		}
	}
	for path, text := range files {
		if err := os.WriteFile(path, text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// TestReleasedObjectsStayValid compares today's CustomResourceDefinitions and defaults with those
// of the last release. Breaking changes have to be in accepted.yaml.
func TestReleasedObjectsStayValid(t *testing.T) {
	var meant []acceptance
	readYAML(t, accepted, &meant)
	for file, changes := range breakingChanges(t) {
		for _, change := range changes {
			i := slices.IndexFunc(meant, func(a acceptance) bool { return a.Definition == file && a.Change == change })
			if i < 0 {
				t.Errorf("%s: %s\nThis may break an object or a manifest (docs/api-versions.md).", file, change)
				continue
			}
			if len(meant[i].Reason) < 20 {
				t.Errorf("%s has no reason for: %s", accepted, change)
			}
			meant = slices.Delete(meant, i, i+1)
		}
	}
	for _, a := range meant {
		t.Errorf("%s lists a change of %s that there is not: %s", accepted, a.Definition, a.Change)
	}
}

// breakingChanges returns the breaking changes since the last release, by file.
func breakingChanges(t *testing.T) map[string][]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(released, "*.yaml"))
	if err != nil || len(paths) < 3 {
		t.Fatalf("the last release has only %v: %v", paths, err)
	}
	found := map[string][]string{}
	for _, path := range paths {
		file := filepath.Base(path)
		if file == "defaults.yaml" {
			var was map[string]string
			readYAML(t, path, &was)
			found[file] = changedDefaults(was, Defaults())
			continue
		}
		if _, err := os.Stat(filepath.Join(current, file)); os.IsNotExist(err) {
			found[file] = []string{"the definition is gone"}
			continue
		}
		found[file] = Breaking(readDefinition(t, path), readDefinition(t, filepath.Join(current, file)))
	}
	return found
}

// changedDefaults returns which defaults are no longer what they were.
func changedDefaults(was, is map[string]string) []string {
	var found []string
	for _, method := range slices.Sorted(maps.Keys(was)) {
		switch value, stays := is[method]; {
		case !stays:
			found = append(found, fmt.Sprintf("%s is gone; it returned %q", method, was[method]))
		case value != was[method]:
			found = append(found, fmt.Sprintf("%s returns %q, not %q", method, value, was[method]))
		}
	}
	return found
}

// TestChangedDefaultsAreFound judges a default that stays, one that is new and two that changed. It
// also looks at some defaults of the API.
func TestChangedDefaultsAreFound(t *testing.T) {
	was := map[string]string{"A.Stays": "1", "A.Changes": "1", "A.Goes": "1"}
	is := map[string]string{"A.Stays": "1", "A.Changes": "2", "A.New": "1"}
	found := strings.Join(changedDefaults(was, is), "\n")
	if found != "A.Changes returns \"2\", not \"1\"\nA.Goes is gone; it returned \"1\"" {
		t.Errorf("found %s", found)
	}
	for method, value := range map[string]string{
		"HealthCheck.EffectivePeriod": "10s", "Failover.EffectiveFailbackDelay": "1m0s",
		"Target.EffectiveAdminState": "Active", "PolicyPort.EffectiveProtocol": "TCP",
		`DNSTransport("TLS").DefaultPort`: "853", "TLS.EffectiveVerification": "Full",
	} {
		if is := Defaults()[method]; is != value {
			t.Errorf("%s is %q, want %q", method, is, value)
		}
	}
}

func readDefinition(t *testing.T, path string) *apiextensions.CustomResourceDefinition {
	t.Helper()
	definition := &apiextensions.CustomResourceDefinition{}
	readYAML(t, path, definition)
	return definition
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
