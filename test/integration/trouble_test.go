package integration

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"
	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// outage is how long the API server is away.
const outage = 30 * time.Second

// seconds bounds what has to come within seconds, on a machine that is busy with other things.
const seconds = 15 * time.Second

// While the API server is down for half a minute, a backend fails and a name changes. Both are
// published within seconds of its return, no object is replaced, and the manager keeps its lease.
func TestManagerSurvivesAPIServerOutage(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager("--leader-elect")
	set := startServers(h, 3)
	ns := startScriptedDNS(h)
	ns.set("db.example.com", answerWith("198.51.100.1"))
	h.ApplyBackend("web", spec(set.targets(), "", ""))
	applyHostname(h, ns, "named", "", "")
	h.WaitStates("web", harness.All(harness.Healthy, set.at(0), set.at(1), set.at(2)))
	h.WaitStates("named", oneEndpoint)
	h.WaitReady("web")
	h.WaitReady("named")
	before := takeSnapshot(h, "web", true)

	h.StopComponent(devcluster.APIServer)
	back := time.NewTimer(outage)
	set.servers[0].Stop()
	set.servers[1].SetSick(true)
	ns.set("db.example.com", answerWith("198.51.100.2"))
	asked := ns.queries()
	h.WaitChecked(set.servers[2])
	h.Eventually("the name to be asked for", func() error {
		if n := ns.queries() - asked; n < 3 {
			return fmt.Errorf("it was %d times", n)
		}
		return nil
	})
	<-back.C
	if err := h.StartComponent(t.Context(), devcluster.APIServer); err != nil {
		t.Fatal(err)
	}
	restartControllerManager(h)

	want := harness.States{set.at(0): harness.Unhealthy, set.at(1): harness.Unhealthy, set.at(2): harness.Healthy}
	h.Within(seconds, "what died to be out of rotation", func() error {
		return h.CompareStates("web", want)
	})
	h.WaitStates("named", harness.All(harness.Healthy, at("198.51.100.2:8080")))

	// What is watched is watched again, too.
	port := h.Service("web").Spec.Ports[0].Port
	edit(h, h.Service("web"), func(s *corev1.Service) { s.Spec.Ports[0].Port++ })
	h.Within(seconds, "the Service's port to be back", func() error {
		if p := h.Service("web").Spec.Ports[0].Port; p != port {
			return fmt.Errorf("it is %d", p)
		}
		return nil
	})
	h.WaitCondition("web", "Healthy", metav1.ConditionFalse, "SomeUnhealthy")
	waitTarget(h, "web", "a", "Unhealthy", "ConnectionRefused")
	now := takeSnapshot(h, "web", true)
	if now.Service.UID != before.Service.UID {
		t.Error("the Service is another one")
	}
	for name, s := range before.Slices {
		if now.Slices[name].UID != s.UID {
			t.Errorf("slice %s is another one", name)
		}
	}
	select {
	case <-m.Exited():
		t.Error("the manager has ended")
	default:
	}
}

// restartControllerManager brings the garbage collector back, which later tests wait for, and which
// after an outage would take half a minute and more by itself.
func restartControllerManager(h *harness.Test) {
	h.T.Helper()
	h.StopComponent(devcluster.ControllerManager)
	if err := h.StartComponent(h.T.Context(), devcluster.ControllerManager); err != nil {
		h.T.Fatal(err)
	}
}

// fleet is backends whose specs change at random.
type fleet struct {
	h      *harness.Test
	random *rand.Rand
	want   map[string]harness.States // by backend; nil: deleted
	kinds  map[string]string
}

