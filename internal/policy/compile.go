package policy

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/external-backend/operator/api/v1alpha1"
)

// A Problem is an entry of a policy that can't be read. The schema refuses such entries; an entry
// that gets past it allows nothing.
type Problem struct {
	Policy string // metadata.name
	Field  string // as in spec.allow[0].cidrs[1]
	Reason string
}

func (p Problem) String() string { return fmt.Sprintf("%s: %s: %s", p.Policy, p.Field, p.Reason) }

var protocols = [...]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}

// Compile prepares all that decisions need. It returns the Set and the entries that could not be
// read, in the order of the policies.
func Compile(in Input) (*Set, []Problem) {
	rules := 0
	for i := range in.Policies {
		rules += len(in.Policies[i].Spec.Allow) + 1 // its nameservers count as one
	}
	c := newCompiler(rules)
	for i := range in.Policies {
		c.policy(&in.Policies[i])
	}
	s := &Set{
		defaultDeny:   in.DefaultDeny,
		clusterDomain: canonical(cmp.Or(in.ClusterDomain, DefaultClusterDomain)),
		classifier:    newClassifier(in.ClusterRanges),
		policies:      c.policies,
		nothing:       c.pool.keep(c.pool.empty()),
		everything:    c.everything,
		targets:       c.pool.keep(c.targets),
		addresses:     newAddrTable(c.cidrs, c.pool),
		anyAddress:    c.anyAddress,
		names:         newNames(c.hostnames, c.anyName, c.pool),
		ports:         map[corev1.Protocol]table{},
		nameservers:   c.listings(),
	}
	for _, protocol := range protocols {
		s.ports[protocol] = newTable(c.ports[protocol], c.pool)
	}
	return s, c.problems
}

// compiler indexes the rules of all policies by their addresses, names and ports. It numbers the
// rules in their order.
type compiler struct {
	pool       *pool
	next       int // the number of the next rule
	everything set
	targets    set // those that cover targets of some name, or of none
	anyAddress set // without cidrs
	anyName    set // without hostnames

	policies    []compiledPolicy
	cidrs       []claim
	hostnames   map[string][]int
	ports       map[corev1.Protocol][]span
	nameservers map[netip.AddrPort]set
	problems    []Problem
	at          string // the policy being read
}

func newCompiler(rules int) *compiler {
	p := newPool(rules)
	return &compiler{
		pool:       p,
		everything: p.empty(), targets: p.empty(), anyAddress: p.empty(), anyName: p.empty(),
		hostnames:   map[string][]int{},
		ports:       map[corev1.Protocol][]span{},
		nameservers: map[netip.AddrPort]set{},
	}
}

func (c *compiler) problem(reason, field string, args ...any) {
	c.problems = append(c.problems, Problem{c.at, fmt.Sprintf(field, args...), reason})
}

func (c *compiler) policy(p *v1alpha1.ExternalBackendPolicy) {
	c.at = p.Name
	selector, ok := c.selector(&p.Spec.NamespaceSelector)
	compiled := compiledPolicy{name: p.Name, selector: selector, from: c.next}
	switch p.Spec.EffectiveMode() {
	case v1alpha1.PolicyModeAudit:
		compiled.audit = true
	case v1alpha1.PolicyModeEnforce:
	default:
		c.problem("no such mode, taken as Enforce; the policy allows nothing", "spec.mode")
		ok = false
	}
	for _, text := range p.Spec.Unknown {
		c.problem(text+", so that the policy allows nothing", "spec")
		ok = false
	}
	for i := range p.Spec.Allow {
		c.rule(i, &p.Spec.Allow[i])
	}
	c.allowNameservers(p.Spec.AllowNameservers)
	if compiled.to = c.next; !ok {
		compiled.to = compiled.from
	}
	c.policies = append(c.policies, compiled)
}

// selector reads a namespaceSelector. If it can't be read, its readable requirements still select,
// and the policy allows nothing: a typing error must neither open the intended namespaces nor give
// their rules to others.
func (c *compiler) selector(s *metav1.LabelSelector) (selector labels.Selector, ok bool) {
	selector, ok = labels.Everything(), true
	add := func(part metav1.LabelSelector, field string, arg any) {
		read, err := metav1.LabelSelectorAsSelector(&part)
		if err != nil {
			c.problem("not a selector requirement", field, arg)
			ok = false
			return
		}
		requirements, _ := read.Requirements()
		selector = selector.Add(requirements...)
	}
	for _, k := range slices.Sorted(maps.Keys(s.MatchLabels)) {
		add(metav1.LabelSelector{MatchLabels: map[string]string{k: s.MatchLabels[k]}},
			"spec.namespaceSelector.matchLabels[%s]", k)
	}
	for i, e := range s.MatchExpressions {
		add(metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{e}},
			"spec.namespaceSelector.matchExpressions[%d]", i)
	}
	return selector, ok
}

