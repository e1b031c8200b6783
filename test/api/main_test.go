// Package api tests the API's schema with a real API server: what it accepts, what it refuses and
// with which message, that it has no defaults, and what an update may change.
package api

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	_ "istio.io/api/annotation" // keeps the module, whose CustomResourceDefinitions are used
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	_ "sigs.k8s.io/gateway-api/pkg/consts" // keeps the module, as above
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/devcluster"
)

const root = "../.."

var (
	environment *envtest.Environment
	config      *rest.Config
	// api refuses unknown fields, so that no case is accepted because of a typing error.
	api client.Client
)

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	assets, err := assets()
	if err != nil {
		return fail(err)
	}
	others, err := othersCRDs(context.Background())
	if err != nil {
		return fail(err)
	}
	environment = &envtest.Environment{
		BinaryAssetsDirectory: assets,
		CRDDirectoryPaths:     append(others, filepath.Join(root, "config/crd/bases")),
		ErrorIfCRDPathMissing: true,
	}
	config, err = environment.Start()
	if err != nil {
		return fail(fmt.Errorf("starting the API server from %s: %w", assets, err))
	}
	defer func() {
		if err := environment.Stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme} {
		if err := add(scheme); err != nil {
			return fail(err)
		}
	}
	config.QPS = -1
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return fail(err)
	}
	api = client.WithFieldValidation(c, metav1.FieldValidationStrict)
	return m.Run()
}

// administrator has all rights.
var administrator = envtest.User{Name: "admin", Groups: []string{"system:masters"}}

// assets returns the directory with kube-apiserver and etcd: $KUBEBUILDER_ASSETS, or that of the
// development cluster.
func assets() (string, error) {
	dir, err := devcluster.Assets(context.Background())
	if err != nil {
		return "", err
	}
	for _, binary := range []string{"kube-apiserver", "etcd"} {
		if _, err := os.Stat(filepath.Join(dir, binary)); err != nil {
			return "", fmt.Errorf("%s is missing; unset KUBEBUILDER_ASSETS to have it built: %w", binary, err)
		}
	}
	return dir, nil
}

// othersCRDs returns the files with the CustomResourceDefinitions of other projects that manifests
// in the documents use.
func othersCRDs(ctx context.Context) ([]string, error) {
	files := map[string]string{
		"istio.io/api":            "kubernetes/customresourcedefinitions.gen.yaml",
		"sigs.k8s.io/gateway-api": "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml",
	}
	var out []string
	for module, file := range files {
		dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
		if err != nil {
			return nil, fmt.Errorf("looking for module %s: %w", module, err)
		}
		out = append(out, filepath.Join(strings.TrimSpace(string(dir)), file))
	}
	return out, nil
}

// object reads one YAML document.
func object(t *testing.T, document string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(document), &u.Object); err != nil {
		t.Fatalf("%v in\n%s", err, document)
	}
	return u
}

// mutation changes one field of an object.
type mutation func(*testing.T, *unstructured.Unstructured)

// set sets the field at path (names and indices, separated by dots) to a value in YAML, and creates
// the maps above it.
func set(path, document string) mutation {
	return func(t *testing.T, u *unstructured.Unstructured) {
		t.Helper()
		var value any
		if err := yaml.Unmarshal([]byte(document), &value); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		put(t, u, path, value)
	}
}

// text sets the field at path to a string that YAML might read as another value.
func text(path, value string) mutation {
	return func(t *testing.T, u *unstructured.Unstructured) { t.Helper(); put(t, u, path, value) }
}

// unset removes the field at path.
func unset(path string) mutation {
	return func(t *testing.T, u *unstructured.Unstructured) { t.Helper(); put(t, u, path, nil) }
}

// all applies one mutation after the other.
func all(ms ...mutation) mutation {
	return func(t *testing.T, u *unstructured.Unstructured) {
		t.Helper()
		for _, m := range ms {
			m(t, u)
		}
	}
}

// none changes nothing.
func none(*testing.T, *unstructured.Unstructured) {}

// put sets the field at path, or deletes it if value is nil.
func put(t *testing.T, u *unstructured.Unstructured, path string, value any) {
	t.Helper()
	names := strings.Split(path, ".")
	at := u.Object
	for i := 0; i < len(names)-1; i++ {
		if list, ok := at[names[i]].([]any); ok {
			index, err := strconv.Atoi(names[i+1])
			if err != nil || index >= len(list) {
				t.Fatalf("%s: no such entry in the base object", path)
			}
			at, i = list[index].(map[string]any), i+1
			continue
		}
		if at[names[i]] == nil {
			at[names[i]] = map[string]any{}
		}
		at = at[names[i]].(map[string]any)
	}
	if last := names[len(names)-1]; value == nil {
		delete(at, last)
	} else {
		at[last] = value
	}
}

// refusal is a case of an object. Without wantErrors it must be accepted. Otherwise it must be
// refused as invalid, with each of these texts in the message.
type refusal struct {
	desc       string
	mutate     mutation
	wantErrors []string
}

// refusals creates base with each case's mutation, as a dry run.
func refusals(t *testing.T, base string, cases []refusal) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.desc, func(t *testing.T) {
			u := object(t, base)
			tc.mutate(t, u)
			check(t, api.Create(t.Context(), u, client.DryRunAll), tc.wantErrors)
		})
	}
}

// check compares the API server's answer with the wanted errors.
func check(t *testing.T, err error, wantErrors []string) {
	t.Helper()
	if len(wantErrors) == 0 {
		if err != nil {
			t.Errorf("refused: %v", err)
		}
		return
	}
	if !apierrors.IsInvalid(err) {
		t.Fatalf("got %v, want a refusal as invalid with %q", err, wantErrors)
	}
	for _, want := range wantErrors {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in the refusal, got: %v", want, err)
		}
	}
}
