package plugin

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
)

// maxFileBytes bounds what is read of a file.
const maxFileBytes = 16 << 20

// readBackendFile returns the ExternalBackends of a file, or of in if the name is "-". Those
// without a namespace get the given one. Other objects are skipped.
func readBackendFile(name string, in io.Reader, namespace string) ([]*v1alpha1.ExternalBackend, error) {
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		defer file.Close()
		in = file
	}

	documents := utilyaml.NewYAMLReader(bufio.NewReader(io.LimitReader(in, maxFileBytes)))
	var out []*v1alpha1.ExternalBackend
	for {
		text, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		var kind metav1.TypeMeta
		if err := yaml.Unmarshal(text, &kind); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if kind.Kind != "ExternalBackend" || kind.APIVersion != v1alpha1.GroupVersion.String() {
			continue
		}
		var b v1alpha1.ExternalBackend
		if err := yaml.UnmarshalStrict(text, &b); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if b.Name == "" {
			return nil, fmt.Errorf("%s: metadata.name is missing", name)
		}
		if b.Namespace == "" {
			b.Namespace = namespace
		}
		b.Status = v1alpha1.ExternalBackendStatus{}
		out = append(out, &b)
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: there is no ExternalBackend of %s in it", name, v1alpha1.GroupVersion)
	}
	return out, nil
}
