package importer

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	schemacel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files again")

// objectsOf reads YAML documents, and the items of Lists.
func objectsOf(text []byte) (out []*unstructured.Unstructured, err error) {
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		data, err := yaml.YAMLToJSON(document)
		if err != nil {
			return nil, err
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(data); err != nil {
			return nil, err
		}
		if !u.IsList() {
			out = append(out, u)
			continue
		}
		list, err := u.ToList()
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			out = append(out, &list.Items[i])
		}
	}
}

// checker validates as the API server does.
type checker struct {
	structural *schema.Structural
	schema     schemavalidation.SchemaValidator
	cel        *schemacel.Validator
}

func newChecker(t testing.TB) *checker {
	t.Helper()
	text, err := os.ReadFile("../../config/crd/bases/external-backend.io_externalbackends.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &crd); err != nil {
		t.Fatal(err)
	}
	var internal apiextensions.JSONSchemaProps
	err = apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
		crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &internal, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &checker{}
	if c.structural, err = schema.NewStructural(&internal); err != nil {
		t.Fatal(err)
	}
	if c.schema, _, err = schemavalidation.NewSchemaValidator(&internal); err != nil {
		t.Fatal(err)
	}
	c.cel = schemacel.NewValidator(c.structural, true, celconfig.PerCallLimit)
	return c
}

// check fails the test if the API server would refuse b.
func (c *checker) check(t testing.TB, b *v1alpha1.ExternalBackend) {
	t.Helper()
	text, err := yaml.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := objectsOf(text)
	if err != nil || len(objects) != 1 {
		t.Fatalf("%v in\n%s", err, text)
	}
	object := objects[0].Object
	errs := schemavalidation.ValidateCustomResource(nil, object, c.schema)
	if len(errs) == 0 {
		errs, _ = c.cel.Validate(t.Context(), nil, c.structural, object, nil, celconfig.RuntimeCELCostBudget)
	}
	if len(errs) > 0 {
		t.Errorf("the API server would refuse it: %v\n%s", errs.ToAggregate(), text)
	}
}

// textOf writes down all of a result.
func textOf(t testing.TB, r *Result) string {
	t.Helper()
	var out strings.Builder
	fmt.Fprintf(&out, "# %s\n", r.Source)
	for _, refusal := range r.Refusals {
		fmt.Fprintf(&out, "# refused: %s\n", refusal)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&out, "# note: %s\n", note)
	}
	for _, step := range r.Next {
		fmt.Fprintf(&out, "# next: %s\n", step)
	}
	text, err := yaml.Marshal(r.Backend)
	if err != nil {
		t.Fatal(err)
	}
	return out.String() + string(text)
}

// TestSourcesMatchGoldenFiles imports a manifest of every source, one that can be expressed and one
// that can't. The API server accepts what is printed, and what is left if the refused fields are
// left out.
func TestSourcesMatchGoldenFiles(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) < 13 {
		t.Fatalf("only %d manifests: %v", len(files), err)
	}
	api := newChecker(t)
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".yaml")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			objects, err := objectsOf(text)
			if err != nil {
				t.Fatal(err)
			}
			results, err := Import(objects, Options{Namespace: "default"})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for i := range results {
				r := &results[i]
				got = append(got, textOf(t, r))
				if refused := strings.HasSuffix(name, "-refused"); refused != (len(r.Refusals) > 0) {
					t.Errorf("%s: refused %v", r.Source, r.Refusals)
				}
				if r.Incomplete == "" {
					api.check(t, r.Backend)
				}
			}
			golden(t, name, strings.Join(got, "---\n"))
		})
	}
}

func golden(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("%s differs; it is now:\n%s", file, text)
	}
}

