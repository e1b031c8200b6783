package dataplane

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

// policyTarget is a machine behind a Service that policies allow and refuse. It answers requests on
// one port and checks on another.
type policyTarget struct {
	*lab.Machine
	requests, checks *lab.Server
}

func newPolicyTarget(h *harness.Test, name string) policyTarget {
	m := h.Machine(name)
	return policyTarget{m, h.Serve(m, "http", 8080), h.Serve(m, "tcp", 9000)}
}

func (target policyTarget) at() netip.AddrPort { return target.At4(8080) }

// cidrs returns the targets' addresses as a rule lists them.
func cidrs(targets ...policyTarget) []string {
	var list []string
	for _, target := range targets {
		list = append(list, netip.PrefixFrom(target.V4, 32).String())
	}
	return list
}

// policyFixture is an ExternalBackend under load. Every policy allows the target always. Some
// policies refuse the target literal, which has an address, or the target named, which has a
// hostname.
type policyFixture struct {
	*harness.Test
	always, literal, named policyTarget
	dns                    *lab.Machine
	load                   load
}

func newPolicyFixture(h *harness.Test) *policyFixture {
	p := &policyFixture{
		Test:    h,
		always:  newPolicyTarget(h, "always"),
		literal: newPolicyTarget(h, "literal"),
		named:   newPolicyTarget(h, "named"),
		dns:     h.Machine("dns"),
	}
	h.StartDNS(p.dns, map[string]string{"example.com": "db A " + p.named.V4.String()})
	h.ApplyBackend("web", `
service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
ports: [{name: web, port: 80, targetPort: 8080}]
targets: [{name: always, address: %s}, {name: literal, address: %s}, {name: named, hostname: db.example.com}]
dns: {nameservers: ["%s"], minTTLSeconds: 1}
healthCheck: %s
`, p.always.V4, p.literal.V4, p.dns.V4, tcpCheck)
	p.waitPublished(p.always, p.literal, p.named)
	p.load = startLoad(h, clusterAddrs(h, "web", 80)[0])
	return p
}

// policy applies a policy with these rules to the namespaces that the labels select. It also allows
// the nameserver.
func (p *policyFixture) policy(mode v1alpha1.PolicyMode, labels map[string]string, rules ...v1alpha1.PolicyRule) {
	p.T.Helper()
	policy := &v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: p.Namespace}}
	policy.Spec.Mode, policy.Spec.NamespaceSelector.MatchLabels = mode, labels
	policy.Spec.Allow, policy.Spec.AllowNameservers = rules, []string{p.dns.V4.String()}
	p.ApplyObject(policy)
}

// noPolicy deletes the policy.
func (p *policyFixture) noPolicy() {
	p.T.Helper()
	policy := &v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: p.Namespace}}
	if err := p.Client.Delete(p.T.Context(), policy); err != nil {
		p.T.Fatal(err)
	}
}

// label sets a label of the namespace, or removes it if the value is empty.
func (p *policyFixture) label(key, value string) {
	p.T.Helper()
	text := "null"
	if value != "" {
		text = fmt.Sprintf("%q", value)
	}
	kubectl(p.Test, "patch", "namespace", p.Namespace, "--patch",
		fmt.Sprintf(`{"metadata": {"labels": {%q: %s}}}`, key, text))
}

// waitPublished waits until exactly these targets are published and healthy, and kube-proxy sends
// requests to them.
func (p *policyFixture) waitPublished(targets ...policyTarget) {
	p.T.Helper()
	states := harness.States{}
	var routes []netip.AddrPort
	for _, target := range targets {
		states[target.at()] = harness.Healthy
		routes = append(routes, target.at())
	}
	p.WaitStates("web", states)
	p.WaitRoutes("web", routes...)
}

// waitServing waits until exactly these targets are published, and each answers a request.
func (p *policyFixture) waitServing(targets ...policyTarget) {
	p.T.Helper()
	p.waitPublished(targets...)
	for _, target := range targets {
		p.load.waitAnswerFrom(target.Machine)
	}
}

// wantLeftAlone fails the test if a withdrawn target still gets requests or probes, while the
// target always gets both. Call it once the withdrawal is written and kube-proxy has followed.
func (p *policyFixture) wantLeftAlone(target policyTarget) {
	p.T.Helper()
	p.load.waitMore() // the requests in flight have arrived
	requests, checks := target.requests.Requests(), target.checks.Checks()
	until := p.always.checks.Checks() + 3 // this takes more than a period
	p.Eventually("further checks of the target always", func() error {
		if n := p.always.checks.Checks(); n < until {
			return fmt.Errorf("%d of %d came", n, until)
		}
		return nil
	})
	p.load.waitMore()
	if late := target.requests.Requests() - requests; late > 0 {
		p.T.Errorf("%d requests reached %s, which is withdrawn", late, target)
	}
	if late := target.checks.Checks() - checks; late > 0 {
		p.T.Errorf("%d probes reached %s, which is withdrawn", late, target)
	}
}

