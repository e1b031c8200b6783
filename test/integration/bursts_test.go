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

// TestEventsSummedUp: when many targets change at once, ten events at most tell of the first, and a
// minute later one tells how many more there were. Status leaves nothing out.
func TestEventsSummedUp(t *testing.T) {
	h := parallel(t)
	const sick, told = 19, 10
	f := newFarm(h, sick+1)
	h.ApplyBackend("web", spec(f.targets(), "", ""))
	h.WaitStates("web", harness.All(harness.Healthy, f.places...))
	h.WaitReady("web")
	for _, s := range f.servers[:sick] {
		s.SetSick(true)
	}
	h.WaitStates("web", harness.Union(harness.All(harness.Unhealthy, f.places[:sick]...), harness.All(harness.Healthy, f.places[sick])))
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

// TestAPIServerFrozen: the API server hangs, with every connection open, while targets die and come
// back. What the slices say afterwards is true, each slice is written once for what had changed by
// then, and the leader still leads. One that hangs for longer than a lease can be kept ends the
// manager, and the next one goes on.
func TestAPIServerFrozen(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager("--leader-elect")
	f := newHosts(h, 4)
	h.ApplyBackend("web", spec(f.targets(), "", ""))
	h.WaitStates("web", harness.All(harness.Healthy, f.places...))
	waitRest(h)

	writes, seen := h.CountWrites(), record(h, "web")
	frozen(h, freeze, func() {
		f.servers[0].SetSick(true) // its write is on its way all the while
		h.WaitChecked(f.servers[0])
		f.servers[1].Stop()
		f.servers[2].SetSick(true)
		h.WaitChecked(f.servers[2], f.servers[3])
		f.servers[2].SetSick(false)
		h.WaitChecked(f.servers[2], f.servers[3])
	})
	h.WaitStates("web", harness.Union(harness.All(harness.Unhealthy, f.at(0), f.at(1)), harness.All(harness.Healthy, f.at(2), f.at(3))))
	waitTarget(h, "web", "b", "Unhealthy", "ConnectionRefused")
	waitRest(h)
	h.WaitStates("web", harness.Union(harness.All(harness.Unhealthy, f.at(0), f.at(1)), harness.All(harness.Healthy, f.at(2), f.at(3))))
	// Of the first that died its write was on its way, and the second followed; the third was well
	// again.
	written := writes.Of("endpointslices")
	if len(written) > 2 || len(seen.order()) != (1+len(written))*len(f.places) { // the first is what was there
		t.Errorf("slices were written %d times, %v; of which came %q", len(written), written, seen.order())
	}
	for _, state := range seen.order() {
		if strings.Contains(state, f.at(2).Addr().String()+":false") {
			t.Errorf("seen was %q", state)
		}
	}
	select {
	case <-m.Exited():
		t.Fatal("the manager has ended")
	default:
	}

	frozen(h, longFreeze, func() {
		f.servers[0].SetSick(false)
		f.servers[3].SetSick(true)
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
		want := harness.Union(harness.All(harness.Unhealthy, f.at(1), f.at(3)), harness.All(harness.Healthy, f.at(0), f.at(2)))
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
