package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// An error that the schema can't find is reported with its field, and everything that is published
// stays.
func TestInvalidSpecKeepsWhatIsPublished(t *testing.T) {
	h := parallel(t)
	const spec = "ports: [{name: web, port: 80, targetPort: 8080}]\ntargets: [{name: a, address: 198.51.100.%d, ports: [{name: %s, targetPort: 8080}]}]\n%s"
	h.ApplyBackend("web", spec, 1, "web", "")
	h.WaitReady("web")
	before := takeSnapshot(h, "web", true)
	for _, tc := range []struct{ name, port, more, field string }{
		{"unknown port", "other", "", "spec.targets[0].ports[0].name"},
		{"hop-by-hop header", "web", "healthCheck: {httpGet: {httpHeaders: [{name: Connection, value: close}]}}", "spec.healthCheck.httpGet.httpHeaders[0].name"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			h.ApplyBackend("web", spec, 2, tc.port, tc.more)
			h.WaitCondition("web", "Accepted", metav1.ConditionFalse, "InvalidSpec")
			h.WaitCondition("web", "Ready", metav1.ConditionFalse, "InvalidSpec")
			wantStalled(h, "web", "InvalidSpec")
			waitMessage(h, "web", "Accepted", tc.field)
			h.WaitEvent("web", "InvalidSpec")
			waitSnapshot(h, "web", before, true)
			h.ApplyBackend("web", spec, 1, "web", "")
			h.WaitReady("web")
			wantStalled(h, "web", "")
			waitSnapshot(h, "web", before, true)
		})
	}
	// Nothing of it was published before.
	h.ApplyBackend("new", spec, 1, "other", "")
	h.WaitCondition("new", "Ready", metav1.ConditionFalse, "InvalidSpec")
	wantStalled(h, "new", "InvalidSpec")
	if n := len(h.Slices("new")); n > 0 {
		t.Errorf("%d slices are published", n)
	}
}

// A Secret or ConfigMap that is missing, invalid or not readable stops the probes that need it, and
// nothing else.
func TestMissingReferenceStopsOnlyProbes(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 1)
	https := func(tls string) string {
		return "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}\nports: [{name: web, port: 80}]\ntargets:\n" + set.targets() + tls
	}
	h.ApplyBackend("web", https(""))
	h.WaitStates("web", harness.All(harness.Healthy, set.at(0)))

	const checked = "healthCheck: {httpGet: {scheme: HTTPS}, tls: %s, " + harness.FastPace + "}"
	refused := func(reason, tls string, words ...string) {
		t.Helper()
		h.ApplyBackend("web", https(fmt.Sprintf(checked, tls)))
		h.WaitCondition("web", "ResolvedRefs", metav1.ConditionFalse, reason)
		waitMessage(h, "web", "ResolvedRefs", words...)
		h.WaitReady("web") // traffic goes on
		wantStalled(h, "web", "")
		h.WaitStates("web", harness.All(harness.Healthy, set.at(0)))
	}
	// The right is missing: the message says which binding helps.
	refused("RefNotPermitted", "{caCertificateRefs: [{kind: ConfigMap, name: ca, key: ca.crt}]}",
		"spec.healthCheck.tls.caCertificateRefs[0]", "ca", "external-backend-reference-reader")
	h.WaitEvent("web", "RefNotPermitted")
	h.AllowReferences()
	refused("RefNotFound", "{caCertificateRefs: [{kind: ConfigMap, name: other}]}",
		"spec.healthCheck.tls.caCertificateRefs[0]", `ConfigMap "other" does not exist`)
	refused("RefNotFound", "{caCertificateRefs: [{kind: Secret, name: ca}]}",
		"spec.healthCheck.tls.caCertificateRefs[0]", `Secret "ca" does not exist`)
	refused("RefNotFound", "{clientCertificateRef: {name: client}}", "spec.healthCheck.tls.clientCertificateRef",
		`Secret "client" does not exist`)
	ca := newAuthority(t)
	h.ApplyObject(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "ca"},
		Data:       map[string]string{"ca.crt": "no PEM", "good": string(ca.Cert)},
	})
	refused("InvalidRef", "{caCertificateRefs: [{kind: ConfigMap, name: ca}]}",
		"spec.healthCheck.tls.caCertificateRefs[0]", `key "ca.crt" of ConfigMap "ca" holds no PEM certificate`)
	refused("InvalidRef", "{caCertificateRefs: [{kind: ConfigMap, name: ca, key: absent}]}",
		`ConfigMap "ca" has no key "absent"`)
	h.ApplyObject(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "opaque"},
		Data:       map[string][]byte{"tls.crt": ca.Cert, "tls.key": ca.Key},
	})
	refused("InvalidRef", "{clientCertificateRef: {name: opaque}}", "spec.healthCheck.tls.clientCertificateRef",
		"kubernetes.io/tls")

	// What is there is used: the server speaks no TLS, so that its checks fail now.
	h.ApplyObject(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "client"},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{"tls.crt": ca.Cert, "tls.key": ca.Key},
	})
	h.ApplyBackend("web",
		https(
			fmt.Sprintf(checked,
				"{caCertificateRefs: [{kind: ConfigMap, name: ca, key: good}], clientCertificateRef: {name: client}}"),
		),
	)
	h.WaitCondition("web", "ResolvedRefs", metav1.ConditionTrue, "ResolvedRefs")
	h.WaitStates("web", harness.All(harness.Unhealthy, set.at(0)))
	waitTarget(h, "web", "a", "Unhealthy", "TLSHandshakeFailed")
	wantStalled(h, "web", "")
}