// waitRefused waits until status says that policy refuses a target, and why. Status must not
// contain the addresses of the unnamed targets.
func (p *policyFixture) waitRefused(target, kind string, unnamed ...policyTarget) {
	p.T.Helper()
	p.Eventually("status to name "+target, func() error {
		b := p.WaitCondition("web", v1alpha1.ConditionPermitted, metav1.ConditionFalse, v1alpha1.ReasonTargetDenied)
		status, err := json.Marshal(b.Status)
		if err != nil {
			return err
		}
		for _, other := range unnamed {
			if strings.Contains(string(status), other.V4.String()) {
				return fmt.Errorf("it contains %s: %s", other.V4, status)
			}
		}
		for _, c := range b.Status.Conditions {
			if c.Type == v1alpha1.ConditionPermitted &&
				(!strings.Contains(c.Message, `"`+target+`"`) || !strings.Contains(c.Message, kind)) {
				return fmt.Errorf("it says %q", c.Message)
			}
		}
		return nil
	})
}

const (
	notAllowed     = "not allowed by any policy"
	portNotAllowed = "port 9000/TCP of spec.healthCheck is not allowed by any policy"
)

// While policies are added, narrowed and deleted, the namespace gets and loses labels, and the
// default becomes Deny, no request is lost. A withdrawn target gets neither requests nor probes. A
// target that is allowed again is published once it has been probed.
func TestPolicyChangesLoseNoRequest(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager()
	p := newPolicyFixture(h)
	wantAlwaysReady := watchReady(h, "web")
	own := map[string]string{corev1.LabelMetadataName: h.Namespace}
	ports := []v1alpha1.PolicyPort{{Port: 8080}, {Port: 9000}}
	allowAlways := v1alpha1.PolicyRule{CIDRs: cidrs(p.always), Ports: ports}
	p.waitServing(p.always, p.literal, p.named)

	// A policy in mode Audit only reports.
	p.policy(v1alpha1.PolicyModeAudit, own, allowAlways)
	h.WaitCondition("web", v1alpha1.ConditionPermitted, metav1.ConditionTrue, v1alpha1.ReasonWouldDeny)
	p.waitServing(p.always, p.literal, p.named)

	// A new policy allows all targets. Then it allows one literal address less.
	p.policy(v1alpha1.PolicyModeEnforce, own, allowAlways, v1alpha1.PolicyRule{CIDRs: cidrs(p.literal, p.named)})
	h.WaitCondition("web", v1alpha1.ConditionPermitted, metav1.ConditionTrue, v1alpha1.ReasonPermitted)
	p.waitServing(p.always, p.literal, p.named)
	p.policy(v1alpha1.PolicyModeEnforce, own, allowAlways,
		v1alpha1.PolicyRule{CIDRs: cidrs(p.named), Hostnames: []string{"*.example.com"}})
	p.waitPublished(p.always, p.named)
	p.wantLeftAlone(p.literal)
	p.waitRefused("literal", notAllowed, p.literal)

	// Then it refuses the probed port of a target, and then its name.
	p.policy(v1alpha1.PolicyModeEnforce, own, allowAlways,
		v1alpha1.PolicyRule{Hostnames: []string{"db.example.com"}, Ports: ports[:1]})
	p.waitPublished(p.always)
	p.wantLeftAlone(p.named)
	p.waitRefused("named", portNotAllowed, p.literal, p.named)
	p.policy(v1alpha1.PolicyModeEnforce, own, allowAlways, v1alpha1.PolicyRule{CIDRs: cidrs(p.literal)})
	p.waitServing(p.always, p.literal)
	p.wantLeftAlone(p.named)
	p.waitRefused("named", notAllowed, p.named)

	// The policy is deleted. A target that comes back must be found healthy first.
	p.named.checks.Stop()
	p.noPolicy()
	h.WaitStates("web", harness.States{
		p.always.at(): harness.Healthy, p.literal.at(): harness.Healthy, p.named.at(): harness.Unhealthy})
	h.WaitRoutes("web", p.always.at(), p.literal.at())
	p.load.wantNoneAt(p.named.requests)
	if err := p.named.checks.Start(); err != nil {
		t.Fatal(err)
	}
	p.waitServing(p.always, p.literal, p.named)

	// A label of the namespace brings it under a policy, and out again.
	p.policy(v1alpha1.PolicyModeEnforce, map[string]string{"zone": "red"}, allowAlways,
		v1alpha1.PolicyRule{Hostnames: []string{"db.example.com"}})
	p.waitServing(p.always, p.literal, p.named)
	p.label("zone", "red")
	p.waitPublished(p.always, p.named)
	p.wantLeftAlone(p.literal)
	p.label("zone", "")
	p.waitServing(p.always, p.literal, p.named)
	p.label("zone", "red")
	p.waitPublished(p.always, p.named)

	// With the default Deny, all targets are withdrawn when no policy selects the namespace.
	m.Stop()
	m = h.StartManager("--default-target-policy=Deny")
	p.waitServing(p.always, p.named)
	p.wantLeftAlone(p.literal)
	p.load.stopWithoutLoss()
	wantAlwaysReady()
	p.label("zone", "")
	h.WaitStates("web", harness.States{})
	h.WaitRoutes("web")
	p.waitRefused("always", notAllowed, p.always, p.literal, p.named)
	wantRefusal(h, "http", p.load.addr)
	m.Stop()
}
