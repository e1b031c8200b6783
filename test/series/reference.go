// Package series compares what a manager exposes with docs/reference/metrics.md, and with what
// alerts, the dashboard and documents ask for. It also writes that page.
package series

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/external-backend/operator/controllers"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
	"github.com/external-backend/operator/internal/witness"
)

const (
	// ownPrefix begins the names of the operator's own metrics. The others are of libraries.
	ownPrefix = "externalbackend_"
	// goPrefix begins the names of some 150 metrics of Go's runtime. They differ between versions of
	// Go, which documents them, so the reference does not list them.
	goPrefix = "go_"
)

// Metric is what the reference says of one metric.
type Metric struct {
	Name, Type, Help string
	Labels           []string // sorted
}

// Own returns the metrics that the operator registers, sorted by name. It reads them from the
// collectors, so it also knows those without a series.
func Own() ([]Metric, error) {
	collectors := &recorder{}
	controllers.NewMetrics(collectors)
	yes, no := func() bool { return true }, func() bool { return false }
	controllers.RegisterShare(collectors, yes, no, func() int { return 0 })
	probe.New(probe.Options{Registerer: collectors})
	resolve.New(resolve.Options{Registerer: collectors})
	witness.NewPanel(witness.PanelOptions{Registerer: collectors})
	witness.NewServer(witness.ServerOptions{Registerer: collectors})

	var own []Metric
	for _, c := range collectors.all {
		metric, err := describe(c)
		if err != nil {
			return nil, err
		}
		own = append(own, metric)
	}
	slices.SortFunc(own, byName)
	return own, nil
}

func byName(a, b Metric) int { return cmp.Compare(a.Name, b.Name) }

// recorder is a registerer that only remembers collectors.
type recorder struct{ all []prometheus.Collector }

// Register remembers a collector.
func (r *recorder) Register(c prometheus.Collector) error {
	r.all = append(r.all, c)
	return nil
}

// MustRegister remembers collectors.
func (r *recorder) MustRegister(all ...prometheus.Collector) { r.all = append(r.all, all...) }

// Unregister does nothing.
func (r *recorder) Unregister(prometheus.Collector) bool { return false }

// description is the text of a prometheus.Desc, which has no other way to show its contents.
var description = regexp.MustCompile(
	`^Desc\{fqName: ("[^"]*"), help: ("(?:[^"\\]|\\.)*"), unit: "[^"]*", constLabels: \{\}, variableLabels: \{(.*)\}\}$`)

// describe returns what a collector with one description says of itself.
func describe(c prometheus.Collector) (Metric, error) {
	described := make(chan *prometheus.Desc, 1)
	c.Describe(described)
	text := (<-described).String()
	parts := description.FindStringSubmatch(text)
	if parts == nil {
		return Metric{}, fmt.Errorf("can't read the description %s", text)
	}
	name, err := strconv.Unquote(parts[1])
	if err != nil {
		return Metric{}, err
	}
	help, err := strconv.Unquote(parts[2])
	if err != nil {
		return Metric{}, err
	}
	kind, err := kindOf(c)
	if err != nil {
		return Metric{}, fmt.Errorf("%s: %w", name, err)
	}
	labels := strings.FieldsFunc(parts[3], func(r rune) bool { return r == ',' })
	slices.Sort(labels)
	return Metric{Name: name, Type: kind, Help: help, Labels: labels}, nil
}

// kindOf returns the type of a collector's metrics in Prometheus' words.
func kindOf(c prometheus.Collector) (string, error) {
	switch c := c.(type) {
	case *prometheus.CounterVec:
		return "counter", nil
	case *prometheus.GaugeVec:
		return "gauge", nil
	case *prometheus.HistogramVec:
		return "histogram", nil
	case prometheus.Metric:
		var one dto.Metric
		if err := c.Write(&one); err != nil {
			return "", err
		}
		switch {
		case one.Counter != nil:
			return "counter", nil
		case one.Gauge != nil:
			return "gauge", nil
		case one.Histogram != nil:
			return "histogram", nil
		}
	}
	return "", fmt.Errorf("the type of %T is unknown here", c)
}

