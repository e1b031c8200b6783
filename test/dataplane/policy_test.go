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

// guest is a machine behind a Service that policies come to allow and to refuse: it answers
// requests on one port and checks on another.
type guest struct {
	*lab.Machine
	requests, checks *lab.Server
}

func newGuest(h *harness.Test, name string) guest {
	m := h.Machine(name)
	return guest{m, h.Serve(m, "http", 8080), h.Serve(m, "tcp", 9000)}
}

func (g guest) at() netip.AddrPort { return g.At4(8080) }

// cidr is a rule's list with the guests' addresses.
func cidr(guests ...guest) []string {
	var list []string
	for _, g := range guests {
		list = append(list, netip.PrefixFrom(g.V4, 32).String())
	}
	return list
}

// party is an ExternalBackend under load, with a target that every policy allows, a literal one and
// a name that some don't.
type party struct {
	*harness.Test
	host, literal, named guest
	dns                  *lab.Machine
	load                 load
}

func newParty(h *harness.Test) *party {
	p := &party{
		Test:    h,
		host:    newGuest(h, "host"),
		literal: newGuest(h, "literal"),
		named:   newGuest(h, "named"),
		dns:     h.Machine("dns"),
	}
	h.StartDNS(p.dns, map[string]string{"example.com": "db A " + p.named.V4.String()})
	h.Apply(`
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: web}
spec:
  service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}
  ports: [{name: web, port: 80, targetPort: 8080}]
  targets: [{name: host, address: %s}, {name: literal, address: %s}, {name: named, hostname: db.example.com}]
  dns: {nameservers: ["%s"], minTTLSeconds: 1}
  healthCheck: %s
`, p.host.V4, p.literal.V4, p.dns.V4, tcpCheck)
	p.publishes(p.host, p.literal, p.named)
	p.load = startLoad(h, clusterAddrs(h, "web", 80)[0])
	return p
}

// policy applies a policy with these rules, which allows the nameserver too, to the namespaces that
// the labels select.
func (p *party) policy(mode v1alpha1.PolicyMode, labels map[string]string, rules ...v1alpha1.PolicyRule) {
	p.T.Helper()
	policy := &v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: p.Namespace}}
	policy.Spec.Mode, policy.Spec.NamespaceSelector.MatchLabels = mode, labels
	policy.Spec.Allow, policy.Spec.AllowNameservers = rules, []string{p.dns.V4.String()}
	p.ApplyObject(policy)
}

// noPolicy takes the policy away.
func (p *party) noPolicy() {
	p.T.Helper()
	policy := &v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: p.Namespace}}
	if err := p.Client.Delete(p.T.Context(), policy); err != nil {
		p.T.Fatal(err)
	}
}

// label sets a label of the namespace, or removes it where the value is empty.
func (p *party) label(key, value string) {
	p.T.Helper()
	text := "null"
	if value != "" {
		text = fmt.Sprintf("%q", value)
	}
	if _, err := p.Kubectl(p.T.Context(), "patch", "namespace", p.Namespace, "--patch", fmt.Sprintf(`{"metadata": {"labels": {%q: %s}}}`, key, text)); err != nil {
		p.T.Fatal(err)
	}
}

// publishes waits until these guests are published and healthy, and no others, and kube-proxy sends
// requests to them.
func (p *party) publishes(guests ...guest) {
	p.T.Helper()
	states := harness.States{}
	var routes []netip.AddrPort
	for _, g := range guests {
		states[g.at()] = harness.Healthy
		routes = append(routes, g.at())
	}
	p.WaitStates("web", states)
	p.WaitRoutes("web", routes...)
}

// serves wants all of these, and requests to reach each.
func (p *party) serves(guests ...guest) {
	p.T.Helper()
	p.publishes(guests...)
	for _, g := range guests {
		p.load.reaches(g.Machine)
	}
}

// shuns wants a guest to be left alone: now that its withdrawal is written and kube-proxy has
// followed, neither a request nor a probe comes any more, while the host goes on getting both.
func (p *party) shuns(g guest) {
	p.T.Helper()
	p.load.more() // what was on its way has arrived
	requests, checks := g.requests.Requests(), g.checks.Checks()
	until := p.host.checks.Checks() + 3 // more than a period
	p.Eventually("further checks of the host", func() error {
		if n := p.host.checks.Checks(); n < until {
			return fmt.Errorf("%d of %d came", n, until)
		}
		return nil
	})
	p.load.more()
	if late := g.requests.Requests() - requests; late > 0 {
		p.T.Errorf("%d requests reached %s, which is withdrawn", late, g)
	}
	if late := g.checks.Checks() - checks; late > 0 {
		p.T.Errorf("%d probes reached %s, which is withdrawn", late, g)
	}
}

