package integration

import (
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/gitops"
	"github.com/external-backend/operator/test/harness"
)

// An action of Argo CD pins a tier by an ExternalBackendOverride and leaves the spec alone, and the
// action resume of that override ends it. While it is applied, no further action is offered.
func TestActionsOfArgoCDPinAndResume(t *testing.T) {
	h := parallel(t)
	h.ApplyBackend("web", onePort[:len(onePort)-1]+", {name: b, address: 198.51.100.2, tier: 1}]"+
		"\nfailover: {failbackDelaySeconds: 0}")
	h.WaitCondition("web", v1alpha1.ConditionReady, metav1.ConditionTrue, "")
	before := h.Backend("web").Generation
	if actionDisabled(h, "ExternalBackend", "web", "pin") {
		t.Error("pin is not offered")
	}

	created := act(h, "ExternalBackend", "web", "pin", map[string]string{"tier": "1"})
	if created.Operation != "create" {
		t.Fatalf("pin wants to %s", created.Operation)
	}
	if err := h.Client.Create(t.Context(), created.Object); err != nil {
		t.Fatal(err)
	}
	name := created.Object.GetName()
	h.WaitOverride(name, v1alpha1.ReasonApplied)
	b := h.Backend("web")
	if b.Generation != before || b.Status.Override != name || *b.Status.ActiveTier != 1 {
		t.Errorf("generation %d, status.override %q, tier %d", b.Generation, b.Status.Override, *b.Status.ActiveTier)
	}
	if !actionDisabled(h, "ExternalBackend", "web", "pin") {
		t.Error("pin is offered while an override is applied")
	}
	recordInput(h, "ExternalBackend", "web", "overridden")
	recordInput(h, "ExternalBackendOverride", name, "applied")

	ended := act(h, "ExternalBackendOverride", name, "resume", nil)
	if ended.Operation != "patch" {
		t.Fatalf("resume wants to %s", ended.Operation)
	}
	if err := h.Client.Update(t.Context(), ended.Object); err != nil {
		t.Fatal(err)
	}
	h.WaitOverride(name, v1alpha1.ReasonExpired)
	if b := h.Backend("web"); b.Generation != before || b.Status.Override != "" || *b.Status.ActiveTier != 0 {
		t.Errorf("generation %d, status.override %q, tier %d", b.Generation, b.Status.Override, *b.Status.ActiveTier)
	}
	if !actionDisabled(h, "ExternalBackendOverride", name, "resume") {
		t.Error("resume is offered after the end")
	}
	recordInput(h, "ExternalBackendOverride", name, "expired")
}

// live returns the object as the API server has it.
func live(h *harness.Test, kind, name string) *unstructured.Unstructured {
	h.T.Helper()
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	if err := h.Client.Get(h.T.Context(), h.Key(name), o); err != nil {
		h.T.Fatal(err)
	}
	return o
}

// act runs an action on a live object, and returns its only impact.
func act(h *harness.Test, kind, name, action string, params map[string]string) gitops.Impact {
	h.T.Helper()
	impacts, err := gitops.ArgoAction(
		h.T.Context(), customizations, action, live(h, kind, name), params, time.Now())
	if err != nil || len(impacts) != 1 {
		h.T.Fatalf("%s: %v, %v", action, impacts, err)
	}
	return impacts[0]
}

func actionDisabled(h *harness.Test, kind, name, action string) bool {
	h.T.Helper()
	actions, err := gitops.ArgoActions(h.T.Context(), customizations, live(h, kind, name))
	if err != nil {
		h.T.Fatal(err)
	}
	found, offered := actions[action].(map[string]any)
	disabled, _ := found["disabled"].(bool)
	return !offered || disabled
}

// recordInput writes a live object into the testdata of the actions of its kind.
func recordInput(h *harness.Test, kind, name, file string) {
	h.T.Helper()
	if *recordStates {
		folder := filepath.Join(customizations, v1alpha1.GroupVersion.Group, kind, "actions", "testdata")
		recordObject(h, live(h, kind, name), filepath.Join(folder, file+".yaml"))
	}
}
