package prometheus

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// families begins the names of the metrics that the manager exposes, and of those that
// kube-state-metrics makes of our kinds.
const families = `(?:externalbackend|kube_externalbackend|kube_externalbackendpolicy|controller_runtime|workqueue|` +
	`rest_client|leader_election|certwatcher|go|process)`

var (
	// metricName is a name in a text; the first and last group are its neighbours.
	metricName = regexp.MustCompile(`(^|[^\w/.$-])(` + families + `_[a-z][a-z0-9_]*)(\.[a-z]+|)`)
	codeSpan   = regexp.MustCompile("`([^`\n]+)`")
	codeBlock  = regexp.MustCompile("(?ms)^```promql\n(.*?)^```")
	labelList  = regexp.MustCompile(`^(\w+)\{(\w+(?:, ?\w+)*)\}$`)
	byLabel    = regexp.MustCompile("`(\\w+)` by\\s+`(\\w+)`")
	lineBreak  = regexp.MustCompile(`\n[ #]*`)
)

// documentSelectors returns the metrics that the documents and the comments of config name.
func documentSelectors(t *testing.T) []selector {
	t.Helper()
	var all []selector
	for _, path := range documents(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, textSelectors(string(text))...)
	}
	return all
}

// documents returns the Markdown of the repository, and the YAML of config. The reference of
// metrics is not among them, because it is generated.
func documents(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "*.md"))
	if err != nil || len(paths) == 0 {
		t.Fatal("no document found:", err)
	}
	for _, folder := range []string{"docs", "config"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			isDocument := slices.Contains([]string{".md", ".yaml"}, filepath.Ext(path))
			if err == nil && isDocument && !strings.HasSuffix(path, "docs/reference/metrics.md") {
				paths = append(paths, path)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

// textSelectors returns what a text asks for: expressions in code, and names everywhere.
func textSelectors(text string) []selector {
	var all []selector
	for _, match := range metricName.FindAllStringSubmatch(text, -1) {
		if isFile := len(match[3]) > 1; !isFile {
			all = append(all, selector{Metric: match[2], Mention: true})
		}
	}
	for _, match := range byLabel.FindAllStringSubmatch(lineBreak.ReplaceAllString(text, " "), -1) {
		if metricName.MatchString(match[1]) {
			all = append(all, selector{Metric: match[1], Labels: []string{match[2]}, Mention: true})
		}
	}
	code := slices.Concat(codeSpan.FindAllStringSubmatch(text, -1), codeBlock.FindAllStringSubmatch(text, -1))
	for _, match := range code {
		all = append(all, codeSelectors(match[1])...)
	}
	return all
}

// codeSelectors returns what a piece of code asks for, if it is an expression that names a metric.
func codeSelectors(code string) []selector {
	if !metricName.MatchString(code) {
		return nil
	}
	if parts := labelList.FindStringSubmatch(code); parts != nil {
		names := strings.FieldsFunc(parts[2], func(r rune) bool { return r == ',' || r == ' ' })
		slices.Sort(names)
		return []selector{{Metric: parts[1], Labels: names, Mention: true}}
	}
	found, err := selectorsOf(code, nil)
	if err != nil || len(found) == 1 && len(found[0].Labels) == 0 {
		return nil // it is no expression, or only a name
	}
	return found
}

// TestTextsGiveSelectors shows what is found in a text.
func TestTextsGiveSelectors(t *testing.T) {
	for text, want := range map[string][]selector{
		"nothing externalbackend":              nil,
		"see externalbackend_editor_role.yaml": nil,
		"in api/externalbackend_types.go":      nil,
		"the series externalbackend_ready.":    {{Metric: "externalbackend_ready", Mention: true}},
		"# externalbackend_ready and process_cpu_seconds.": {
			{Metric: "externalbackend_ready", Mention: true}, {Metric: "process_cpu_seconds", Mention: true}},
		"`externalbackend_ready{namespace,name}`": {
			{Metric: "externalbackend_ready", Labels: []string{"name", "namespace"}, Mention: true}},
		"`sum by (to) (externalbackend_x_total)`": {{Metric: "externalbackend_x_total", Labels: []string{"to"}}},
		"`externalbackend_x_total` by\n  `to`": {
			{Metric: "externalbackend_x_total", Labels: []string{"to"}, Mention: true}},
		"```promql\nexternalbackend_ready{name=\"a\"} == 0\n```": {
			{Metric: "externalbackend_ready", Matchers: []string{`name="a"`}, Labels: []string{"name"}}},
	} {
		is := unique(textSelectors(text))
		if string(marshal(t, is)) != string(marshal(t, want)) {
			t.Errorf("%q: %+v, want %+v", text, is, want)
		}
	}
}
