package prometheus

import (
	"strings"
	"testing"
)

// TestAlertsStayQuiet loads a series for each alert that comes close to what the alert means, and
// wants no alert in 45 minutes.
func TestAlertsStayQuiet(t *testing.T) {
	const minutes = 45
	const orders = `{name="orders", namespace="shop"}`
	endpoints := func(state, values string) string {
		return `externalbackend_endpoints{namespace="shop", name="orders", state="` + state + `"} ` + values + "\n"
	}
	cases := map[string][]string{
		"ExternalBackendNobodyWorks": {
			// One replica follows another within a minute.
			`externalbackend_replica_working{pod="a"} 1x10 0x35` + "\n" +
				`externalbackend_replica_working{pod="b"} 0x11 1x34`,
		},
		"ExternalBackendNotReady": {"externalbackend_ready" + orders + " 1 0 0 1 0 0 1x40"},
		"ExternalBackendAllUnhealthy": {
			endpoints("Healthy", "0x45") + endpoints("Unprobed", "3x45") + endpoints("Unhealthy", "0x45"), // no check
			endpoints("Healthy", "0x45") + endpoints("Unhealthy", "0x45"),                                 // no endpoint
			endpoints("Healthy", "1x45") + endpoints("Unhealthy", "9x45"),
		},
		"ExternalBackendMostlyUnhealthy": {
			endpoints("Healthy", "2x45") + endpoints("Unhealthy", "2x45"), // half is enough
			endpoints("Healthy", "0x45") + endpoints("Unprobed", "3x45") + endpoints("Unhealthy", "0x45"),
			endpoints("Healthy", "1x45") + endpoints("Unhealthy", "0x45") + endpoints("Draining", "9x45"),
			endpoints("Healthy", "1x4 2x40") + endpoints("Unhealthy", "2x45"),
		},
		"ExternalBackendNamesStale": {"externalbackend_dns_stale_names 0 5x28 0x16"},
		"ExternalBackendVerdictsFlap": {
			`externalbackend_endpoint_transitions_total{to="Unhealthy"} 0+11x45`,
			`externalbackend_endpoint_transitions_total{to="Healthy"} 0+90x45`,
		},
		"ExternalBackendProbesLate":  {almostOnTime()},
		"ExternalBackendProberBlind": {"externalbackend_prober_blind 0x45"},
		"ExternalBackendShareGivenAway": {
			"externalbackend_replica_set_aside 0x45", "externalbackend_replica_set_aside 1x4 0x41",
		},
		"ExternalBackendProbesNotRun": {
			`externalbackend_probe_total{type="httpGet", result="failure"} 0+9x45`,
			`externalbackend_probe_total{type="grpc", result="unknown"} 7x45`,
		},
		"ExternalBackendReconcilesFail": {`controller_runtime_reconcile_errors_total{controller="other"} 0+9x45`},
	}
	for _, r := range readAlerts(t) {
		if len(cases[r.Alert]) == 0 {
			t.Errorf("no series is written for %s", r.Alert)
		}
		for _, series := range cases[r.Alert] {
			load := "load 1m\n"
			for line := range strings.Lines(series) {
				load += "  " + strings.TrimSpace(line) + "\n"
			}
			for minute, names := range firingMinutes(t, r, load, minutes) {
				if names != "" {
					t.Errorf("%s fires in minute %d with %s", r.Alert, minute, series)
					break
				}
			}
		}
		delete(cases, r.Alert)
	}
	for alert := range cases {
		t.Errorf("there is no alert %s", alert)
	}
}

// almostOnTime is a histogram of which less than one probe in a hundred is late.
func almostOnTime() string {
	const name = "externalbackend_probe_lateness_seconds_bucket"
	return name + `{le="1"} 0+995x45` + "\n" + name + `{le="2"} 0+1000x45` + "\n" + name + `{le="+Inf"} 0+1000x45`
}
