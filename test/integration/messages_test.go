package integration

import (
	"crypto/tls"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"github.com/external-backend/operator/test/harness"
)

// For each mistake, one place names the field or the endpoint, what is there and what was expected.
func TestMessagesExplainMistakes(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 1)
	ca, other := newAuthority(t), newAuthority(t)
	certificate, err := issue(t, ca, time.Now().Add(time.Hour), "web.example.com").TLS()
	if err != nil {
		t.Fatal(err)
	}
	pageless := serveNothing(h, set.Machine, 8080, nil)
	secure := serveNothing(h, set.Machine, 8443, &tls.Config{Certificates: []tls.Certificate{certificate}})
	mutual := serveNothing(h, set.Machine, 8444, &tls.Config{
		Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
	})
	closed := set.At4(8009)
	ns := startScriptedDNS(h)
	ns.set("nowhere.example.com", answerWithCode(dns.RcodeNameError))
	unknownName := fmt.Sprintf(web, "") + "targets: [{name: db, hostname: nowhere.example.com}]\n" +
		fmt.Sprintf("dns: {nameservers: [%q]}\n", ns.V4) + "healthCheck: {tcpSocket: {}, " + harness.FastPace + "}"

	// https checks a server over TLS that is verified with a key of the ConfigMap ca.
	https := func(at netip.AddrPort, key, more string) func(h *harness.Test) []string {
		return func(h *harness.Test) []string {
			authorities(h, ca, other)
			h.ApplyBackend("web",
				checked(at,
					"httpGet: {scheme: HTTPS}, tls: {caCertificateRefs: [{kind: ConfigMap, name: ca, key: "+key+"}]"+more+"}"),
			)
			return nil
		}
	}
	const named, misnamed = ", serverName: web.example.com", ", serverName: other.example.com"
	const service = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: "
	const selecting = service + "{selector: {app: web}, ports: [{name: web, port: 80}]}"
	const otherPorts = service + "{ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]}"

	for _, tc := range []mistake{
		// Probes.
		{"probe path 404", applies(checked(pageless, "httpGet: {path: /missing}")), []expectation{
			target("a").says("Unhealthy UnexpectedStatus: 404, expected 200-399, at " + pageless.String()),
			events.says(`Target "a" at `+pageless.String()+" is unhealthy", "404, expected 200-399"),
			condition("Ready").says("False AllUnhealthy: ", "404, expected 200-399"),
		}},
		{"probe port closed", applies(checked(set.at(0), "tcpSocket: {port: 8009}")), []expectation{
			events.says(`Warning EndpointUnhealthy: Target "a" at ` + closed.String() + " is unhealthy: ConnectionRefused"),
			target("a").says("Unhealthy ConnectionRefused: connection refused, at " + closed.String()),
		}},
		{"wrong CA", https(secure, "other", named), []expectation{
			target("a").says("Unhealthy TLSUnknownAuthority: ", "healthCheck.tls.caCertificateRefs", secure.String()),
			events.says("Warning EndpointUnhealthy: ", secure.String(), "TLSUnknownAuthority"),
		}},
		{"wrong name", https(secure, "ca.crt", misnamed), []expectation{
			target("a").says("Unhealthy TLSNameMismatch: ", "healthCheck.tls.serverName", secure.String()),
			events.says("Warning EndpointUnhealthy: ", secure.String(), "TLSNameMismatch"),
		}},
		{"target by IP", https(secure, "ca.crt", ""), []expectation{
			target("a").says("Unhealthy TLSNameMismatch: ", "healthCheck.tls.serverName", secure.String())}},
		{"client certificate missing", https(mutual, "ca.crt", named), []expectation{
			target("a").says("Unhealthy TLSClientCertificateRequired: ", "wants a client certificate",
				"healthCheck.tls.clientCertificateRef", mutual.String()),
			events.says("TLSClientCertificateRequired"),
		}},

		// References.
		{"key absent in a ConfigMap", https(secure, "absent", named), []expectation{
			condition("ResolvedRefs").says("False InvalidRef: ", "spec.healthCheck.tls.caCertificateRefs[0]",
				`ConfigMap "ca" has no key "absent"`),
			events.says("Warning InvalidRef: ", `has no key "absent"`),
		}},
		{"Service with a selector exists", besides(selecting, onePort), []expectation{
			condition("Programmed").says("False ServiceConflict: ", `Service "web"`, "has a selector",
				"choose another spec.service.name").
				butNot("serviceRef", "adoptionPolicy"),
		}},
		{"adopting a Service with a selector", besides(selecting, "service: {adoptionPolicy: IfSelectorless}"+onePort),
			[]expectation{
				condition("Programmed").says("False ServiceConflict: ", `Service "web"`, "has a selector", "can't be adopted").
					butNot("serviceRef", "adoptionPolicy"),
			}},
		{"serviceRef to a Service with a selector", besides(selecting, "serviceRef: {name: web}"+onePort), []expectation{
			condition("Programmed").says("False ServiceConflict: ", `Service "web" in namespace "NAMESPACE" has a selector`,
				"Remove the selector, or name another Service in spec.serviceRef"),
		}},
		{"serviceRef to a missing Service", applies("serviceRef: {name: elsewhere}" + onePort), []expectation{
			condition("Programmed").says(`False ServiceNotFound: Service "elsewhere" does not exist in namespace "NAMESPACE"`),
			events.says(`Warning ServiceNotFound: Service "elsewhere" does not exist in namespace "NAMESPACE"`),
		}},
		{"PortMismatch", besides(otherPorts, "serviceRef: {name: web}"+onePort), []expectation{
			condition("Programmed").says(`False PortMismatch: Service "web" in namespace "NAMESPACE"`, `"web" (TCP)`,
				`It has "http" (TCP), "dns" (UDP)`),
			events.says("Warning PortMismatch: ", `It has "http" (TCP), "dns" (UDP)`),
		}},

		// Policy.
		{"policy refuses the probe's port", func(h *harness.Test) []string {
			policy(h, "narrow", "allow: [{cidrs: [198.51.100.0/24], ports: [{port: 8080}]}]")
			h.ApplyBackend("web", onePort+"\nhealthCheck: {tcpSocket: {port: 9999}, "+harness.FastPace+"}")
			return nil
		}, []expectation{
			condition("Permitted").says("False TargetDenied: ", `"a"`, "port 9999/TCP of spec.healthCheck").butNot("8080"),
			target("a").says("Denied TargetDenied: port 9999/TCP of spec.healthCheck"),
			events.says("Warning TargetDenied: ", "port 9999/TCP of spec.healthCheck"),
		}},
		{"policy with host bits in a CIDR", func(*harness.Test) []string { return nil }, []expectation{
			refusal("198.51.100.7/24").says("spec.allow[0].cidrs[0]", "198.51.100.7/24", "no bit set beyond its prefix length"),
			refusal("198.51.100.0/24").says("<nil>"),
		}},

		// Addresses and names.
		{"name that doesn't exist, with a check", applies(unknownName), []expectation{
			columns.says("HEALTHY=Unknown ", "STATUS=ResolutionFailed "),
			target("db").says("Unresolved NameNotFound: ", "NXDOMAIN"),
			condition("NamesResolved").says("False ResolutionFailed: ", `"db"`, "NXDOMAIN"),
		}},
		{"new object, nothing resolved", applies(unknownName), []expectation{
			events.says("Warning ResolutionFailed: ").butNot("TierChanged"),
			logged.says("ResolutionFailed").butNot("TierChanged"),
		}},
		{"IPv6 target, IPv4 Service", applies(fmt.Sprintf(web, "") + `targets: [{name: a, address: "2001:db8::1"}]`),
			[]expectation{
				target("a").says("FamilyNotServed: ", "does not serve IPv6", "spec.service.ipFamilies"),
				condition("Ready").says("False FamilyNotServed: ", "does not serve IPv6", "spec.service.ipFamilies"),
			}},
		{"duplicate address", applies(twoTargets("address: 198.51.100.1")), []expectation{
			target("b").says("DuplicateAddress: ", `target "a"`)}},
		{"duplicate address of a sibling", func(h *harness.Test) []string {
			h.ApplyService("theirs", "ports: [{name: web, port: 80}]")
			h.ApplyBackend("first", "serviceRef: {name: theirs}"+onePort)
			h.WaitReady("first")
			h.ApplyBackend("web", "serviceRef: {name: theirs}"+onePort)
			return nil
		}, []expectation{target("a").says("DuplicateAddress: ", `ExternalBackend "first"`)}},

		// Tiers, and what the Service publishes.
		{"incident", func(h *harness.Test) []string {
			_, names := failOver(h)
			return names
		}, []expectation{
			target("a").says("Unhealthy UnexpectedStatus: 503, expected 200-399, at FIRST", "tier 0, 0 of 1 ready, since 20"),
			target("b").says("Healthy ", "tier 1, 1 of 1 ready, since 20"),
			condition("Ready").says("Tier 1 is active. 0 of 1 endpoints of tier 0 are healthy."),
			events.says(`Warning EndpointUnhealthy: Target "a" at FIRST is unhealthy`,
				"Normal TierChanged: Tier 1 is active in place of tier 0. 0 of 1 endpoints of tier 0 are healthy."),
			logged.says("at FIRST is unhealthy", "Tier 1 is active in place of tier 0", "Healthy is False, SomeUnhealthy"),
		}},
		{"failback that waits", func(h *harness.Test) []string {
			set, names := failOver(h)
			set.servers[0].SetSick(false)
			return names
		}, []expectation{
			condition("Ready").says("Tier 1 is active. Tier 0 qualifies again, and waits for failbackDelaySeconds."),
			events.says(`Normal EndpointHealthy: Target "a" at FIRST is healthy again`),
		}},
		{"pin", applies(twoTargets("address: 198.51.100.2, tier: 1") + "\nfailover: {pinnedTier: 1}"), []expectation{
			condition("Ready").says("Tier 1 is active. spec.failover.pinnedTier pins it.")}},
		{"pin that takes everything out", func(h *harness.Test) []string {
			spec := twoTargets("address: 198.51.100.2, tier: 1, adminState: Disabled")
			h.ApplyBackend("web", spec)
			h.WaitReady("web")
			h.ApplyBackend("web", spec+"\nfailover: {pinnedTier: 1}")
			return nil
		}, []expectation{
			events.says("Warning TierChanged: Tier 1 is active in place of tier 0. spec.failover.pinnedTier pins it. No endpoint is ready."),
			condition("Ready").says("False ", "spec.failover.pinnedTier is 1, and no endpoint is in that tier."),
		}},
		{"pin of a tier without targets", applies(onePort + "\nfailover: {pinnedTier: 3}"), []expectation{
			condition("Accepted").says("False InvalidSpec: spec.failover.pinnedTier: Invalid value: 3: no target can be in that tier"),
			events.says("Warning InvalidSpec: spec.failover.pinnedTier: "),
		}},
		{"Headless with another targetPort", applies("service: {type: Headless}" + onePort), []expectation{
			condition("Programmed").says("True ", "headless", `port "web"`, "SRV")}},
		{"Service deleted and created again", recreate, []expectation{
			events.says(`Warning ServiceRecreated: Service "web" was deleted`, "its cluster IP was OLD and is NEW")}},
		{"backend that publishes nothing", applies("ports: [{name: web, port: 80}]"), []expectation{
			metrics.says(`externalbackend_ready{name="web",namespace="NAMESPACE"} 0`,
				`externalbackend_ready_endpoints{name="web",namespace="NAMESPACE"} 0`),
			columns.says("READY=0/0 ", "STATUS=NoReadyEndpoints "),
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := harness.New(t)
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("the manager's log:\n%s", managerLog(shared.manager, h.Namespace))
				}
			})
			names := strings.NewReplacer(append(tc.make(h), "NAMESPACE", h.Namespace)...)
			for _, e := range tc.expected {
				e.wait(h, names)
			}
		})
	}
}
