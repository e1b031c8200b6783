package chart

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	certmanagerv1 "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files and the table of values in the chart's README")

// schema is the part of a JSON schema that tells which values there are.
type schema struct {
	Properties map[string]schema
}

// leaves returns the paths of all values, such as metrics.service.annotations.
func (s schema) leaves(prefix string) []string {
	var all []string
	for name, property := range s.Properties {
		path := prefix + name
		if len(property.Properties) == 0 {
			all = append(all, path)
		}
		all = append(all, property.leaves(path+".")...)
	}
	return all
}

func readSchema(t *testing.T) schema {
	t.Helper()
	var s schema
	text, err := os.ReadFile(chartDir + "/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	delete(s.Properties, "global") // Helm's own, for charts that depend on this one
	return s
}

// set returns the paths of the leaves that values set.
func set(values map[string]any, leaves []string) []string {
	return slices.DeleteFunc(slices.Clone(leaves), func(path string) bool {
		_, found, err := unstructured.NestedFieldNoCopy(values, strings.Split(path, ".")...)
		return !found || err != nil
	})
}

// decoder returns a decoder that refuses unknown fields, of every kind that the chart may render.
func decoder(t *testing.T) runtime.Decoder {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, monitoringv1.AddToScheme, certmanagerv1.AddToScheme,
		v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
}

// Each file in testdata/values has values that change the objects as its golden file says. All
// objects have only fields that their kinds have. Together the files set each value of the schema.
func TestValuesChangeObjects(t *testing.T) {
	files, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal("no values found:", err)
	}
	leaves := readSchema(t).leaves("")
	missing := map[string]bool{}
	for _, path := range leaves {
		missing[path] = true
	}
	defaults, strict := render(t, ""), decoder(t)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".yaml"), func(t *testing.T) {
			var values map[string]any
			readYAML(t, file, &values)
			for _, path := range set(values, leaves) {
				delete(missing, path)
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all := render(t, string(text))
			for key, u := range all {
				object, err := yaml.Marshal(u.Object)
				if err != nil {
					t.Fatal(err)
				}
				if _, _, err := strict.Decode(object, nil, nil); err != nil {
					t.Errorf("%s: %v", key, err)
				}
			}
			wantGolden(t, strings.TrimSuffix(file, ".yaml")+".diff", difference(t, brief(defaults), brief(all)))
		})
	}
	for _, path := range slices.Sorted(maps.Keys(missing)) {
		t.Errorf("no file in testdata/values sets %s", path)
	}
}

// brief leaves out what the chart takes over from config as it is. Golden files need not follow it.
func brief(all objects) objects {
	short := objects{}
	for key, u := range all {
		u = u.DeepCopy()
		switch u.GetKind() {
		case "CustomResourceDefinition", "ValidatingAdmissionPolicy", "PrometheusRule":
			u.Object["spec"] = "…"
		case "ConfigMap":
			if strings.HasSuffix(u.GetName(), "-dashboard") {
				u.Object["data"] = "…"
			}
		}
		short[key] = u
	}
	return short
}

func wantGolden(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) || got == "" {
		t.Errorf("%s differs (go test . -update writes it). It should be:\n%s", path, got)
	}
}

// values.yaml has each value of the schema except the single flags, whose defaults the manager has.
func TestDefaultsAndSchemaHaveTheSameValues(t *testing.T) {
	var defaults map[string]any
	readYAML(t, chartDir+"/values.yaml", &defaults)
	s := readSchema(t)
	for name := range defaults {
		if _, ok := s.Properties[name]; !ok {
			t.Errorf("the schema lacks %s", name)
		}
	}
	for _, path := range s.leaves("") {
		top, _, _ := strings.Cut(path, ".")
		if slices.Contains([]string{"flags", "affinity", "resources", "dnsConfig"}, top) {
			path = top // a flag, or a field that Kubernetes defines
		}
		if before, _, found := strings.Cut(path, "Ref."); found {
			path = before + "Ref" // likewise of cert-manager
		}
		if len(set(defaults, []string{path})) == 0 {
			t.Errorf("values.yaml lacks %s", path)
		}
	}
}

