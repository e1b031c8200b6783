package integration

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/external-backend/operator/test/harness"
)

const (
	// takeover is how long after the death of a replica the others work for its share: its Lease of
	// 15 s, and 3 s for all else.
	takeover = 18 * time.Second
	// handover is how long after an orderly end they do.
	handover = 2 * time.Second
)

// replicatedTest has several replicas, which share the ExternalBackends of a test. Each
// ExternalBackend has one target.
type replicatedTest struct {
	*harness.Test
	managers []*harness.Manager
	backends []string
	set      serverSet
}

// startFleet starts replicas, and waits until every ExternalBackend is healthy.
func startFleet(h *harness.Test, replicas, backends int, flags ...string) *replicatedTest {
	h.T.Helper()
	f := &replicatedTest{Test: h, set: startServers(h, backends)}
	for range replicas {
		f.managers = append(f.managers, h.StartManager(append(flags, "--leader-elect")...))
	}
	for i := range backends {
		f.backends = append(f.backends, fmt.Sprint("b", i))
		h.ApplyBackend(f.backends[i], spec(f.set.target(i, ""), "", ""))
	}
	f.waitHealthy()
	return f
}

func (f *replicatedTest) waitHealthy() {
	f.T.Helper()
	for i, name := range f.backends {
		f.WaitStates(name, harness.All(harness.Healthy, f.set.at(i)))
	}
}

// shares returns, for each replica, which ExternalBackends it works for. It is -1 while the
// replica is giving some away, and their series are about to go.
func (f *replicatedTest) shares(managers ...*harness.Manager) [][]int {
	f.T.Helper()
	out := make([][]int, len(managers))
	for i, m := range managers {
		metrics := m.Metrics()
		for j, name := range f.backends {
			for series := range metrics {
				if strings.HasPrefix(series, "externalbackend_ready{") && strings.Contains(series, f.Namespace) &&
					strings.Contains(series, fmt.Sprintf("name=%q", name)) {
					out[i] = append(out[i], j)
				}
			}
		}
		if owned := metrics["externalbackend_owned"]; owned < float64(len(out[i])) {
			out[i] = []int{-1}
		}
	}
	return out
}

// waitShared waits until each ExternalBackend has exactly one replica, and returns the shares.
func (f *replicatedTest) waitShared(patience time.Duration, managers ...*harness.Manager) (shares [][]int) {
	f.T.Helper()
	f.Within(patience, "each ExternalBackend to have one replica", func() error {
		shares = f.shares(managers...)
		all := slices.Sorted(slices.Values(slices.Concat(shares...)))
		if len(all) != len(f.backends) || len(slices.Compact(all)) != len(f.backends) {
			return fmt.Errorf("the shares are %v", shares)
		}
		return nil
	})
	return shares
}

// Three replicas share the work. Where one is killed, the others find a death in its share within
// its Lease and three seconds; where one ends in order, within two. No slice of a living target is
// written, and the shares of others stay as they were.
func TestReplicasShareTheWork(t *testing.T) {
	h := harness.New(t)
	f := startFleet(h, 3, 12)
	shares := f.waitShared(harness.Patience, f.managers...)
	for i, share := range shares {
		if len(share) == 0 {
			t.Fatalf("replica %d works for nothing; the shares are %v", i, shares)
		}
	}
	waitQuiet(h)
	writes := h.CountWrites()

	dead := shares[0][0]
	f.managers[0].Kill()
	f.set.servers[dead].SetSick(true)
	h.Within(takeover, "the death to be found in the share of the replica that was killed", func() error {
		return h.CompareStates(f.backends[dead], harness.All(harness.Unhealthy, f.set.at(dead)))
	})
	after := f.waitShared(takeover, f.managers[1:]...)
	for i, share := range shares[1:] {
		for _, backend := range share {
			if !slices.Contains(after[i], backend) {
				t.Errorf("%s has moved between replicas that live", f.backends[backend])
			}
		}
	}
	f.set.servers[dead].SetSick(false)
	f.waitHealthy()

	dead = after[0][0]
	f.managers[1].Stop()
	f.set.servers[dead].SetSick(true)
	h.Within(handover+seconds, "the death to be found in the share of the replica that has ended", func() error {
		return h.CompareStates(f.backends[dead], harness.All(harness.Unhealthy, f.set.at(dead)))
	})
	f.set.servers[dead].SetSick(false)
	f.waitHealthy()
	f.waitShared(handover, f.managers[2])
	if n := len(writes.Of("endpointslices")); n != 4 {
		t.Errorf("slices were written %d times for two deaths and two returns: %v", n, writes.Of("endpointslices"))
	}
	f.managers[2].Stop()
}

// A replica that does not run for half a minute loses its share to the others. When it runs again,
// it writes nothing that is no longer true, and gets its share back.
func TestPausedReplicaWritesNothingOutdated(t *testing.T) {
	h := harness.New(t)
	f := startFleet(h, 2, 8)
	shares := f.waitShared(harness.Patience, f.managers...)
	if len(shares[0]) == 0 {
		t.Fatalf("the shares are %v", shares)
	}
	dead := shares[0][0]
	waitQuiet(h)
	writes := h.CountWrites()

	if err := f.managers[0].Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	over := time.NewTimer(30 * time.Second)
	f.set.servers[dead].SetSick(true)
	h.Within(takeover, "the death to be found in the share of the paused replica", func() error {
		return h.CompareStates(f.backends[dead], harness.All(harness.Unhealthy, f.set.at(dead)))
	})
	<-over.C
	if err := f.managers[0].Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	h.Within(takeover, "the shares to be as before", func() error {
		if now := f.shares(f.managers...); !slices.EqualFunc(now, shares, slices.Equal) {
			return fmt.Errorf("they are %v, and were %v", now, shares)
		}
		return nil
	})
	waitQuiet(h)
	if n := len(writes.Of("endpointslices")); n != 1 {
		t.Errorf("slices were written %d times for one death: %v", n, writes.Of("endpointslices"))
	}
	f.set.servers[dead].SetSick(false)
	f.waitHealthy()
}

// A replica does not work beside a leader that works alone, as earlier versions do, and takes over
// at once when it ends. Nothing is written meanwhile.
func TestFleetSucceedsLeader(t *testing.T) {
	h := harness.New(t)
	f := startFleet(h, 1, 4, "--shard=false")
	waitQuiet(h)
	writes := h.CountWrites()
	next := []*harness.Manager{h.StartManager("--leader-elect"), h.StartManager("--leader-elect")}
	h.WaitChecked(f.set.servers[0])
	if shares := f.shares(next...); len(slices.Concat(shares...)) > 0 {
		t.Errorf("beside the leader, the replicas work for %v", shares)
	}
	f.managers[0].Stop()
	f.waitShared(handover+seconds, next...)
	waitQuiet(h)
	if written := writes.Of("endpointslices", "externalbackends", "services"); len(written) > 0 {
		t.Errorf("the change wrote %v", written)
	}
	f.set.servers[0].SetSick(true)
	h.WaitStates(f.backends[0], harness.All(harness.Unhealthy, f.set.at(0)))
}
