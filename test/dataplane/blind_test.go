package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// TestBlindProberLosesNoRequest cuts the manager off from every target while clients still reach
// them: it drops what goes to the port that only checks use. The manager takes its own network for
// broken, writes no slice and loses no request. When the network is back, it finds a target that
// died meanwhile.
func TestBlindProberLosesNoRequest(t *testing.T) {
	here, there := harness.New(t), harness.New(t) // of one namespace alone it could not be told
	manager := here.StartManager()
	first, second := newCrew(here), newCrew(there)
	for _, c := range []crew{first, second} {
		c.h.WaitStates("pool", all(harness.Healthy, c.at...))
		c.h.WaitRoutes("pool", c.at...)
	}
	machines := slices.Concat(first.machines, second.machines)
	before := slices.Concat(first.versions(), second.versions())
	load := startLoad(here, clusterAddrs(here, "pool", 80)[0])
	load.reaches(first.machines[0])

	for _, m := range machines {
		if err := m.Drop(m.At4(checkPort)); err != nil {
			t.Fatal(err)
		}
	}
	waitBlind(here, manager, 1)
	load.more()
	if after := slices.Concat(first.versions(), second.versions()); !slices.Equal(before, after) {
		t.Errorf("the blind manager has written slices: %v became %v", before, after)
	}
	for _, c := range []crew{first, second} {
		c.h.WaitStates("pool", all(harness.Healthy, c.at...))
	}

	first.checked[0].Stop() // serves on: no request is lost, whichever the moment
	for _, m := range machines {
		if err := m.Undrop(); err != nil {
			t.Fatal(err)
		}
	}
	waitBlind(here, manager, 0)
	here.WaitStates("pool", with(all(harness.Healthy, first.at...), all(harness.Unhealthy, first.at[0])))
	there.WaitStates("pool", all(harness.Healthy, second.at...))
	load.stopUnharmed()
}

// crew is four machines behind one Service, with a port of their own for checks.
type crew struct {
	h        *harness.Test
	machines []*lab.Machine
	checked  []*lab.Server
	at       []netip.AddrPort // the endpoints
}

const checkPort = 9000

func newCrew(h *harness.Test) crew {
	h.T.Helper()
	c := crew{h: h}
	var list []any
	for _, name := range []string{"a", "b", "c", "d"} {
		m := h.Machine(name)
		h.Serve(m, "http", 8080)
		c.machines, c.checked = append(c.machines, m), append(c.checked, h.Serve(m, "tcp", checkPort))
		c.at = append(c.at, m.At4(8080))
		list = append(list, name, m.V4)
	}
	h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: pool}
spec:
  service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
  ports: [{name: web, port: 80, targetPort: 8080}]
  targets: %s
  healthCheck: %s
`, targets(list...), tcpCheck)
	return c
}

// versions names each slice with its resource version.
func (c crew) versions() (list []string) {
	c.h.T.Helper()
	for _, s := range c.h.Slices("pool") {
		list = append(list, c.h.Namespace+"/"+s.Name+" "+s.ResourceVersion)
	}
	slices.Sort(list)
	return list
}

// waitBlind waits until the manager's metric says whether its prober is blind.
func waitBlind(h *harness.Test, m *harness.Manager, want float64) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("the prober's blindness to be %v", want), func() error {
		if is := m.Metrics()["externalbackend_prober_blind"]; is != want {
			return fmt.Errorf("it is %v", is)
		}
		return nil
	})
}
