// Package prometheus tries the alerts of config/prometheus with Prometheus' own rule engine. It is
// a module by itself, so that nothing else depends on what Prometheus requires.
package prometheus

import (
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
	"sigs.k8s.io/yaml"
)

// rule is an alert or a recording rule of a PrometheusRule.
type rule struct {
	Alert, Record, Expr, For string
	Labels, Annotations      map[string]string
}

// readAlerts returns the rules that are alerts.
func readAlerts(t *testing.T) []rule {
	t.Helper()
	return slices.DeleteFunc(readRules(t), func(r rule) bool { return r.Alert == "" })
}

func readRules(t *testing.T) []rule {
	t.Helper()
	text, err := os.ReadFile("../../config/prometheus/rules.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var object struct {
		Spec struct{ Groups []struct{ Rules []rule } }
	}
	if err := yaml.Unmarshal(text, &object); err != nil {
		t.Fatal(err)
	}
	var all []rule
	for _, group := range object.Spec.Groups {
		all = append(all, group.Rules...)
	}
	return all
}

// TestAlertsFire loads a series for each alert, one sample a minute, and wants the alert to fire
// from its minute on and not before. In the last minute the cause is over, and so is the alert.
func TestAlertsFire(t *testing.T) {
	const orders = `{name="orders", namespace="shop"}`
	endpoints := func(state, values string) string {
		return `externalbackend_endpoints{namespace="shop", name="orders", state="` + state + `"} ` + values + "\n"
	}
	cases := map[string]struct {
		series string
		fires  int // the first minute
		ends   int // the first minute without the alert
		labels string
	}{
		"ExternalBackendNobodyWorks": {
			`externalbackend_replica_working{pod="a"} 1 1 0 0 0 0 1 1` + "\n" +
				`externalbackend_replica_working{pod="b"} 0 0 0 0 0 0 0 0`, 4, 6, "",
		},
		"ExternalBackendNotReady": {"externalbackend_ready" + orders + " 1 0 0 0 0 1 1", 3, 5, orders},
		"ExternalBackendAllUnhealthy": {
			endpoints("Healthy", "1 0 0 0 1 1") + endpoints("Unhealthy", "1 1 1 1 1 1") +
				endpoints("Unknown", "0 1 1 1 0 0"), 2, 4, orders,
		},
		"ExternalBackendMostlyUnhealthy": {
			endpoints("Healthy", "2 1 1 1 1 1 1 1 2 2") + endpoints("Unhealthy", "2 3 3 3 3 3 3 3 2 2"), 6, 8, orders,
		},
		"ExternalBackendNamesStale":     {`externalbackend_dns_stale_names{pod="a"} 0 1x32 0 0`, 31, 34, `{pod="a"}`},
		"ExternalBackendVerdictsFlap":   {`externalbackend_endpoint_transitions_total{to="Unhealthy"} 0+30x30 900x20`, 15, 36, ""},
		"ExternalBackendProbesLate":     {lateness("0+10x30 300x20"), 11, 34, ""},
		"ExternalBackendProberBlind":    {`externalbackend_prober_blind{pod="a"} 0 1 1 0`, 1, 3, `{pod="a"}`},
		"ExternalBackendShareGivenAway": {`externalbackend_replica_set_aside{pod="a"} 0 1x8 0x9`, 6, 10, `{pod="a"}`},
		"ExternalBackendProbesNotRun":   {`externalbackend_probe_total{type="httpGet", result="unknown"} 0+1x20 20x20`, 11, 24, ""},
		"ExternalBackendReconcilesFail": {
			`controller_runtime_reconcile_errors_total{controller="externalbackend"} 0+1x20 20x20`, 11, 24, "",
		},
	}
	for _, r := range readAlerts(t) {
		t.Run(r.Alert, func(t *testing.T) {
			c, known := cases[r.Alert]
			if !known {
				t.Fatal("no series is written for this alert")
			}
			delete(cases, r.Alert)
			load := "load 1m\n"
			for line := range strings.Lines(c.series) {
				load += "  " + strings.TrimSpace(line) + "\n"
			}
			firing := firingMinutes(t, r, load, c.ends+1)
			for minute, names := range firing {
				want := ""
				if minute >= c.fires && minute < c.ends {
					want = "{" + strings.Trim(c.labels, "{}") + "}"
				}
				if names != want {
					t.Errorf("minute %d: firing for %q, want %q", minute, names, want)
				}
			}
		})
	}
	for alert := range cases {
		t.Errorf("there is no alert %s", alert)
	}
}

// lateness is a histogram whose probes are all between one and two seconds late.
func lateness(values string) string {
	const name = "externalbackend_probe_lateness_seconds_bucket"
	return name + `{le="1"} 0x60` + "\n" + name + `{le="2"} ` + values + "\n" + name + `{le="+Inf"} ` + values
}

// firingMinutes evaluates an alert each minute. It returns the labels of the series for which it
// fires, without the alert's own.
func firingMinutes(t *testing.T, r rule, load string, minutes int) []string {
	t.Helper()
	storage := promqltest.LoadedStorage(t, load)
	defer storage.Close()
	engine := promqltest.NewTestEngine(t, false, 0, promqltest.DefaultMaxSamplesPerQuery)
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(r.Expr)
	if err != nil {
		t.Fatal(err)
	}
	hold, err := model.ParseDuration(max(r.For, "0s"))
	if err != nil {
		t.Fatal(err)
	}
	alert := rules.NewAlertingRule(r.Alert, expr, time.Duration(hold), 0,
		labels.FromMap(r.Labels), labels.FromMap(r.Annotations), labels.EmptyLabels(), "", true,
		slog.New(slog.DiscardHandler))
	query := rules.EngineQueryFunc(engine, storage)
	firing := make([]string, minutes)
	for minute := range firing {
		if _, err := alert.Eval(t.Context(), 0, time.Unix(int64(minute*60), 0), query, nil, 0); err != nil {
			t.Fatal(err)
		}
		for _, a := range alert.ActiveAlerts() {
			if a.State != rules.StateFiring {
				continue
			}
			firing[minute] += labels.NewBuilder(a.Labels).Del("alertname", "severity").Labels().String()
			for name, text := range a.Annotations.Map() {
				if strings.Contains(text, "error expanding") || strings.Contains(text, "<no value>") {
					t.Errorf("annotation %s: %s", name, text)
				}
			}
		}
	}
	return firing
}