// refuses waits until status says that policy refuses a target, and why, and wants it to tell the
// addresses of neither.
func (p *party) refuses(target, kind string, unnamed ...guest) {
	p.T.Helper()
	p.Eventually("status to name "+target, func() error {
		b := p.WaitCondition("web", v1alpha1.ConditionPermitted, metav1.ConditionFalse, v1alpha1.ReasonTargetDenied)
		status, err := json.Marshal(b.Status)
		if err != nil {
			return err
		}
		for _, g := range unnamed {
			if strings.Contains(string(status), g.V4.String()) {
				return fmt.Errorf("it tells %s: %s", g.V4, status)
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

// TestPolicies adds policies, narrows them and takes them away under load, labels the namespace,
// and turns the default round. No request is lost; what is withdrawn gets neither requests nor
// probes; what is allowed again comes back once it has been probed.
func TestPolicies(t *testing.T) {
	h := harness.New(t)
	m := h.StartManager()
	p := newParty(h)
	always := watchReady(h, "web")
	own := map[string]string{corev1.LabelMetadataName: h.Namespace}
	ports := []v1alpha1.PolicyPort{{Port: 8080}, {Port: 9000}}
	host := v1alpha1.PolicyRule{CIDRs: cidr(p.host), Ports: ports}
	p.serves(p.host, p.literal, p.named)

	// In Audit it only speaks.
	p.policy(v1alpha1.PolicyModeAudit, own, host)
	h.WaitCondition("web", v1alpha1.ConditionPermitted, metav1.ConditionTrue, v1alpha1.ReasonWouldDeny)
	p.serves(p.host, p.literal, p.named)

	// Added: it allows all that is there. Narrowed by an address, which was given literally.
	p.policy(v1alpha1.PolicyModeEnforce, own, host, v1alpha1.PolicyRule{CIDRs: cidr(p.literal, p.named)})
	h.WaitCondition("web", v1alpha1.ConditionPermitted, metav1.ConditionTrue, v1alpha1.ReasonPermitted)
	p.serves(p.host, p.literal, p.named)
	p.policy(v1alpha1.PolicyModeEnforce, own, host,
		v1alpha1.PolicyRule{CIDRs: cidr(p.named), Hostnames: []string{"*.example.com"}})
	p.publishes(p.host, p.named)
	p.shuns(p.literal)
	p.refuses("literal", notAllowed, p.literal)

	// Narrowed by the port that is probed; by the name.
	p.policy(v1alpha1.PolicyModeEnforce, own, host,
		v1alpha1.PolicyRule{Hostnames: []string{"db.example.com"}, Ports: ports[:1]})
	p.publishes(p.host)
	p.shuns(p.named)
	p.refuses("named", portNotAllowed, p.literal, p.named)
	p.policy(v1alpha1.PolicyModeEnforce, own, host, v1alpha1.PolicyRule{CIDRs: cidr(p.literal)})
	p.serves(p.host, p.literal)
	p.shuns(p.named)
	p.refuses("named", notAllowed, p.named)

	// Removed. What comes back has to be found healthy first.
	p.named.checks.Stop()
	p.noPolicy()
	h.WaitStates("web", with(all(harness.Healthy, p.host.at(), p.literal.at()), all(harness.Unhealthy, p.named.at())))
	h.WaitRoutes("web", p.host.at(), p.literal.at())
	p.load.spares(p.named.requests)
	if err := p.named.checks.Start(); err != nil {
		t.Fatal(err)
	}
	p.serves(p.host, p.literal, p.named)

	// The namespace comes under a policy by its label, and out of it.
	p.policy(v1alpha1.PolicyModeEnforce, map[string]string{"zone": "red"}, host,
		v1alpha1.PolicyRule{Hostnames: []string{"db.example.com"}})
	p.serves(p.host, p.literal, p.named)
	p.label("zone", "red")
	p.publishes(p.host, p.named)
	p.shuns(p.literal)
	p.label("zone", "")
	p.serves(p.host, p.literal, p.named)
	p.label("zone", "red")
	p.publishes(p.host, p.named)

	// Where what no policy allows is refused, a policy that goes takes all with it.
	m.Stop()
	m = h.StartManager("--default-target-policy=Deny")
	p.serves(p.host, p.named)
	p.shuns(p.literal)
	p.load.stopUnharmed()
	always()
	p.label("zone", "")
	h.WaitStates("web", harness.States{})
	h.WaitRoutes("web")
	p.refuses("host", notAllowed, p.host, p.literal, p.named)
	wantRefusal(h, "http", p.load.addr)
	m.Stop()
}
