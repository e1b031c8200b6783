package integration

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// web is the beginning of the specs below. Their Services have only IPv4, so no result depends on
// the order of families. The argument has further fields of spec.service.
const web = `service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]%s}
ports: [{name: web, port: 80}]
`

// spec returns a spec with these targets and a check that judges quickly. check has further fields
// of the check, more has further fields of the spec.
func spec(targets, check, more string) string {
	return fmt.Sprintf(web, "") + "targets:\n" + targets + "healthCheck: {httpGet: {path: " + lab.HealthPath + "}, " +
		harness.FastPace + check + "}\n" + more
}

// One ExternalBackend shows the whole table of endpoint conditions.
func TestConditionsOfEverySituation(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 6)
	set.servers[1].SetSick(true)
	set.servers[4].SetSick(true)
	h.ApplyBackend("web", spec(
		set.target(0, "")+ // healthy, active tier
			set.target(1, "")+ // unhealthy
			set.target(2, ", tier: 1")+ // healthy standby
			set.target(3, ", adminState: Draining")+ // draining
			set.target(4, ", adminState: Draining")+ // draining and unhealthy
			set.target(5, ", adminState: Disabled"), "", ""))
	h.WaitStates("web", harness.States{
		set.at(0): harness.Healthy, set.at(1): harness.Unhealthy, set.at(2): harness.Standby, set.at(3): harness.Draining,
		set.at(4): "terminating"})
	for target, state := range map[string][2]string{
		"a": {"Healthy"}, "b": {"Unhealthy", "UnexpectedStatus"}, "c": {"Healthy"}, "d": {"Draining"},
		"e": {"Draining", "UnexpectedStatus"}, "f": {"Disabled"},
	} {
		waitTarget(h, "web", target, observed(state[0]), state[1])
	}
	waitActive(h, "web", 0)
	b := h.WaitReady("web")
	h.WaitCondition("web", "Healthy", metav1.ConditionFalse, "SomeUnhealthy")
	if n := set.servers[5].Checks(); n > 0 {
		t.Errorf("a Disabled target was probed %d times", n)
	}
	h.Eventually("the counts in status", func() error {
		if e := h.Backend("web").Status.Endpoints; e == nil || e.Total != 5 || e.Ready != 1 || e.Healthy != 3 ||
			e.Unhealthy != 2 ||
			e.ReadyOfTotal != "1/5" {
			return fmt.Errorf("they are %+v", e)
		}
		return nil
	})
	if b.Status.ObservedGeneration != b.Generation {
		t.Errorf("the status is of generation %d, not %d", b.Status.ObservedGeneration, b.Generation)
	}
}

// A Disabled target leaves at once, whatever drainSeconds is.
func TestDisabledTargetLeavesAtOnce(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 2)
	h.ApplyBackend("web", spec(set.targets(), "", "drainSeconds: 600"))
	h.WaitStates("web", harness.All(harness.Healthy, set.at(0), set.at(1)))
	h.ApplyBackend("web", spec(set.target(0, "")+set.target(1, ", adminState: Disabled"), "", "drainSeconds: 600"))
	h.WaitStates("web", harness.All(harness.Healthy, set.at(0)))
	waitTarget(h, "web", "b", "Disabled", "")
	h.ApplyBackend("web", spec(set.targets(), "", "drainSeconds: 600"))
	h.WaitStates("web", harness.All(harness.Healthy, set.at(0), set.at(1)))
}

// An address that is removed from spec is terminating for drainSeconds, still with its health, and
// then leaves. An address that comes back stops draining.
func TestRemovedAddressDrainsWithItsHealth(t *testing.T) {
	h := parallel(t)
	set := startServersApart(h, 3)
	h.ApplyBackend("web", spec(set.targets(), "", "drainSeconds: 6"))
	h.WaitStates("web", harness.All(harness.Healthy, set.at(0), set.at(1), set.at(2)))

	h.ApplyBackend("web", spec(set.target(0, ""), "", "drainSeconds: 6"))
	left := time.Now()
	h.WaitStates("web",
		harness.States{set.at(0): harness.Healthy, set.at(1): harness.Draining, set.at(2): harness.Draining})
	set.servers[1].SetSick(true)
	h.WaitStates("web", harness.States{set.at(0): harness.Healthy, set.at(1): "terminating", set.at(2): harness.Draining})
	h.ApplyBackend("web", spec(set.target(0, "")+set.target(2, ""), "", "drainSeconds: 6"))
	h.WaitStates("web", harness.States{set.at(0): harness.Healthy, set.at(1): "terminating", set.at(2): harness.Healthy})
	h.WaitStates("web", harness.All(harness.Healthy, set.at(0), set.at(2)))
	if after := time.Since(left); after < 5*time.Second { // slices keep whole seconds
		t.Errorf("the address was gone after %v", after)
	}
	// Without drainSeconds, the address leaves at once.
	h.ApplyBackend("web", spec(set.target(0, ""), "", ""))
	h.WaitStates("web", harness.All(harness.Healthy, set.at(0)))
}

