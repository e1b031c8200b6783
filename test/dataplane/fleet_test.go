package dataplane

import (
	"fmt"
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// aside is how long a replica that is wrong about most of its share may take to give it away, or
// to take it again: a minute, and what the checks of this package take.
const aside = 2 * time.Minute

// replicasTest has three replicas, each on a machine of its own, and ExternalBackends of two
// machines.
type replicasTest struct {
	*harness.Test
	on       []*lab.Machine
	managers []*harness.Manager
	backends []string
	machines []*lab.Machine
	servers  []*lab.Server
}

func startReplicas(h *harness.Test) *replicasTest {
	r := &replicasTest{Test: h}
	for i := range 3 {
		r.on = append(r.on, h.Machine(fmt.Sprint("replica", i)))
		r.managers = append(r.managers, h.StartManagerOn(r.on[i], "--leader-elect"))
	}
	for _, name := range []string{"a", "b"} {
		m := h.Machine(name)
		r.machines, r.servers = append(r.machines, m), append(r.servers, h.Serve(m, "http", 8080))
	}
	for i := range 12 {
		r.backends = append(r.backends, fmt.Sprint("pool-", i))
		h.ApplyBackend(r.backends[i], `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80, targetPort: 8080}]
targets: %s
healthCheck: {tcpSocket: {}, periodSeconds: 2, confirmPeriodMilliseconds: 1000, timeoutSeconds: 2}
`, targets("a", r.machines[0].V4, "b", r.machines[1].V4))
	}
	r.waitHealthy()
	return r
}

func (r *replicasTest) waitHealthy() {
	r.T.Helper()
	for _, name := range r.backends {
		r.WaitStates(name, harness.All(harness.Healthy, r.machines[0].At4(8080), r.machines[1].At4(8080)))
	}
}

// share returns which ExternalBackends a replica works for.
func (r *replicasTest) share(replica int) (names []string) {
	r.T.Helper()
	metrics := r.managers[replica].Metrics()
	for _, name := range r.backends {
		for series := range metrics {
			if strings.HasPrefix(series, "externalbackend_ready{") && strings.Contains(series, r.Namespace) &&
				strings.Contains(series, fmt.Sprintf("name=%q", name)) {
				names = append(names, name)
			}
		}
	}
	return names
}

// waitAside waits until a replica has given its share away, or has one.
func (r *replicasTest) waitAside(replica int, want bool) {
	r.T.Helper()
	r.Within(aside, fmt.Sprintf("replica %d to be set aside: %t", replica, want), func() error {
		metrics := r.managers[replica].Metrics()
		if is := metrics["externalbackend_replica_set_aside"] == 1; is != want {
			return fmt.Errorf("it is %t", is)
		}
		if names := r.share(replica); len(names) > 0 == want {
			return fmt.Errorf("it works for %v", names)
		}
		return nil
	})
}

// wantEvent returns an error unless there is an event for a reason about the Lease of a replica.
func (r *replicasTest) wantEvent(reason string) error {
	var list eventsv1.EventList
	if err := r.Client.List(r.T.Context(), &list, client.InNamespace(lab.SystemNamespace)); err != nil {
		return err
	}
	for i := range list.Items {
		if e := &list.Items[i]; e.Reason == reason && e.Regarding.Kind == "Lease" {
			return nil
		}
	}
	return fmt.Errorf("there are %d other events", len(list.Items))
}

// One of three replicas no longer reaches the targets, which the others and the clients reach. No
// slice is written, and no request is lost. It gives its share away, in which a death is found,
// and takes it again when it reaches the targets.
func TestReplicaThatIsCutOffTakesNothingDown(t *testing.T) {
	h := harness.New(t)
	r := startReplicas(h)
	r.waitAside(0, false)
	before := r.share(0)
	load := startLoad(h, clusterAddrs(h, before[0], 80)[0])
	load.waitMore()
	writes := h.CountWrites()

	for _, m := range r.machines {
		if err := r.on[0].Drop(m.At4(0)); err != nil {
			t.Fatal(err)
		}
	}
	r.waitAside(0, true)
	load.waitMore()
	if written := writes.Of("endpointslices"); len(written) > 0 {
		t.Errorf("slices were written about targets that answer: %v", written)
	}
	r.Eventually("the event ShareGivenAway", func() error { return r.wantEvent("ShareGivenAway") })
	load.stopWithoutLoss()

	if err := r.machines[1].Drop(r.machines[1].At4(8080)); err != nil { // a true silence
		t.Fatal(err)
	}
	for _, name := range r.backends {
		h.WaitStates(name, harness.Union(harness.All(harness.Healthy, r.machines[0].At4(8080)),
			harness.All(harness.Unhealthy, r.machines[1].At4(8080))))
	}
	if err := r.machines[1].Undrop(); err != nil {
		t.Fatal(err)
	}
	r.waitHealthy()

	load = startLoad(h, clusterAddrs(h, before[0], 80)[0])
	load.waitMore()
	writes = h.CountWrites()
	if err := r.on[0].Undrop(); err != nil {
		t.Fatal(err)
	}
	r.waitAside(0, false)
	load.waitMore()
	if written := writes.Of("endpointslices"); len(written) > 0 {
		t.Errorf("slices were written when the replica took its share again: %v", written)
	}
	load.stopWithoutLoss()
}
