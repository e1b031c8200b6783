package integration

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/test/harness"
)

// applyHostname applies an ExternalBackend with a hostname as its target. dns has further fields of
// spec.dns, more has further fields of the spec.
func applyHostname(h *harness.Test, ns *scriptedDNS, backend, dns, more string) {
	h.T.Helper()
	h.ApplyBackend(backend, `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80, targetPort: 8080}]
targets: [{name: db, hostname: db.example.com}]
dns: {nameservers: ["%s"], minTTLSeconds: 1%s}
%s
`, ns.V4, dns, more)
}

// No failure of DNS removes an endpoint. Status reports the kind of failure.
func TestDNSFailureRemovesNoEndpoint(t *testing.T) {
	h := parallel(t)
	a, b := at("198.51.100.1:8080"), at("198.51.100.2:8080")
	for _, tc := range []struct {
		name, cause string
		answer      dnsAnswer
	}{
		{"servfail", "SERVFAIL", answerWithCode(dns.RcodeServerFailure)},
		{"refused", "REFUSED", answerWithCode(dns.RcodeRefused)},
		{"empty", "empty answer", answerWithNothing},
		{"silent", "timeout", neverAnswer},
		{"nxdomain", "NXDOMAIN", answerWithCode(dns.RcodeNameError)},
		{"gone", "", nil}, // the nameserver is unreachable
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := h.Sub(t)
			ns := startScriptedDNS(h)
			ns.set("db.example.com", answerWith("198.51.100.1", "198.51.100.2"))
			applyHostname(h, ns, tc.name, "", "")
			h.WaitStates(tc.name, harness.All(harness.Healthy, a, b))
			h.WaitCondition(tc.name, "NamesResolved", metav1.ConditionTrue, "NamesResolved")
			before := takeSnapshot(h, tc.name, true)

			if tc.answer != nil {
				ns.set("db.example.com", tc.answer)
			} else if err := ns.BlackHole(); err != nil {
				t.Fatal(err)
			}
			h.WaitCondition(tc.name, "NamesResolved", metav1.ConditionFalse, "ServingStale")
			waitMessage(h, tc.name, "NamesResolved", `"db"`, tc.cause)
			waitTarget(h, tc.name, "db", "Unprobed", "ServingStale")
			h.WaitEvent(tc.name, "ServingStale")
			waitSnapshot(h, tc.name, before, true)
			h.WaitReady(tc.name)

			if tc.answer == nil {
				if err := ns.Undrop(); err != nil {
					t.Fatal(err)
				}
			}
			ns.set("db.example.com", answerWith("198.51.100.2"))
			h.WaitStates(tc.name, harness.All(harness.Healthy, b))
			h.WaitCondition(tc.name, "NamesResolved", metav1.ConditionTrue, "NamesResolved")
		})
	}
}

// A stale answer ends after staleSeconds, and that of a name that does not exist after half a
// minute. The addresses then drain for drainSeconds.
func TestExpiredAnswersDrain(t *testing.T) {
	h := parallel(t)
	for _, tc := range []struct {
		name, dns, reason, target string
		answer                    dnsAnswer
	}{
		{"stale", ", staleSeconds: 3", "ResolutionFailed", "ResolutionFailed", answerWithCode(dns.RcodeServerFailure)},
		{"nxdomain", "", "ResolutionFailed", "NameNotFound", answerWithCode(dns.RcodeNameError)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := h.Sub(t)
			ns := startScriptedDNS(h)
			ns.set("db.example.com", answerWith("198.51.100.1"))
			applyHostname(h, ns, tc.name, tc.dns, "drainSeconds: 4")
			h.WaitStates(tc.name, oneEndpoint)
			asked := time.Now()
			ns.set("db.example.com", tc.answer)
			h.WaitStates(tc.name, harness.All(harness.Draining, at("198.51.100.1:8080")))
			if after := time.Since(asked); tc.name == "nxdomain" && after < 25*time.Second {
				t.Errorf("the addresses of a name that does not exist left after %v", after)
			}
			h.WaitStates(tc.name, harness.States{})
			h.WaitCondition(tc.name, "NamesResolved", metav1.ConditionFalse, tc.reason)
			waitTarget(h, tc.name, "db", "Unresolved", tc.target)
			h.WaitCondition(tc.name, "Ready", metav1.ConditionFalse, "ResolutionFailed")
			h.WaitEvent(tc.name, "ResolutionFailed")
			ns.set("db.example.com", answerWith("198.51.100.1"))
			h.WaitStates(tc.name, oneEndpoint)
			h.WaitReady(tc.name)
		})
	}
}

