package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/external-backend/operator/test/harness"
)

// When many targets change at once, at most ten events report the first changes. A minute later,
// one event reports how many more there were. Status lists all of them.
func TestManyEventsAreSummedUp(t *testing.T) {
	h := parallel(t)
	const sick, reported = 19, 10
	set := startServers(h, sick+1)
	h.ApplyBackend("web", spec(set.targets(), "", ""))
	h.WaitStates("web", harness.All(harness.Healthy, set.addrs...))
	h.WaitReady("web")
	for _, s := range set.servers[:sick] {
		s.SetSick(true)
	}
	h.WaitStates("web",
		harness.Union(harness.All(harness.Unhealthy, set.addrs[:sick]...), harness.All(harness.Healthy, set.addrs[sick])))
	h.Within(time.Minute+harness.Patience, "an event with the sum", func() error {
		events := h.Events("web")
		sum := slices.IndexFunc(events, func(e string) bool { return strings.HasPrefix(e, "MoreEvents: ") })
		if sum < 0 || len(events) > reported+1 {
			return fmt.Errorf("there are %d events: %q", len(events), events)
		}
		single := 0
		for _, e := range events {
			if strings.HasPrefix(e, "EndpointUnhealthy: ") {
				single++
			}
		}
		if want := fmt.Sprintf("%d EndpointUnhealthy", sick-single); single == 0 || !strings.Contains(events[sum], want) {
			return fmt.Errorf("%d of %d changes have an event of their own, and the last event is %q", single, sick, events[sum])
		}
		return nil
	})
	if listed := h.Backend("web").Status.Endpoints; listed.Unhealthy != sick {
		t.Errorf("status.endpoints is %+v", listed)
	}
}
