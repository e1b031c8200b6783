package chart

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

const (
	tableBegin = "<!-- The comments of values.yaml; `go test . -update` in test/chart writes this table. -->\n\n"
	tableEnd   = "\n<!-- The end of the table. -->\n"
	// longDefault is the length from which on the table does not show a default.
	longDefault = 60
)

// The table of values in the chart's README has each value, its default and its comment in
// values.yaml.
func TestReadmeListsTheValues(t *testing.T) {
	text, err := os.ReadFile(chartDir + "/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var document yaml.Node
	if err := yaml.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	table := "| value | default | meaning |\n|---|---|---|\n" + rows(t, "", document.Content[0])

	path := chartDir + "/README.md"
	readme, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(readme), tableBegin)
	is, after, foundEnd := strings.Cut(rest, tableEnd)
	if !found || !foundEnd {
		t.Fatalf("%s lacks the lines around the table", path)
	}
	if is == table {
		return
	}
	if !*update {
		t.Fatalf("%s differs from values.yaml: run go test . -update. It should have:\n%s", path, table)
	}
	if err := os.WriteFile(path, []byte(before+tableBegin+table+tableEnd+after), 0o644); err != nil {
		t.Fatal(err)
	}
}

// rows returns a row for each value below a mapping. A mapping whose first value has a comment is a
// section, and its own comment begins the comments of its values.
func rows(t *testing.T, prefix string, mapping *yaml.Node) string {
	t.Helper()
	var text strings.Builder
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		path := prefix + key.Value
		meaning := comment(key)
		if meaning == "" {
			t.Errorf("values.yaml has no comment on %s", path)
		}
		if value.Kind == yaml.MappingNode && len(value.Content) > 0 && value.Content[0].HeadComment != "" {
			fmt.Fprintf(&text, "| **%s** | | %s |\n%s", path, meaning, rows(t, path+".", value))
			continue
		}
		fmt.Fprintf(&text, "| `%s` | %s | %s |\n", path, flow(t, value), meaning)
	}
	return text.String()
}

// comment returns the comment above a key, in one line.
func comment(key *yaml.Node) string {
	var words []string
	for line := range strings.Lines(key.HeadComment) {
		words = append(words, strings.TrimSpace(strings.TrimPrefix(line, "#")))
	}
	return strings.ReplaceAll(strings.Join(words, " "), "|", "\\|")
}

// flow returns a value in one line of YAML.
func flow(t *testing.T, value *yaml.Node) string {
	t.Helper()
	copied := *value
	copied.Style |= yaml.FlowStyle
	text, err := yaml.Marshal(&copied)
	if err != nil {
		t.Fatal(err)
	}
	line := strings.Join(strings.Fields(string(text)), " ")
	if len(line) > longDefault {
		return "see values.yaml"
	}
	return "`" + line + "`"
}
