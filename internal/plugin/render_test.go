package plugin

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// runRender runs render without a cluster, and returns what it prints and its exit code.
func runRender(t *testing.T, input string, args ...string) (out, errOut string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	p := newPlugin(genericiooptions.IOStreams{In: strings.NewReader(input), Out: &stdout, ErrOut: &stderr}, "test")
	p.now = func() time.Time { return time.Date(2026, 11, 23, 3, 0, 0, 0, time.UTC) }
	*p.flags.KubeConfig = filepath.Join(t.TempDir(), "kubeconfig") // it names no cluster to ask
	if err := os.WriteFile(*p.flags.KubeConfig, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	args = append([]string{"render", "-n", "shop"}, args...)
	code = p.run(t.Context(), args)
	return stdout.String(), stderr.String(), code
}

// TestRenderedSamplesMatchGoldenFiles renders every sample, and what the manager would publish if
// all of its endpoints were healthy.
func TestRenderedSamplesMatchGoldenFiles(t *testing.T) {
	files, err := filepath.Glob("../../config/samples/v1alpha1_externalbackend*.yaml")
	if err != nil || len(files) < 8 {
		t.Fatalf("only %d samples: %v", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "v1alpha1_"), ".yaml")
		t.Run(name, func(t *testing.T) {
			out, errOut, code := runRender(t, "", "-f", file, "--assume-healthy")
			if strings.HasSuffix(name, "override") || strings.HasSuffix(name, "policy") {
				if code != exitError || !strings.Contains(errOut, "there is no ExternalBackend") {
					t.Errorf("exit code %d, and it says: %s", code, errOut)
				}
				return
			}
			if code != exitFine {
				t.Fatalf("exit code %d: %s", code, errOut)
			}
			golden(t, "render-"+name, errOut+out)
		})
	}
}

// TestRenderSaysWhatIsAssumed renders a manifest from the standard input with each kind of gap.
func TestRenderSaysWhatIsAssumed(t *testing.T) {
	const manifest = `
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: db}
spec: {ports: [{port: 5432}], targets: [{name: a, hostname: a.example.com}], healthCheck: {tcpSocket: {}}}`
	out, errOut, code := runRender(t, manifest, "-f", "-")
	if code != exitFine || !strings.Contains(out, "namespace: shop") {
		t.Errorf("exit code %d, and it prints:\n%s", code, out)
	}
	for _, want := range []string{
		"No target has been checked", "not its policy", "IP families IPv4", "those of a.",
	} {
		if !strings.Contains(errOut, want) {
			t.Errorf("it does not say %q:\n%s", want, errOut)
		}
	}
}

// TestRenderRefusesWhatItCantRender exits with 1 and names the problem.
func TestRenderRefusesWhatItCantRender(t *testing.T) {
	const head = "apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackend\n"
	for _, c := range []struct {
		input, want string
		args        []string
	}{
		{want: "either the NAME", args: nil},
		{want: "either the NAME", args: []string{"db", "-f", "-"}},
		{want: "--ip-families", args: []string{"-f", "-", "--ip-families", "IPX"}},
		{want: "--max-endpoints-per-slice", args: []string{"-f", "-", "--max-endpoints-per-slice", "0"}},
		{want: "--output", args: []string{"-f", "-", "-o", "xml"}},
		{want: "metadata.name", input: head + "spec: {ports: [{port: 1}]}", args: []string{"-f", "-"}},
		{want: "frobnicate", args: []string{"-f", "-"},
			input: head + "metadata: {name: db}\nspec: {ports: [{port: 1}], frobnicate: 1}"},
		{want: "spec is invalid", args: []string{"-f", "-"},
			input: head + "metadata: {name: db}\nspec: {ports: [{port: 1}], failover: {pinnedTier: 7}}"},
	} {
		_, errOut, code := runRender(t, c.input, c.args...)
		if code != exitError || !strings.Contains(errOut, c.want) {
			t.Errorf("%v: exit code %d, want 1 and %q in:\n%s", c.args, code, c.want, errOut)
		}
	}
}

// TestRenderedListIsJSON prints one List.
func TestRenderedListIsJSON(t *testing.T) {
	out, errOut, code := runRender(t, "", "-f", "../../config/samples/v1alpha1_externalbackend.yaml", "-o", "json")
	if code != exitFine || !strings.Contains(out, `"kind": "List"`) {
		t.Errorf("exit code %d:\n%s%s", code, errOut, out)
	}
}
