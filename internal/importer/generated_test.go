package importer

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/internal/render"
)

// generated is a Service with slices as people write them, and what kube-proxy reads there of the
// endpoints that may get requests.
type generated struct {
	text     string
	families []corev1.IPFamily
	want     []string
}

// describe writes down an endpoint as kube-proxy reads it.
func describe(addr string, ports map[string]int32, zone, state string) string {
	var texts []string
	for _, name := range slices.Sorted(maps.Keys(ports)) {
		texts = append(texts, fmt.Sprintf("%s=%d", name, ports[name]))
	}
	return strings.Join([]string{addr, strings.Join(texts, ","), zone, state}, " ")
}

// generate writes a Service with 1 to 3 ports, and 1 to 5 slices of both families.
func generate(r *rand.Rand) generated {
	var g generated
	g.families = []corev1.IPFamily{corev1.IPv4Protocol}
	if r.IntN(2) == 0 {
		g.families = append(g.families, corev1.IPv6Protocol)
	}
	names := []string{"http", "grpc", "admin"}[:1+r.IntN(3)]
	out := "apiVersion: v1\nkind: Service\nmetadata: {name: legacy, namespace: shop}\nspec:\n  ports:\n"
	for i, name := range names {
		out += fmt.Sprintf("  - {name: %s, port: %d}\n", name, 80+i)
	}
	out += "  ipFamilies: [IPv4]\n"
	if len(g.families) > 1 {
		out = strings.Replace(out, "[IPv4]", "[IPv4, IPv6]\n  ipFamilyPolicy: PreferDualStack", 1)
	}
	next := 1
	for s := range 1 + r.IntN(5) {
		ports := map[string]int32{}
		for i, name := range names {
			ports[name] = int32(8080 + 100*i + r.IntN(3))
		}
		family, format := "IPv4", "203.0.113.%d"
		if len(g.families) > 1 && r.IntN(2) == 0 {
			family, format = "IPv6", "2001:db8::%x"
		}
		out += fmt.Sprintf("---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s%d, namespace: shop, "+
			"labels: {kubernetes.io/service-name: legacy}}\naddressType: %s\nports:\n", s, family)
		for _, name := range names {
			out += fmt.Sprintf("- {name: %s, port: %d}\n", name, ports[name])
		}
		out += "endpoints:\n"
		for range 1 + r.IntN(4) {
			addr := fmt.Sprintf(format, next)
			zone := []string{"", "eu-1", "eu-2"}[r.IntN(3)]
			way := r.IntN(len(ways))
			out += fmt.Sprintf("- {addresses: [%q], conditions: {%s}", addr, ways[way].conditions)
			if zone != "" {
				out += ", zone: " + zone
			}
			if r.IntN(2) == 0 {
				out += fmt.Sprintf(", hostname: web-%d", next)
			}
			out += "}\n"
			next++
			if ways[way].state != "" {
				g.want = append(g.want, describe(addr, ports, zone, ways[way].state))
			}
		}
	}
	slices.Sort(g.want)
	g.text = out
	return g
}

// ways are the ways to write conditions, and what they mean to kube-proxy: ready, serving,
// terminating; "" for an endpoint that gets no requests.
var ways = []struct{ conditions, state string }{
	{"", "true true false"},
	{"ready: true", "true true false"},
	{"ready: true, serving: true, terminating: false", "true true false"},
	{"ready: false, serving: true, terminating: true", "false true true"},
	{"ready: false", ""},
	{"ready: false, serving: false, terminating: true", ""},
}

// TestAdoptionOfGeneratedServicesChangesNoEndpoint imports 200 Services and plans them as the
// manager does, before any verdict. Every endpoint that may get requests keeps its address, ports,
// zone and conditions, and no other one is published.
func TestAdoptionOfGeneratedServicesChangesNoEndpoint(t *testing.T) {
	api := newChecker(t)
	for seed := range uint64(200) {
		g := generate(rand.New(rand.NewPCG(seed, 1)))
		objects, err := objectsOf([]byte(g.text))
		if err != nil {
			t.Fatal(err)
		}
		results, err := Import(objects, Options{})
		if err != nil || len(results) != 1 || len(results[0].Refusals) > 0 {
			t.Fatalf("seed %d: %v, %v\n%s", seed, results, err, g.text)
		}
		api.check(t, results[0].Backend)

		planned, err := render.Render(render.Input{
			Backend: results[0].Backend, Families: g.families, MaxPerSlice: render.DefaultMaxPerSlice,
			MaxPerBackend: render.DefaultMaxPerBackend, Now: time.Date(2026, 11, 23, 3, 0, 0, 0, time.UTC),
		})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if got := endpointsOf(planned.Slices); !slices.Equal(got, g.want) {
			text, _ := yaml.Marshal(results[0].Backend.Spec)
			t.Errorf("seed %d: the endpoints are\n%s\nwant\n%s\nof\n%s", seed,
				strings.Join(got, "\n"), strings.Join(g.want, "\n"), text)
		}
	}
}

// endpointsOf describes all endpoints of slices.
func endpointsOf(list []*discoveryv1.EndpointSlice) []string {
	var out []string
	for _, s := range list {
		ports := map[string]int32{}
		for _, p := range s.Ports {
			ports[*p.Name] = *p.Port
		}
		for i := range s.Endpoints {
			e := &s.Endpoints[i]
			c := e.Conditions
			state := fmt.Sprintf("%t %t %t", *c.Ready, *c.Serving, *c.Terminating)
			out = append(out, describe(e.Addresses[0], ports, deref(e.Zone), state))
		}
	}
	slices.Sort(out)
	return out
}
