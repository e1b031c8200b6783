package integration

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestProbeStandsBesideTheManagersVerdict probes as an editor a server that answers and one that
// refuses connections. The manager says the same of both.
func TestProbeStandsBesideTheManagersVerdict(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 2)
	set.servers[1].Stop() // it refuses connections
	h.ApplyBackend("web", spec(set.targets(), "", ""))
	h.WaitReady("web")
	h.WaitCondition("web", "Healthy", "False", "SomeUnhealthy")
	user := editor(h)

	out, errOut, code := user.run(t, "", "probe", "web", "-o", "json")
	var reports []struct {
		Probes []struct {
			Target, Verdict, Reason string
			Steps                   []struct{ Name string }
			Manager                 struct{ Verdict, Reason string }
		}
		Notes []string
	}
	if err := json.Unmarshal([]byte(out), &reports); err != nil || code != 2 || len(reports) != 1 ||
		len(reports[0].Probes) != 2 {
		t.Fatalf("exit code %d, %v:\n%s%s", code, err, out, errOut)
	}
	good, bad := reports[0].Probes[0], reports[0].Probes[1]
	if good.Target != "a" || good.Verdict != "Healthy" || good.Manager.Verdict != "Healthy" || len(good.Steps) != 3 {
		t.Errorf("the good one: %+v", good)
	}
	if bad.Verdict != "Unhealthy" || bad.Reason != "ConnectionRefused" || bad.Manager.Verdict != "Unhealthy" ||
		bad.Manager.Reason != "ConnectionRefused" {
		t.Errorf("the bad one: %+v", bad)
	}
	if notes := strings.Join(reports[0].Notes, "\n"); !strings.Contains(notes, "externalbackendpolicies") {
		t.Errorf("the notes do not name the right to read policies: %s", notes)
	}

	out, errOut, code = user.run(t, "", "probe", "web", "a")
	if code != 0 || !strings.Contains(out, "here:    Healthy") || !strings.Contains(out, "manager: Healthy") {
		t.Errorf("exit code %d:\n%s%s", code, out, errOut)
	}
}
