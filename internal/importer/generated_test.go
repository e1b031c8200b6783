package importer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/internal/importer/importertest"
	"github.com/external-backend/operator/internal/render"
)

// TestAdoptionOfGeneratedServicesChangesNoEndpoint imports 200 Services and plans them as the
// manager does, before any verdict. Every endpoint that may get requests keeps its address, ports,
// zone and conditions, and no other one is published.
func TestAdoptionOfGeneratedServicesChangesNoEndpoint(t *testing.T) {
	api := newChecker(t)
	for seed := range uint64(200) {
		g := importertest.Generate(rand.New(rand.NewPCG(seed, 1)), "legacy")
		objects, err := objectsOf([]byte(g.Text))
		if err != nil {
			t.Fatal(err)
		}
		results, err := Import(objects, Options{Namespace: "shop"})
		if err != nil || len(results) != 1 || len(results[0].Refusals) > 0 {
			t.Fatalf("seed %d: %v, %v\n%s", seed, results, err, g.Text)
		}
		api.check(t, results[0].Backend)

		planned, err := render.Render(render.Input{
			Backend: results[0].Backend, Families: g.Families, MaxPerSlice: render.DefaultMaxPerSlice,
			MaxPerBackend: render.DefaultMaxPerBackend, Now: time.Date(2026, 11, 23, 3, 0, 0, 0, time.UTC),
		})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		var list []discoveryv1.EndpointSlice
		for _, s := range planned.Slices {
			list = append(list, *s)
		}
		if got := importertest.Routed(list); !slices.Equal(got, g.Routed) {
			text, _ := yaml.Marshal(results[0].Backend.Spec)
			t.Errorf("seed %d: the endpoints are\n%s\nwant\n%s\nof\n%s", seed,
				strings.Join(got, "\n"), strings.Join(g.Routed, "\n"), text)
		}
	}
}

// splitPorts is a Service. The ports of one address are spread over slices and servers.
const splitPorts = `
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{name: http, port: 80}, {name: admin, port: 81}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [198.51.100.1]}, {addresses: [198.51.100.2]}, {addresses: [198.51.100.3]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-2, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8081}]
endpoints: [{addresses: [198.51.100.1]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-3, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: admin, port: 9000}]
endpoints: [{addresses: [198.51.100.1], hostname: one}, {addresses: [198.51.100.2], conditions: {ready: false}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-4, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: admin, port: 9001}]
endpoints: [{addresses: [198.51.100.1]}]
`

// TestPortsOfOneAddressAreJoined makes a target of each server at an address, whatever slices its
// ports are in. Ports that are not ready together are refused, and so is an address that lacks one.
func TestPortsOfOneAddressAreJoined(t *testing.T) {
	objects, err := objectsOf([]byte(splitPorts))
	if err != nil {
		t.Fatal(err)
	}
	results, err := Import(objects, Options{Namespace: "shop"})
	if err != nil || len(results) != 1 {
		t.Fatal(results, err)
	}
	got := textOf(t, &results[0])
	for _, want := range []string{
		"  - name: http\n    port: 80\n    targetPort: 8080\n",
		"  - name: admin\n    port: 81\n    targetPort: 9000\n",
		"  - address: 198.51.100.1\n    name: one\n",
		"  - address: 198.51.100.1\n    name: ip-198-51-100-1\n    ports:\n    - name: http\n      targetPort: 8081\n" +
			"    - name: admin\n      targetPort: 9001\n",
		"refused: EndpointSlice web-1: endpoints[1]: it has no port admin/TCP",
		"refused: EndpointSlice web-3: endpoints[1]: it has no port http/TCP",
		"refused: EndpointSlice web-1: endpoints[2]: it has no port admin/TCP",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("there is no %q in\n%s", want, got)
		}
	}
	if n := len(results[0].Backend.Spec.Targets); n != 2 || len(results[0].Refusals) != 3 {
		t.Errorf("%d targets, and refused is %v", n, results[0].Refusals)
	}
}

// TestNobodyWaitsForReadyInVain tells the user to wait for Ready only if an endpoint is ready now.
func TestNobodyWaitsForReadyInVain(t *testing.T) {
	for conditions, want := range map[string]bool{
		"": true, "ready: false, serving: true, terminating: true": false, "ready: false": false,
	} {
		objects, err := objectsOf([]byte(`{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080}]
endpoints: [{addresses: [198.51.100.1], conditions: {` + conditions + `}}]
`))
		if err != nil {
			t.Fatal(err)
		}
		results, err := Import(objects, Options{Namespace: "shop"})
		if err != nil || len(results) != 1 || len(results[0].Refusals) > 0 {
			t.Fatal(results, err)
		}
		text := textOf(t, &results[0])
		if strings.Contains(text, "kubectl wait") != want || strings.Contains(text, "No endpoint is ready") == want {
			t.Errorf("conditions {%s}: it says\n%s", conditions, text)
		}
	}
}
