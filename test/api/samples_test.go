package api

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Every sample is accepted as it is, and is listed in kustomization.yaml.
func TestSamplesAreAccepted(t *testing.T) {
	dir := filepath.Join(root, "config/samples")
	files, err := filepath.Glob(filepath.Join(dir, "v1alpha1_*.yaml"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no samples in %s: %v", dir, err)
	}
	var kustomization struct{ Resources []string }
	content, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(content, &kustomization); err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		name := filepath.Base(file)
		t.Run(name, func(t *testing.T) {
			if !slices.Contains(kustomization.Resources, name) {
				t.Error("not in kustomization.yaml")
			}
			for _, u := range documents(t, file) {
				if err := api.Create(t.Context(), u, client.DryRunAll); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// documents reads the objects of a file. An object without a namespace gets the namespace default.
func documents(t *testing.T, file string) (objects []*unstructured.Unstructured) {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	d := yamlutil.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := d.Decode(u); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatal(err)
		}
		if u.GetKind() != "ExternalBackendPolicy" {
			u.SetNamespace("default")
		}
		objects = append(objects, u)
	}
}
