package plugin

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// readObjectFile returns the objects of a file, or of in if the name is "-". It replaces a List by
// its items.
func readObjectFile(name string, in io.Reader) ([]*unstructured.Unstructured, error) {
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}

	documents := utilyaml.NewYAMLReader(bufio.NewReader(io.LimitReader(in, maxFileBytes)))
	var out []*unstructured.Unstructured
	for {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err == nil {
			out, err = appendObjects(out, text)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
}

// appendObjects appends the object, or the items of the List, of one document.
func appendObjects(out []*unstructured.Unstructured, text []byte) ([]*unstructured.Unstructured, error) {
	data, err := yaml.YAMLToJSON(text)
	if err != nil || string(data) == "null" {
		return out, err
	}
	object, _, err := unstructured.UnstructuredJSONScheme.Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	switch object := object.(type) {
	case *unstructured.Unstructured:
		out = append(out, object)
	case *unstructured.UnstructuredList:
		for i := range object.Items {
			out = append(out, &object.Items[i])
		}
	}
	return out, nil
}
