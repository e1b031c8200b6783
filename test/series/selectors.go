package series

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"sigs.k8s.io/yaml"
)

// Selector is what an alert, the dashboard or a document asks for. The tests of test/prometheus
// list all of them in testdata/selectors.yaml, because they have Prometheus' parser.
type Selector struct {
	Metric   string   `json:"metric"`
	Matchers []string `json:"matchers,omitempty"` // as in PromQL, such as state="Healthy"
	Labels   []string `json:"labels,omitempty"`   // the labels that are used
	// Mention is true where only text names the metric. Text may name a histogram without a suffix.
	Mention bool `json:"mention,omitempty"`
}

// ReadSelectors reads the list of test/prometheus.
func ReadSelectors(path string) ([]Selector, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var all []Selector
	return all, yaml.UnmarshalStrict(text, &all)
}

// targetLabels are the labels that Prometheus adds to each series of a scrape.
var targetLabels = []string{"job", "instance"}

// Unmet returns why a scrape has not everything that the selectors ask for, one line for each
// selector.
func (s Scrape) Unmet(selectors []Selector) ([]string, error) {
	var families []*dto.MetricFamily
	for _, family := range s.families {
		families = append(families, family)
	}
	samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, families...)
	if err != nil {
		return nil, err
	}
	series := map[string][]model.Metric{}
	for _, sample := range samples {
		name := string(sample.Metric[model.MetricNameLabel])
		series[name] = append(series[name], sample.Metric)
	}

	var unmet []string
	for _, selector := range selectors {
		found := series[selector.Metric]
		if len(found) == 0 && selector.Mention {
			found = series[selector.Metric+"_count"]
		}
		missing, err := selector.missing(found)
		if err != nil {
			return nil, err
		}
		if missing != "" {
			unmet = append(unmet, selector.Metric+": "+missing)
		}
	}
	return unmet, nil
}

// missing says what none of a metric's series has. It is empty where the selector is met.
func (s Selector) missing(series []model.Metric) (string, error) {
	if len(series) == 0 {
		return "there is no such metric", nil
	}
	for _, matcher := range s.Matchers {
		matches, err := compile(matcher)
		if err != nil {
			return "", fmt.Errorf("%s: %w", s.Metric, err)
		}
		series = slices.DeleteFunc(slices.Clone(series), func(m model.Metric) bool { return !matches(m) })
	}
	if len(series) == 0 {
		return "no series has " + strings.Join(s.Matchers, ", "), nil
	}
	for _, label := range s.Labels {
		if slices.Contains(targetLabels, label) {
			continue
		}
		for _, one := range series {
			if _, has := one[model.LabelName(label)]; !has {
				return fmt.Sprintf("a series lacks the label %s: %s", label, one), nil
			}
		}
	}
	return "", nil
}

var matcherForm = regexp.MustCompile(`^(\w+)(=~|!~|!=|=)(".*")$`)

// compile returns the function of a matcher.
func compile(matcher string) (func(model.Metric) bool, error) {
	parts := matcherForm.FindStringSubmatch(matcher)
	if parts == nil {
		return nil, fmt.Errorf("the matcher %s has an unknown form", matcher)
	}
	label, operator := model.LabelName(parts[1]), parts[2]
	value, err := strconv.Unquote(parts[3])
	if err != nil {
		return nil, fmt.Errorf("the matcher %s: %w", matcher, err)
	}
	if !strings.HasSuffix(operator, "~") {
		value = regexp.QuoteMeta(value)
	}
	expression, err := regexp.Compile("^(?:" + value + ")$")
	if err != nil {
		return nil, fmt.Errorf("the matcher %s: %w", matcher, err)
	}
	negated := strings.HasPrefix(operator, "!")
	return func(m model.Metric) bool { return expression.MatchString(string(m[label])) != negated }, nil
}
