package chart

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pmezard/go-difflib/difflib"
	"helm.sh/helm/v3/pkg/action"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

const (
	root      = "../.."
	chartDir  = root + "/charts/external-backend-operator"
	namespace = "external-backend-system"
	image     = "registry.example.com/operator:v1"
	served    = "external-backend.io/v1alpha1/ExternalBackendPolicy"
)

// objects maps `Kind namespace/name` to an object.
type objects map[string]*unstructured.Unstructured

func (o objects) add(u *unstructured.Unstructured) error {
	key := fmt.Sprintf("%s %s/%s", u.GetKind(), u.GetNamespace(), u.GetName())
	if _, twice := o[key]; twice {
		return fmt.Errorf("there are two objects %s", key)
	}
	o[key] = u
	return nil
}

// renderer returns an Install action that only renders, for the newest Kubernetes that is tested.
func renderer(t *testing.T) *action.Install {
	t.Helper()
	version, err := chartutil.ParseKubeVersion("v1.37.0")
	if err != nil {
		t.Fatal(err)
	}
	install := action.NewInstall(&action.Configuration{Log: t.Logf})
	install.ReleaseName, install.Namespace = "external-backend-operator", namespace
	install.DryRun, install.ClientOnly, install.KubeVersion = true, true, version
	return install
}

// tryRender renders the chart with values in YAML.
func tryRender(t *testing.T, install *action.Install, values string) (manifest, notes string, err error) {
	t.Helper()
	c, err := loader.Load(chartDir)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := chartutil.ReadValues([]byte(values))
	if err != nil {
		t.Fatal(err)
	}
	release, err := install.Run(c, parsed)
	if err != nil {
		return "", "", err
	}
	if len(release.Hooks) > 0 {
		t.Error("the chart has hooks, which Argo CD and Flux treat in ways of their own")
	}
	return release.Manifest, release.Info.Notes, nil
}

// render returns the objects of the chart with values in YAML.
func render(t *testing.T, values string) objects {
	t.Helper()
	install := renderer(t)
	install.APIVersions = chartutil.VersionSet{served}
	manifest, _, err := tryRender(t, install, values)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, manifest)
}

func decode(t *testing.T, manifest string) objects {
	t.Helper()
	all := objects{}
	decoder := yamlutil.NewYAMLOrJSONDecoder(strings.NewReader(manifest), 4096)
	for {
		u := &unstructured.Unstructured{}
		err := decoder.Decode(&u.Object)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(u.Object) == 0 {
			continue
		}
		if err := all.add(u); err != nil {
			t.Fatal(err)
		}
	}
}

// build returns the objects of config/default, in which these lines are no longer comments.
func build(t *testing.T, uncommented ...string) objects {
	t.Helper()
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(root+"/config")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "default", "kustomization.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range uncommented {
		if strings.Count(string(text), "\n#"+line+"\n") != 1 {
			t.Fatalf("config/default has no line #%s", line)
		}
		text = []byte(strings.Replace(string(text), "\n#"+line+"\n", "\n"+line+"\n", 1))
	}
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return kustomize(t, filepath.Join(dir, "default"))
}

// kustomize returns the objects of a kustomization.
func kustomize(t *testing.T, dir string) objects {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := built.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, string(manifest))
}

