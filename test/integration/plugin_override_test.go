package integration

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// overrides returns the names of the overrides in the namespace of the test.
func overrides(h *harness.Test) []string {
	h.T.Helper()
	var list v1alpha1.ExternalBackendOverrideList
	if err := h.Client.List(h.T.Context(), &list, client.InNamespace(h.Namespace)); err != nil {
		h.T.Fatal(err)
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// An editor who may write overrides pins a tier by the plugin, sees it in status, and resumes. Each
// command returns once the operator has acted, and a dry run changes nothing.
func TestEditorPinsAndResumesByKubectl(t *testing.T) {
	h := parallel(t)
	h.ApplyBackend("web", onePort[:len(onePort)-1]+", {name: b, address: 198.51.100.2, tier: 1}]"+
		"\nfailover: {failbackDelaySeconds: 0}")
	h.WaitReady("web")
	before := h.Backend("web").Generation
	editor := newPluginUser(h, "on-call", "edit", "external-backend-externalbackend-editor-role",
		"external-backend-override-editor-role")
	editor.want(0, []string{"/web  Healthy", "198.51.100.2", "unknown", "list externalbackendpolicies"}, "status", "web")

	pin := []string{"pin", "web", "1", "--for=2h", "--yes"}
	editor.want(0, []string{"Active tier: 0, then 1.", "dry run"}, append(pin, "--dry-run")...)
	if names := overrides(h); len(names) > 0 {
		t.Fatalf("the dry run created %v", names)
	}
	editor.want(0, []string{"Active tier: 0, then 1.", "is in force"}, pin...)
	b, names := h.Backend("web"), overrides(h)
	if len(names) != 1 || b.Status.Override != names[0] || *b.Status.ActiveTier != 1 || b.Generation != before {
		t.Fatalf("overrides %v, status.override %q, tier %d", names, b.Status.Override, *b.Status.ActiveTier)
	}
	editor.want(0, []string{names[0], "active, pinned", "pinnedTier 1"}, "status", "web")
	editor.want(0, []string{`"override": "` + names[0] + `"`, `"pinned": true`}, "status", "web", "-o", "json")
	editor.want(0, []string{names[0]}, "status")
	editor.want(1, []string{"Superseded", names[0]}, "drain", "web", "b", "--for=2h", "--yes")
	editor.want(1, []string{"--yes is wanted"}, "resume", "web")

	editor.want(0, []string{"Active tier: 1, then 0.", "is ended"}, "resume", "web", "--yes")
	if b := h.Backend("web"); b.Status.Override != "" || *b.Status.ActiveTier != 0 || len(overrides(h)) != 0 {
		t.Errorf("status.override %q, tier %d", b.Status.Override, *b.Status.ActiveTier)
	}
	editor.want(1, []string{"TargetNotFound"}, "drain", "web", "nobody", "--for=2h", "--yes")
	editor.want(0, []string{"is in force"}, "disable", "web", "a", "b", "--until=23:59", "--yes")
	editor.want(2, []string{"/web  Down", "Disabled (override)"}, "status", "web")
	editor.want(0, []string{"is ended"}, "resume", "web", "--yes")
}