// A missing reference is found within a minute of its creation, without a change of the spec.
func TestReferenceIsFoundOnceItExists(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 1)
	h.AllowReferences()
	h.ApplyBackend("web",
		"ports: [{name: web, port: 80}]\ntargets:\n%shealthCheck: {httpGet: {scheme: HTTPS}, tls: {caCertificateRefs: [{kind: ConfigMap, name: ca}]}, %s}",
		set.targets(), harness.FastPace)
	h.WaitCondition("web", "ResolvedRefs", metav1.ConditionFalse, "RefNotFound")
	waitTarget(h, "web", "a", "Unknown", "")
	h.ApplyObject(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "ca"},
		Data:       map[string]string{"ca.crt": string(newAuthority(t).Cert)},
	})
	h.Within(time.Minute+harness.Patience, "the ConfigMap to be found", func() error {
		if c := meta.FindStatusCondition(h.Backend("web").Status.Conditions, "ResolvedRefs"); c.Status != metav1.ConditionTrue {
			return fmt.Errorf("it is %+v", c)
		}
		return nil
	})
	waitTarget(h, "web", "a", "Unhealthy", "TLSHandshakeFailed")
}

// byName applies a backend with a name for a target, asked at the nameserver. dns is further fields
// of spec.dns, more of the spec.
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
		{"gone", "", nil}, // the nameserver itself
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
				t.Errorf("the addresses of a name that is gone left after %v", after)
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
	// the last two: the cluster's
	for _, poison := range []string{"127.0.0.1", "0.0.0.0", "169.254.169.254", "224.0.0.1", "10.96.0.1", "203.0.113.2"} {
		t.Run(poison, func(t *testing.T) {
			h := h.Sub(t)
			ns := startScriptedDNS(h)
			name := "web-" + strings.ReplaceAll(poison, ".", "-")
			ns.set("db.example.com", answerWith("198.51.100.1", poison))
			applyHostname(h, ns, name, "", "")
			h.WaitStates(name, oneEndpoint)
			h.WaitCondition(name, "Permitted", metav1.ConditionFalse, "TargetDenied")
			waitMessage(h, name, "Permitted", `"db"`)
			waitTarget(h, name, "db", "Unprobed", "TargetDenied")
			h.WaitEvent(name, "TargetDenied")
			h.WaitReady(name)
			b := h.Backend(name)
			for _, c := range b.Status.Conditions {
				if strings.Contains(c.Message, poison) {
					t.Errorf("a message tells the refused address: %s", c.Message)
				}
			}
			for _, target := range b.Status.Targets {
				if len(target.Addresses) != 1 || target.Addresses[0] != "198.51.100.1" {
					t.Errorf("the target's addresses are %v", target.Addresses)
				}
			}
			ns.set("db.example.com", answerWith("198.51.100.2", poison))
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

// policy applies an ExternalBackendPolicy for the test's namespace; it goes with the test.
func policy(h *harness.Test, name, spec string) {
	h.T.Helper()
	h.Apply(
		"apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackendPolicy\nmetadata: {name: %s-%s}\nspec: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[2]s}}, %s}",
		name,
		h.Namespace,
		spec,
	)
	p := &v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + h.Namespace}}
	h.T.Cleanup(func() { _ = h.Client.Delete(context.Background(), p) }) // the test may have done so
}

// A change of policy takes effect at once on published endpoints, whatever drainSeconds is.
func TestPolicyTakesEffectAtOnce(t *testing.T) {
	h := parallel(t)
	const spec = `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80}]
targets: [{name: a, address: 198.51.100.1}, {name: b, address: 192.0.2.1}]
drainSeconds: 600
`
	a, b := at("198.51.100.1:80"), at("192.0.2.1:80")
	h.ApplyBackend("web", spec)
	h.WaitStates("web", harness.All(harness.Healthy, a, b))
	h.WaitCondition("web", "Permitted", metav1.ConditionTrue, "Permitted")

	policy(h, "audit", "mode: Audit, allow: [{cidrs: [198.51.100.0/24]}]")
	h.WaitCondition("web", "Permitted", metav1.ConditionTrue, "WouldDeny")
	waitMessage(h, "web", "Permitted", `"b"`)
	h.WaitStates("web", harness.All(harness.Healthy, a, b))

	policy(h, "narrow", "allow: [{cidrs: [198.51.100.0/24]}]")
	h.WaitStates("web", harness.All(harness.Healthy, a))
	h.WaitCondition("web", "Permitted", metav1.ConditionFalse, "TargetDenied")
	waitMessage(h, "web", "Permitted", `"b"`)
	waitTarget(h, "web", "b", "Denied", "TargetDenied")
	h.WaitEvent("web", "TargetDenied")
	h.WaitReady("web")
	for _, s := range h.Backend("web").Status.Targets {
		if s.Name == "b" && len(s.Addresses) > 0 {
			t.Errorf("the refused addresses are listed: %v", s.Addresses)
		}
	}

	// Rules add up.
	policy(h, "more", "allow: [{cidrs: [192.0.2.0/24], ports: [{protocol: TCP, port: 79, endPort: 81}]}]")
	h.WaitStates("web", harness.All(harness.Healthy, a, b))
	h.WaitCondition("web", "Permitted", metav1.ConditionTrue, "")
	policy(h, "more", "allow: [{cidrs: [192.0.2.0/24], ports: [{protocol: TCP, port: 443}]}]")
	h.WaitStates("web", harness.All(harness.Healthy, a))
	policy(h, "narrow", "allow: [{cidrs: [203.0.113.0/24]}]")
	h.WaitStates("web", harness.States{})
	h.WaitCondition("web", "Ready", metav1.ConditionFalse, "TargetDenied")
	waitProgrammed(h, "web")
	for _, name := range []string{"narrow", "more"} {
		remove(h, &v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: name + "-" + h.Namespace}})
	}
	h.WaitStates("web", harness.All(harness.Healthy, a, b))
	h.WaitCondition("web", "Permitted", metav1.ConditionTrue, "WouldDeny")
}

