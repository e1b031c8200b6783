package dataplane

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

const overrideManifest = `
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackendOverride
metadata: {name: night-shift}
spec: {externalBackendRef: {name: web}, %s, expirationTime: %q}
`

// An override moves requests to another tier, and a younger one waits. The end of the first by its
// time, and a restart of the manager meanwhile, lose no request and change nothing else.
func TestOverrideMovesRequestsUntilItsEnd(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager()
	p := newPair(h, "http", 8080)
	h.ApplyBackend("web", `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80, targetPort: 8080}]
targets:
- {name: first, address: %s}
- {name: standby, address: %s, tier: 1}
healthCheck: %s
failover: {failbackDelaySeconds: 0}
`, p.a.V4, p.b.V4, harness.HTTPCheck)
	first, standby := p.a.At4(8080), p.b.At4(8080)
	h.WaitStates("web", harness.States{first: harness.Healthy, standby: harness.Standby})
	h.WaitRoutes("web", first)
	load := startLoad(h, clusterAddrs(h, "web", 80)[0])
	load.waitAnswerFrom(p.a)
	spec := h.Backend("web").Generation

	h.Apply(overrideManifest, "pinnedTier: 1", inUTC(time.Hour))
	h.WaitRoutes("web", standby)
	load.waitAnswerFrom(p.b)
	load.wantNoneAt(p.sa)
	h.WaitEvent("web", "Overridden")
	h.WaitCondition("web", v1alpha1.ConditionReady, metav1.ConditionTrue, v1alpha1.ReasonReady)
	if b := h.Backend("web"); b.Status.Override != "night-shift" || b.Generation != spec {
		t.Errorf("status.override is %q, and the generation of the spec %d, not %d", b.Status.Override, b.Generation, spec)
	}
	h.Apply(strings.Replace(overrideManifest, "night-shift", "late", 1),
		"targets: [{name: standby, adminState: Disabled}]", inUTC(time.Hour))
	waitApplied(h, "late", "Superseded")

	writes := h.CountWrites()
	m.Stop()
	h.StartManager()
	h.WaitChecked(p.sa, p.sb)
	if written := writes.Of("services", "endpointslices", "externalbackendoverrides/status"); len(written) > 0 {
		t.Errorf("after a restart, the manager wrote %v", written)
	}

	deleteOverride(h, "late")
	h.Apply(overrideManifest, "pinnedTier: 1", inUTC(2*time.Second))
	waitApplied(h, "night-shift", "Expired")
	h.WaitRoutes("web", first)
	load.waitAnswerFrom(p.a)
	load.wantNoneAt(p.sb)
	h.WaitEvent("web", "OverrideEnded")
	load.stopWithoutLoss()
}

// inUTC returns the time after d as the API writes it.
func inUTC(d time.Duration) string { return time.Now().Add(d).UTC().Format(time.RFC3339) }

func deleteOverride(h *harness.Test, name string) {
	h.T.Helper()
	o := &v1alpha1.ExternalBackendOverride{}
	o.Name, o.Namespace = name, h.Namespace
	if err := h.Client.Delete(h.T.Context(), o); err != nil {
		h.T.Fatal(err)
	}
}

// waitApplied waits until an override has this reason, and wants kubectl to show it.
func waitApplied(h *harness.Test, name, reason string) {
	h.T.Helper()
	h.WaitOverride(name, reason)
	if row := kubectl(h, "get", "-n", h.Namespace, "extbeo", name, "--no-headers"); !strings.Contains(row, reason) {
		h.T.Errorf("kubectl get shows %q, without %s", row, reason)
	}
}