// A standby tier takes over when the first tier does not qualify. Failback happens after a delay,
// and each change is reported.
func TestFailoverAndFailbackBetweenTiers(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 5)
	targets := set.target(0, "") + set.target(1, "") +
		set.target(2, ", tier: 1") + set.target(3, ", tier: 1") + set.target(4, ", tier: 7")
	h.ApplyBackend("web", spec(targets, "", "failover: {minHealthyPercent: 60, failbackDelaySeconds: 2}"))
	first, second, third := []netip.AddrPort{set.at(0), set.at(1)}, []netip.AddrPort{set.at(2), set.at(3)}, set.at(4)
	h.WaitStates("web",
		harness.Union(harness.All(harness.Healthy, first...), harness.All(harness.Standby, second...),
			harness.All(harness.Standby, third)))
	waitActive(h, "web", 0)

	// Half of the first tier is not enough. Its healthy endpoint becomes a standby.
	set.servers[0].SetSick(true)
	h.WaitStates(
		"web",
		harness.Union(harness.States{set.at(0): harness.Unhealthy, set.at(1): harness.Standby},
			harness.All(harness.Healthy, second...),
			harness.All(harness.Standby, third)),
	)
	waitActive(h, "web", 1)
	h.WaitEvent("web", "TierChanged")
	set.servers[2].SetSick(true)
	h.WaitStates("web",
		harness.States{set.at(0): harness.Unhealthy, set.at(1): harness.Standby, set.at(2): harness.Unhealthy,
			set.at(3): harness.Standby, set.at(4): harness.Healthy})
	waitActive(h, "web", 7)

	// If no tier qualifies, the healthy endpoints of every tier are ready.
	set.servers[4].SetSick(true)
	h.WaitStates("web",
		harness.States{set.at(0): harness.Unhealthy, set.at(1): harness.Healthy, set.at(2): harness.Unhealthy,
			set.at(3): harness.Healthy, set.at(4): harness.Unhealthy})
	waitActive(h, "web", -1)

	for _, i := range []int{0, 2, 4} {
		set.servers[i].SetSick(false)
	}
	h.WaitStates("web",
		harness.Union(harness.All(harness.Healthy, first...), harness.All(harness.Standby, second...),
			harness.All(harness.Standby, third)))
	waitActive(h, "web", 0)
}

// With failback Manual, the active tier changes only if it has no healthy endpoint, or by a pin. A
// pin holds whatever the health of its tier.
func TestManualFailbackKeepsActiveTier(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 2)
	targets := set.target(0, "") + set.target(1, ", tier: 1")
	const manual = "failover: {failback: Manual, failbackDelaySeconds: 0%s}"
	h.ApplyBackend("web", spec(targets, "", fmt.Sprintf(manual, "")))
	h.WaitStates("web", harness.States{set.at(0): harness.Healthy, set.at(1): harness.Standby})
	set.servers[0].SetSick(true)
	h.WaitStates("web", harness.States{set.at(0): harness.Unhealthy, set.at(1): harness.Healthy})
	set.servers[0].SetSick(false)
	h.WaitStates("web", harness.States{set.at(0): harness.Standby, set.at(1): harness.Healthy})
	h.WaitChecked(set.servers...)
	h.WaitStates("web", harness.States{set.at(0): harness.Standby, set.at(1): harness.Healthy})
	waitActive(h, "web", 1)

	h.ApplyBackend("web", spec(targets, "", fmt.Sprintf(manual, ", pinnedTier: 0")))
	h.WaitStates("web", harness.States{set.at(0): harness.Healthy, set.at(1): harness.Standby})
	waitActive(h, "web", 0)
	set.servers[0].SetSick(true) // a pin holds, whatever the tier's health
	h.WaitStates("web", harness.States{set.at(0): harness.Unhealthy, set.at(1): harness.Standby})
	waitActive(h, "web", 0)
	h.WaitCondition("web", "Ready", metav1.ConditionFalse, "NoReadyEndpoints")
	h.ApplyBackend("web", spec(targets, "", fmt.Sprintf(manual, "")))
	h.WaitStates("web", harness.States{set.at(0): harness.Unhealthy, set.at(1): harness.Healthy})
	waitActive(h, "web", 1)
}

