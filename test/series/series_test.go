package series

import (
	"flag"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const reference = "../../docs/reference/metrics.md"

var update = flag.Bool("update", false, "write the operator's own metrics into docs/reference/metrics.md")

// TestReferenceHasTheOperatorsMetrics compares docs/reference/metrics.md with the collectors of the
// code.
func TestReferenceHasTheOperatorsMetrics(t *testing.T) {
	page, err := ReadPage(reference)
	if err != nil {
		t.Fatal(err)
	}
	own, err := Own()
	if err != nil {
		t.Fatal(err)
	}
	page.Own = Table(own)
	if *update {
		if err := page.Write(reference); err != nil {
			t.Fatal(err)
		}
	}
	is, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(page.String(), string(is)); diff != "" {
		t.Errorf("docs/reference/metrics.md is not current: run make docs; -want +is:\n%s", diff)
	}
}

// TestOwnMetricsHaveTypesAndLabels looks at one metric of each type.
func TestOwnMetricsHaveTypesAndLabels(t *testing.T) {
	own, err := Own()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []Metric{
		{Name: "externalbackend_endpoints", Type: "gauge", Labels: []string{"name", "namespace", "state"}},
		{Name: "externalbackend_endpoint_transitions_total", Type: "counter", Labels: []string{"to"}},
		{Name: "externalbackend_probe_duration_seconds", Type: "histogram", Labels: []string{"type"}},
		{Name: "externalbackend_probe_lateness_seconds", Type: "histogram"},
		{Name: "externalbackend_probes_in_flight", Type: "gauge"},
	} {
		i := slices.IndexFunc(own, func(m Metric) bool { return m.Name == want.Name })
		if i < 0 {
			t.Errorf("%s is missing", want.Name)
			continue
		}
		if is := own[i]; is.Type != want.Type || !slices.Equal(is.Labels, want.Labels) || is.Help == "" {
			t.Errorf("%s is %+v", want.Name, is)
		}
	}
}

const exposition = `# HELP externalbackend_endpoints Published | endpoints.
# TYPE externalbackend_endpoints gauge
externalbackend_endpoints{namespace="shop",name="db",state="Healthy"} 1
externalbackend_endpoints{namespace="shop",name="db",state="Unhealthy"} 0
# HELP externalbackend_probe_lateness_seconds Lateness.
# TYPE externalbackend_probe_lateness_seconds histogram
externalbackend_probe_lateness_seconds_bucket{le="1"} 3
externalbackend_probe_lateness_seconds_bucket{le="+Inf"} 3
externalbackend_probe_lateness_seconds_sum 1
externalbackend_probe_lateness_seconds_count 3
# HELP go_goroutines Goroutines.
# TYPE go_goroutines gauge
go_goroutines 3
# HELP process_open_fds Files.
# TYPE process_open_fds gauge
process_open_fds 3
`

func parse(t *testing.T) Scrape {
	t.Helper()
	scrape, err := Parse(strings.NewReader(exposition))
	if err != nil {
		t.Fatal(err)
	}
	return scrape
}

// TestScrapeBecomesTables shows which rows a scrape gives.
func TestScrapeBecomesTables(t *testing.T) {
	own, libraries := parse(t).Metrics()
	const head = "| metric | type | labels | meaning |\n|---|---|---|---|\n"
	for is, want := range map[string]string{
		Table(own): head +
			"| `externalbackend_endpoints` | gauge | name, namespace, state | Published \\| endpoints. |\n" +
			"| `externalbackend_probe_lateness_seconds` | histogram |  | Lateness. |\n",
		Table(libraries): head + "| `process_open_fds` | gauge |  | Files. |\n",
	} {
		if diff := cmp.Diff(want, is); diff != "" {
			t.Errorf("-want +is:\n%s", diff)
		}
	}
}

// TestUnmetSelectorsAreFound tries each way in which an expression can ask for what is not there.
func TestUnmetSelectorsAreFound(t *testing.T) {
	const endpoints = "externalbackend_endpoints"
	for _, tc := range []struct {
		name     string
		selector Selector
		unmet    string // a part of the complaint; empty: there is none
	}{
		{"the metric alone", Selector{Metric: endpoints}, ""},
		{"a histogram's bucket",
			Selector{Metric: "externalbackend_probe_lateness_seconds_bucket", Labels: []string{"le"}}, ""},
		{"a value", Selector{Metric: endpoints, Matchers: []string{`state="Healthy"`}}, ""},
		{"several values", Selector{Metric: endpoints, Matchers: []string{`state=~"Healthy|Unknown"`}}, ""},
		{"not a value", Selector{Metric: endpoints, Matchers: []string{`state!="Healthy"`}}, ""},
		{"labels of Prometheus itself", Selector{Metric: "go_goroutines", Labels: []string{"instance", "job"}}, ""},
		{"an unknown metric", Selector{Metric: "externalbackend_endpoint"}, "no such metric"},
		{"a histogram without suffix", Selector{Metric: "externalbackend_probe_lateness_seconds"}, "no such metric"},
		{"a histogram in text", Selector{Metric: "externalbackend_probe_lateness_seconds", Mention: true}, ""},
		{"an unknown metric in text", Selector{Metric: "externalbackend_probe_seconds", Mention: true}, "no such metric"},
		{"an unknown value", Selector{Metric: endpoints, Matchers: []string{`state="healthy"`}}, `state="healthy"`},
		{"unknown values", Selector{Metric: endpoints, Matchers: []string{`state=~"Dead|Gone"`}}, "Dead|Gone"},
		{"no value left", Selector{Metric: endpoints, Matchers: []string{`state!~"(H|Unh)ealthy"`}}, "Unh"},
		{"an unknown label", Selector{Metric: endpoints, Labels: []string{"namespace", "zone"}}, "label zone"},
		{"an unknown label in a matcher",
			Selector{Metric: endpoints, Matchers: []string{`zone=~"a"`}, Labels: []string{"zone"}}, `zone=~"a"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			unmet, err := parse(t).Unmet([]Selector{tc.selector})
			if err != nil {
				t.Fatal(err)
			}
			if is := strings.Join(unmet, "\n"); (is == "") != (tc.unmet == "") || !strings.Contains(is, tc.unmet) {
				t.Errorf("the complaint is %q, want %q", is, tc.unmet)
			}
		})
	}
}
