package plugin

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// runImport runs import without a cluster, and returns what it prints and its exit code.
func runImport(t *testing.T, input string, args ...string) (out, errOut string, code int) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	p := newPlugin(genericiooptions.IOStreams{In: strings.NewReader(input), Out: &stdout, ErrOut: &stderr}, "test")
	*p.flags.KubeConfig = filepath.Join(t.TempDir(), "kubeconfig") // it names no cluster to ask
	if err := os.WriteFile(*p.flags.KubeConfig, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code = p.run(t.Context(), append([]string{"import", "-n", "shop"}, args...))
	return stdout.String(), stderr.String(), code
}

// manifests returns a path of a manifest that package importer is tested with.
func manifests(name string) string { return filepath.Join("../importer/testdata", name+".yaml") }

// TestRefusedFieldsPrintNothing prints an ExternalBackend only if every field can be expressed, or
// if the user lets it leave fields out.
func TestRefusedFieldsPrintNothing(t *testing.T) {
	out, errOut, code := runImport(t, "", "-f", manifests("clusterendpoint-refused"))
	const refusal = "refused: ClusterEndpoint shop/dmz-kube: spec.clusterIP"
	if code != exitFinding || out != "" || !strings.Contains(errOut, refusal) ||
		!strings.Contains(errOut, "ClusterEndpoint shop/dmz-kube is not printed.") {
		t.Errorf("exit code %d, and it prints %q, and says: %s", code, out, errOut)
	}
	out, errOut, code = runImport(t, "", "-f", manifests("clusterendpoint-refused"), "--ignore-unsupported")
	if code != exitFine || !strings.Contains(out, "name: dmz-kube-servers") || !strings.Contains(errOut, "refused: ") {
		t.Errorf("exit code %d, and it prints %q, and says: %s", code, out, errOut)
	}
}

// TestPrintedImportCanBeReadAgain reads what import prints, with its comments, as ExternalBackends.
func TestPrintedImportCanBeReadAgain(t *testing.T) {
	for _, name := range []string{"slices", "endpoints", "serviceentry", "envoybackend", "discoveredservice"} {
		out, errOut, code := runImport(t, "", "-f", manifests(name))
		if code != exitFine {
			t.Fatalf("%s: exit code %d: %s", name, code, errOut)
		}
		backends, err := readBackendFile("-", strings.NewReader(out), "")
		if want := strings.Count(out, "kind: ExternalBackend"); err != nil || len(backends) != want {
			t.Errorf("%s: %d of %d are read, %v:\n%s", name, len(backends), want, err, out)
		}
	}
	out, _, code := runImport(t, "", "-f", manifests("serviceentry"), "-o", "json")
	if code != exitFine || !strings.Contains(out, `"kind": "List"`) {
		t.Errorf("exit code %d, and it prints %s", code, out)
	}
}

// TestOneBadObjectHidesNoOthers prints what can be imported of a file, and names every object that
// can't be: one with a refused field, one with a field of a wrong type, and what is no object.
func TestOneBadObjectHidesNoOthers(t *testing.T) {
	service := func(name, spec string) string {
		return "apiVersion: v1\nkind: Service\nmetadata: {name: " + name + "}\nspec: {" + spec + "}\n---\n"
	}
	refused := service("first", "ports: [{port: 80}]") + service("chosen", "ports: [{port: 80}], selector: {app: web}")
	broken := service("typed", "ports: {port: 80}") + "kind: [\"\\e[31m\"]\n---\n" + "a: [\n---\n"
	last := service("last", "ports: [{port: 80}]")

	for _, c := range []struct {
		input, args string
		code        int
		printed     []string
		says        []string
	}{
		{refused + last, "--output=yaml", exitFinding, []string{"first", "last"}, []string{
			"refused: Service shop/chosen: spec.selector: ", "Service shop/chosen is not printed.",
		}},
		{refused + last, "--ignore-unsupported", exitFine, []string{"first", "chosen", "last"}, []string{
			"refused: Service shop/chosen: spec.selector: ",
		}},
		{refused + broken + last, "--output=yaml", exitError, []string{"first", "last"}, []string{
			"Service shop/chosen is not printed.",
			"refused: Service shop/typed: spec.ports: it must be a list, and is of type object",
			"error: Service shop/typed can't be imported: it can't be read",
			"error: - can't be read: document 4: ", "error: - can't be read: document 5: yaml: ",
		}},
		{refused + broken + last, "--ignore-unsupported", exitError, []string{"first", "chosen", "last"}, []string{
			"error: Service shop/typed can't be imported: it can't be read",
		}},
	} {
		out, errOut, code := runImport(t, c.input, "-f", "-", c.args)
		var names []string
		if backends, err := readBackendFile("-", strings.NewReader(out), ""); err == nil {
			for _, b := range backends {
				names = append(names, b.Name)
			}
		}
		if code != c.code || !slices.Equal(names, c.printed) || strings.Contains(errOut, "\x1b") {
			t.Errorf("%s: exit code %d, it prints %v, and says: %s", c.args, code, names, errOut)
		}
		for _, text := range c.says {
			if !strings.Contains(errOut, text) {
				t.Errorf("%s: it does not say %q, but: %s", c.args, text, errOut)
			}
		}
	}
}

// TestUnreadableDocumentsAreBounded gives up on a file with too many of them.
func TestUnreadableDocumentsAreBounded(t *testing.T) {
	input := strings.Repeat("a: ["+strings.Repeat("x", 10_000)+"\n---\n", maxUnreadable)
	_, errOut, code := runImport(t, input, "-f", "-")
	if n := strings.Count(errOut, "can't be read"); code != exitError || n != maxUnreadable || len(errOut) > 400*n {
		t.Errorf("exit code %d, and it says %d bytes", code, len(errOut))
	}
	_, errOut, code = runImport(t, input+"b: [\n", "-f", "-")
	if code != exitError || strings.Count(errOut, "\n") != 1 || !strings.Contains(errOut, "more than 20 documents") {
		t.Errorf("exit code %d, and it says %s", code, errOut)
	}
}

// TestImportRefusesWhatItCantRead exits with 1 and names the problem.
func TestImportRefusesWhatItCantRead(t *testing.T) {
	const alias = "{apiVersion: v1, kind: Service, metadata: {name: a}, spec: {type: ExternalName, externalName: a.example.com}}"
	for _, c := range []struct {
		input, want string
		args        []string
	}{
		{want: "either service/NAME", args: nil},
		{want: "must be service/NAME", args: []string{"deployment/a"}},
		{want: "--output", args: []string{"-f", "-", "-o", "xml"}},
		{want: "--port", args: []string{"-f", "-", "--port", "x"}},
		{want: "nothing in it", input: "{apiVersion: v1, kind: Secret, metadata: {name: a}}", args: []string{"-f", "-"}},
		{want: "it has no port", input: alias, args: []string{"-f", "-", "--ignore-unsupported"}},
	} {
		_, errOut, code := runImport(t, c.input, c.args...)
		if code != exitError || !strings.Contains(errOut, c.want) {
			t.Errorf("%v: exit code %d, want 1 and %q in:\n%s", c.args, code, c.want, errOut)
		}
	}
}
