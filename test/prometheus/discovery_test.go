package prometheus

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/config"
	sd "github.com/prometheus/prometheus/discovery/kubernetes"
	"github.com/prometheus/prometheus/discovery/targetgroup"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/relabel"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"
)

// written returns the Services and EndpointSlices that a manager wrote.
func written(t *testing.T) []runtime.Object {
	t.Helper()
	text, err := os.ReadFile("testdata/slices.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var list struct{ Items []runtime.RawExtension }
	if err := yaml.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	var out []runtime.Object
	for _, item := range list.Items {
		var object runtime.Object = &corev1.Service{}
		if strings.Contains(string(item.Raw), `"kind":"EndpointSlice"`) {
			object = &discoveryv1.EndpointSlice{}
		}
		if err := yaml.UnmarshalStrict(item.Raw, object); err != nil {
			t.Fatal(err)
		}
		out = append(out, object)
	}
	return out
}

// discover returns the targets that Prometheus finds in the objects with the role endpointslice.
func discover(t *testing.T, objects []runtime.Object) []model.LabelSet {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	factory := informers.NewSharedInformerFactory(fake.NewClientset(objects...), 0)
	endpoints := factory.Discovery().V1().EndpointSlices().Informer()
	err := endpoints.AddIndexers(cache.Indexers{
		"service": func(object any) ([]string, error) {
			slice := object.(*discoveryv1.EndpointSlice)
			return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	services, pods := factory.Core().V1().Services().Informer(), factory.Core().V1().Pods().Informer()
	events := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "events"}, []string{"role", "event"})
	discovery := sd.NewEndpointSlice(slog.New(slog.DiscardHandler), endpoints, services, pods, nil, nil, nil, nil,
		false, false, false, events)
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	defer factory.Shutdown()
	defer cancel()

	groups := make(chan []*targetgroup.Group)
	go discovery.Run(ctx, groups)
	seen := map[string]*targetgroup.Group{}
	for len(seen) < len(endpoints.GetStore().List()) {
		for _, group := range <-groups {
			seen[group.Source] = group
		}
	}

	var out []model.LabelSet
	for _, source := range slices.Sorted(maps.Keys(seen)) {
		for _, target := range seen[source].Targets {
			out = append(out, target.Merge(seen[source].Labels))
		}
	}
	return out
}

// TestPrometheusFindsEndpoints: the role endpointslice finds each endpoint of the first family,
// with its conditions, port, zone and host name. It finds no name that is published unresolved.
func TestPrometheusFindsEndpoints(t *testing.T) {
	const prefix = "__meta_kubernetes_endpointslice_"
	var got []string
	for _, target := range discover(t, written(t)) {
		words := []string{string(target[model.AddressLabel])}
		for _, name := range []string{
			"port_name", "endpoint_conditions_ready", "endpoint_conditions_serving", "endpoint_conditions_terminating",
			"endpoint_zone", "endpoint_hostname", "label_external_backend_io_name",
		} {
			words = append(words, string(target[model.LabelName(prefix+name)]))
		}
		got = append(got, strings.Join(words, " "))
	}
	slices.Sort(got)
	want := []string{
		"203.0.113.20:9100 metrics true true false eu-west-1a  web",
		"203.0.113.21:9100 metrics false true true eu-west-1b  web",
		"203.0.113.22:9100 metrics false false false eu-west-1b  web",
		"203.0.113.30:9100 metrics true true false  node-1 nodes",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestDocumentedScrapeConfigKeepsReadyEndpoints: Prometheus accepts the configuration in
// docs/consumers.md, and its rules keep the endpoints that get traffic.
func TestDocumentedScrapeConfigKeepsReadyEndpoints(t *testing.T) {
	page, err := os.ReadFile("../../docs/consumers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(page), "```yaml\nscrape_configs:")
	block, _, _ = strings.Cut(block, "```")
	loaded, err := config.Load("scrape_configs:"+block, slog.New(slog.DiscardHandler))
	if !found || err != nil || len(loaded.ScrapeConfigs) != 1 {
		t.Fatalf("found %t, %v", found, err)
	}

	var got []string
	for _, target := range discover(t, written(t)) {
		b := labels.NewBuilder(labels.EmptyLabels())
		for name, value := range target {
			b.Set(string(name), string(value))
		}
		if !relabel.ProcessBuilder(b, loaded.ScrapeConfigs[0].RelabelConfigs...) {
			continue
		}
		words := []string{b.Get(model.AddressLabel), b.Get("namespace"), b.Get("externalbackend"), b.Get("zone")}
		got = append(got, strings.Join(words, " "))
	}
	slices.Sort(got)
	want := []string{"203.0.113.20:9100 shop web eu-west-1a", "203.0.113.30:9100 shop nodes "}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
