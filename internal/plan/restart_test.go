package plan

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/external-backend/operator/api/v1alpha1"
)

// TestRestartWritesNothing plays random verdicts and specs of ExternalBackends with several tiers.
// After each step a manager without memory has nothing to write, because it reads health, the
// active tier, fail-open and the ends of draining back from the slices.
func TestRestartWritesNothing(t *testing.T) {
	for seed := range uint64(600) {
		l := newTieredLife(seed)
		for step := range 12 {
			l.change()
			l.plan(t)
			restarted := *l.simulation
			restarted.slices = maps.Clone(l.slices)
			restarted.restart()
			if changes := restarted.plan(t); verbs(changes) != "+0 ~0 -0" {
				t.Fatalf("life %d, step %d: a restart writes %s\n%s", seed, step, verbs(changes), restarted.out.String())
			}
			l.out.Reset()
		}
	}
}

// tieredLife is a simulation whose targets are in several tiers, with random changes.
type tieredLife struct {
	*simulation
	random *rand.Rand
}

func newTieredLife(seed uint64) *tieredLife {
	r := rand.New(rand.NewPCG(seed, 3))
	l := &tieredLife{random: r, simulation: newSimulation()}
	spec := &l.backend.Spec
	spec.Ports = []v1alpha1.Port{{Name: "http", Port: 80}}
	spec.DrainSeconds = []*int32{nil, new(int32(30))}[r.IntN(2)]
	spec.HealthCheck = &v1alpha1.HealthCheck{TCPSocket: &v1alpha1.TCPSocket{}}
	spec.Failover = &v1alpha1.Failover{
		MinHealthyPercent:    []int32{1, 50, 100}[r.IntN(3)],
		FailbackDelaySeconds: []*int32{nil, new(int32(0))}[r.IntN(2)],
		WhenNoTierQualifies: []v1alpha1.NoTierPolicy{
			v1alpha1.NoTierHealthyEndpoints, v1alpha1.NoTierAllEndpoints,
		}[r.IntN(2)],
	}
	for range 2 + r.IntN(6) {
		l.addTarget()
	}
	return l
}

func (l *tieredLife) addTarget() {
	n := len(l.backend.Spec.Targets) + 1 + 10*int(l.backend.Generation)
	l.backend.Spec.Targets = append(l.backend.Spec.Targets, v1alpha1.Target{
		Name: fmt.Sprintf("t%d", n), Address: fmt.Sprintf("192.0.%d.%d", n/200, 1+n%200), Tier: new(int32(l.random.IntN(3))),
	})
}

// change changes verdicts, and now and then the spec.
func (l *tieredLife) change() {
	l.now = l.now.Add(time.Duration(l.random.IntN(40)) * time.Second)
	targets := l.backend.Spec.Targets
	for range l.random.IntN(1 + len(targets)) {
		t := &targets[l.random.IntN(len(targets))]
		l.verdicts[t.Name+"@"+t.Address] = []string{"Healthy", "Timeout"}[l.random.IntN(2)]
	}
	if l.random.IntN(4) > 0 {
		return
	}
	l.backend = l.backend.DeepCopy()
	targets = l.backend.Spec.Targets
	l.backend.Generation++
	switch i := l.random.IntN(len(targets)); l.random.IntN(4) {
	case 0:
		l.addTarget()
	case 1:
		if len(targets) > 1 {
			l.backend.Spec.Targets = append(targets[:i:i], targets[i+1:]...)
		}
	case 2:
		targets[i].AdminState = []v1alpha1.AdminState{
			v1alpha1.AdminStateActive, v1alpha1.AdminStateDraining, v1alpha1.AdminStateDisabled,
		}[l.random.IntN(3)]
	case 3:
		targets[i].Tier = new(int32(l.random.IntN(3)))
	}
}
