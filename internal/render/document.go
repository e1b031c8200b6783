package render

import (
	"cmp"
	"slices"
	"strings"

	"github.com/pmezard/go-difflib/difflib"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

// Document is one object, without its status and without the fields that the API server keeps for
// itself.
type Document struct {
	Kind, Name string
	Object     map[string]any
}

// Documents returns a Service, if there is one, and slices.
func Documents(service *corev1.Service, list []*discoveryv1.EndpointSlice) ([]Document, error) {
	var out []Document
	add := func(kind schema.GroupVersionKind, o runtime.Object) error {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return err
		}
		u := unstructured.Unstructured{Object: fields}
		u.SetGroupVersionKind(kind)
		u.SetManagedFields(nil)
		unstructured.RemoveNestedField(fields, "status")
		unstructured.RemoveNestedField(fields, "metadata", "creationTimestamp")
		out = append(out, Document{Kind: kind.Kind, Name: u.GetName(), Object: fields})
		return nil
	}

	if service != nil {
		if err := add(corev1.SchemeGroupVersion.WithKind("Service"), service); err != nil {
			return nil, err
		}
	}
	for _, s := range list {
		if err := add(discoveryv1.SchemeGroupVersion.WithKind("EndpointSlice"), s); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// YAML returns the document as YAML.
func (d *Document) YAML() (string, error) {
	text, err := yaml.Marshal(d.Object)
	return string(text), err
}

func (d *Document) key() string { return strings.ToLower(d.Kind) + "/" + d.Name }

// Diff returns what differs between the documents that are live and those that are planned, as
// unified diffs; "" if nothing does.
func Diff(live, planned []Document) (string, error) {
	before, after := map[string]string{}, map[string]string{}
	var keys []string
	for texts, list := range map[*map[string]string][]Document{&before: live, &after: planned} {
		for i := range list {
			text, err := list[i].YAML()
			if err != nil {
				return "", err
			}
			(*texts)[list[i].key()] = text
			keys = append(keys, list[i].key())
		}
	}
	// Services come before slices.
	slices.SortFunc(keys, func(a, b string) int {
		return cmp.Or(-strings.Compare(kindOf(a), kindOf(b)), strings.Compare(a, b))
	})

	var out strings.Builder
	for _, key := range slices.Compact(keys) {
		err := difflib.WriteUnifiedDiff(&out, difflib.UnifiedDiff{
			A: lines(before[key]), B: lines(after[key]), Context: 3, FromFile: "live/" + key, ToFile: "planned/" + key,
		})
		if err != nil {
			return "", err
		}
	}
	return out.String(), nil
}

func kindOf(key string) string {
	kind, _, _ := strings.Cut(key, "/")
	return kind
}

// lines returns the lines of a text, each with its end.
func lines(text string) []string { return slices.Collect(strings.Lines(text)) }
