package dataplane

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// All checks fail at once while clients still reach the targets: packets to the port that only
// checks use are dropped. The manager then blames its own network and writes no slice, and no
// request is lost. When checks work again, it finds a target that failed meanwhile.
func TestBlindProberLosesNoRequest(t *testing.T) {
	here, there := harness.New(t), harness.New(t) // a prober is blind only if several namespaces fail
	manager := here.StartManager()
	first, second := newMachineSet(here), newMachineSet(there)
	for _, p := range []machineSet{first, second} {
		p.h.WaitStates("pool", harness.All(harness.Healthy, p.at...))
		p.h.WaitRoutes("pool", p.at...)
	}
	machines := slices.Concat(first.machines, second.machines)
	before := slices.Concat(first.versions(), second.versions())
	load := startLoad(here, clusterAddrs(here, "pool", 80)[0])
	load.waitAnswerFrom(first.machines[0])

	for _, m := range machines {
		if err := m.Drop(m.At4(checkPort)); err != nil {
			t.Fatal(err)
		}
	}
	waitBlind(here, manager, 1)
	load.waitMore()
	if after := slices.Concat(first.versions(), second.versions()); !slices.Equal(before, after) {
		t.Errorf("the manager wrote slices while its prober was blind: %v became %v", before, after)
	}
	for _, p := range []machineSet{first, second} {
		p.h.WaitStates("pool", harness.All(harness.Healthy, p.at...))
	}

	first.checked[0].Stop() // the machine still serves requests, so none is lost
	for _, m := range machines {
		if err := m.Undrop(); err != nil {
			t.Fatal(err)
		}
	}
	waitBlind(here, manager, 0)
	here.WaitStates("pool",
		harness.Union(harness.All(harness.Healthy, first.at...), harness.All(harness.Unhealthy, first.at[0])))
	there.WaitStates("pool", harness.All(harness.Healthy, second.at...))
	load.stopWithoutLoss()
}

// machineSet is four machines behind one Service. Checks use another port than requests.
type machineSet struct {
	h        *harness.Test
	machines []*lab.Machine
	checked  []*lab.Server
	at       []netip.AddrPort // the endpoints
}

const checkPort = 9000

func newMachineSet(h *harness.Test) machineSet {
	h.T.Helper()
	p := machineSet{h: h}
	var list []any
	for _, name := range []string{"a", "b", "c", "d"} {
		m := h.Machine(name)
		h.Serve(m, "http", 8080)
		p.machines, p.checked = append(p.machines, m), append(p.checked, h.Serve(m, "tcp", checkPort))
		p.at = append(p.at, m.At4(8080))
		list = append(list, name, m.V4)
	}
	h.ApplyBackend("pool", `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80, targetPort: 8080}]
targets: %s
healthCheck: %s
`, targets(list...), tcpCheck)
	return p
}

// versions returns the name and resource version of each slice.
func (p machineSet) versions() (list []string) {
	p.h.T.Helper()
	for _, s := range p.h.Slices("pool") {
		list = append(list, p.h.Namespace+"/"+s.Name+" "+s.ResourceVersion)
	}
	slices.Sort(list)
	return list
}

// waitBlind waits until the metric externalbackend_prober_blind has this value.
func waitBlind(h *harness.Test, m *harness.Manager, want float64) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("externalbackend_prober_blind to be %v", want), func() error {
		if is := m.Metrics()["externalbackend_prober_blind"]; is != want {
			return fmt.Errorf("it is %v", is)
		}
		return nil
	})
}
