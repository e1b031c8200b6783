package api

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// config/argocd adds the health checks and the actions of our kinds to the ConfigMap that Argo CD
// has already, and changes nothing else in it.
func TestHealthChecksAndActionsJoinConfigMapOfArgoCD(t *testing.T) {
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

	actions, err := filepath.Glob(folder + "/actions/*.yaml")
	if err != nil || len(actions) != 2 {
		t.Fatalf("the actions are %q, %v", actions, err)
	}
	for _, path := range actions {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		kind := strings.TrimSuffix(filepath.Base(path), ".yaml")
		want["resource.customizations.actions.external-backend.io_"+kind] = string(text)
		wantScripts(t, folder+"/resource_customizations/external-backend.io/"+kind+"/actions", text)
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

// wantScripts fails unless text, which Argo CD reads as YAML, holds all scripts of a folder.
func wantScripts(t *testing.T, folder string, text []byte) {
	t.Helper()
	var is struct {
		Discovery   string `json:"discovery.lua"`
		Definitions []struct {
			Name   string `json:"name"`
			Action string `json:"action.lua"`
		} `json:"definitions"`
	}
	if err := yaml.UnmarshalStrict(text, &is); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{"discovery.lua": is.Discovery}
	for _, d := range is.Definitions {
		got[d.Name+"/action.lua"] = d.Action
	}

	want := map[string]string{}
	for _, pattern := range []string{"/discovery.lua", "/*/action.lua"} {
		files, err := filepath.Glob(folder + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			script, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want[strings.TrimPrefix(file, folder+"/")] = string(script)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s, -want +got:\n%s", folder, diff)
	}
}
