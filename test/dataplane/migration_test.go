package dataplane

import (
	"fmt"
	"testing"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
)

// The steps that docs/migration.md describes lead clients of a Service of type ExternalName to an
// ExternalBackend and back, and lose no request.
func TestMigrationFromExternalNameLosesNoRequest(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	before, after := h.Machine("before"), h.Machine("after")
	h.Serve(before, "http", 8080)
	h.Serve(after, "http", 8080)
	upstream, err := h.AddNamespace("upstream", devcluster.UpstreamDNS.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { upstream.Close() })
	dns, err := upstream.StartDNS(t.Context(), map[string]string{"example.com": "db 1 A " + before.V4.String()}, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dns.Close() })

	h.ApplyService("db", "type: ExternalName, externalName: db.example.com")
	h.Eventually("the alias", func() error {
		_, err := h.Resolver().LookupCNAME(t.Context(), domain(h, "db"))
		return err
	})
	load := startLoad(h, domain(h, "db")+":8080")
	load.waitAnswerFrom(before)

	h.ApplyBackend("db-1", `
ports: [{name: web, port: 8080}]
targets: %s
healthCheck: %s
`, targets("a", after.V4), harness.HTTPCheck)
	h.WaitReady("db-1")
	h.WaitRoutes("db-1", after.At4(8080))
	wantAnswers(h, "http", domain(h, "db-1")+":8080", after)

	h.ApplyService("db", "type: ExternalName, externalName: db-1.%s.svc.cluster.local", h.Namespace)
	load.waitAnswerFrom(after)
	load.waitMore()
	h.ApplyService("db", "type: ExternalName, externalName: db.example.com")
	load.waitAnswerFrom(before)
	load.stopWithoutLoss()
}

// The steps that docs/migration.md describes replace slices that were written by hand by those of
// an ExternalBackend with serviceRef, and lose no request.
func TestMigrationToServiceRefLosesNoRequest(t *testing.T) {
	h := harness.New(t)
	h.StartManager()
	p := newPair(h, "http", 8080)
	h.ApplyService("web", "ipFamilyPolicy: SingleStack, ipFamilies: [IPv4], ports: [{name: web, port: 80}]")
	h.Apply(publishedByHand[0].documents, "web", p.a.V4, p.b.V4)
	h.WaitRoutes("web", p.a.At4(8080), p.b.At4(8080))
	service := h.Service("web")
	load := startLoad(h, clusterAddrs(h, "web", 80)[0])
	load.waitAnswerFrom(p.a)
	wantAlwaysReady := watchReady(h, "web")

	const rest = `
ports: [{name: web, port: 80, targetPort: 8080}]
targets: %s
healthCheck: %s
`
	h.ApplyBackend("web", "service: {adoptionPolicy: IfSelectorless}\ndeletionPolicy: Retain"+rest,
		targets("a", p.a.V4, "b", p.b.V4), harness.HTTPCheck)
	h.WaitReady("web")
	h.Eventually("the slice written by hand to end", func() error { return publishedByHand[0].ended(h, "web") })
	if err := h.Client.Delete(t.Context(), h.Backend("web")); err != nil {
		t.Fatal(err)
	}

	h.ApplyBackend("web-servers", "serviceRef: {name: web}"+rest,
		targets("a", p.a.V4, "b", p.b.V4), harness.HTTPCheck)
	h.WaitReady("web-servers")
	h.Eventually("the slices that were kept to end", func() error {
		for _, slice := range h.Slices("web") {
			if of := slice.Labels[v1alpha1.LabelName]; of != "web-servers" {
				return fmt.Errorf("slice %s is of %q", slice.Name, of)
			}
		}
		return h.OnlyOurs("web")
	})
	load.waitMore()
	load.stopWithoutLoss()
	wantAlwaysReady()
	if is := h.Service("web"); is.UID != service.UID || is.Spec.ClusterIP != service.Spec.ClusterIP {
		t.Errorf("the Service has changed: %v", is.ObjectMeta)
	}
}
