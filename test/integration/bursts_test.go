package integration

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
)

// When many targets change at once, at most ten events report the first changes. A minute later,
// one event reports how many more there were. Status lists all of them.
func TestManyEventsAreSummedUp(t *testing.T) {
	h := parallel(t)
	const sick, told = 19, 10
	set := startServers(h, sick+1)
	h.ApplyBackend("web", spec(set.targets(), "", ""))
	h.WaitStates("web", harness.All(harness.Healthy, set.addrs...))
	h.WaitReady("web")
	for _, s := range set.servers[:sick] {
		s.SetSick(true)
	}
	h.WaitStates("web", harness.Union(harness.All(harness.Unhealthy, set.addrs[:sick]...), harness.All(harness.Healthy, set.addrs[sick])))
	h.Within(time.Minute+harness.Patience, "an event that sums up", func() error {
		events := h.Events("web")
		sum := slices.IndexFunc(events, func(e string) bool { return strings.HasPrefix(e, "MoreEvents: ") })
		if sum < 0 || len(events) > told+1 {
			return fmt.Errorf("there are %d events: %q", len(events), events)
		}
		one := len(
			slices.DeleteFunc(slices.Clone(events), func(e string) bool { return !strings.HasPrefix(e, "EndpointUnhealthy: ") }),
		)
		if want := fmt.Sprintf("%d EndpointUnhealthy", sick-one); one == 0 || !strings.Contains(events[sum], want) {
			return fmt.Errorf("of %d that fell ill %d were told one by one, and then: %q", sick, one, events[sum])
		}
		return nil
	})
	if listed := h.Backend("web").Status.Endpoints; listed.Unhealthy != sick {
		t.Errorf("status tells %+v", listed)
	}
}

// freeze is how long the API server hangs: short of the lease's renewal, and longer than it.
const (
	freeze     = 8 * time.Second
	longFreeze = 50 * time.Second
)

// While the API server hangs with open connections, targets fail and recover. Afterwards the slices
// are right, each slice is written once for all changes, and the leader still leads. If the API
// server hangs for longer than the lease can be kept, the manager ends, and the next one continues.
func TestManagerSurvivesFrozenAPIServer(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager("--leader-elect")
	set := startServersApart(h, 4)
	h.ApplyBackend("web", spec(set.targets(), "", ""))
	h.WaitStates("web", harness.All(harness.Healthy, set.addrs...))
	waitQuiet(h)

	writes, history := h.CountWrites(), recordSlices(h, "web")
	frozen(h, freeze, func() {
		set.servers[0].SetSick(true) // its write is on its way all the while
		h.WaitChecked(set.servers[0])
		set.servers[1].Stop()
		set.servers[2].SetSick(true)
		h.WaitChecked(set.servers[2], set.servers[3])
		set.servers[2].SetSick(false)
		h.WaitChecked(set.servers[2], set.servers[3])
	})
	h.WaitStates("web", harness.Union(harness.All(harness.Unhealthy, set.at(0), set.at(1)), harness.All(harness.Healthy, set.at(2), set.at(3))))
	waitTarget(h, "web", "b", "Unhealthy", "ConnectionRefused")
	waitQuiet(h)
	h.WaitStates("web", harness.Union(harness.All(harness.Unhealthy, set.at(0), set.at(1)), harness.All(harness.Healthy, set.at(2), set.at(3))))
	// Of the first that died its write was on its way, and the second followed; the third was well
	// again.
	written := writes.Of("endpointslices")
	if len(written) > 2 || len(history.all()) != (1+len(written))*len(set.addrs) { // the first is what was there
		t.Errorf("slices were written %d times, %v; of which came %q", len(written), written, history.all())
	}
	for _, state := range history.all() {
		if strings.Contains(state, set.at(2).Addr().String()+":false") {
			t.Errorf("seen was %q", state)
		}
	}
	select {
	case <-m.Exited():
		t.Fatal("the manager has ended")
	default:
	}

	frozen(h, longFreeze, func() {
		set.servers[0].SetSick(false)
		set.servers[3].SetSick(true)
	})
	h.Eventually("the manager to end", func() error {
		select {
		case <-m.Exited():
			return nil
		default:
			return errors.New("it leads on without a lease")
		}
	})
	m.Kill() // no more than to see that it had no data race
	h.StartManager("--leader-elect")
	h.Within(time.Minute+harness.Patience, "what changed to be published", func() error {
		want := harness.Union(harness.All(harness.Unhealthy, set.at(1), set.at(3)), harness.All(harness.Healthy, set.at(0), set.at(2)))
		return h.CompareStates("web", want)
	})
}

// frozen stops the API server from answering for as long, during which it runs what goes on
// elsewhere.
func frozen(h *harness.Test, long time.Duration, meanwhile func()) {
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