// alike removes the differences between the chart and config that are intended.
func alike(t *testing.T, all objects) objects {
	t.Helper()
	for _, u := range all {
		labels, annotations := u.GetLabels(), u.GetAnnotations()
		for _, standard := range []string{
			"app.kubernetes.io/name", "app.kubernetes.io/instance", "app.kubernetes.io/version",
			"app.kubernetes.io/managed-by", "helm.sh/chart",
		} {
			delete(labels, standard)
		}
		delete(annotations, "helm.sh/resource-policy")
		if u.SetLabels(labels); len(labels) == 0 {
			u.SetLabels(nil)
		}
		if u.SetAnnotations(annotations); len(annotations) == 0 {
			u.SetAnnotations(nil)
		}
		if u.GetKind() != "Deployment" {
			continue
		}
		containers, _, err := unstructured.NestedSlice(u.Object, "spec", "template", "spec", "containers")
		if err != nil || len(containers) != 1 {
			t.Fatalf("%d containers: %v", len(containers), err)
		}
		containers[0].(map[string]any)["image"] = image
		if err := unstructured.SetNestedSlice(u.Object, containers, "spec", "template", "spec", "containers"); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// With default values, and with each value that stands for a commented line of config/default, the
// chart has the objects of config/default. They differ in the namespace itself, which Helm has to
// create, in the labels that Helm and kustomize set, in the image, and in the annotation by which
// the CRDs outlive the release.
func TestChartEqualsConfig(t *testing.T) {
	for name, tc := range map[string]struct {
		values      string
		uncommented []string
	}{
		"default": {},
		"prometheus": {
			"metrics: {serviceMonitor: {enabled: true}, prometheusRule: {enabled: true}}", []string{"- ../prometheus"},
		},
		"network policy":   {"metrics: {networkPolicy: {enabled: true}}", []string{"- ../network-policy"}},
		"admission policy": {"admissionPolicy: {enabled: true}", []string{"components:", "- ../policy"}},
		"reference reader": {
			"referenceReader: {everywhere: true}", []string{"components:", "- ../components/reference-reader-everywhere"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			want := build(t, tc.uncommented...)
			if _, ok := want["Namespace /"+namespace]; !ok {
				t.Error("config/default has no Namespace")
			}
			delete(want, "Namespace /"+namespace)
			if diff := difference(t, alike(t, want), alike(t, render(t, tc.values))); diff != "" {
				t.Errorf("-config +chart:\n%s", diff)
			}
		})
	}
}

// The dashboard's ConfigMap is that of config/grafana, in the release's namespace.
func TestDashboardEqualsConfig(t *testing.T) {
	want := kustomize(t, root+"/config/grafana")
	got := render(t, "metrics: {dashboard: {enabled: true}}")
	for key := range got {
		if _, ok := want[strings.Replace(key, namespace, "", 1)]; !ok {
			delete(got, key)
		}
	}
	moved := objects{}
	for _, u := range want {
		u.SetNamespace(namespace)
		if err := moved.add(u); err != nil {
			t.Fatal(err)
		}
	}
	if diff := difference(t, alike(t, moved), alike(t, got)); diff != "" {
		t.Errorf("-config +chart:\n%s", diff)
	}
}

// Everything is in the release's namespace, whatever its name.
func TestNamespaceIsTheReleases(t *testing.T) {
	const all = `
admissionPolicy: {enabled: true}
referenceReader: {everywhere: true}
metrics:
  readers: [{namespace: monitoring, name: prometheus}]
  tokenSecret: {name: token}
  certificate: {certManager: {enabled: true}}
  serviceMonitor: {enabled: true}
  podMonitor: {enabled: true}
  prometheusRule: {enabled: true}
  dashboard: {enabled: true}
  networkPolicy: {enabled: true}
`
	install := renderer(t)
	install.Namespace = "elsewhere"
	manifest, _, err := tryRender(t, install, all)
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(manifest, namespace) {
		t.Errorf("the manifest mentions %s", namespace)
	}
	for key, u := range decode(t, manifest) {
		if is := u.GetNamespace(); is != "" && is != "elsewhere" {
			t.Errorf("%s is in namespace %s", key, is)
		}
	}
}

// The CRDs and the policies outlive the release, and nothing else does.
func TestOnlyCRDsAndPoliciesAreKept(t *testing.T) {
	kept := map[string]bool{"CustomResourceDefinition": true, "ExternalBackendPolicy": true}
	seen := map[string]bool{}
	for key, u := range render(t, "policies: {shop: {allowed: [{cidrs: [203.0.113.0/24]}]}}") {
		if is := u.GetAnnotations()["helm.sh/resource-policy"] == "keep"; is != kept[u.GetKind()] {
			t.Errorf("%s: kept is %t", key, is)
		}
		seen[u.GetKind()] = true
	}
	for kind := range kept {
		if !seen[kind] {
			t.Errorf("there is no %s", kind)
		}
	}
}

// difference returns the lines in which the YAML of two sets of objects differs, object by object.
func difference(t *testing.T, a, b objects) string {
	t.Helper()
	keys := maps.Clone(a)
	maps.Copy(keys, b)
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(keys)) {
		lines := difflib.UnifiedDiff{A: yamlLines(t, a[key]), B: yamlLines(t, b[key]), Context: 1}
		diff, err := difflib.GetUnifiedDiffString(lines)
		if err != nil {
			t.Fatal(err)
		}
		// The numbers of the lines would change with everything above them.
		for line := range strings.Lines(diff) {
			if strings.HasPrefix(line, "@@") {
				line = "@@ " + key + "\n"
			}
			if line != "--- \n" && line != "+++ \n" {
				text.WriteString(line)
			}
		}
	}
	return text.String()
}

func yamlLines(t *testing.T, u *unstructured.Unstructured) []string {
	t.Helper()
	if u == nil {
		return nil
	}
	text, err := yaml.Marshal(u.Object)
	if err != nil {
		t.Fatal(err)
	}
	return slices.Collect(strings.Lines(string(text)))
}

// readYAML reads a file into a value.
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
