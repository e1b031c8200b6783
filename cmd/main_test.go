package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

func parse(args ...string) (*flags, error) {
	set := flag.NewFlagSet("manager", flag.ContinueOnError)
	set.SetOutput(io.Discard)
	return parseFlags(set, args)
}

// TestFlagsAreParsed: words and lists end up in the options.
func TestFlagsAreParsed(t *testing.T) {
	f, err := parse(
		"--leader-elect",
		"--metrics-secure=false",
		"--protected-services=kube-system/kube-dns, shop/web",
		"--cluster-cidrs=10.96.0.0/12,fd00::/64",
		"--default-target-policy=Deny",
		"--witnesses=0",
		"--witness-bind-address=[fd00::1]:9445",
		"--zap-log-level=9",
	)
	if err != nil {
		t.Fatal(err)
	}
	if !f.leaderElect || f.metricsSecure || !f.options.DefaultDeny {
		t.Errorf("leader-elect %v, metrics-secure %v, deny %v", f.leaderElect, f.metricsSecure, f.options.DefaultDeny)
	}
	if f.options.Witnesses.Count != 0 || f.options.Witnesses.Address != "[fd00::1]:9445" {
		t.Errorf("%d witnesses, at %s", f.options.Witnesses.Count, f.options.Witnesses.Address)
	}
	for _, name := range []string{"kube-system/kube-dns", "shop/web"} {
		namespace, name, _ := strings.Cut(name, "/")
		if !f.options.Protected[types.NamespacedName{Namespace: namespace, Name: name}] {
			t.Errorf("%s/%s is not protected", namespace, name)
		}
	}
	if got := f.options.ClusterCIDRs; len(got) != 2 || got[1] != netip.MustParsePrefix("fd00::/64") {
		t.Errorf("cluster CIDRs %v", got)
	}
}

// TestInvalidFlagsAreRefusedByName: no flag that guards the cluster is silently ignored.
func TestInvalidFlagsAreRefusedByName(t *testing.T) {
	for want, args := range map[string][]string{
		`unexpected argument "true"`:                              {"--metrics-secure", "true", "--shard=false"},
		`unexpected argument "192.168.0.0/16"`:                    {"--cluster-cidrs", "10.0.0.0/8,", "192.168.0.0/16"},
		`--protected-services: "kube-system/*" must be`:           {"--protected-services=kube-system/*"},
		`--protected-services: "a/b/c" must be`:                   {"--protected-services=a/b/c"},
		`--protected-services: "web" must be`:                     {"--protected-services=web"},
		`--cluster-cidrs: "10.0.0.0" must be a CIDR`:              {"--cluster-cidrs=10.0.0.0"},
		`--cluster-cidrs: "::ffff:10.0.0.0/104" must be`:          {"--cluster-cidrs=::ffff:10.0.0.0/104"},
		`--default-target-policy=deny: must be`:                   {"--default-target-policy=deny"},
		`--max-endpoints-per-slice=1001: must be from 1 to`:       {"--max-endpoints-per-slice=1001"},
		`--max-concurrent-probes=0: must be from 1 to`:            {"--max-concurrent-probes=0"},
		`--blind-threshold=101: must be from 0 to 100`:            {"--blind-threshold=101"},
		`--witnesses=5: must be from 0 to 4`:                      {"--witnesses=5"},
		`--witnesses=-1: must be from 0 to 4`:                     {"--witnesses=-1"},
		`--witness-bind-address=9444: must be :port or IP:port`:   {"--witness-bind-address=9444"},
		`--witness-bind-address=:0: must be :port or IP:port`:     {"--witness-bind-address=:0"},
		`--witness-bind-address=:65536: must be :port or IP:port`: {"--witness-bind-address=:65536"},
		`--witness-bind-address=fd00::1:9444: must be`:            {"--witness-bind-address=fd00::1:9444"},
		`--witness-bind-address=: must be :port or IP:port`:       {"--witness-bind-address="},
		`flag provided but not defined: -max-endpoints-slice`:     {"--max-endpoints-slice=5"},
	} {
		if _, err := parse(args...); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v: got %v, want %s …", args, err, want)
		}
	}
}

