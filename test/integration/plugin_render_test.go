package integration

import (
	"fmt"
	"strings"
	"testing"
)

// TestRenderedObjectsAreThoseOfTheManager renders ExternalBackends of all kinds as an editor. At
// rest nothing differs from what the manager has written; with another spec, the difference is
// shown.
func TestRenderedObjectsAreThoseOfTheManager(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 3)
	set.servers[1].Stop()
	h.ApplyService("front", "ports: [{name: web, port: 80}]")
	const two = "targets: [{name: a, address: 198.51.100.1, zone: z}, {name: b, address: 198.51.100.2, adminState: Draining}]"
	h.ApplyBackend("checked", spec(set.target(0, "")+set.target(1, "")+set.target(2, ", tier: 1"), "", ""))
	h.ApplyBackend("headless", "service: {type: Headless, labels: {a: b}}\ndeletionPolicy: Retain\n"+
		"ports: [{name: web, port: 80}]\n"+two)
	h.ApplyBackend("dual", "service: {ipFamilyPolicy: PreferDualStack, trafficDistribution: PreferSameZone}\n"+
		"ports: [{name: web, port: 80}]\n"+
		`targets: [{name: a, address: 198.51.100.1, zone: z}, {name: b, address: "2001:db8::1", zone: z}]`)
	h.ApplyBackend("node", "service: {type: NodePort}\nports: [{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}]\n"+two)
	h.ApplyBackend("attached", "serviceRef: {name: front}\nports: [{name: web, port: 80}]\n"+two)
	h.ApplyBackend("alias", "service: {type: ExternalName}\nports: [{name: web, port: 80}]\n"+
		"targets: [{name: a, hostname: a.example.com}]")
	h.ApplyBackend("passed", "service: {type: Headless}\ndns: {resolution: Passthrough}\nports: [{name: web, port: 80}]\n"+
		"targets: [{name: a, hostname: a.example.com}]")

	user := editor(h)
	for _, name := range []string{"checked", "headless", "dual", "node", "attached", "alias", "passed"} {
		h.WaitReady(name)
		h.Eventually("no difference of "+name, func() error {
			out, errOut, code := user.run(t, "", "render", name, "--diff")
			if code != 0 || out != "" {
				return fmt.Errorf("exit code %d: %s%s", code, out, errOut)
			}
			return nil
		})
	}

	const more = "apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackend\nmetadata: {name: node}\n" +
		"spec: {service: {type: NodePort}, ports: [{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}], targets: [%s]}"
	out, errOut, code := user.run(t, fmt.Sprintf(more, "{name: c, address: 198.51.100.3}"), "render", "-f", "-", "--diff")
	if code != 2 || !strings.Contains(out, "+  - 198.51.100.3\n") || !strings.Contains(out, "-  - 198.51.100.1\n") ||
		strings.Contains(out, "service/node") {
		t.Errorf("exit code %d, and the difference is:\n%s%s", code, out, errOut)
	}
	out, errOut, code = user.run(t, "", "render", "node")
	if code != 0 || strings.Count(out, "kind: EndpointSlice\n") != 1 || strings.Count(out, "kind: Service\n") < 1 {
		t.Errorf("exit code %d, and it prints:\n%s%s", code, out, errOut)
	}
}
