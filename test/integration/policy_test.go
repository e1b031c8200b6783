package integration

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// policy applies an ExternalBackendPolicy for the test's namespace, and deletes it when the test
// ends.
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

	// A target is allowed if one policy allows it.
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
	other := startServers(h.Sub(t), 1) // its checks show that time has passed
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
	if n := set.servers[0].Checks() - checks; n > 1 { // one may have been in flight
		t.Errorf("a refused address was probed %d times", n)
	}

	// A nameserver that policy does not list is not asked, and the answers become stale.
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
