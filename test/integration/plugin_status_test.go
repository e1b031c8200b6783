package integration

import (
	"fmt"
	"strings"
	"testing"
)

// A user who may read nothing but ExternalBackends sees what their status says. All else is
// unknown, and the missing right is named. Without any right there is an error.
func TestStatusNamesTheRightsThatAreMissing(t *testing.T) {
	h := parallel(t)
	h.ApplyBackend("web", onePort)
	h.WaitReady("web")
	h.Apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %s-reader}
rules: [{apiGroups: [external-backend.io], resources: [externalbackends], verbs: [get, list]}]`, h.Namespace)
	reader := newPluginUser(h, "reader", h.Namespace+"-reader")

	output := reader.want(0, []string{
		"/web  Healthy", "unknown whether it exists", "policies: unknown", "Slices     unknown",
		"you may not get services in namespace " + h.Namespace,
		"you may not list endpointslices.discovery.k8s.io in namespace " + h.Namespace,
		"you may not list externalbackendoverrides.external-backend.io in namespace " + h.Namespace,
		"you may not list externalbackendpolicies.external-backend.io",
		"you may not list events.events.k8s.io in namespace " + h.Namespace,
		"you may not get namespace " + h.Namespace,
		"Replica    unknown", "you may not list leases.coordination.k8s.io in namespace external-backend-system",
	}, "status", "web")
	if strings.Contains(output, "does not exist") || strings.Contains(output, "as status says") {
		t.Errorf("it guesses:\n%s", output)
	}
	reader.want(0, []string{"web", "Healthy"}, "status")
	reader.want(1, []string{"you may not list externalbackends.external-backend.io in all namespaces"}, "status", "-A")
	reader.want(1, []string{"It is unknown what changes", "you may not create externalbackendoverrides"},
		"pin", "web", "0", "--for=1h", "--yes")

	stranger := newPluginUser(h, "stranger")
	stranger.want(1, []string{"you may not get externalbackends.external-backend.io in namespace " + h.Namespace},
		"status", "web")
}

// A watched screen is written again once the ExternalBackend has changed, with NAME and without. An
// interrupt ends it without an error.
func TestWatchedStatusFollowsChanges(t *testing.T) {
	h := parallel(t)
	h.ApplyBackend("web", onePort)
	h.WaitReady("web")
	watcher := editor(h)
	one, all := watcher.start("status", "web", "--watch"), watcher.start("status", "--watch")
	h.Eventually("both to show a healthy web", func() error { return bothSay(one, all, "Healthy") })

	h.ApplyBackend("web", strings.TrimSuffix(onePort, "}]")+", adminState: Disabled}]")
	h.Eventually("both to show that web is down", func() error { return bothSay(one, all, "Down") })
	for _, running := range []*runningPlugin{one, all} {
		if err := running.interrupt(); err != nil {
			t.Errorf("%v:\n%s", err, running.String())
		}
	}
}

func bothSay(one, all *runningPlugin, text string) error {
	for _, running := range []*runningPlugin{one, all} {
		if !strings.Contains(running.String(), text) {
			return fmt.Errorf("no %q in\n%s", text, running.String())
		}
	}
	return nil
}
