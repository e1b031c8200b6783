package integration

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/test/harness"
)

// TestExplainNamesTheCause breaks an ExternalBackend in several ways, and asks as an editor why an
// endpoint gets no traffic.
func TestExplainNamesTheCause(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 3)
	set.servers[1].Stop() // it refuses connections
	h.ApplyBackend("web", spec(set.target(0, "")+set.target(1, "")+set.target(2, ", tier: 1"), "", ""))
	h.WaitCondition("web", "Healthy", metav1.ConditionFalse, "SomeUnhealthy")
	user := editor(h)

	wantExplained(h, user, []string{"web", "a"}, "", "", 0)
	wantExplained(h, user, []string{"web"}, "verdict", "ConnectionRefused", 2)
	wantExplained(h, user, []string{"web", set.at(2).String()}, "tier", "", 2)

	h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackendOverride
metadata: {name: night-shift}
spec: {externalBackendRef: {name: web}, targets: [{name: a, adminState: Disabled}], expirationTime: %s}`,
		time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	h.WaitOverride("night-shift", "Applied")
	// An editor of ExternalBackends may not read overrides. Status names the one that is applied.
	wantExplained(h, user, []string{"web", "a"}, "override", "Disabled", 2)
	onCall := newPluginUser(h, "on-call", "edit", "external-backend-externalbackend-editor-role",
		"external-backend-override-editor-role")
	wantExplained(h, onCall, []string{"web", "a"}, "override", "Disabled", 2)

	h.ApplyBackend("refused", "ports: [{name: web, port: 80}]\nservice: {name: %s}\ntargets: [%s]", "web",
		"{name: a, address: 198.51.100.1}")
	waitConflict(h, "refused")
	wantExplained(h, user, []string{"refused"}, "slice", "ServiceConflict", 2)

	blind := newPluginUser(h, "blind", "external-backend-externalbackend-viewer-role")
	out, errOut, code := blind.run(t, "", "explain", "web", "b")
	if code != 1 || !strings.Contains(out, "you may not list endpointslices") || !strings.Contains(errOut, "unknown") {
		t.Errorf("exit code %d of a user who may read nothing else:\n%s%s", code, out, errOut)
	}
	out, _, code = user.run(t, "", "explain", "web", "b")
	if code != 2 || !strings.Contains(out, "\n> no       Is it healthy?") {
		t.Errorf("exit code %d, and the text is:\n%s", code, out)
	}
}

// wantExplained waits until explain names a link and reason as the cause, and exits with code. An
// empty link stands for traffic.
func wantExplained(h *harness.Test, u *pluginUser, args []string, link, reason string, code int) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("explain %v", args), func() error {
		out, errOut, got := u.run(h.T, "", append([]string{"explain", "-o", "json"}, args...)...)
		var chain struct {
			Cause int
			Links []struct{ ID, Reason string }
		}
		if err := json.Unmarshal([]byte(out), &chain); err != nil {
			return fmt.Errorf("%w: %s%s", err, out, errOut)
		}
		gotLink, gotReason := "", ""
		if chain.Cause >= 0 {
			gotLink, gotReason = chain.Links[chain.Cause].ID, chain.Links[chain.Cause].Reason
		}
		if got != code || gotLink != link || gotReason != reason {
			return fmt.Errorf("exit code %d, link %q, reason %q: %s", got, gotLink, gotReason, out)
		}
		return nil
	})
}