// number gives a rule, or a policy's nameservers, a number.
func (c *compiler) number() int {
	id := c.next
	c.next++
	c.everything.add(id)
	return id
}

// rule reads a rule. A rule with an unknown field allows nothing, because the field may narrow it.
// A rule without cidrs, hostnames and anyTarget allows nothing, either.
func (c *compiler) rule(i int, r *v1alpha1.PolicyRule) {
	id := c.number()
	for _, text := range r.Unknown {
		c.problem(text+", so that the rule allows nothing", "spec.allow[%d]", i)
	}
	if len(r.Unknown) > 0 {
		return
	}
	if len(r.CIDRs)+len(r.Hostnames) == 0 && r.AnyTarget == nil {
		c.problem("neither cidrs nor hostnames nor anyTarget", "spec.allow[%d]", i)
		return
	}
	if len(r.CIDRs) == 0 {
		c.anyAddress.add(id)
	}
	if len(r.Hostnames) == 0 {
		c.anyName.add(id)
		c.targets.add(id)
	}
	if len(r.Ports) == 0 {
		for _, protocol := range protocols {
			c.ports[protocol] = append(c.ports[protocol], portSpan(0, math.MaxUint16, id))
		}
	}
	for j, text := range r.CIDRs {
		if prefix, problem := parseCIDR(text); problem != "" {
			c.problem(problem, "spec.allow[%d].cidrs[%d]", i, j)
		} else {
			c.cidrs = append(c.cidrs, claim{prefix, id})
		}
	}
	for j, name := range r.Hostnames {
		if validHostname(name) {
			c.hostnames[name] = append(c.hostnames[name], id)
			c.targets.add(id)
		} else {
			c.problem("neither a host name nor one behind \"*.\"", "spec.allow[%d].hostnames[%d]", i, j)
		}
	}
	for j := range r.Ports {
		if !c.port(&r.Ports[j], id) {
			c.problem("no range of ports", "spec.allow[%d].ports[%d]", i, j)
		}
	}
}

func validHostname(name string) bool { return len(name) <= maxHostname && hostname.MatchString(name) }

// parseCIDR reads a prefix. problem says why it can't be used; "" if it can.
func parseCIDR(text string) (prefix netip.Prefix, problem string) {
	prefix, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return prefix, "not a CIDR"
	case prefix.Addr().Is4In6():
		return prefix, "a CIDR of IPv4-mapped addresses"
	case prefix != prefix.Masked():
		return prefix, "a CIDR with bits beyond its prefix length"
	}
	return prefix, ""
}

// allowNameservers reads the nameservers of a policy. They cover no target.
func (c *compiler) allowNameservers(texts []string) {
	id := c.number()
	for i, text := range texts {
		if !c.nameserver(text, id) {
			c.problem("neither an address nor address:port", "spec.allowNameservers[%d]", i)
		}
	}
}

func (c *compiler) port(p *v1alpha1.PolicyPort, id int) bool {
	protocol := p.EffectiveProtocol()
	if !slices.Contains(protocols[:], protocol) {
		return false
	}
	first, last := p.Port, p.EffectiveEndPort()
	if first < 1 || last < first || last > math.MaxUint16 {
		return false
	}
	c.ports[protocol] = append(c.ports[protocol], portSpan(uint16(first), uint16(last), id))
	return true
}

// nameserver adds an entry: "IP" under port 0, or "IP:port".
func (c *compiler) nameserver(text string, id int) bool {
	ns, err := netip.ParseAddrPort(text)
	if err != nil {
		a, err := netip.ParseAddr(text)
		if err != nil {
			return false
		}
		ns = netip.AddrPortFrom(a, 0)
	} else if ns.Port() == 0 {
		return false
	}
	if c.nameservers[ns] == nil {
		c.nameservers[ns] = c.pool.empty()
	}
	c.nameservers[ns].add(id)
	return true
}

// listings adds to each entry with a port the rules that list its address for any port.
func (c *compiler) listings() map[netip.AddrPort]set {
	all := map[netip.AddrPort]set{}
	for ns, rules := range c.nameservers {
		if anyPort := c.nameservers[netip.AddrPortFrom(ns.Addr(), 0)]; anyPort != nil {
			rules = rules.union(anyPort)
		}
		all[ns] = c.pool.keep(rules)
	}
	return all
}
