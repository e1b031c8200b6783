// Package kubestatemetrics tries config/kube-state-metrics with kube-state-metrics' own code. It is
// a module by itself, so that nothing else depends on what kube-state-metrics requires.
package kubestatemetrics

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/kube-state-metrics/v2/pkg/customresourcestate"
	"k8s.io/kube-state-metrics/v2/pkg/metric"
	"sigs.k8s.io/yaml"
)

const (
	root       = "../.."
	configFile = root + "/config/kube-state-metrics/custom-resource-state.yaml"
	// recordings are objects as a cluster has shown them, in a folder for each kind.
	recordings = root + "/config/argocd/resource_customizations/external-backend.io"
)

// readConfig reads the configuration as kube-state-metrics does, but refuses unknown fields.
func readConfig(t *testing.T) []customresourcestate.Resource {
	t.Helper()
	var config struct {
		customresourcestate.Metrics
		Kind string `json:"kind"`
	}
	text, err := os.ReadFile(configFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, &config); err != nil {
		t.Fatal(err)
	}
	for i := range config.Spec.Resources {
		for j := range config.Spec.Resources[i].Metrics {
			each := &config.Spec.Resources[i].Metrics[j].Each
			each.Type = metric.Type(strings.ToLower(string(each.Type)))
		}
	}
	return config.Spec.Resources
}

// exposed returns the series of an object, sorted, without the labels that name its kind.
func exposed(t *testing.T, o *unstructured.Unstructured) []string {
	t.Helper()
	for _, resource := range readConfig(t) {
		if resource.GroupVersionKind.Kind != o.GetKind() {
			continue
		}
		if gvk := o.GroupVersionKind(); gvk.Version != resource.GroupVersionKind.Version ||
			gvk.Group != resource.GroupVersionKind.Group {
			t.Fatalf("the object is of %s", gvk)
		}
		factory, err := customresourcestate.NewCustomResourceMetrics(resource)
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		for _, family := range factory.MetricFamilyGenerators() {
			if family.Help == "" {
				t.Errorf("%s has no help", family.Name)
			}
			text.Write(family.Generate(o).ByteSlice())
		}
		plain := regexp.MustCompile(`customresource_\w+="[^"]*",?`).ReplaceAllString(text.String(), "")
		return slices.Sorted(strings.Lines(plain))
	}
	t.Fatalf("the configuration has no %s", o.GetKind())
	return nil
}

func readObject(t *testing.T, path string) *unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(text, &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestConditionsBecomeSeries shows every series of one ExternalBackend that a cluster has had.
func TestConditionsBecomeSeries(t *testing.T) {
	o := readObject(t, filepath.Join(recordings, "ExternalBackend/testdata/one-name-not-found.yaml"))
	o.SetNamespace("shop")
	const condition = `kube_externalbackend_status_condition{condition="NamesResolved",name="web",namespace="shop",status=`
	is := exposed(t, o)
	for _, want := range []string{
		`kube_externalbackend_info{name="web",namespace="shop",service="web",service_type="ClusterIP"} 1`,
		`kube_externalbackend_metadata_generation{name="web",namespace="shop"} 1`,
		`kube_externalbackend_status_observed_generation{name="web",namespace="shop"} 1`,
		condition + `"False"} 1`, condition + `"True"} 0`, condition + `"Unknown"} 0`,
		`kube_externalbackend_status_condition_info{condition="NamesResolved",name="web",namespace="shop",` +
			`reason="ResolutionFailed",status="False"} 1`,
	} {
		if !slices.Contains(is, want+"\n") {
			t.Errorf("there is no %s in\n%s", want, strings.Join(is, ""))
		}
	}
}

// TestSelectorsOfDocumentsAreMet wants a recorded object or the policy to have each series that the
// documents name.
func TestSelectorsOfDocumentsAreMet(t *testing.T) {
	text, err := os.ReadFile("../prometheus/testdata/selectors.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var selectors []struct {
		Metric           string
		Matchers, Labels []string
	}
	if err := yaml.Unmarshal(text, &selectors); err != nil {
		t.Fatal(err)
	}
	everything := exposed(t, readPolicy(t))
	for _, file := range recorded(t) {
		everything = append(everything, exposed(t, readObject(t, file))...)
	}
	tried := 0
	for _, s := range selectors {
		if !strings.HasPrefix(s.Metric, "kube_") {
			continue
		}
		tried++
		met := slices.ContainsFunc(everything, func(series string) bool {
			has := strings.HasPrefix(series, s.Metric+"{")
			for _, matcher := range s.Matchers { // only a="b" is supported
				has = has && strings.Contains(series, matcher)
			}
			for _, label := range s.Labels {
				has = has && strings.Contains(series, label+`="`)
			}
			return has
		})
		if !met {
			t.Errorf("no series meets %+v", s)
		}
	}
	if tried < 5 {
		t.Errorf("only %d selectors of kube-state-metrics were found", tried)
	}
}

// TestEveryRecordedConditionIsExposed wants exactly one status of each condition to be 1, in every
// state that was recorded on a cluster.
func TestEveryRecordedConditionIsExposed(t *testing.T) {
	for _, file := range recorded(t) {
		wantConditions(t, file, readObject(t, file))
	}
}

// recorded returns the paths of the recorded objects of both kinds.
func recorded(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(recordings + "/ExternalBackend*/testdata/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	files = slices.DeleteFunc(files, func(file string) bool {
		kind := readObject(t, file).GetKind()
		return kind != "ExternalBackend" && kind != "ExternalBackendPolicy"
	})
	if len(files) < 10 {
		t.Fatalf("only %d recordings were found", len(files))
	}
	return files
}

