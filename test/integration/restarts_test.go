package integration

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// seconds bounds what must happen within a few seconds, also on a busy machine.
const seconds = 15 * time.Second

// fleet is a set of ExternalBackends whose specs change at random.
type fleet struct {
	h      *harness.Test
	random *rand.Rand
	want   map[string]harness.States // by ExternalBackend; nil: deleted
	kinds  map[string]string
}

// change changes the spec of an ExternalBackend, deletes it, or creates it again.
func (f *fleet) change(backend string) {
	f.h.T.Helper()
	if f.want[backend] != nil && f.random.IntN(8) == 0 {
		remove(f.h, f.h.Backend(backend))
		f.want[backend] = nil
		return
	}
	if f.want[backend] == nil { // the old object must be gone
		waitGone(f.h, &v1alpha1.ExternalBackend{}, backend)
	}
	kind := []string{"ClusterIP", "Headless", "NodePort"}[f.random.IntN(3)]
	var targets strings.Builder
	states := harness.States{}
	for i := range 16 {
		if f.random.IntN(2) == 0 {
			continue
		}
		addr, port := fmt.Sprintf("198.51.100.%d", i+1), uint16(8080+f.random.IntN(2))
		state := harness.Healthy
		more := ""
		switch f.random.IntN(5) {
		case 0:
			state, more = harness.Draining, ", adminState: Draining"
		case 1:
			state, more = harness.Standby, ", tier: 1"
		}
		fmt.Fprintf(&targets, "- {name: t%d, address: %s, ports: [{name: web, targetPort: %d}]%s}\n", i, addr, port, more)
		states[netip.AddrPortFrom(netip.MustParseAddr(addr), port)] = state
	}
	// This target keeps tier 0 active.
	targets.WriteString("- {name: always, address: 198.51.100.99, ports: [{name: web, targetPort: 8080}]}\n")
	states[at("198.51.100.99:8080")] = harness.Healthy
	f.h.ApplyBackend(backend,
		"service: {type: %s, labels: {round: r%d}, ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}\nports: [{name: web, port: 80}]\ntargets:\n%s",
		kind, f.random.IntN(100), targets.String())
	f.want[backend], f.kinds[backend] = states, kind
}

// wait waits until all objects are as specified, and there are no others.
func (f *fleet) wait() {
	f.h.T.Helper()
	for backend, states := range f.want {
		if states == nil {
			waitNoSlices(f.h, backend)
			waitGone(f.h, &corev1.Service{}, backend)
			continue
		}
		f.h.WaitStates(backend, states)
		b := f.h.WaitReady(backend)
		service := f.h.Service(backend)
		if (service.Spec.ClusterIP == corev1.ClusterIPNone) != (f.kinds[backend] == "Headless") ||
			!metav1.IsControlledBy(service, b) {
			f.h.T.Errorf("%s: the Service is %+v", backend, service)
		}
		all := f.h.Slices(backend)
		for _, s := range all {
			if !metav1.IsControlledBy(&s, service) || len(s.Endpoints) == 0 || len(s.Endpoints) > 3 ||
				s.Labels["round"] != service.Labels["round"] {
				f.h.T.Errorf("%s: slice %s is owned by %v, labelled %v and has %d endpoints", backend, s.Name,
					s.OwnerReferences, s.Labels, len(s.Endpoints))
			}
		}
		groups := map[uint16]int{}
		for place := range states {
			groups[place.Port()]++
		}
		bound := 0
		for _, n := range groups {
			bound += 2*((n+2)/3) + 1
		}
		if len(all) > bound {
			f.h.T.Errorf("%s: %d endpoints are in %d slices", backend, len(states), len(all))
		}
	}
}