// The schema, or the chart, refuses wrong values and names them.
func TestWrongValuesAreRefused(t *testing.T) {
	for values, want := range map[string]string{
		"replica: 3":                               "additional properties 'replica' not allowed",
		"replicas: two":                            "at '/replicas': got string, want integer",
		"replicas: -1":                             "at '/replicas': minimum: got -1, want 0",
		"image: {digest: abc}":                     "at '/image/digest': 'abc' does not match pattern",
		"image: {pullPolicy: Sometimes}":           "at '/image/pullPolicy': value must be one of '', 'Always'",
		"imagePullSecrets: [registry]":             "at '/imagePullSecrets/0': got string, want object",
		"flags: {default-target-policy: deny}":     "at '/flags/default-target-policy': value must be one of 'Allow', 'Deny'",
		"flags: {cluster-cidrs: 10.0.0.0/8}":       "at '/flags/cluster-cidrs': got string, want array",
		"flags: {cluster-cidrs: [10.0.0.0]}":       "at '/flags/cluster-cidrs/0': '10.0.0.0' does not match pattern",
		"flags: {protected-services: [kube-dns]}":  "at '/flags/protected-services/0': 'kube-dns' does not match pattern",
		"flags: {max-endpoints-per-slice: 1001}":   "at '/flags/max-endpoints-per-slice': maximum: got 1,001, want 1,000",
		"flags: {blind-threshold: 101}":            "at '/flags/blind-threshold': maximum: got 101, want 100",
		"flags: {witnesses: 5}":                    "at '/flags/witnesses': maximum: got 5, want 4",
		"flags: {witness-bind-address: ':1'}":      "at '/flags': additional properties 'witness-bind-address' not allowed",
		"flags: {orphan-grace: 10}":                "at '/flags/orphan-grace': got number, want string",
		"flags: {orphan-grace: ten minutes}":       "at '/flags/orphan-grace': 'ten minutes' does not match pattern",
		"flags: {leader-elect: false}":             "at '/flags': additional properties 'leader-elect' not allowed",
		"flags: {metrics-bind-address: 0}":         "at '/flags': additional properties 'metrics-bind-address' not allowed",
		"flags: {zap-log-level: 9}":                "at '/flags/zap-log-level': value must be one of",
		"crds: true":                               "at '/crds': got boolean, want object",
		"policies: {Shop: {}}":                     "at '/policies': additional properties 'Shop' not allowed",
		"admissionPolicy: {clusterCIDRs: [pods]}":  "at '/admissionPolicy/clusterCIDRs/0': 'pods' does not match pattern",
		"referenceReader: {namespaces: [a, a]}":    "at '/referenceReader/namespaces': items at 0 and 1 are equal",
		"metrics: {readers: [{name: prometheus}]}": "at '/metrics/readers/0': missing property 'namespace'",
		"metrics: {serviceMonitor: {interval: 1}}": "at '/metrics/serviceMonitor/interval': got number, want string",
		"metrics: {networkPolicy: {from: []}}":     "at '/metrics/networkPolicy/from': minItems: got 0, want 1",
		"metrics: {podMonitor: {enabled: true}}":   "so set metrics.tokenSecret.name",
		"goMemoryLimit: 920Mi":                     "at '/goMemoryLimit': '920Mi' does not match pattern",
		"resources: {limit: {memory: 1Gi}}":        "at '/resources': additional properties 'limit' not allowed",
		"podDisruptionBudget: {maxUnavailable: x}": "at '/podDisruptionBudget/maxUnavailable': 'x' does not match pattern",
		"tolerations: [{effect: Never}]":           "at '/tolerations/0/effect': value must be one of",
		"topologySpreadConstraints: [{}]":          "at '/topologySpreadConstraints/0': missing properties 'maxSkew'",
		"dnsPolicy: ClusterLast":                   "at '/dnsPolicy': value must be one of",
		"podLabels: {team: 7}":                     "at '/podLabels/team': got number, want string",
		"extraVolumes: [{emptyDir: {}}]":           "at '/extraVolumes/0': missing property 'name'",
	} {
		_, _, err := tryRender(t, renderer(t), values)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %s …", values, err, want)
		}
	}
}

// In a cluster without the kind ExternalBackendPolicy, policies are left out only if nothing is
// allowed without them. The notes then say how to create them.
func TestNewClusterNeedsPoliciesOrDeny(t *testing.T) {
	const policies = "policies: {shop: {namespaceSelector: {}, allow: [{anyTarget: {}}]}}\n"
	if _, _, err := tryRender(t, renderer(t), policies); err == nil ||
		!strings.Contains(err.Error(), "Set flags.default-target-policy=Deny") {
		t.Errorf("policies without a kind: %v", err)
	}
	manifest, notes, err := tryRender(t, renderer(t), policies+"flags: {default-target-policy: Deny}")
	if err != nil || decode(t, manifest)["ExternalBackendPolicy /shop"] != nil ||
		!strings.Contains(notes, "as `helm upgrade`, to create them") {
		t.Errorf("with Deny: %v, notes:\n%s", err, notes)
	}
	if _, ok := render(t, policies)["ExternalBackendPolicy /shop"]; !ok {
		t.Error("the policy is missing in a cluster with its kind")
	}
}