// Scrape is what a manager exposes.
type Scrape struct{ families map[string]*dto.MetricFamily }

// Parse reads a scrape in Prometheus' text format.
func Parse(text io.Reader) (Scrape, error) {
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(text)
	return Scrape{families}, err
}

// Metrics returns the operator's metrics and those of libraries, sorted by name, without those of
// Go's runtime.
func (s Scrape) Metrics() (own, libraries []Metric) {
	for _, name := range slices.Sorted(maps.Keys(s.families)) {
		family := s.families[name]
		labels := map[string]bool{}
		for _, series := range family.GetMetric() {
			for _, pair := range series.GetLabel() {
				labels[pair.GetName()] = true
			}
		}
		metric := Metric{
			Name: name, Type: strings.ToLower(family.GetType().String()), Help: family.GetHelp(),
			Labels: slices.Sorted(maps.Keys(labels)),
		}
		switch {
		case strings.HasPrefix(name, ownPrefix):
			own = append(own, metric)
		case !strings.HasPrefix(name, goPrefix):
			libraries = append(libraries, metric)
		}
	}
	return own, libraries
}

const tableHead = "| metric | type | labels | meaning |\n|---|---|---|---|\n"

// Table returns metrics as a table in Markdown.
func Table(metrics []Metric) string {
	var text strings.Builder
	text.WriteString(tableHead)
	escape := strings.NewReplacer("|", `\|`, "<", "&lt;", "\n", " ")
	for _, m := range metrics {
		fmt.Fprintf(&text, "| `%s` | %s | %s | %s |\n",
			m.Name, m.Type, strings.Join(m.Labels, ", "), escape.Replace(m.Help))
	}
	return text.String()
}

const (
	ownHeading       = "\n## The operator's own\n\n"
	librariesHeading = "\n## Of libraries\n\n"
)

const introduction = `# Metrics

<!-- Do not edit this page. "make docs" writes the first table from the code. The second one is what a real manager
exposes: "go test ./integration -run TestMetricsAreDocumented -record-metrics" in test/ writes it. -->

The manager serves these metrics on --metrics-bind-address; [operations](../operations.md#metrics) says who may read
them. [Alerts](../alerts.md) says which of them matter most. Only the leader's series move. The metrics of the
probes and of DNS have no label that names an object, so their number does not grow with the number of ExternalBackends.
`

const librariesIntroduction = `These come from controller-runtime and from the libraries of Kubernetes and Prometheus.
Their names may change when a release of the operator uses newer versions of them. Metrics that begin with go_ are those
of Go's runtime. Their names are made of the names that [Go
documents](https://pkg.go.dev/runtime/metrics#hdr-Supported_metrics), and depend on its version.

`

// Page is docs/reference/metrics.md.
type Page struct{ Own, Libraries string } // tables

// ReadPage reads the page. A page that does not exist is empty.
func ReadPage(path string) (Page, error) {
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return Page{}, nil
	}
	if err != nil {
		return Page{}, err
	}
	_, rest, found := strings.Cut(string(text), ownHeading)
	own, libraries, both := strings.Cut(rest, librariesHeading)
	if !found || !both {
		return Page{}, fmt.Errorf("%s lacks a heading: delete it and write it again", path)
	}
	if _, rows, found := strings.Cut(libraries, tableHead); found {
		return Page{own, tableHead + rows}, nil
	}
	return Page{Own: own}, nil
}

// String returns the page's text.
func (p Page) String() string {
	return introduction + ownHeading + p.Own + librariesHeading + librariesIntroduction + p.Libraries
}

// Write writes the page.
func (p Page) Write(path string) error { return os.WriteFile(path, []byte(p.String()), 0o644) }