// A policy applies to a namespace from the moment at which its label matches.
func TestLabelBringsNamespaceUnderPolicy(t *testing.T) {
	h := parallel(t)
	h.Apply(
		"apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackendPolicy\nmetadata: {name: %s}\nspec: {namespaceSelector: {matchLabels: {bound-by: %[1]s}}, allow: [{hostnames: [\"*.example.com\"]}]}",
		h.Namespace,
	)
	p := &v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: h.Namespace}}
	t.Cleanup(func() { _ = h.Client.Delete(context.Background(), p) })
	h.ApplyBackend("web", onePort)
	h.WaitStates("web", oneEndpoint)
	label := func(value string) {
		t.Helper()
		h.Apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s, labels: {bound-by: %s}}", h.Namespace, value)
	}
	label(h.Namespace)
	h.WaitStates("web", harness.States{})
	waitTarget(h, "web", "a", "Denied", "TargetDenied")
	label("nobody")
	h.WaitStates("web", oneEndpoint)
}

// A rule with hostnames alone allows every address of a name. A rule with cidrs is checked for each
// address. A refused address is not probed.
func TestPolicyChecksResolvedAddresses(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 1)
	ns := startScriptedDNS(h)
	ns.set("db.example.com", answerWith(set.V4.String(), "198.51.100.1"))
	policy(h, "names", fmt.Sprintf(`allow: [{hostnames: ["*.example.com"]}], allowNameservers: ["%s"]`, ns.V4))
	h.ApplyBackend("web", `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80, targetPort: 8001}]
targets: [{name: db, hostname: db.example.com}, {name: other, address: 198.51.100.9}]
dns: {nameservers: ["%s"], minTTLSeconds: 1}
healthCheck: %s
`, ns.V4, harness.HTTPCheck)
	h.WaitStates("web", harness.States{set.at(0): harness.Healthy, at("198.51.100.1:8001"): harness.Unhealthy})
	waitTarget(h, "web", "other", "Denied", "TargetDenied")
	policy(
		h,
		"names",
		fmt.Sprintf(`allow: [{hostnames: ["*.example.com"], cidrs: [198.51.100.0/24]}], allowNameservers: ["%s"]`, ns.V4),
	)
	h.WaitStates("web", harness.All(harness.Unhealthy, at("198.51.100.1:8001")))
	checks := set.servers[0].Checks()
	other := startServers(h.Sub(t), 1) // whose checks tell that time has passed
	policy(
		h,
		"names",
		fmt.Sprintf(
			`allow: [{cidrs: [%s/32]}, {hostnames: ["*.example.com"], cidrs: [198.51.100.0/24]}], allowNameservers: ["%s"]`,
			other.V4,
			ns.V4,
		),
	)
	h.ApplyBackend("tick", spec(other.targets(), "", ""))
	h.WaitChecked(other.servers...)
	if n := set.servers[0].Checks() - checks; n > 1 { // one may have been on its way
		t.Errorf("a refused address was probed %d times", n)
	}

	// A nameserver that policy does not list is not asked, and answers grow stale.
	policy(h, "names", `allow: [{hostnames: ["*.example.com"]}]`)
	h.WaitCondition("web", "Permitted", metav1.ConditionFalse, "TargetDenied")
	waitMessage(h, "web", "Permitted", "spec.dns.nameservers[0]")
	h.WaitCondition("web", "NamesResolved", metav1.ConditionFalse, "ServingStale")
	h.WaitStates("web", harness.States{set.at(0): harness.Healthy, at("198.51.100.1:8001"): harness.Unhealthy})
	asked := ns.queries()
	h.WaitChecked(set.servers...)
	if n := ns.queries() - asked; n > 0 {
		t.Errorf("a refused nameserver was asked %d times", n)
	}
}

