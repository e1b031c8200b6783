package chart

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/lint/support"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Helm's linter has nothing to say, except that the chart has no icon.
func TestLintIsClean(t *testing.T) {
	version, err := chartutil.ParseKubeVersion("v1.37.0")
	if err != nil {
		t.Fatal(err)
	}
	lint := action.NewLint()
	lint.Strict, lint.Namespace, lint.KubeVersion = true, namespace, version
	result := lint.Run([]string{chartDir}, nil)
	if result.TotalChartsLinted != 1 {
		t.Fatal(result.Errors)
	}
	for _, message := range result.Messages {
		if message.Severity != support.InfoSev || message.Err.Error() != "icon is recommended" {
			t.Error(message)
		}
	}
}

// Chart.yaml tells Artifact Hub of each CRD.
func TestArtifactHubKnowsEachCRD(t *testing.T) {
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	var told []struct{ Kind, Version, Name, DisplayName, Description string }
	if err := yaml.Unmarshal([]byte(c.Metadata.Annotations["artifacthub.io/crds"]), &told); err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for _, u := range render(t, "") {
		if u.GetKind() == "CustomResourceDefinition" {
			kind, _, _ := unstructured.NestedString(u.Object, "spec", "names", "kind")
			versions, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
			for _, version := range versions {
				want[fmt.Sprint(u.GetName(), kind, version.(map[string]any)["name"])] = true
			}
		}
	}
	for _, crd := range told {
		key := fmt.Sprint(crd.Name, crd.Kind, crd.Version)
		if !want[key] || crd.DisplayName == "" || crd.Description == "" {
			t.Errorf("there is no such CRD, or its texts are missing: %+v", crd)
		}
		delete(want, key)
	}
	for key := range want {
		t.Errorf("Chart.yaml lacks %s", key)
	}
}

// `make chart` writes an archive that Helm can load, with the version and image of the release. Two
// runs write the same bytes.
func TestPackageHasTheReleasesVersionAndImage(t *testing.T) {
	for _, tc := range []struct{ version, image, chart, app, repository, tag string }{
		{"v1.2.3", "", "1.2.3", "v1.2.3", "ghcr.io/external-backend/operator", ""},
		{"v1.2.3-4-gabcdef0", "registry.example.com:5000/eb:test", "1.2.3-4-gabcdef0", "v1.2.3-4-gabcdef0",
			"registry.example.com:5000/eb", "test"},
		{"0123456", "", "0.0.0-g0123456", "0123456", "ghcr.io/external-backend/operator", ""},
	} {
		t.Run(tc.version, func(t *testing.T) {
			var archives [2][]byte
			for i := range archives {
				archives[i] = pack(t, tc.version, tc.image, "external-backend-operator-"+tc.chart+".tgz")
			}
			if !bytes.Equal(archives[0], archives[1]) {
				t.Error("two runs wrote different archives")
			}
			c, err := loader.LoadArchive(bytes.NewReader(archives[0]))
			if err != nil {
				t.Fatal(err)
			}
			image := c.Values["image"].(map[string]any)
			got := []any{c.Metadata.Version, c.Metadata.AppVersion, image["repository"], image["tag"]}
			for j, want := range []string{tc.chart, tc.app, tc.repository, tc.tag} {
				if got[j] != want {
					t.Errorf("version, appVersion, repository and tag are %q; want %q at %d", got, want, j)
				}
			}
		})
	}
}

// pack runs `make chart` and returns the archive of this name.
func pack(t *testing.T, version, image, name string) []byte {
	t.Helper()
	dir := t.TempDir()
	args := []string{"-s", "chart", "VERSION=" + version, "DIST=" + dir}
	if image != "" {
		args = append(args, "IMG="+image)
	}
	cmd := exec.CommandContext(t.Context(), "make", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MAKELEVEL=", "MFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("make chart: %v\n%s", err, out)
	}
	archive, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return archive
}
