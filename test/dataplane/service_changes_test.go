package dataplane

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
)

// Clients outside of the cluster reach the backends by a port of the node.
func TestNodePortReachesBackends(t *testing.T) {
	h, p := setUp(t)
	h.ApplyBackend("web", `
service: {type: NodePort, ipFamilyPolicy: RequireDualStack}
ports: [{name: web, port: 80, targetPort: 8080, nodePort: 30080}]
targets: %s
healthCheck: %s
`, targets("a4", p.a.V4, "a6", p.a.V6, "b4", p.b.V4, "b6", p.b.V6), harness.HTTPCheck)
	h.WaitRoutes("web", p.a.At4(8080), p.a.At6(8080), p.b.At4(8080), p.b.At6(8080))
	client := h.Machine("client")
	for _, node := range []netip.Addr{devcluster.Node4, devcluster.Node6} {
		wantAnswersTo(client.Namespace, h, "http", netip.AddrPortFrom(node, 30080).String(), p.a, p.b)
	}
}

// No request is lost when a port gets a name, or another name.
func TestRenamedPortLosesNoRequest(t *testing.T) {
	h, p := setUp(t)
	apply := func(name string) {
		t.Helper()
		h.ApplyBackend("web", `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: %q, port: 80, targetPort: 8080}]
targets: %s
healthCheck: %s
`, name, targets("a", p.a.V4, "b", p.b.V4), harness.HTTPCheck)
		h.Eventually("slices of port "+name, func() error {
			for _, s := range h.Slices("web") {
				if *s.Ports[0].Name != name {
					return fmt.Errorf("%s is of port %q", s.Name, *s.Ports[0].Name)
				}
			}
			return nil
		})
		h.WaitStates("web", harness.All(harness.Healthy, p.a.At4(8080), p.b.At4(8080)))
		h.WaitRoutes("web", p.a.At4(8080), p.b.At4(8080))
	}
	apply("")
	load := startLoad(h, clusterAddrs(h, "web", 80)[0])
	load.waitAnswerFrom(p.a)
	for _, name := range []string{"web", "http"} {
		apply(name)
		load.waitMore()
	}
	load.stopWithoutLoss()
}

// A ClusterIP Service that becomes headless, and then a ClusterIP Service again, keeps the Service
// object and its slice. Requests arrive after each change.
func TestHeadlessAndBackKeepsServiceAndSlice(t *testing.T) {
	h, p := setUp(t)
	apply := func(kind string) {
		t.Helper()
		h.ApplyBackend("web", `
service: {type: %s, ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: http, port: 80, targetPort: 8080}]
targets: %s
healthCheck: %s
`, kind, targets("a", p.a.V4, "b", p.b.V4), harness.HTTPCheck)
	}
	a, b := p.a.At4(8080), p.b.At4(8080)
	healthy := harness.All(harness.Healthy, a, b)
	apply("ClusterIP")
	h.WaitStates("web", healthy)
	h.WaitRoutes("web", a, b)
	wantAnswers(h, "http", clusterAddrs(h, "web", 80)[0], p.a, p.b)
	service, slice := h.Service("web"), h.Slices("web")[0]

	apply("Headless")
	h.WaitReady("web")
	waitNames(h, "web", map[string]netip.AddrPort{"a": a, "b": b})
	h.WaitRoutes("web") // kube-proxy has no rules for a headless Service
	wantAnswers(h, "http", "b."+domain(h, "web")+":8080", p.b)
	h.WaitEvent("web", "HeadlessChanged")

	apply("ClusterIP")
	h.WaitReady("web")
	h.WaitStates("web", healthy)
	h.WaitRoutes("web", a, b)
	wantAnswers(h, "http", clusterAddrs(h, "web", 80)[0], p.a, p.b)

	if is := h.Service("web"); is.UID != service.UID {
		t.Error("the Service was replaced")
	}
	if is := h.Slices("web"); len(is) != 1 || is[0].UID != slice.UID {
		t.Errorf("the slice was replaced: there are %d", len(is))
	}
}