// TestUnreadableObjectsHideNoOthers names what is wrong with an object, and imports the objects
// before and after it.
func TestUnreadableObjectsHideNoOthers(t *testing.T) {
	const good = "{apiVersion: v1, kind: Service, metadata: {name: good}, spec: {ports: [{port: 80}]}}"
	for _, c := range []struct{ text, want string }{
		{"{apiVersion: v1, kind: Service, metadata: {}}", `Service default/: metadata.name: "" must be a DNS subdomain`},
		{"{apiVersion: v1, kind: Service, metadata: 1}", `Service default/: metadata.name: "" must be a DNS subdomain`},
		{`{apiVersion: v1, kind: Service, metadata: {name: "a\n# b"}}`, "metadata.name: \"a?# b\" must be a DNS subdomain"},
		{`{apiVersion: v1, kind: Service, metadata: {name: a, namespace: "b c"}}`, "metadata.namespace: \"b c\" must be a DNS label"},
		{"{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: 1}}",
			"Service default/a: spec.ports: it must be a list, and is of type number"},
		{`{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: "80"}]}}`,
			"Service default/a: spec.ports.port: it must be a number, and is of type string"},
		{`{apiVersion: v1, kind: Service, metadata: {name: a, creationTimestamp: "x"}}`,
			"Service default/a: it can't be read: parsing time"},
		{"{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: a}, spec: {hosts: x}}",
			"ServiceEntry default/a: spec.hosts: it must be a list, and is of type string"},
		{"{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: a}, spec: 3}",
			"ServiceEntry default/a: spec: it must be an object, and is of type number"},
		{"{apiVersion: v1, kind: Endpoints, metadata: {name: a}}",
			"Endpoints default/a: metadata.name: Service default/a is missing; import both together"},
		{"{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: a}}",
			"EndpointSlice default/a: metadata.labels.kubernetes.io/service-name: Service default/ is missing"},
	} {
		objects, err := objectsOf([]byte(good + "\n---\n" + c.text + "\n---\n" + strings.Replace(good, "good", "too", 1)))
		if err != nil {
			t.Fatal(err)
		}
		results, err := Import(objects, Options{Namespace: "default"})
		if err != nil || len(results) != 3 {
			t.Fatalf("%s: %d results, %v", c.text, len(results), err)
		}
		var bad []string
		for i := range results {
			if r := &results[i]; r.Incomplete == "" {
				continue
			}
			for _, refusal := range results[i].Refusals {
				bad = append(bad, refusal.String())
			}
		}
		if len(bad) != 1 || !strings.Contains(bad[0], c.want) {
			t.Errorf("%s: %q is refused, want %q", c.text, bad, c.want)
		}
	}
}

// TestServiceWithUnreadableSliceIsIncomplete prints no ExternalBackend that lacks the endpoints of
// a slice, whatever the user lets it leave out.
func TestServiceWithUnreadableSliceIsIncomplete(t *testing.T) {
	objects, err := objectsOf([]byte(`{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {ports: [{port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: a-1, labels: {kubernetes.io/service-name: a}}
addressType: IPv4
endpoints: [{addresses: 198.51.100.1}]
`))
	if err != nil {
		t.Fatal(err)
	}
	results, err := Import(objects, Options{Namespace: "default"})
	const want = "EndpointSlice a-1: endpoints.addresses: it must be a list, and is of type string"
	if err != nil || len(results) != 1 || results[0].Incomplete != "EndpointSlice a-1 can't be read" ||
		len(results[0].Refusals) != 1 || results[0].Refusals[0].String() != want {
		t.Errorf("it is %+v, %v", results, err)
	}
}

// TestPortsOfTheUserAreRead reads numbers with and without a name.
func TestPortsOfTheUserAreRead(t *testing.T) {
	ports, err := ParsePorts([]string{"5432", "admin=80"})
	if err != nil || len(ports) != 2 || ports[0] != (Port{"", 5432}) || ports[1] != (Port{"admin", 80}) {
		t.Errorf("the ports are %v, %v", ports, err)
	}
	for _, text := range []string{"", "0", "65536", "a=", "-1", "x"} {
		if _, err := ParsePorts([]string{text}); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// FuzzImportedBackendsAreValid imports any object: it never panics, what it says is bounded, and
// the API server accepts what it prints.
func FuzzImportedBackendsAreValid(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		f.Fatal("there are no manifests to begin with")
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, "", "http=80")
	}
	api := newChecker(f)
	f.Fuzz(func(t *testing.T, text []byte, name, port string) {
		objects, err := objectsOf(text)
		if err != nil {
			return
		}
		ports, _ := ParsePorts([]string{port})
		results, err := Import(objects, Options{Namespace: "default", Name: name, Ports: ports})
		if err != nil {
			return
		}
		for i := range results {
			r := &results[i]
			if len(r.Refusals) > maxRemarks+1 || len(r.Notes) > maxRemarks+1 {
				t.Errorf("%d refusals, %d notes", len(r.Refusals), len(r.Notes))
			}
			for _, line := range append(append([]string{r.Source}, r.Notes...), r.Next...) {
				if len(line) > 2000 || strings.ContainsAny(line, "\n\r\x1b") {
					t.Errorf("it says %q", line)
				}
			}
			for _, refusal := range r.Refusals {
				if line := refusal.String(); len(line) > 4000 || strings.ContainsAny(line, "\n\r\x1b") {
					t.Errorf("it says %q", line)
				}
			}
			if r.Incomplete == "" {
				api.check(t, r.Backend)
			}
		}
	})
}
