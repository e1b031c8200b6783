package plugin

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

const completionPath = "/apis/external-backend.io/v1alpha1/namespaces/shop/externalbackends"

// completionServer serves the ExternalBackends orders-db and web of namespace shop, and returns a
// kubeconfig for it.
func completionServer(t *testing.T) string {
	t.Helper()
	answers := map[string]string{
		completionPath: `{"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadataList", "metadata": {}, "items": [
			{"metadata": {"name": "orders-db", "namespace": "shop"}}, {"metadata": {"name": "web", "namespace": "shop"}}]}`,
		completionPath + "/orders-db": `{"apiVersion": "external-backend.io/v1alpha1", "kind": "ExternalBackend",
			"metadata": {"name": "orders-db", "namespace": "shop"}, "spec": {"targets": [
			{"name": "primary"}, {"name": "replica"}, {"name": "spare", "tier": 1}]}}`,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, answer)
	}))
	t.Cleanup(server.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: here, users: [{name: me, user: {}}],
clusters: [{name: c, cluster: {server: "%s"}}],
contexts: [{name: here, context: {cluster: c, user: me}}, {name: there, context: {cluster: c, user: me}}]}`, server.URL)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A shell is offered the names of ExternalBackends, then what a command wants of one, and nothing
// if the API server has no answer. It never offers files in their place.
func TestShellCompletesNamesTargetsAndTiers(t *testing.T) {
	kubeconfig := completionServer(t)
	for line, want := range map[string]string{
		"status ,":                     "orders-db web",
		"status o":                     "orders-db",
		"explain x":                    "",
		"status orders-db ,":           "",
		"explain orders-db ,":          "primary replica spare",
		"explain orders-db primary ,":  "",
		"drain orders-db primary ,":    "replica spare",
		"drain absent ,":               "",
		"pin orders-db ,":              "0 1",
		"resume w":                     "web",
		"status --namespace elsewhere": "",
		"status -n elsewhere ,":        "",
		"ui --context t":               "there",
	} {
		args := []string{"__complete", "--kubeconfig", kubeconfig, "-n", "shop"}
		for word := range strings.FieldsSeq(line) {
			args = append(args, strings.TrimSuffix(word, ",")) // a comma is the empty word
		}
		var out, errOut bytes.Buffer
		p := newPlugin(genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &out, ErrOut: &errOut}, "test")
		if code := p.run(t.Context(), args); code != exitFine {
			t.Errorf("%s: exits with %d: %s", line, code, errOut.String())
		}
		names, directive, _ := strings.Cut("\n"+out.String(), "\n:")
		if got := strings.Join(strings.Fields(names), " "); got != want || strings.TrimSpace(directive) != "4" {
			t.Errorf("%s: offers %q and directive %q, want %q and 4 (no files)", line, got, directive, want)
		}
	}
}
