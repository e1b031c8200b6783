package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// yamlBlock is a block of YAML in Markdown, with its indentation.
var yamlBlock = regexp.MustCompile("(?ms)^( *)```yaml\n(.*?)^ *```")

// The API server accepts each manifest in README and docs as it is written, without unknown fields.
func TestManifestsInDocumentsAreAccepted(t *testing.T) {
	files := []string{filepath.Join(root, "README.md")}
	err := filepath.WalkDir(filepath.Join(root, "docs"), func(file string, entry fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(file) == ".md" {
			files = append(files, file)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	tried := 0
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, at := range yamlBlock.FindAllSubmatchIndex(content, -1) {
			indentation := regexp.MustCompile("(?m)^" + string(content[at[2]:at[3]]))
			block := indentation.ReplaceAll(content[at[4]:at[5]], nil)
			if bytes.HasPrefix(block, []byte("spec:")) {
				t.Errorf("%s: a manifest is incomplete", file)
			}
			if !bytes.HasPrefix(block, []byte("apiVersion:")) {
				continue // for example a kustomization
			}
			name := fmt.Sprintf("%s:%d", filepath.Base(file), 1+bytes.Count(content[:at[4]], []byte("\n")))
			t.Run(name, func(t *testing.T) { tryManifests(t, block) })
			tried++
		}
	}
	if tried < 30 {
		t.Errorf("only %d blocks of YAML were found", tried)
	}
}

func tryManifests(t *testing.T, block []byte) {
	strict := client.WithFieldValidation(api, metav1.FieldValidationStrict)
	d := yamlutil.NewYAMLOrJSONDecoder(bytes.NewReader(block), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := d.Decode(&u.Object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
		if k := u.GetKind(); k != "ExternalBackendPolicy" && k != "Namespace" {
			u.SetNamespace("default")
		}
		if err := strict.Create(t.Context(), u, client.DryRunAll); err != nil {
			t.Error(err)
		}
	}
}
