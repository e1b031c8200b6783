package api

import (
	"context"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
)

const (
	newerCheck = `
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: newer, namespace: default}
spec:
  ports: [{port: 80}]
  targets: [{name: a, address: 203.0.113.1}]
  healthCheck: {httpGet: {expectedBody: ok}}
`
	newerRule = `
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackendPolicy
metadata: {name: newer}
spec:
  namespaceSelector: {}
  allow: [{cidrs: [203.0.113.0/24], weekdays: [Monday]}]
`
)

// If the CRDs have a field that the manager does not know, an object that uses it is refused: the
// field may make a check stronger or a rule narrower. If the CRDs do not have it, the API server
// reports or prunes it.
func TestFieldsOfNewerCRDsAreRefused(t *testing.T) {
	// The CRD does not have the field. Without field validation, the API server prunes it.
	for _, text := range []string{newerCheck, newerRule} {
		if err := api.Create(t.Context(), object(t, text), client.DryRunAll); err == nil ||
			!strings.Contains(err.Error(), "unknown field") {
			t.Errorf("an unknown field: %v", err)
		}
	}
	pruned := object(t, newerCheck)
	if err := client.WithFieldValidation(api, metav1.FieldValidationIgnore).Create(t.Context(), pruned,
		client.DryRunAll); err != nil {
		t.Error(err)
	}
	if get, _, _ := unstructured.NestedMap(pruned.Object, "spec", "healthCheck", "httpGet"); len(get) > 0 {
		t.Errorf("not pruned: %v", get)
	}

	// The CRD has the field, and the API server keeps it.
	extend(t, "externalbackends", "spec/properties/healthCheck/properties/httpGet/properties/expectedBody",
		`{"type": "string"}`)
	extend(t, "externalbackendpolicies", "spec/properties/allow/items/properties/weekdays",
		`{"type": "array", "items": {"type": "string"}}`)
	create(t, object(t, newerCheck))
	create(t, object(t, newerRule))

	var b v1alpha1.ExternalBackend
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "newer"}, &b); err != nil {
		t.Fatal(err)
	}
	if got := plan.Validate(&b, &corev1.Service{}); !strings.Contains(got,
		`unknown field "healthCheck.httpGet.expectedBody"`) {
		t.Errorf("the check is accepted without its field: %q", got)
	}
	var list v1alpha1.ExternalBackendPolicyList
	if err := api.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	set, problems := policy.Compile(policy.Input{Policies: list.Items})
	if d := set.For(nil).Target("", netip.MustParseAddr("203.0.113.1")); d.Allowed || len(problems) == 0 {
		t.Errorf("the rule is accepted without its field: %+v, %v", d, problems)
	}
}

// extend adds a property to a CRD's schema until the test ends.
func extend(t *testing.T, plural, path, property string) {
	t.Helper()
	crd := &unstructured.Unstructured{}
	crd.SetGroupVersionKind(
		schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	crd.SetName(plural + "." + v1alpha1.GroupVersion.Group)
	at := `"path": "/spec/versions/0/schema/openAPIV3Schema/properties/` + path + `"`
	patch := func(ctx context.Context, step string) error {
		return api.Patch(ctx, crd.DeepCopy(), client.RawPatch(types.JSONPatchType, []byte("[{"+step+", "+at+"}]")))
	}
	if err := patch(t.Context(), `"op": "add", "value": `+property); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := patch(context.Background(), `"op": "remove"`); err != nil {
			t.Error(err)
		}
	})
}

// create creates an object once the API server uses the extended schema, and deletes it when the
// test ends.
func create(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		err := api.Create(t.Context(), u.DeepCopy())
		if err == nil {
			break
		}
		if !strings.Contains(err.Error(), "unknown field") || time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Cleanup(func() {
		if err := api.Delete(context.Background(), u); err != nil {
			t.Error(err)
		}
	})
}