// TestPoliciesBecomeSeries shows the series of a policy.
func TestPoliciesBecomeSeries(t *testing.T) {
	o := readPolicy(t)
	wantConditions(t, "the policy", o)
	is := exposed(t, o)
	for _, want := range []string{
		`kube_externalbackendpolicy_status_condition_info{condition="Accepted",name="databases",` +
			`reason="Accepted",status="True"} 1`,
		`kube_externalbackendpolicy_metadata_generation{name="databases"} 3`,
		`kube_externalbackendpolicy_status_observed_generation{name="databases"} 2`,
		`kube_externalbackendpolicy_status_selected_namespaces{name="databases"} 3`,
		`kube_externalbackendpolicy_status_selected_externalbackends{name="databases"} 12`,
		`kube_externalbackendpolicy_status_refused_externalbackends{name="databases"} 0`,
	} {
		if !slices.Contains(is, want+"\n") {
			t.Errorf("there is no %s in\n%s", want, strings.Join(is, ""))
		}
	}
}

func readPolicy(t *testing.T) *unstructured.Unstructured {
	t.Helper()
	o := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(policy), &o.Object); err != nil {
		t.Fatal(err)
	}
	return o
}

const policy = `
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackendPolicy
metadata: {name: databases, generation: 3}
status:
  observedGeneration: 2
  conditions:
  - {type: Accepted, status: "True", reason: Accepted, message: The spec can be acted on., observedGeneration: 2}
  selectedNamespaces: 3
  selectedExternalBackends: 12
  refusedExternalBackends: 0
`

func wantConditions(t *testing.T, name string, o *unstructured.Unstructured) {
	t.Helper()
	conditions, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
	if err != nil || len(conditions) == 0 {
		t.Errorf("%s has no conditions: %v", name, err)
	}
	is := exposed(t, o)
	for _, c := range conditions {
		c, _ := c.(map[string]any)
		for _, status := range []string{"True", "False", "Unknown"} {
			value := " 0\n"
			if status == c["status"] {
				value = " 1\n"
			}
			found := slices.ContainsFunc(is, func(series string) bool {
				return strings.HasPrefix(series, "kube_"+strings.ToLower(o.GetKind())+"_status_condition{") &&
					strings.Contains(series, `condition="`+c["type"].(string)+`"`) &&
					strings.Contains(series, `status="`+status+`"`) && strings.HasSuffix(series, value)
			})
			if !found {
				t.Errorf("%s: condition %s is not exposed as %s:\n%s", name, c["type"], c["status"], strings.Join(is, ""))
			}
		}
	}
}
