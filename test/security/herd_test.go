package security

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// herd is an ExternalBackend of somebody who does no harm, with a target for each of some servers,
// which can fall ill.
type herd struct {
	*harness.Test
	machine *lab.Machine
	servers []*lab.Server
	states  harness.States
}

// newHerd makes one that is healthy, as soon as a manager runs.
func newHerd(h *harness.Test, size int) *herd {
	h.T.Helper()
	d := &herd{Test: h, machine: h.Machine("herd"), states: harness.States{}}
	b := newBackend("herd", byName["http"])
	b.Spec.HealthCheck.HTTPGet.Path, b.Spec.HealthCheck.PeriodSeconds = lab.HealthPath, 1
	// the timeout stays long: the ill answer, and who is only slow must not seem to flap
	b.Spec.HealthCheck.ConfirmPeriodMilliseconds = 100
	for i := range size {
		d.servers = append(d.servers, h.Serve(d.machine, "http", int(d.at(i).Port())))
		d.states[d.at(i)] = harness.Healthy
		b.Spec.Targets = append(b.Spec.Targets, v1alpha1.Target{
			Name: fmt.Sprint(
				"t",
				i,
			), Address: d.machine.V4.String(), Ports: []v1alpha1.TargetPort{{Name: "probe", TargetPort: int32(d.at(i).Port())}}})
	}
	h.ApplyObject(b)
	return d
}

func (d *herd) at(i int) netip.AddrPort { return d.machine.At4(uint16(8080 + i)) }

// flip makes server i ill or well again, and waits until that is published.
func (d *herd) flip(i int, state string) {
	d.T.Helper()
	began := time.Now()
	d.servers[i].SetSick(state != harness.Healthy)
	d.states[d.at(i)] = state
	d.WaitStates("herd", d.states)
	d.T.Logf("another's endpoint is %q after %v", state, time.Since(began).Round(time.Millisecond))
}
