package probe

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// reasonsOf returns the string constants of a package whose names begin with prefix, by the rest
// of their names.
func reasonsOf(t *testing.T, directory, prefix string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(directory, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	reasons := map[string]string{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok || len(spec.Values) == 0 || !strings.HasPrefix(spec.Names[0].Name, prefix) {
				return true
			}
			if value, ok := spec.Values[0].(*ast.BasicLit); ok {
				reasons[strings.TrimPrefix(spec.Names[0].Name, prefix)], _ = strconv.Unquote(value.Value)
			}
			return true
		})
	}
	return reasons
}

// TestReasonsAreThoseOfTheAPI compares the prober's reasons with the reasons of one target in the
// API. The API has four more, for what is known of a target without a probe.
func TestReasonsAreThoseOfTheAPI(t *testing.T) {
	want := reasonsOf(t, "../../api/v1alpha1", "TargetReason")
	for _, other := range []string{"NameNotFound", "DuplicateAddress", "FamilyNotServed", "Truncated"} {
		if _, ok := want[other]; !ok {
			t.Errorf("the API has no TargetReason%s", other)
		}
		delete(want, other)
	}
	if diff := cmp.Diff(want, reasonsOf(t, ".", "Reason")); diff != "" {
		t.Errorf("reasons of the API (-) and of the prober (+) differ:\n%s", diff)
	}
}