// A target whose probe port is denied is denied.
func TestDeniedProbePortDeniesTarget(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 1)
	h.ApplyBackend("web", "ports: [{name: web, port: 80}]\ntargets:\n%shealthCheck: {httpGet: {path: %s, port: 8001}, %s}",
		strings.ReplaceAll(set.targets(), "8001", "9000"), lab.HealthPath, harness.FastPace)
	place := set.At4(9000)
	h.WaitStates("web", harness.All(harness.Healthy, place))
	policy(h, "ports", fmt.Sprintf("allow: [{cidrs: [%s/32], ports: [{protocol: TCP, port: 9000}]}]", set.V4))
	h.WaitStates("web", harness.States{})
	waitTarget(h, "web", "a", "Denied", "TargetDenied")
	policy(
		h,
		"ports",
		fmt.Sprintf("allow: [{cidrs: [%s/32], ports: [{protocol: TCP, port: 9000}, {protocol: TCP, port: 8001}]}]", set.V4),
	)
	h.WaitStates("web", harness.All(harness.Healthy, place))
}

// A name that is published as an alias needs a rule without cidrs. Names of the cluster are never
// allowed.
func TestAliasNeedsRuleWithoutCIDRs(t *testing.T) {
	h := parallel(t)
	alias := func(name, hostname string) {
		t.Helper()
		h.ApplyBackend(name,
			"service: {type: ExternalName}\nports: [{name: web, port: 80}]\ntargets: [{name: a, hostname: %s}]",
			hostname)
	}
	through := func(name, hostname string) {
		t.Helper()
		h.ApplyBackend(name,
			"service: {type: Headless}\nports: [{name: web, port: 80}]\ntargets: [{name: a, hostname: %s}]\ndns: {resolution: Passthrough}",
			hostname)
	}
	refused := func(name string) {
		t.Helper()
		h.WaitCondition(name, "Permitted", metav1.ConditionFalse, "TargetDenied")
		waitTarget(h, name, "a", "Denied", "TargetDenied")
		waitNoSlices(h, name)
		var s corev1.Service
		if err := h.Client.Get(t.Context(), h.Key(name), &s); err == nil &&
			strings.HasSuffix(s.Spec.ExternalName, "example.com") {
			t.Errorf("Service %s is an alias of %s", name, s.Spec.ExternalName)
		}
	}
	alias("own", "kubernetes.default.svc.cluster.local")
	refused("own")
	through("own-through", "kubernetes.default.svc.cluster.local")
	refused("own-through")
	alias("alias", "db.example.com")
	through("through", "db.example.com")
	h.WaitReady("alias")
	h.WaitReady("through")

	policy(h, "names", `allow: [{hostnames: ["db.example.com"], cidrs: [0.0.0.0/0]}]`)
	refused("alias")
	refused("through")
	policy(h, "names", `allow: [{hostnames: ["db.example.com"]}]`)
	h.WaitReady("alias")
	h.WaitReady("through")
	if s := h.Service("alias"); s.Spec.ExternalName != "db.example.com" {
		t.Errorf("the Service is an alias of %s", s.Spec.ExternalName)
	}
	h.WaitCondition("alias", "Permitted", metav1.ConditionTrue, "Permitted")
}

