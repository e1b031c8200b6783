package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const root = "../.."

// walk visits the fields below a schema, with their paths.
func walk(
	s *apiextensionsv1.JSONSchemaProps, path string, visit func(path string, s *apiextensionsv1.JSONSchemaProps),
) {
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property, at := s.Properties[name], strings.TrimPrefix(path+"."+name, ".")
		visit(at, &property)
		below, suffix := objectBelow(&property)
		if below != nil {
			walk(below, at+suffix, visit)
		}
	}
}

// described lists the fields whose default is not a fixed value: it is that of another field, or is
// observed, or is one of several.
var described = []string{"spec.service.name", "spec.healthCheck.httpGet.httpHeaders", "spec.dns.nameservers"}

// The text of a field names the default that its method returns, and no text names another one.
func TestFieldTextsNameTheDefaults(t *testing.T) {
	crds, err := readCRDs(root)
	if err != nil || len(crds) != len(kinds) {
		t.Fatalf("%d CustomResourceDefinitions (%v), %d Go types", len(crds), err, len(kinds))
	}
	speaks := regexp.MustCompile(`\bdefaults?\b`)
	for _, crd := range crds {
		defaults := readType(kinds[crd.Spec.Names.Kind]).defaults
		walk(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, "", func(path string, s *apiextensionsv1.JSONSchemaProps) {
			text := strings.Join(strings.Fields(s.Description), " ")
			value, ok := effectiveDefault(defaults, path, s)
			delete(defaults, path)
			switch quoted := `"?` + regexp.QuoteMeta(strings.Trim(value, `"`)) + `"?`; {
			case !strings.HasPrefix(path, "spec."):
			case !ok:
				if speaks.MatchString(text) && !strings.Contains(text, "every default") &&
					!slices.Contains(described, path) {
					t.Errorf("%s speaks of a default that no method returns: %s", path, text)
				}
			case !regexp.MustCompile(quoted + ` (by |\((the )?)default|default \[?` + quoted + `(\W|$)`).MatchString(text):
				t.Errorf("%s does not say that %q is the default: %s", path, value, text)
			}
		})
		for path := range defaults {
			t.Errorf("%s has a default, and there is no such field", path)
		}
	}
}

// A default is what the method returns, in the unit of the field's name.
func TestDefaultsComeFromTheMethods(t *testing.T) {
	defaults := readType(kinds["ExternalBackend"]).defaults
	for path, want := range map[string]string{
		"spec.healthCheck.periodSeconds":             "10",
		"spec.healthCheck.confirmPeriodMilliseconds": "1000",
		"spec.healthCheck.httpGet.expectedStatuses":  "200-399",
		"spec.service.sessionAffinityTimeoutSeconds": "10800",
		"spec.service.publishNotReadyAddresses":      "false",
		"spec.targets[].tier":                        "0",
		"spec.dns.tls.caCertificateRefs[].key":       "ca.crt",
		"spec.ports[].targetPort":                    "", // that of port
	} {
		if got := defaults[path]; got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

// Fields come in the order of the Go type. Each shows its type, bounds, default and rules, and
// links to the section of its own fields.
func TestAFieldShowsItsBounds(t *testing.T) {
	var schema apiextensionsv1.JSONSchemaProps
	err := yaml.Unmarshal([]byte(`
description: a kind.
x-kubernetes-validations:
- {rule: "true", message: a or b, fieldPath: .list}
required: [name]
properties:
  count: {description: "count | times.", type: integer, minimum: 1, maximum: 9, default: 3}
  list:
    description: things
    minItems: 1
    maxItems: 2
    items: {properties: {key: {type: string, enum: [A, B, C]}}}
  name:
    type: string
    maxLength: 5
    pattern: ^(a|b)$
    x-kubernetes-validations: [{rule: "true", message: must be good}]
`), &schema)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	section := apiSection{Builder: &out, goType: &goType{order: []string{"spec.name", "spec.count"}}}
	section.add("Kind.spec", "spec", &schema)

	want := "### Kind.spec\n\na kind.\n\nRules:\n\n- `list`: a or b\n\n" +
		"| field | type | default | meaning |\n|---|---|---|---|\n" +
		"| `name` | string, at most 5 characters, matches `^(a\\|b)$` | required |  *Rule:* must be good. |\n" +
		"| `count` | integer, 1 to 9 | `3` | count \\| times. |\n" +
		"| `list` | [list of objects](#kindspeclist), 1 to 2 entries |  | things. |\n\n" +
		"### Kind.spec.list[]\n\nthings.\n\n" +
		"| field | type | default | meaning |\n|---|---|---|---|\n" +
		"| `key` | string, `A`, `B` or `C` |  |  |\n\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}
}

// Flags are read as package flag prints them: with types, defaults and texts of several lines.
func TestFlagsAreReadFromHelp(t *testing.T) {
	flags, err := parseHelp("Usage of manager:\n" +
		"  -zap-devel\n    \tDevelopment Mode.\n" +
		"  -probes int\n    \tProbes in flight.\n    \tNot more. (default 4096)\n" +
		"  -address string\n    \tWhere. (default \":8081\")\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []helpFlag{
		{"address", "string", ":8081", "Where."},
		{"probes", "int", "4096", "Probes in flight. Not more."},
		{"zap-devel", "true or false", "false", "Development Mode."},
	}
	if !slices.Equal(flags, want) {
		t.Errorf("got %+v, want %+v", flags, want)
	}
	if _, err := parseHelp("no flags"); err == nil {
		t.Error("a text without flags is accepted")
	}
}

// A comment becomes a text for users: without the constant's name, and with words in place of the
// names of other constants.
func TestCommentsBecomeTexts(t *testing.T) {
	dir := t.TempDir()
	source := "package p\n\n// Condition Good: all is well. While it is\n// False, see ReasonBad.\nconst (\n" +
		"\t// ConditionGood is True when all is well.\n\tConditionGood = \"Good\"\n" +
		"\t// ReasonBad means that it is not\n\t// ConditionGood.\n\tReasonBad = \"Bad\"\n)\n"
	if err := os.WriteFile(filepath.Join(dir, "words.go"), []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	blocks, err := readBlocks(dir, []string{"words.go"})
	if err != nil || len(blocks) != 1 {
		t.Fatalf("%+v, %v", blocks, err)
	}
	var out strings.Builder
	if err := addCondition(&out, blocks[0], map[string]string{"ConditionGood": "Good", "ReasonBad": "Bad"}); err != nil {
		t.Fatal(err)
	}
	want := "## Condition Good\n\nTrue when all is well. While it is False, see `Bad`.\n\n" +
		"| word | meaning |\n|---|---|\n| `Bad` | It is not `Good`. |\n\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &out, want)
	}

	if _, err := explain(word{"ReasonOther", "Other", "Another one."}, nil); err == nil {
		t.Error("a comment that does not begin with the name is accepted")
	}
}
