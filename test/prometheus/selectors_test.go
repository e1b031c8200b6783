package prometheus

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"
)

const selectorsFile = "testdata/selectors.yaml"

var update = flag.Bool("update", false, "write "+selectorsFile)

// selector is what an alert, the dashboard or a document asks for. The integration tests look for
// all of it in what a real manager exposes.
type selector struct {
	Metric   string   `json:"metric"`
	Matchers []string `json:"matchers,omitempty"` // such as state="Healthy"
	Labels   []string `json:"labels,omitempty"`   // that are matched, grouped by or shown
	Mention  bool     `json:"mention,omitempty"`  // text names the metric; no expression does
}

// TestSelectorsAreListed compares testdata/selectors.yaml with what the alerts, the dashboard and
// the documents ask for.
func TestSelectorsAreListed(t *testing.T) {
	found := slices.Concat(ruleSelectors(t), dashboardSelectors(t), documentSelectors(t))
	recording := readRules(t)
	found = slices.DeleteFunc(found, func(s selector) bool { return isRecorded(recording, s.Metric) })
	want := marshal(t, unique(found))
	if *update {
		if err := os.WriteFile(selectorsFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	is, err := os.ReadFile(selectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	if string(is) != string(want) {
		t.Errorf("%s is not current: run go test -update in test/prometheus; it should be\n%s", selectorsFile, want)
	}
}

// unique sorts selectors. It leaves out that a text names a metric where more is asked of it.
func unique(all []selector) []selector {
	slices.SortFunc(all, compare)
	all = slices.CompactFunc(all, func(a, b selector) bool { return compare(a, b) == 0 })
	onlyNamed := func(s selector) bool { return s.Mention && len(s.Labels) == 0 }
	more := map[string]bool{}
	for _, s := range all {
		more[s.Metric] = more[s.Metric] || !onlyNamed(s)
	}
	return slices.DeleteFunc(all, func(s selector) bool { return onlyNamed(s) && more[s.Metric] })
}

func compare(a, b selector) int {
	return cmp.Or(cmp.Compare(a.Metric, b.Metric), slices.Compare(a.Matchers, b.Matchers),
		slices.Compare(a.Labels, b.Labels), cmp.Compare(fmt.Sprint(a.Mention), fmt.Sprint(b.Mention)))
}

func marshal(t *testing.T, all []selector) []byte {
	t.Helper()
	text, err := yaml.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	const head = "# What the alerts, the dashboard and the documents ask of metrics. `go test -update` writes it.\n"
	return append([]byte(head), text...)
}

// selectorsOf returns what an expression asks for. shown are the labels of its result that a text
// shows.
func selectorsOf(expr string, shown []string) ([]selector, error) {
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		return nil, err
	}
	var found []selector
	var problem error
	parser.Inspect(parsed, func(node parser.Node, above []parser.Node) error {
		if s, ok := node.(*parser.VectorSelector); ok {
			used, err := labelsUsed(above, shown)
			problem = cmp.Or(problem, err)
			found = append(found, newSelector(s, used))
		}
		return nil
	})
	return found, problem
}

// labelsUsed returns the labels that the expressions above a selector need: those that they group
// by and, where nothing groups, those that are shown.
func labelsUsed(above []parser.Node, shown []string) ([]string, error) {
	var used []string
	grouped := false
	for _, node := range above { // the outermost comes first
		switch n := node.(type) {
		case *parser.AggregateExpr:
			if n.Without {
				return nil, fmt.Errorf("%s: without is not supported here", n)
			}
			for _, label := range shown {
				if !grouped && !slices.Contains(n.Grouping, label) {
					return nil, fmt.Errorf("the label %s is shown, but %s has no such label", label, n)
				}
			}
			grouped = true
			used = append(used, n.Grouping...)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil && n.VectorMatching.On {
				used = append(used, n.VectorMatching.MatchingLabels...)
			}
		}
	}
	if !grouped {
		used = append(used, shown...)
	}
	return used, nil
}

func newSelector(s *parser.VectorSelector, used []string) selector {
	made := selector{Metric: s.Name}
	for _, m := range s.LabelMatchers {
		if m.Name == labels.MetricName {
			continue
		}
		used = append(used, m.Name)
		if m.Value != ".*" { // which a dashboard's variable becomes
			made.Matchers = append(made.Matchers, m.String())
		}
	}
	slices.Sort(used)
	made.Labels = slices.Compact(used)
	slices.Sort(made.Matchers)
	return made
}

var templateLabel = regexp.MustCompile(`\$labels\.(\w+)`)

// ruleSelectors returns what the alerts and recording rules ask for.
func ruleSelectors(t *testing.T) []selector {
	t.Helper()
	var all []selector
	for _, r := range readRules(t) {
		var shown []string
		for _, text := range r.Annotations {
			for _, match := range templateLabel.FindAllStringSubmatch(text, -1) {
				shown = append(shown, match[1])
			}
		}
		found, err := selectorsOf(r.Expr, shown)
		if err != nil {
			t.Errorf("%s: %v", cmp.Or(r.Alert, r.Record), err)
		}
		all = append(all, found...)
	}
	return all
}

// isRecorded reports whether a recording rule makes the metric.
func isRecorded(rules []rule, metric string) bool {
	return slices.ContainsFunc(rules, func(r rule) bool { return r.Record == metric })
}

// TestExpressionsGiveSelectors shows what is read from expressions, and what is refused.
func TestExpressionsGiveSelectors(t *testing.T) {
	for _, tc := range []struct {
		expr  string
		shown []string
		want  []selector // nil: an error
	}{
		{"a", nil, []selector{{Metric: "a"}}},
		{`a{b="c",d=~".*"}`, []string{"e"},
			[]selector{{Metric: "a", Matchers: []string{`b="c"`}, Labels: []string{"b", "d", "e"}}}},
		{"sum by (b) (rate(a[5m])) / sum(c)", nil, []selector{{Metric: "a", Labels: []string{"b"}}, {Metric: "c"}}},
		{"count(sum by (b) (a) > 0)", nil, []selector{{Metric: "a", Labels: []string{"b"}}}},
		{"a / on (b) c", nil, []selector{{Metric: "a", Labels: []string{"b"}}, {Metric: "c", Labels: []string{"b"}}}},
		{"sum by (b) (a)", []string{"b"}, []selector{{Metric: "a", Labels: []string{"b"}}}},
		{"sum by (b) (a)", []string{"c"}, nil},
		{"sum(a)", []string{"b"}, nil},
		{"sum without (b) (a)", nil, nil},
		{"sum(a", nil, nil},
	} {
		found, err := selectorsOf(tc.expr, tc.shown)
		if (err != nil) != (tc.want == nil) || err == nil && string(marshal(t, found)) != string(marshal(t, tc.want)) {
			t.Errorf("%s, shown %v: %+v, %v", tc.expr, tc.shown, found, err)
		}
	}
}