// change gives one backend another spec, deletes it, or makes it anew.
func (f *fleet) change(backend string) {
	f.h.T.Helper()
	if f.want[backend] != nil && f.random.IntN(8) == 0 {
		remove(f.h, f.h.Backend(backend))
		f.want[backend] = nil
		return
	}
	if f.want[backend] == nil { // the name is free once nothing is left of the old one
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
	// tier 0 is the active one
	targets.WriteString("- {name: always, address: 198.51.100.99, ports: [{name: web, targetPort: 8080}]}\n")
	states[at("198.51.100.99:8080")] = harness.Healthy
	f.h.ApplyBackend(backend,
		"service: {type: %s, labels: {round: r%d}, ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}\nports: [{name: web, port: 80}]\ntargets:\n%s",
		kind, f.random.IntN(100), targets.String())
	f.want[backend], f.kinds[backend] = states, kind
}

// wait waits until all is as specified, and nothing else is left in the namespace.
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
			f.h.T.Errorf("%s: %d endpoints stand in %d slices", backend, len(states), len(all))
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
		for _, b := range backends { // the work that a manager finds when it starts
			f.change(b)
		}
		m := h.StartManager(flags...)
		for range f.random.IntN(3) { // and that which comes while it works
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

	// It is a fixpoint: the next one finds nothing to do.
	writes := h.CountWrites()
	h.StartManager(flags...)
	h.ApplyBackend("tick", onePort)
	h.WaitReady("tick")
	waitQuiet(h)
	for _, w := range writes.Of() {
		if !strings.HasPrefix(w.Name, "tick") && w.Name != "" {
			t.Errorf("written was %+v", w)
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
	ready := []string{"named", "srv", "checked", "open", "observed", "over", "unchecked", "headless", "port",
		"balancer", "alias", "through", "ref", "adopted"}
	for _, name := range ready {
		h.WaitReady(name)
	}
	waitActive(h, "over", 1)
	set.servers[1].SetSick(false) // Manual keeps the other tier
	waitTarget(h, "over", "b", v1alpha1.TargetStateHealthy, "")
	h.WaitStates("over", harness.States{set.at(1): harness.Standby, set.at(2): harness.Healthy})
	h.WaitStates("checked", harness.States{set.at(0): harness.Healthy, set.at(1): harness.Healthy, set.at(2): harness.Standby,
		set.at(3): harness.Draining})
	set.servers[0].SetSick(true)
	ns.set("db.example.com", answerWith("198.51.100.1")) // the other one drains
	h.WaitStates("named",
		harness.States{at("198.51.100.1:8080"): harness.Healthy, at("198.51.100.2:8080"): harness.Draining})
	h.WaitStates("checked", harness.States{set.at(0): harness.Unhealthy, set.at(1): harness.Healthy,
		set.at(2): harness.Standby, set.at(3): harness.Draining})
	waitTarget(h, "observed", "a", "Unhealthy", "UnexpectedStatus")
	waitQuiet(h)

	names := append(slices.Clone(ready), "theirs")
	snapshots, statuses := map[string]snapshot{}, map[string]v1alpha1.ExternalBackendStatus{}
	for _, name := range names {
		snapshots[name] = takeSnapshot(h, name, true)
	}
	for _, name := range append(ready, "invalid", "conflict", "missing") {
		statuses[name] = h.Backend(name).Status
	}
	writes, events := h.CountWrites(), len(h.Events("observed"))
	for _, end := range []struct {
		name string
		how  func(*harness.Manager)
	}{{"SIGTERM", (*harness.Manager).Stop}, {"SIGKILL", (*harness.Manager).Kill}} {
		end.how(m)
		m = h.StartManager()
		asked := ns.queries()
		h.WaitChecked(set.servers...)
		h.Eventually("the names to be asked for", func() error {
			if n := ns.queries() - asked; n < 6 {
				return fmt.Errorf("there were %d queries", n)
			}
			return nil
		})
		waitQuiet(h)
		for _, w := range writes.Of() {
			t.Errorf("after %s and a new start there was written %+v", end.name, w)
		}
		writes = h.CountWrites()
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

	// It is not that nobody looks any more.
	set.servers[0].SetSick(false)
	h.WaitStates("checked", harness.States{set.at(0): harness.Healthy, set.at(1): harness.Healthy, set.at(2): harness.Standby,
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
		t.Fatal("the garbage collector has taken what it should leave")
	}
	left := h.Slices("theirs")
	h.StartManager()
	h.ApplyBackend("ready", onePort) // what comes after the manager's first look at what is there
	h.WaitReady("ready")
	if diff := gocmp.Diff(left, h.Slices("theirs")); diff != "" {
		t.Errorf("what the garbage collector left, with its Service, did not stay as it was:\n%s", diff)
	}
}

// Of two managers one acts. On SIGTERM it releases the lease and exits with 0, and the other one
// takes over.
func TestLeaseIsHandedOver(t *testing.T) {
	h := harness.New(t)
	holder := func() string {
		var lease coordinationv1.Lease
		if err := h.Client.Get(t.Context(), client.ObjectKey{Namespace: lab.SystemNamespace, Name: "external-backend.io"}, &lease); err != nil {
			t.Fatal(err)
		}
		if lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	acts := func(m *harness.Manager) bool {
		for series := range m.Metrics() {
			if strings.HasPrefix(series, "externalbackend_endpoints{") && strings.Contains(series, h.Namespace) {
				return true
			}
		}
		return false
	}
	set := startServers(h, 1)
	h.ApplyBackend("web", spec(set.targets(), "", ""))
	leader := h.StartManager("--leader-elect")
	h.WaitStates("web", harness.All(harness.Healthy, set.at(0)))
	first := holder()
	standby := h.StartManager("--leader-elect") // which returns once /readyz says 200
	h.WaitChecked(set.servers[0])
	if !acts(leader) || acts(standby) {
		t.Errorf("the leader acts: %t, the standby: %t", acts(leader), acts(standby))
	}
	if now := holder(); now != first || first == "" {
		t.Errorf("the lease is held by %q, then by %q", first, now)
	}

	leader.Stop() // wants exit status 0
	set.servers[0].SetSick(true)
	// A lease that was not released would be taken after 45 s.
	h.Within(2*seconds, "the other one to lead", func() error {
		if now := holder(); now == first || now == "" {
			return fmt.Errorf("the lease is held by %q", now)
		}
		return nil
	})
	h.WaitStates("web", harness.All(harness.Unhealthy, set.at(0)))
	h.Eventually("the other one to act", func() error {
		if !acts(standby) {
			return errors.New("it does not")
		}
		return nil
	})
	standby.Stop()
	if now := holder(); now != "" {
		t.Errorf("the lease is held by %q, and nobody is there", now)
	}
}

// Only clients that the API server authenticates and RBAC authorizes get metrics.
func TestMetricsNeedAuthorization(t *testing.T) {
	h := harness.New(t)
	const address = "127.0.0.1:29443"
	h.StartManager("--metrics-secure", "--metrics-bind-address="+address)
	h.Apply(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: stranger}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: scraper}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: external-backend-metrics-reader}
subjects: [{kind: ServiceAccount, name: scraper, namespace: %[1]s}]
`, h.Namespace)
	t.Cleanup(func() {
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: h.Namespace}}
		if err := h.Client.Delete(context.Background(), binding); err != nil {
			t.Error(err)
		}
	})
	h.ApplyBackend("web", onePort)
	h.WaitReady("web")
	// the certificate is the manager's own
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	h.Eventually("metrics to be served", func() error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	scrape := func(token string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	token := func(account string) string {
		t.Helper()
		request := &authenticationv1.TokenRequest{}
		if err := h.Client.SubResource("token").Create(t.Context(), named(h, &corev1.ServiceAccount{}, account), request); err != nil {
			t.Fatal(err)
		}
		return request.Status.Token
	}
	for _, tc := range []struct {
		name, token string
		want        int
	}{
		{"nobody", "", http.StatusUnauthorized},
		{"a stranger", token("stranger"), http.StatusForbidden},
	} {
		if code, body := scrape(tc.token); code != tc.want || strings.Contains(body, "externalbackend_") {
			t.Errorf("%s gets %d: %.200s", tc.name, code, body)
		}
	}
	scraper := token("scraper")
	h.Eventually("metrics", func() error {
		code, body := scrape(scraper)
		want := fmt.Sprintf(`externalbackend_endpoints{name="web",namespace=%q,state="Unprobed"} 1`, h.Namespace)
		if code != http.StatusOK || !strings.Contains(body, want) {
			return fmt.Errorf("the answer is %d: %.200s", code, body)
		}
		return nil
	})
	if resp, err := http.Get("http://" + address + "/metrics"); err == nil {
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("metrics are served in the clear")
		}
	}
}