// With --default-target-policy=Deny, a namespace needs a policy. --cluster-cidrs protects ranges
// that discovery does not find.
func TestDefaultDenyNeedsPolicy(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager()
	h.ApplyBackend("web", onePort)
	h.WaitStates("web", oneEndpoint)
	m.Stop()

	h.StartManager("--default-target-policy=Deny", "--cluster-cidrs=192.0.2.0/24")
	h.WaitStates("web", harness.States{})
	waitTarget(h, "web", "a", "Denied", "TargetDenied")
	policy(h, "allow", "allow: [{anyTarget: {}}]")
	h.WaitStates("web", oneEndpoint)
	h.ApplyBackend("guarded",
		"ports: [{name: web, port: 80}]\ntargets: [{name: a, address: 192.0.2.1}, {name: b, address: 10.96.0.1}, {name: c, address: 203.0.113.2}]")
	for _, target := range []string{"a", "b", "c"} {
		waitTarget(h, "guarded", target, "Denied", "TargetDenied")
	}
	policy(h, "allow", "allow: [{anyTarget: {}}, {cidrs: [192.0.2.0/24, 10.96.0.1/32]}]")
	h.WaitStates("guarded", harness.All(harness.Healthy, at("192.0.2.1:80"), at("10.96.0.1:80")))
	waitTarget(h, "guarded", "c", "Denied", "TargetDenied")
}