// TestEventsAboutTheManagerGoToItsLease: without leader election there is no Lease, and they go to
// its namespace.
func TestEventsAboutTheManagerGoToItsLease(t *testing.T) {
	t.Setenv("POD_NAMESPACE", "operators")
	for want, args := range map[types.NamespacedName][]string{
		{Namespace: "operators", Name: "external-backend.io"}:    {"--leader-elect", "--shard=false"},
		{Namespace: "operators", Name: "external-backend-pod-1"}: {"--leader-elect"},
		{Namespace: "here", Name: "external-backend-pod-1"}:      {"--leader-elect", "--leader-election-namespace=here"},
		{Namespace: "operators"}:                                 nil,
	} {
		f, err := parse(args...)
		if err != nil {
			t.Fatal(err)
		}
		if got := f.lease("pod-1"); got != want || f.options.BlindThreshold != 90 {
			t.Errorf("%v: lease %v, blind at %d percent", args, got, f.options.BlindThreshold)
		}
	}
}

// TestChartKnowsEachFlag compares the flags that the Helm chart's schema allows with those of the
// manager: their names, bounds and words. The chart sets the others itself.
func TestChartKnowsEachFlag(t *testing.T) {
	text, err := os.ReadFile("../charts/external-backend-operator/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type property struct {
		Minimum, Maximum *int
		Enum             []any
	}
	var schema struct {
		Properties struct {
			Flags struct{ Properties map[string]property }
		}
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}

	set := flag.NewFlagSet("manager", flag.ContinueOnError)
	(&flags{}).bind(set)
	byChart := map[string]bool{
		"leader-elect": true, "leader-election-namespace": true, "health-probe-bind-address": true,
		"metrics-bind-address": true, "metrics-secure": true, "metrics-cert-path": true,
		"witness-bind-address": true,
	}
	set.VisitAll(func(f *flag.Flag) {
		if _, allowed := schema.Properties.Flags.Properties[f.Name]; allowed == byChart[f.Name] {
			t.Errorf("--%s: the schema of the chart allows it is %t", f.Name, allowed)
		}
	})
	for name, p := range schema.Properties.Flags.Properties {
		tried := map[any]bool{} // whether the manager must accept a value
		for _, word := range p.Enum {
			tried[word] = true
		}
		if p.Minimum != nil {
			tried[*p.Minimum], tried[*p.Maximum] = true, true
			tried[*p.Minimum-1], tried[*p.Maximum+1] = false, false
		}
		for value, want := range tried {
			if _, err := parse(fmt.Sprintf("--%s=%v", name, value)); (err == nil) != want {
				t.Errorf("--%s=%v is in the schema of the chart: %t, and the manager says: %v", name, value, want, err)
			}
		}
	}
}

// TestManifestHasValidFlagsAndNoSidecar: the manager accepts the flags of the manifest and
// listens on its ports, and no mesh adds a sidecar to its pod. A sidecar would accept the probes'
// connections before they reach the targets.
func TestManifestHasValidFlagsAndNoSidecar(t *testing.T) {
	text, err := os.ReadFile("../config/manager/manager.yaml")
	if err != nil {
		t.Fatal(err)
	}
	documents := strings.Split(string(text), "\n---\n")
	var d appsv1.Deployment
	if err := yaml.UnmarshalStrict([]byte(documents[1]), &d); err != nil {
		t.Fatal(err)
	}
	pod := d.Spec.Template
	container := pod.Spec.Containers[0]
	f, err := parse(container.Args...)
	if err != nil {
		t.Fatal(err)
	}
	ports := map[string]string{}
	for _, port := range container.Ports {
		ports[port.Name] = fmt.Sprint(":", port.ContainerPort)
	}
	want := map[string]string{"https": f.metricsAddress, "health": f.healthAddress, "witness": f.options.Witnesses.Address}
	if !maps.Equal(ports, want) {
		t.Errorf("the manifest has the ports %v, and its flags %v", ports, want)
	}
	for where, want := range map[*map[string]string]map[string]string{
		&pod.Annotations: {
			"consul.hashicorp.com/connect-inject": "false", "kuma.io/sidecar-injection": "disabled",
			"linkerd.io/inject": "disabled", "sidecar.istio.io/inject": "false",
		},
		&pod.Labels: {
			"istio.io/dataplane-mode": "none", "kuma.io/sidecar-injection": "disabled", "sidecar.istio.io/inject": "false",
		},
	} {
		for key, value := range want {
			if got := (*where)[key]; got != value {
				t.Errorf("%s is %q, want %q", key, got, value)
			}
		}
	}
}