// A name that never had an answer is reported, and published once it has one.
func TestUnresolvedNameIsReported(t *testing.T) {
	h := parallel(t)
	ns := startScriptedDNS(h)
	ns.set("db.example.com", answerWithCode(dns.RcodeServerFailure))
	applyHostname(h, ns, "web", "", "")
	h.WaitCondition("web", "NamesResolved", metav1.ConditionFalse, "ResolutionFailed")
	waitTarget(h, "web", "db", "Unresolved", "ResolutionFailed")
	h.WaitCondition("web", "Ready", metav1.ConditionFalse, "ResolutionFailed")
	waitProgrammed(h, "web")
	wantStalled(h, "web", "")
	h.WaitEvent("web", "ResolutionFailed")
	ns.set("db.example.com", answerWith("198.51.100.1"))
	h.WaitReady("web")
	h.WaitStates("web", oneEndpoint)
}

// A forbidden address in an answer is dropped and reported. The other addresses are published and
// still followed.
func TestForbiddenAddressInAnswerIsDropped(t *testing.T) {
	h := parallel(t)
	// The last two belong to the cluster.
	for _, forbidden := range []string{"127.0.0.1", "0.0.0.0", "169.254.169.254",
		"224.0.0.1", "10.96.0.1", "203.0.113.2"} {
		t.Run(forbidden, func(t *testing.T) {
			h := h.Sub(t)
			ns := startScriptedDNS(h)
			name := "web-" + strings.ReplaceAll(forbidden, ".", "-")
			ns.set("db.example.com", answerWith("198.51.100.1", forbidden))
			applyHostname(h, ns, name, "", "")
			h.WaitStates(name, oneEndpoint)
			h.WaitCondition(name, "Permitted", metav1.ConditionFalse, "TargetDenied")
			waitMessage(h, name, "Permitted", `"db"`)
			waitTarget(h, name, "db", "Unprobed", "TargetDenied")
			h.WaitEvent(name, "TargetDenied")
			h.WaitReady(name)
			b := h.Backend(name)
			for _, c := range b.Status.Conditions {
				if strings.Contains(c.Message, forbidden) {
					t.Errorf("a message contains the refused address: %s", c.Message)
				}
			}
			for _, target := range b.Status.Targets {
				if len(target.Addresses) != 1 || target.Addresses[0] != "198.51.100.1" {
					t.Errorf("the target's addresses are %v", target.Addresses)
				}
			}
			ns.set("db.example.com", answerWith("198.51.100.2", forbidden))
			h.WaitStates(name, harness.All(harness.Healthy, at("198.51.100.2:8080")))
			ns.set("db.example.com", answerWith("198.51.100.1"))
			h.WaitStates(name, oneEndpoint)
			h.WaitCondition(name, "Permitted", metav1.ConditionTrue, "Permitted")
		})
	}
}

// SRV records give ports and tiers.
func TestSRVRecordsGivePortsAndTiers(t *testing.T) {
	h := parallel(t)
	ns := startScriptedDNS(h)
	ns.set("one.example.com", answerWith("198.51.100.1"))
	ns.set("two.example.com", answerWith("198.51.100.2"))
	ns.set("_web._tcp.example.com", answerWithSRV(
		dns.SRV{
			Priority: 10,
			Port:     8080,
			Target:   "one.example.com.",
		},
		dns.SRV{Priority: 20, Port: 9090, Target: "two.example.com."},
	))
	h.ApplyBackend("web", `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80}, {name: more, port: 90, targetPort: 91}]
targets: [{name: pool, srvName: _web._tcp.example.com, tier: 3}]
dns: {nameservers: ["%s"], minTTLSeconds: 1}
`, ns.V4)
	h.WaitReady("web")
	h.Eventually("the records to be followed", func() error {
		got := map[string]string{}
		for _, s := range h.Slices("web") {
			for _, e := range s.Endpoints {
				for _, p := range s.Ports {
					got[e.Addresses[0]] += fmt.Sprintf("%s:%d ", *p.Name, *p.Port)
				}
				got[e.Addresses[0]] += fmt.Sprint(*e.Conditions.Ready)
			}
		}
		if len(got) != 2 || got["198.51.100.1"] != "more:91 web:8080 true" ||
			got["198.51.100.2"] != "more:91 web:9090 false" {
			return fmt.Errorf("there are %v", got)
		}
		return nil
	})
	waitActive(h, "web", 3)
}
