package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/external-backend/operator/internal/importer/importertest"
	"github.com/external-backend/operator/test/harness"
)

// legacy are two Services that nobody controls: one with slices that spread the ports of an
// address, and one with an Endpoints object.
const legacy = `
apiVersion: v1
kind: Service
metadata: {name: slices}
spec: {ports: [{name: http, port: 80}, {name: admin, port: 81}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: slices-1, labels: {kubernetes.io/service-name: slices}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [198.51.100.1]}, {addresses: [198.51.100.2], conditions: {ready: false}}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: slices-2, labels: {kubernetes.io/service-name: slices}}
addressType: IPv4
ports: [{name: admin, port: 9000}]
endpoints: [{addresses: [198.51.100.1]}, {addresses: [198.51.100.2], conditions: {ready: false}}]
---
apiVersion: v1
kind: Service
metadata: {name: endpoints}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: endpoints}
subsets: [{addresses: [{ip: 198.51.100.3}], ports: [{name: http, port: 8080}]}]
`

// TestEditorImportsServices imports Services with the rights of an editor, and does what the import
// says. The Services are adopted, and what kube-proxy reads there does not change.
func TestEditorImportsServices(t *testing.T) {
	h := parallel(t)
	h.Apply(legacy)
	want := map[string][]string{
		"slices": {
			`admin 198.51.100.1 9000 "" true true false`, `http 198.51.100.1 8080 "" true true false`,
		},
		"endpoints": {`http 198.51.100.3 8080 "" true true false`},
	}
	user := editor(h)
	for name, routed := range want {
		h.Eventually("the endpoints of "+name, func() error { return routedAre(h, name, routed) })
		out, errOut, code := user.run(t, "", "import", "service/"+name)
		if code != 0 || strings.Contains(errOut, "refused") {
			t.Fatalf("exit code %d: %s", code, errOut)
		}
		if err := h.FollowImport(user.kubeconfig, out); err != nil {
			t.Fatal(err)
		}
		h.Eventually("the adoption of "+name, func() error { return h.OnlyOurs(name) })
		if err := routedAre(h, name, routed); err != nil {
			t.Error(err)
		}
	}

	user.want(2, []string{"metadata.labels: the Service belongs to an ExternalBackend already"},
		"import", "service/slices")
	user.want(1, []string{`services "nobody" not found`}, "import", "service/nobody")
}

// routedAre returns an error unless kube-proxy reads these endpoints.
func routedAre(h *harness.Test, service string, want []string) error {
	if got := importertest.Routed(h.Slices(service)); !slices.Equal(got, want) {
		return fmt.Errorf("%s routes to\n%s\nnot to\n%s", service, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	return nil
}

// TestImportNamesTheRightsThatAreMissing prints nothing if the user may not read all that is
// published, and names each right. A Service of type ExternalName needs no more than itself.
func TestImportNamesTheRightsThatAreMissing(t *testing.T) {
	h := parallel(t)
	h.Apply(legacy)
	h.ApplyService("alias", "type: ExternalName, externalName: db.example.com")
	const (
		services  = "{apiGroups: [\"\"], resources: [services], verbs: [get]}"
		endpoints = "{apiGroups: [\"\"], resources: [endpoints], verbs: [get]}"
		list      = "{apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list]}"
	)
	in := " in namespace " + h.Namespace
	noService := `Service "slices" is unknown: you may not get services` + in
	noSlices := `what is published behind Service "slices" is unknown: you may not list endpointslices.discovery.k8s.io` + in
	noEndpoints := `what is published behind Service "slices" is unknown: you may not get endpoints` + in
	for name, c := range map[string]struct {
		rules    []string
		says     []string
		saysNone []string
	}{
		"stranger":  {says: []string{noService}, saysNone: []string{"published behind"}},
		"clerk":     {[]string{endpoints, list}, []string{noService}, []string{"published behind"}},
		"reader":    {[]string{services}, []string{noSlices, noEndpoints}, nil},
		"half":      {[]string{services, endpoints}, []string{noSlices}, []string{noEndpoints}},
		"otherhalf": {[]string{services, list}, []string{noEndpoints}, []string{noSlices}},
	} {
		h.Apply("apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: %s-%s}\nrules: [%s]",
			h.Namespace, name, strings.Join(c.rules, ", "))
		user := newPluginUser(h, name, h.Namespace+"-"+name)
		out, errOut, code := user.run(t, "", "import", "service/slices")
		if code != 1 || out != "" {
			t.Errorf("%s: exit code %d, and it prints %q", name, code, out)
		}
		for _, text := range c.says {
			if !strings.Contains(errOut, text) {
				t.Errorf("%s: it does not say %q, but: %s", name, text, errOut)
			}
		}
		for _, text := range c.saysNone {
			if strings.Contains(errOut, text) {
				t.Errorf("%s: it says: %s", name, errOut)
			}
		}
		if name == "reader" {
			user.want(0, []string{"hostname: db.example.com"}, "import", "service/alias", "--port=80")
		}
	}
}
