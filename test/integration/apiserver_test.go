package integration

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// freeze and longFreeze are how long the API server hangs. The Lease of the replica survives the
// first one only.
const (
	freeze     = 8 * time.Second
	longFreeze = 50 * time.Second
)

// While the API server hangs with open connections, targets fail and recover. Afterwards the slices
// are right, and each slice is written once for all changes. The same manager continues even if the
// API server hangs for longer than a Lease lasts.
func TestManagerSurvivesFrozenAPIServer(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager("--leader-elect")
	set := startServersApart(h, 4)
	h.ApplyBackend("web", spec(set.targets(), "", ""))
	h.WaitStates("web", harness.All(harness.Healthy, set.addrs...))
	waitQuiet(h)

	writes, history := h.CountWrites(), recordSlices(h, "web")
	freezeAPIServer(h, freeze, func() {
		set.servers[0].SetSick(true) // its write is in flight until the API server continues
		h.WaitChecked(set.servers[0])
		set.servers[1].Stop()
		set.servers[2].SetSick(true)
		h.WaitChecked(set.servers[2], set.servers[3])
		set.servers[2].SetSick(false)
		h.WaitChecked(set.servers[2], set.servers[3])
	})
	h.WaitStates("web", harness.Union(harness.All(harness.Unhealthy, set.at(0), set.at(1)),
		harness.All(harness.Healthy, set.at(2), set.at(3))))
	waitTarget(h, "web", "b", "Unhealthy", "ConnectionRefused")
	waitQuiet(h)
	h.WaitStates("web", harness.Union(harness.All(harness.Unhealthy, set.at(0), set.at(1)),
		harness.All(harness.Healthy, set.at(2), set.at(3))))
	// The write for the first failure was in flight, and one for the second followed. The third server
	// has recovered.
	written := writes.Of("endpointslices")
	// The first states are those at the start.
	if len(written) > 2 || len(history.all()) != (1+len(written))*len(set.addrs) {
		t.Errorf("slices were written %d times, %v; the states are %q", len(written), written, history.all())
	}
	for _, state := range history.all() {
		if strings.Contains(state, set.at(2).Addr().String()+":false") {
			t.Errorf("there was the state %q", state)
		}
	}
	select {
	case <-m.Exited():
		t.Fatal("the manager has ended")
	default:
	}

	freezeAPIServer(h, longFreeze, func() {
		set.servers[0].SetSick(false)
		set.servers[3].SetSick(true)
	})
	h.WaitStates("web", harness.Union(harness.All(harness.Unhealthy, set.at(1), set.at(3)),
		harness.All(harness.Healthy, set.at(0), set.at(2))))
	m.Stop()
}

// freezeAPIServer makes the API server hang for a time, and calls meanwhile.
func freezeAPIServer(h *harness.Test, long time.Duration, meanwhile func()) {
	h.T.Helper()
	if err := h.SignalComponent(devcluster.APIServer, syscall.SIGSTOP); err != nil {
		h.T.Fatal(err)
	}
	over := time.NewTimer(long)
	meanwhile()
	<-over.C
	if err := h.SignalComponent(devcluster.APIServer, syscall.SIGCONT); err != nil {
		h.T.Fatal(err)
	}
	restartControllerManager(h)
}

// outage is how long the API server is down.
const outage = 30 * time.Second

// While the API server is down for half a minute, a backend fails and a name changes. Both are
// published within seconds of its return, no object is replaced, and the manager does not end.
func TestManagerSurvivesAPIServerOutage(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager("--leader-elect")
	set := startServers(h, 3)
	ns := startScriptedDNS(h)
	ns.set("db.example.com", answerWith("198.51.100.1"))
	h.ApplyBackend("web", spec(set.targets(), "", ""))
	applyHostname(h, ns, "named", "", "")
	h.WaitStates("web", harness.All(harness.Healthy, set.at(0), set.at(1), set.at(2)))
	h.WaitStates("named", oneEndpoint)
	h.WaitReady("web")
	h.WaitReady("named")
	before := takeSnapshot(h, "web", true)

	h.StopComponent(devcluster.APIServer)
	back := time.NewTimer(outage)
	set.servers[0].Stop()
	set.servers[1].SetSick(true)
	ns.set("db.example.com", answerWith("198.51.100.2"))
	asked := ns.queries()
	h.WaitChecked(set.servers[2])
	h.Eventually("the name to be asked for", func() error {
		if n := ns.queries() - asked; n < 3 {
			return fmt.Errorf("it was asked for %d times", n)
		}
		return nil
	})
	<-back.C
	if err := h.StartComponent(t.Context(), devcluster.APIServer); err != nil {
		t.Fatal(err)
	}
	restartControllerManager(h)

	want := harness.States{set.at(0): harness.Unhealthy, set.at(1): harness.Unhealthy, set.at(2): harness.Healthy}
	h.Within(seconds, "the failed backends to leave rotation", func() error {
		return h.CompareStates("web", want)
	})
	h.WaitStates("named", harness.All(harness.Healthy, at("198.51.100.2:8080")))

	// All watches work again.
	port := h.Service("web").Spec.Ports[0].Port
	edit(h, h.Service("web"), func(s *corev1.Service) { s.Spec.Ports[0].Port++ })
	h.Within(seconds, "the Service's port to be back", func() error {
		if p := h.Service("web").Spec.Ports[0].Port; p != port {
			return fmt.Errorf("it is %d", p)
		}
		return nil
	})
	h.WaitCondition("web", "Healthy", metav1.ConditionFalse, "SomeUnhealthy")
	waitTarget(h, "web", "a", "Unhealthy", "ConnectionRefused")
	now := takeSnapshot(h, "web", true)
	if now.Service.UID != before.Service.UID {
		t.Error("the Service was replaced")
	}
	for name, s := range before.Slices {
		if now.Slices[name].UID != s.UID {
			t.Errorf("slice %s was replaced", name)
		}
	}
	select {
	case <-m.Exited():
		t.Error("the manager has ended")
	default:
	}
}

// restartControllerManager restarts the garbage collector, which later tests need. After an outage,
// it would otherwise take more than half a minute to work again.
func restartControllerManager(h *harness.Test) {
	h.T.Helper()
	h.StopComponent(devcluster.ControllerManager)
	if err := h.StartComponent(h.T.Context(), devcluster.ControllerManager); err != nil {
		h.T.Fatal(err)
	}
}
