package integration

import (
	"context"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// mayReadPolicies lets a user of the plugin read policies, which are not in a namespace.
func mayReadPolicies(h *harness.Test, name string) {
	h.T.Helper()
	h.Apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: policies-of-%s}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: external-backend-externalbackendpolicy-viewer-role
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %s-of-%[1]s}]`, h.Namespace, name)
	h.T.Cleanup(func() {
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "policies-of-" + h.Namespace}}
		if err := h.Client.Delete(context.Background(), binding); err != nil {
			h.T.Error(err)
		}
	})
}

// TestPolicyTestForetellsWhatIsWithdrawn asks as an editor what a policy would withdraw, applies
// it, and sees that this is withdrawn.
func TestPolicyTestForetellsWhatIsWithdrawn(t *testing.T) {
	h := parallel(t)
	setTeam(h, h.Namespace)
	h.ApplyBackend("web", onePort)
	h.WaitReady("web")
	user := editor(h)
	const rule = "allow: [{cidrs: [203.0.113.0/24]}]"
	manifest := "apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackendPolicy\n" +
		"metadata: {name: narrow-" + h.Namespace + "}\n" +
		"spec: {namespaceSelector: {matchLabels: {team: " + h.Namespace + "}}, " + rule + "}\n"
	want := func(args []string, code int, texts ...string) {
		t.Helper()
		out, errOut, got := user.run(t, manifest, args...)
		if got != code {
			t.Errorf("%v: exit code %d, want %d", args, got, code)
		}
		for _, text := range texts {
			if !strings.Contains(out+errOut, text) {
				t.Errorf("%v: the output lacks %q:\n%s%s", args, text, out, errOut)
			}
		}
	}

	want([]string{"policy", "test", "-f", "-"}, 1, "externalbackendpolicies.external-backend.io")
	mayReadPolicies(h, "editor")
	h.Eventually("the right to read policies", func() error {
		_, errOut, code := user.run(t, manifest, "policy", "test", "-f", "-")
		if code == 1 {
			return errorString(errOut)
		}
		return nil
	})
	want([]string{"policy", "test", "-f", "-"}, 2, "Withdrawn", h.Namespace+"/web", "198.51.100.1",
		"no policy in mode Enforce selects the namespace now", "you may not list nodes")
	want([]string{"policy", "who-can", "198.51.100.1"}, 0, "namespace "+h.Namespace+" may publish it")

	teamPolicy(h, "narrow", rule)
	h.WaitCondition("web", v1alpha1.ConditionPermitted, metav1.ConditionFalse, v1alpha1.ReasonTargetDenied)
	h.WaitStates("web", harness.States{})
	want([]string{"policy", "who-can", "198.51.100.1"}, 0, "may not publish it", "no rule for it in narrow-"+h.Namespace)
	want([]string{"policy", "who-can", "203.0.113.7"}, 0, "allowed by narrow-"+h.Namespace+" spec.allow[0]")
	want([]string{"policy", "test", "-f", "-"}, 0, "Nothing changes.")
	want([]string{"policy", "test", "--delete", "narrow-" + h.Namespace}, 0, "Newly allowed", "198.51.100.1")
}

// errorString is an error with a fixed text.
type errorString string

func (e errorString) Error() string { return string(e) }