// If no tier qualifies and whenNoTierQualifies is AllEndpoints, every endpoint of an Active target
// is ready and serving.
func TestFailOpenMakesActiveTargetsReady(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 4)
	h.ApplyBackend("web",
		spec(set.target(0, "")+set.target(1, "")+set.target(2, ", tier: 1")+set.target(3, ", adminState: Draining"), "",
			"failover: {failbackDelaySeconds: 0, minHealthyPercent: 60, whenNoTierQualifies: AllEndpoints}"),
	)
	healthy := harness.States{set.at(0): harness.Healthy, set.at(1): harness.Healthy, set.at(2): harness.Standby,
		set.at(3): harness.Draining}
	h.WaitStates("web", healthy)
	set.servers[0].SetSick(true)
	h.WaitStates("web",
		harness.States{set.at(0): harness.Unhealthy, set.at(1): harness.Standby, set.at(2): harness.Healthy,
			set.at(3): harness.DrainingStandby})
	set.servers[2].SetSick(true)
	h.WaitStates("web",
		harness.States{set.at(0): harness.FailOpen, set.at(1): harness.Healthy, set.at(2): harness.FailOpen,
			set.at(3): harness.Draining})
	h.WaitEvent("web", "FailOpen")
	waitActive(h, "web", -1)
	h.WaitReady("web")
	set.servers[0].SetSick(false)
	set.servers[2].SetSick(false)
	h.WaitStates("web", healthy)
}

// A new endpoint has its initialState until the first verdict, also if nothing answers.
func TestInitialStateHoldsUntilFirstVerdict(t *testing.T) {
	h := parallel(t)
	m := h.Machine("hole")
	if err := m.BlackHole(); err != nil {
		t.Fatal(err)
	}
	// The first verdict comes after half a minute.
	const slow = "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}\nports: [{name: web, port: 80}]\ntargets: [{name: a, address: %s}]\n" +
		"healthCheck: {tcpSocket: {}, periodSeconds: 60, timeoutSeconds: 30, failureThreshold: 3, initialState: %s}"
	h.ApplyBackend("ready", slow, m.V4, "Ready")
	h.ApplyBackend("not-ready", slow, m.V4, "NotReady")
	h.WaitStates("ready", harness.All(harness.Healthy, m.At4(80)))
	h.WaitStates("not-ready", harness.All(harness.Unhealthy, m.At4(80)))
	for _, name := range []string{"ready", "not-ready"} {
		waitTarget(h, name, "a", "Unknown", "")
		h.WaitCondition(name, "Healthy", metav1.ConditionUnknown, "Pending")
	}
	h.WaitReady("ready")
	h.WaitCondition("not-ready", "Ready", metav1.ConditionFalse, "NoReadyEndpoints")
}

// A healthCheck that is added starts from the published state. After its removal, all endpoints are
// ready.
func TestAddedCheckStartsFromPublishedState(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 2)
	set.servers[1].SetSick(true)
	unchecked := fmt.Sprintf(web, "") + "targets:\n" + set.targets()
	h.ApplyBackend("web", unchecked)
	healthy := harness.All(harness.Healthy, set.at(0), set.at(1))
	h.WaitStates("web", healthy)
	waitTarget(h, "web", "a", "Unprobed", "")
	h.WaitCondition("web", "Healthy", metav1.ConditionTrue, "NotProbed")
	h.WaitReady("web")

	history := recordSlices(h, "web")
	h.ApplyBackend("web", spec(set.targets(), "", ""))
	h.WaitStates("web", harness.States{set.at(0): harness.Healthy, set.at(1): harness.Unhealthy})
	waitTarget(h, "web", "b", "Unhealthy", "UnexpectedStatus")
	for _, state := range history.all() { // a and b have one address, but only b becomes unready
		if state == "MODIFIED ours "+set.V4.String()+":false,false,false" {
			continue
		}
		if state != "ADDED ours "+set.V4.String()+":true,true,false" {
			t.Errorf("there was the state %q", state)
		}
	}

	h.ApplyBackend("web", unchecked)
	h.WaitStates("web", healthy)
	waitTarget(h, "web", "b", "Unprobed", "")
}

