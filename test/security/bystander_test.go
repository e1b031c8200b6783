package security

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// bystander is an ExternalBackend of another tenant, which must not be disturbed. Its targets have
// servers that can become sick.
type bystander struct {
	*harness.Test
	machine *lab.Machine
	servers []*lab.Server
	states  harness.States
}

// newBystander applies a bystander whose targets become healthy once a manager runs.
func newBystander(h *harness.Test, size int) *bystander {
	h.T.Helper()
	d := &bystander{Test: h, machine: h.Machine("bystander"), states: harness.States{}}
	b := newBackend("bystander", handlerNamed["http"])
	b.Spec.HealthCheck.HTTPGet.Path, b.Spec.HealthCheck.PeriodSeconds = lab.HealthPath, 1
	// The timeout stays long: sick servers answer, and slow ones must not seem to flap.
	b.Spec.HealthCheck.ConfirmPeriodMilliseconds = 100
	for i := range size {
		d.servers = append(d.servers, h.Serve(d.machine, "http", int(d.at(i).Port())))
		d.states[d.at(i)] = harness.Healthy
		b.Spec.Targets = append(b.Spec.Targets, v1alpha1.Target{
			Name: fmt.Sprint("t", i), Address: d.machine.V4.String(),
			Ports: []v1alpha1.TargetPort{{Name: "probe", TargetPort: int32(d.at(i).Port())}},
		})
	}
	h.ApplyObject(b)
	return d
}

func (d *bystander) at(i int) netip.AddrPort { return d.machine.At4(uint16(8080 + i)) }

// flip makes server i sick or healthy again, and waits until the new state is published.
func (d *bystander) flip(i int, state string) {
	d.T.Helper()
	began := time.Now()
	d.servers[i].SetSick(state != harness.Healthy)
	d.states[d.at(i)] = state
	d.WaitStates("bystander", d.states)
	d.T.Logf("the bystander's endpoint is %q after %v", state, time.Since(began).Round(time.Millisecond))
}