// A manager that is killed at any moment leaves a state that the next one completes: no slice
// twice, no orphan, and the same result as without a crash.
func TestKilledManagerLeavesNoTrace(t *testing.T) {
	h := harness.New(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	f := fleet{h: h, random: rand.New(rand.NewPCG(seed, 0)), want: map[string]harness.States{}, kinds: map[string]string{}}
	backends := []string{"red", "green", "blue", "grey"}
	flags := []string{"--max-endpoints-per-slice=3"}
	for range 10 {
		for _, b := range backends { // work for the start of the manager
			f.change(b)
		}
		m := h.StartManager(flags...)
		for range f.random.IntN(3) { // work that comes while it runs
			f.change(backends[f.random.IntN(len(backends))])
		}
		<-time.After(time.Duration(f.random.IntN(250)) * time.Millisecond)
		m.Kill()
	}
	m := h.StartManager(flags...)
	f.wait()
	waitQuiet(h)
	f.wait()
	m.Stop()

	// The next manager finds nothing to do.
	writes := h.CountWrites()
	h.StartManager(flags...)
	h.ApplyBackend("tick", onePort)
	h.WaitReady("tick")
	waitQuiet(h)
	for _, w := range writes.Of() {
		if !strings.HasPrefix(w.Name, "tick") && w.Name != "" {
			t.Errorf("the manager wrote %+v", w)
		}
	}
}

// A restart changes no endpoint and writes nothing, whatever the ExternalBackends are like. Drains,
// tiers and stale answers continue.
func TestRestartWritesNothing(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager()
	set := startServers(h, 4)
	ns := startScriptedDNS(h)
	ns.set("db.example.com", answerWith("198.51.100.1", "198.51.100.2"))
	ns.set(
		"_web._tcp.example.com",
		answerWithSRV(dns.SRV{Priority: 1, Port: 8080, Target: "db.example.com."},
			dns.SRV{Priority: 2, Port: 8081, Target: "db.example.com."}),
	)
	set.servers[1].SetSick(true)
	applyHostname(h, ns, "named", "", "drainSeconds: 600")
	h.ApplyBackend("srv",
		"service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}\nports: [{name: web, port: 80}]\ntargets: [{name: pool, srvName: _web._tcp.example.com}]\ndns: {nameservers: [\"%s\"], minTTLSeconds: 1}",
		ns.V4)
	h.ApplyBackend("checked",
		spec(set.target(0, "")+set.target(1, "")+set.target(2, ", tier: 1")+set.target(3, ", adminState: Draining"), "",
			"drainSeconds: 600"),
	)
	h.ApplyBackend("open", spec(set.target(1, ""), "", "failover: {whenNoTierQualifies: AllEndpoints}"))
	h.ApplyBackend("observed", spec(set.target(0, "")+set.target(1, ""), ", mode: Observe", ""))
	h.ApplyBackend("over", spec(set.target(1, "")+set.target(2, ", tier: 1"), "", "failover: {failback: Manual}"))
	h.ApplyBackend("unchecked", dualStack)
	h.ApplyBackend("headless", "service: {type: Headless}"+onePort)
	h.ApplyBackend("port", "service: {type: NodePort}"+onePort)
	h.ApplyBackend("balancer", "service: {type: LoadBalancer}"+onePort)
	h.ApplyBackend("alias",
		"service: {type: ExternalName}\nports: [{name: web, port: 80}]\ntargets: [{name: a, hostname: db.example.com}]")
	h.ApplyBackend("through",
		"service: {type: Headless}\nports: [{name: web, port: 80}]\ntargets: [{name: a, hostname: db.example.com}]\ndns: {resolution: Passthrough}")
	h.Apply(serviceByHand, "theirs")
	h.ApplyBackend("ref", "serviceRef: {name: theirs}"+onePort)
	h.Apply(serviceByHand, "adopted")
	h.ApplyBackend("adopted", adopting, "", "{name: web, port: 80, targetPort: 8080}")
	h.ApplyBackend("invalid",
		"ports: [{name: web, port: 80}]\ntargets: [{name: a, address: 198.51.100.1, ports: [{name: other, targetPort: 8080}]}]")
	h.Apply(serviceByHand, "conflict")
	h.ApplyBackend("conflict", onePort)
	h.ApplyBackend("missing", "serviceRef: {name: nowhere}"+onePort)
	ns.set("inside.example.com", answerWith("100.100.100.200"))
	h.ApplyBackend("denied", "ports: [{name: web, port: 80}]\n"+
		"targets: [{name: a, address: 100.100.100.200}, {name: b, hostname: inside.example.com}]\n"+
		"dns: {nameservers: [%q], minTTLSeconds: 1}", ns.V4)
	policy(h, "enforced", fmt.Sprintf("allow: [{anyTarget: {}}], allowNameservers: [%q]", ns.V4))
	policy(h, "tried", "mode: Audit, allow: [{cidrs: [198.51.100.0/24]}]")
	ready := []string{"named", "srv", "checked", "open", "observed", "over", "unchecked", "headless", "port",
		"balancer", "alias", "through", "ref", "adopted"}
	for _, name := range ready {
		h.WaitReady(name)
	}
	waitActive(h, "over", 1)
	set.servers[1].SetSick(false) // failback Manual keeps the other tier
	waitTarget(h, "over", "b", v1alpha1.TargetStateHealthy, "")
	h.WaitStates("over", harness.States{set.at(1): harness.Standby, set.at(2): harness.Healthy})
	h.WaitStates("checked",
		harness.States{set.at(0): harness.Healthy, set.at(1): harness.Healthy, set.at(2): harness.Standby,
			set.at(3): harness.Draining})
	set.servers[0].SetSick(true)
	ns.set("db.example.com", answerWith("198.51.100.1")) // the other address drains
	h.WaitStates("named",
		harness.States{at("198.51.100.1:8080"): harness.Healthy, at("198.51.100.2:8080"): harness.Draining})
	h.WaitStates("checked", harness.States{set.at(0): harness.Unhealthy, set.at(1): harness.Healthy,
		set.at(2): harness.Standby, set.at(3): harness.Draining})
	waitTarget(h, "observed", "a", "Unhealthy", "UnexpectedStatus")
	waitTarget(h, "denied", "b", "Denied", "TargetDenied")
	waitQuiet(h)

	names := append(slices.Clone(ready), "theirs")
	snapshots, statuses := map[string]snapshot{}, map[string]v1alpha1.ExternalBackendStatus{}
	for _, name := range names {
		snapshots[name] = takeSnapshot(h, name, true)
	}
	for _, name := range append(ready, "invalid", "conflict", "missing", "denied") {
		statuses[name] = h.Backend(name).Status
	}
	writes, events := h.CountWrites(), len(h.Events("observed"))
	waitCounts(h, "enforced", 1, 18, 1)
	writesOfPolicies := policyWrites(h)
	for _, end := range []struct {
		name string
		how  func(*harness.Manager)
	}{{"SIGTERM", (*harness.Manager).Stop}, {"SIGKILL", (*harness.Manager).Kill}} {
		end.how(m)
		m = h.StartManager()
		asked := ns.queries()
		h.WaitChecked(set.servers...)
		h.Eventually("the names to be asked for", func() error {
			if n := ns.queries() - asked; n < 7 {
				return fmt.Errorf("there were %d queries", n)
			}
			return nil
		})
		waitQuiet(h)
		for _, w := range writes.Of() {
			t.Errorf("after %s, the next manager wrote %+v", end.name, w)
		}
		writes = h.CountWrites()
	}
	for _, w := range writesOfPolicies() {
		t.Errorf("the next managers wrote %+v", w)
	}
	for name, p := range snapshots {
		if diff := gocmp.Diff(p, takeSnapshot(h, name, true)); diff != "" {
			t.Errorf("%s, -before +after:\n%s", name, diff)
		}
	}
	for name, s := range statuses {
		if diff := gocmp.Diff(s, h.Backend(name).Status); diff != "" {
			t.Errorf("status of %s, -before +after:\n%s", name, diff)
		}
	}
	if n := len(h.Events("observed")); n != events {
		t.Errorf("there are %d new events: %q", n-events, h.Events("observed"))
	}

	// The manager still follows health and names.
	set.servers[0].SetSick(false)
	h.WaitStates("checked",
		harness.States{set.at(0): harness.Healthy, set.at(1): harness.Healthy, set.at(2): harness.Standby,
			set.at(3): harness.Draining})
	ns.set("db.example.com", answerWith("198.51.100.1", "198.51.100.2"))
	h.WaitStates("named", harness.All(harness.Healthy, at("198.51.100.1:8080"), at("198.51.100.2:8080")))
	set.servers[2].SetSick(true)
	h.WaitStates("over", harness.States{set.at(1): harness.Healthy, set.at(2): harness.Unhealthy})
}

// Objects that are deleted while no manager runs stay deleted. Slices that the garbage collector
// leaves stay with their Service.
func TestObjectsDeletedWithoutManagerStayDeleted(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager()
	h.Apply(serviceByHand, "theirs")
	h.ApplyBackend("own", onePort)
	h.ApplyBackend("ref", "serviceRef: {name: theirs}"+onePort)
	h.WaitReady("own")
	h.WaitReady("ref")
	m.Stop()
	remove(h, h.Backend("own"))
	remove(h, h.Backend("ref"), client.PropagationPolicy(metav1.DeletePropagationOrphan))
	waitGone(h, &v1alpha1.ExternalBackend{}, "ref")
	waitGone(h, &corev1.Service{}, "own")
	waitNoSlices(h, "own")
	if len(h.Slices("theirs")) == 0 {
		t.Fatal("the garbage collector has deleted the slices")
	}
	left := h.Slices("theirs")
	h.StartManager()
	h.ApplyBackend("ready", onePort) // it is reconciled after all existing objects
	h.WaitReady("ready")
	if diff := gocmp.Diff(left, h.Slices("theirs")); diff != "" {
		t.Errorf("the slices that the garbage collector left have changed, -before +after:\n%s", diff)
	}
}

// Of two managers that do not share the work, one acts. On SIGTERM it releases the Lease and exits
// with 0, and the other one takes over.
func TestLeaseIsHandedOver(t *testing.T) {
	h := harness.New(t)
	holder := func() string {
		var lease coordinationv1.Lease
		key := client.ObjectKey{Namespace: lab.SystemNamespace, Name: "external-backend.io"}
		if err := h.Client.Get(t.Context(), key, &lease); err != nil {
			t.Fatal(err)
		}
		if lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	set := startServers(h, 1)
	h.ApplyBackend("web", spec(set.targets(), "", ""))
	leader := h.StartManager("--leader-elect", "--shard=false")
	h.WaitStates("web", harness.All(harness.Healthy, set.at(0)))
	first := holder()
	standby := h.StartManager("--leader-elect", "--shard=false") // it returns once /readyz answers 200
	h.WaitChecked(set.servers[0])
	if !reconciles(h, leader) || reconciles(h, standby) {
		t.Errorf("the leader acts: %t, the standby: %t", reconciles(h, leader), reconciles(h, standby))
	}
	if now := holder(); now != first || first == "" {
		t.Errorf("the lease is held by %q, then by %q", first, now)
	}

	leader.Stop() // fails the test unless the exit status is 0
	set.servers[0].SetSick(true)
	// A lease that was not released would be taken over after 45 s.
	h.Within(2*seconds, "the other manager to lead", func() error {
		if now := holder(); now == first || now == "" {
			return fmt.Errorf("the lease is held by %q", now)
		}
		return nil
	})
	h.WaitStates("web", harness.All(harness.Unhealthy, set.at(0)))
	h.Eventually("the other manager to act", func() error {
		if !reconciles(h, standby) {
			return errors.New("it does not")
		}
		return nil
	})
	standby.Stop()
	if now := holder(); now != "" {
		t.Errorf("the lease is held by %q, but no manager runs", now)
	}
}

// reconciles reports whether the manager has reconciled an ExternalBackend of the test. A standby
// reconciles none.
func reconciles(h *harness.Test, m *harness.Manager) bool {
	h.T.Helper()
	for series := range m.Metrics() {
		if strings.HasPrefix(series, "externalbackend_endpoints{") && strings.Contains(series, h.Namespace) {
			return true
		}
	}
	return false
}