// A check in mode Observe reports, but changes no endpoint. In mode Enforce the known verdicts take
// effect.
func TestObservedCheckChangesNoEndpoint(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 3)
	set.servers[1].SetSick(true)
	targets := set.target(0, "") + set.target(1, "") + set.target(2, ", tier: 1")
	h.ApplyBackend("web", spec(targets, ", mode: Observe", ""))
	h.WaitStates("web", harness.States{set.at(0): harness.Healthy, set.at(1): harness.Healthy, set.at(2): harness.Standby})
	waitTarget(h, "web", "b", "Unhealthy", "UnexpectedStatus")
	h.WaitCondition("web", "Healthy", metav1.ConditionFalse, "SomeUnhealthy")
	h.WaitReady("web")
	set.servers[0].SetSick(true)
	h.WaitEvent("web", "EndpointUnhealthy")
	waitTarget(h, "web", "a", "Unhealthy", "UnexpectedStatus")
	h.WaitStates("web", harness.States{set.at(0): harness.Healthy, set.at(1): harness.Healthy, set.at(2): harness.Standby})

	h.ApplyBackend("web", spec(targets, "", ""))
	h.WaitStates("web",
		harness.States{set.at(0): harness.Unhealthy, set.at(1): harness.Unhealthy, set.at(2): harness.Healthy})
}

// With publishNotReadyAddresses, every endpoint is ready, and serving still has the verdict.
func TestPublishNotReadyAddressesKeepsServing(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 4)
	set.servers[1].SetSick(true)
	targets := set.target(0, "") + set.target(1, "") + set.target(2, ", tier: 1") + set.target(3, ", adminState: Draining")
	checked := "targets:\n" + targets + "healthCheck: " + harness.HTTPCheck
	h.ApplyBackend("web", fmt.Sprintf(web, ", publishNotReadyAddresses: true")+checked)
	h.WaitStates("web", harness.States{set.at(0): harness.Healthy, set.at(1): harness.NotReadyToo,
		set.at(2): harness.NotReadyToo, set.at(3): "ready,serving,terminating"})
	h.ApplyBackend("web", fmt.Sprintf(web, "")+checked)
	h.WaitStates("web",
		harness.States{set.at(0): harness.Healthy, set.at(1): harness.Unhealthy, set.at(2): harness.Standby,
			set.at(3): harness.Draining})
}

// Of two targets with one ip:port, the lower tier wins, then Active before Draining, then the first
// name.
func TestOneTargetWinsDuplicateAddress(t *testing.T) {
	h := parallel(t)
	const target = "\n- {name: %s, address: 198.51.100.1%s}"
	for _, tc := range []struct{ name, first, second, loser, state string }{
		{"tier", ", tier: 1", "", "one", harness.Healthy},
		{"draining", ", adminState: Draining", "", "one", harness.Healthy},
		{"tier-first", ", tier: 1", ", adminState: Draining", "one", harness.Draining},
		{"name", "", "", "two", harness.Healthy},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			h.ApplyBackend(tc.name,
				"ports: [{name: web, port: 80, targetPort: 8080}]\ntargets:"+
					fmt.Sprintf(target, "one", tc.first)+fmt.Sprintf(target, "two", tc.second))
			h.WaitStates(tc.name, harness.All(tc.state, at("198.51.100.1:8080")))
			h.Eventually("the duplicate to be reported", func() error {
				for _, s := range h.Backend(tc.name).Status.Targets {
					if (s.Reason == "DuplicateAddress") != (s.Name == tc.loser) {
						return fmt.Errorf("the targets are %+v", h.Backend(tc.name).Status.Targets)
					}
				}
				return nil
			})
		})
	}
	// If all ports differ, it is another endpoint.
	h.ApplyBackend("differ",
		"ports: [{name: web, port: 80}]\ntargets:\n- {name: one, address: 198.51.100.1}\n- {name: two, address: 198.51.100.1, ports: [{name: web, targetPort: 81}]}")
	h.WaitStates("differ", harness.All(harness.Healthy, at("198.51.100.1:80"), at("198.51.100.1:81")))
	// If one port is the same, it is a duplicate.
	h.ApplyBackend("partly",
		"ports: [{name: web, port: 80}, {name: more, port: 90}]\ntargets:\n- {name: one, address: 198.51.100.1}\n- {name: two, address: 198.51.100.1, ports: [{name: web, targetPort: 81}]}")
	h.WaitReady("partly")
	waitTarget(h, "partly", "two", "Unprobed", "DuplicateAddress")
	if n := len(h.Endpoints("partly")); n != 1 {
		t.Errorf("%d endpoints are published", n)
	}
}
