package integration

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/series"
)

const (
	metricsReference = "../../docs/reference/metrics.md"
	selectorsFile    = "../prometheus/testdata/selectors.yaml"
)

var recordMetrics = flag.Bool("record-metrics", false,
	"write the metrics of libraries into docs/reference/metrics.md")

// TestMetricsAreDocumented brings a manager into every state that a series tells of. Then it finds
// everything that the alerts, the dashboard and the documents name, and the reference describes
// exactly the metrics that there are.
func TestMetricsAreDocumented(t *testing.T) {
	h := harness.New(t)
	selectors, err := series.ReadSelectors(selectorsFile)
	if err != nil || len(selectors) < 30 {
		t.Fatalf("%d selectors were read: %v", len(selectors), err)
	}
	selectors = slices.DeleteFunc(selectors, func(s series.Selector) bool {
		return strings.HasPrefix(s.Metric, "kube_") // test/kubestatemetrics looks for these
	})
	selectors = append(selectors, everyState(h.Namespace)...)
	m := h.StartManager("--leader-elect")
	reachEveryState(h)

	var scrape series.Scrape
	h.Eventually("every series that something asks for", func() error {
		text, err := m.Scrape(t.Context())
		if err != nil {
			return err
		}
		if scrape, err = series.Parse(strings.NewReader(text)); err != nil {
			return err
		}
		unmet, err := scrape.Unmet(selectors)
		if err == nil && len(unmet) > 0 {
			err = errors.New(strings.Join(unmet, "\n"))
		}
		return err
	})

	page, err := series.ReadPage(metricsReference)
	if err != nil {
		t.Fatal(err)
	}
	own, libraries := scrape.Metrics()
	if *recordMetrics {
		page.Libraries = series.Table(libraries)
		if err := page.Write(metricsReference); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(page.Own, series.Table(own)); diff != "" {
		t.Errorf("the operator's own metrics in docs/reference/metrics.md: -documented +exposed:\n%s", diff)
	}
	if diff := cmp.Diff(page.Libraries, series.Table(libraries)); diff != "" {
		t.Errorf("the metrics of libraries in docs/reference/metrics.md (-record-metrics writes them): "+
			"-documented +exposed:\n%s", diff)
	}
}

// everyState are the series that reachEveryState brings about.
func everyState(namespace string) []series.Selector {
	of := func(metric string, matchers ...string) series.Selector {
		return series.Selector{Metric: metric, Matchers: matchers}
	}
	ours := fmt.Sprintf("namespace=%q", namespace)
	all := []series.Selector{
		of("externalbackend_active_tier", ours, `name="web"`),
		of("externalbackend_ready", ours, `name="refused"`),
		of("externalbackend_ready_endpoints", ours, `name="names"`),
		of("externalbackend_replica_working"),
		of("rest_client_requests_total", `method="PUT"`),
	}
	for label, metric := range map[string]string{
		"to": "externalbackend_endpoint_transitions_total", "state": "externalbackend_endpoints",
	} {
		for _, state := range []string{"Healthy", "Unhealthy"} {
			all = append(all, of(metric, fmt.Sprintf("%s=%q", label, state)))
		}
	}
	for _, rcode := range []string{"NOERROR", "NXDOMAIN", "SERVFAIL", "REFUSED", "timeout"} {
		all = append(all, of("externalbackend_dns_lookups_total", fmt.Sprintf("rcode=%q", rcode)))
	}
	return all
}

// reachEveryState creates ExternalBackends with endpoints in every state, names that fail in
// different ways, and targets that policy refuses.
func reachEveryState(h *harness.Test) {
	h.T.Helper()
	set := startServers(h, 4)
	set.servers[1].SetSick(true)
	hole := h.Machine("hole")
	if err := hole.BlackHole(); err != nil {
		h.T.Fatal(err)
	}
	h.ApplyBackend("web", spec(set.target(0, "")+set.target(1, "")+set.target(2, ", tier: 1")+
		set.target(3, ", adminState: Draining"), "", ""))
	h.ApplyBackend("plain", onePort)
	h.ApplyBackend("hole", web+"targets: [{name: a, address: %s}]\n"+
		"healthCheck: {tcpSocket: {}, periodSeconds: 60, timeoutSeconds: 30}", "", hole.V4)
	h.ApplyBackend("refused", strings.ReplaceAll(onePort, "198.51.100.1", "10.96.0.1"))

	ns := startScriptedDNS(h)
	ns.set("good.example.com", answerWith("198.51.100.1"))
	ns.set("nowhere.example.com", answerWithCode(dns.RcodeNameError))
	ns.set("broken.example.com", answerWithCode(dns.RcodeServerFailure))
	ns.set("silent.example.com", neverAnswer)
	h.ApplyBackend("names", web+"dns: {nameservers: [%q], minTTLSeconds: 1}\ntargets:\n"+
		"- {name: good, hostname: good.example.com}\n- {name: nowhere, hostname: nowhere.example.com}\n"+
		"- {name: broken, hostname: broken.example.com}\n- {name: silent, hostname: silent.example.com}\n"+
		"- {name: refused, hostname: refused.example.com}\n", "", ns.V4)
	h.WaitCondition("names", "Ready", "True", "")
	h.WaitCondition("refused", "Permitted", "False", "TargetDenied")

	h.WaitStates("web", harness.States{set.at(0): harness.Healthy, set.at(1): harness.Unhealthy,
		set.at(2): harness.Standby, set.at(3): harness.Draining})
	set.servers[0].SetSick(true) // a verdict that changes
	ns.set("good.example.com", answerWithCode(dns.RcodeServerFailure))
	h.WaitCondition("names", "NamesResolved", "False", "")
}

// TestKubeStateMetricsFolderIsAccepted wants the API server to accept config/kube-state-metrics.
func TestKubeStateMetricsFolderIsAccepted(t *testing.T) {
	h := harness.New(t)
	is, err := h.Kubectl(t.Context(), "apply", "--server-side", "--dry-run=server", "-o", "name",
		"-k", "../../config/kube-state-metrics")
	if err != nil {
		t.Fatal(err)
	}
	want := "clusterrole.rbac.authorization.k8s.io/external-backend-kube-state-metrics\n" +
		"clusterrolebinding.rbac.authorization.k8s.io/external-backend-kube-state-metrics\n" +
		"configmap/external-backend-custom-resource-state\n"
	if is != want {
		t.Errorf("the folder has %q", is)
	}
}

// TestDashboardBecomesAConfigMap applies config/grafana as its comment says, and wants a ConfigMap
// that the sidecar of Grafana's chart finds.
func TestDashboardBecomesAConfigMap(t *testing.T) {
	h := harness.New(t)
	folder := "../../config/grafana"
	if _, err := h.Kubectl(t.Context(), "apply", "--server-side", "-n", h.Namespace, "-k", folder); err != nil {
		t.Fatal(err)
	}
	var maps corev1.ConfigMapList
	if err := h.Client.List(t.Context(), &maps, client.InNamespace(h.Namespace),
		client.MatchingLabels{"grafana_dashboard": "1"}); err != nil {
		t.Fatal(err)
	}
	if len(maps.Items) != 1 || len(maps.Items[0].Data) != 1 {
		t.Fatalf("there are %d ConfigMaps for the sidecar: %v", len(maps.Items), maps.Items)
	}
	for name, text := range maps.Items[0].Data {
		if !strings.HasSuffix(name, ".json") || !json.Valid([]byte(text)) {
			t.Errorf("%s is no dashboard", name)
		}
	}
}
