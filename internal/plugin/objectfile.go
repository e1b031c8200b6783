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
// its items. unreadable says which documents hold no object, and why: the others are read
// nevertheless.
func readObjectFile(name string, in io.Reader) (objects []*unstructured.Unstructured, unreadable []error, err error) {
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, nil, err
		}
		defer file.Close()
		in = file
	}

	documents := utilyaml.NewYAMLReader(bufio.NewReader(io.LimitReader(in, maxFileBytes)))
	for number := 1; ; number++ {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, unreadable, nil
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", name, err)
		}
		read, err := documentObjects(text)
		switch {
		case err == nil:
			objects = append(objects, read...)
		case len(unreadable) == maxUnreadable:
			return nil, nil, fmt.Errorf("%s: more than %d documents can't be read, the last one is document %d",
				name, maxUnreadable, number)
		default:
			text := printable(err.Error()) // it may repeat the document
			unreadable = append(unreadable, fmt.Errorf("document %d: %.200s", number, text))
		}
	}
}

// maxUnreadable bounds the documents of a file that can't be read.
const maxUnreadable = 20

// documentObjects returns the object, or the items of the List, of one document.
func documentObjects(text []byte) ([]*unstructured.Unstructured, error) {
	data, err := yaml.YAMLToJSON(text)
	if err != nil || string(data) == "null" {
		return nil, err
	}
	object, _, err := unstructured.UnstructuredJSONScheme.Decode(data, nil, nil)
	if err != nil {
		return nil, err
	}
	var out []*unstructured.Unstructured
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
