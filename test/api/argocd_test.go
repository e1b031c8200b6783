package api

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// config/argocd adds the health check of each kind to the ConfigMap that Argo CD has already, and
// changes nothing else in it.
func TestHealthChecksJoinConfigMapOfArgoCD(t *testing.T) {
	const folder = "../../config/argocd"
	labels := map[string]string{"app.kubernetes.io/name": "argocd-cm", "app.kubernetes.io/part-of": "argocd"}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "argocd"}}
	installed := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "argocd-cm", Namespace: "argocd", Labels: labels},
		Data:       map[string]string{"url": "https://argocd.example.com"},
	}
	for _, o := range []client.Object{namespace, installed} {
		if err := api.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := api.Delete(context.WithoutCancel(t.Context()), installed); err != nil {
			t.Error(err)
		}
	})

	want := map[string]string{"url": "https://argocd.example.com"}
	scripts, err := filepath.Glob(folder + "/resource_customizations/*/*/health.lua")
	if err != nil || len(scripts) != 2 {
		t.Fatalf("the health checks are %q, %v", scripts, err)
	}
	for _, script := range scripts {
		text, err := os.ReadFile(script)
		if err != nil {
			t.Fatal(err)
		}
		kind := filepath.Dir(script)
		group := filepath.Dir(kind)
		want["resource.customizations.health."+filepath.Base(group)+"_"+filepath.Base(kind)] = string(text)
	}

	kubectl := newKubectl(t)
	for range 2 { // the second time nothing changes
		kubectl.run(t, "", "apply", "--server-side", "-k", folder)
		if err := api.Get(t.Context(), client.ObjectKeyFromObject(installed), installed); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, installed.Data); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		if diff := cmp.Diff(labels, installed.Labels); diff != "" {
			t.Errorf("labels, -want +got:\n%s", diff)
		}
	}
}
