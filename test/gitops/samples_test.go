package gitops

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	kustomizev1 "github.com/fluxcd/kustomize-controller/api/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
)

// stallDelay is how long a missing Service or Secret counts as in progress. A Kustomization that
// gives up earlier never sees why.
const stallDelay = 2 * time.Minute

// TestSampleOfFlux: Flux knows every field of the sample, and what it waits for is there.
func TestSampleOfFlux(t *testing.T) {
	text, err := os.ReadFile("../../config/flux/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	var names, kinds []string
	for document := range strings.SplitSeq(string(text), "\n---\n") {
		var k kustomizev1.Kustomization
		if err := yaml.UnmarshalStrict([]byte(document), &k); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if k.APIVersion != kustomizev1.GroupVersion.String() || k.Kind != kustomizev1.KustomizationKind {
			t.Errorf("%s is of kind %s", k.Name, k.GroupVersionKind())
		}
		for _, other := range k.Spec.DependsOn {
			if !slices.Contains(names, other.Name) {
				t.Errorf("%s depends on %q, which is not before it", k.Name, other.Name)
			}
		}
		for _, check := range k.Spec.HealthChecks {
			if !scheme.Recognizes(schema.FromAPIVersionAndKind(check.APIVersion, check.Kind)) {
				t.Errorf("%s waits for %s of %s, which we don't have", k.Name, check.Kind, check.APIVersion)
			}
			if check.Kind == "ExternalBackend" &&
				(check.Namespace != k.Spec.TargetNamespace || k.GetTimeout() <= stallDelay) {
				t.Errorf("%s waits for namespace %q, for %s", k.Name, check.Namespace, k.GetTimeout())
			}
			kinds = append(kinds, check.Kind)
		}
		names = append(names, k.Name)
	}
	if want := []string{"ExternalBackendPolicy", "ExternalBackend"}; !slices.Equal(kinds, want) {
		t.Errorf("it waits for %q, not %q", kinds, want)
	}
}

// TestSampleOfArgoCD: with server-side apply Argo CD has to compare on the server's side, too.
func TestSampleOfArgoCD(t *testing.T) {
	var application struct {
		APIVersion, Kind string
		Metadata         struct{ Annotations map[string]string }
		Spec             struct {
			SyncPolicy struct{ SyncOptions []string }
		}
	}
	readYAML(t, "../../config/argocd/application.yaml", &application)
	if application.APIVersion != "argoproj.io/v1alpha1" || application.Kind != "Application" {
		t.Errorf("it is a %s of %s", application.Kind, application.APIVersion)
	}
	const compare = "ServerSideDiff=true,IncludeMutationWebhook=true"
	options := application.Spec.SyncPolicy.SyncOptions
	if !slices.Equal(options, []string{"ServerSideApply=true"}) ||
		application.Metadata.Annotations["argocd.argoproj.io/compare-options"] != compare {
		t.Errorf("options %q, annotations %q", options, application.Metadata.Annotations)
	}
	guide, err := os.ReadFile("../../docs/guide.md")
	if err != nil || !strings.Contains(string(guide), compare) {
		t.Errorf("the guide does not have %q, %v", compare, err)
	}
}
