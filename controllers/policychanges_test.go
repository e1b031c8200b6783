package controllers

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/policyreport"
	"github.com/external-backend/operator/internal/resolve"
)

// policyCase is a manager with one ExternalBackend whose policies change at random.
type policyCase struct {
	*testEnv
	random   *rand.Rand
	policies []v1alpha1.ExternalBackendPolicy
}

// one draws one of the values.
func one[T any](random *rand.Rand, from ...T) T { return from[random.IntN(len(from))] }

// drawSpec draws the spec of an ExternalBackend, with addresses and names that rules know.
func drawSpec(random *rand.Rand) string {
	ports := one(random,
		"ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}]",
		"ports: [{name: http, port: 80, targetPort: 8080, protocol: TCP}, {name: dns, port: 53, protocol: UDP}]")
	name := one(random, "pool.example.com", "other.example.org", "db.svc.cluster.local")
	switch random.IntN(8) {
	case 0:
		return fmt.Sprintf("{%s, service: {type: ExternalName}, targets: [{name: a, hostname: %s}]}", ports, name)
	case 1:
		return fmt.Sprintf("{%s, service: {type: Headless}, dns: {resolution: Passthrough}, "+
			"targets: [{name: a, hostname: %s}]}", ports, name)
	}

	var targets []string
	for i := range 1 + random.IntN(4) {
		at := "address: " + one(random,
			"203.0.113.1", "203.0.113.2", "203.0.113.9", "198.51.100.1", "2001:db8::1", "10.96.0.7")
		if random.IntN(3) == 0 {
			at = "hostname: " + one(random, "pool.example.com", "other.example.org")
		}
		at += one(random, "", "", "", ", adminState: Draining", ", adminState: Disabled", ", tier: 1")
		targets = append(targets, fmt.Sprintf("{name: t%d, %s}", i, at))
	}
	return fmt.Sprintf("{%s%s, targets: [%s]}", ports, one(random,
		"", "", ", healthCheck: {tcpSocket: {}}", ", healthCheck: {tcpSocket: {port: 9000}}", ", drainSeconds: 60",
	), strings.Join(targets, ", "))
}

// drawPolicies draws up to three policies. Some select the namespace, and some are in mode Audit.
func drawPolicies(random *rand.Rand) []v1alpha1.ExternalBackendPolicy {
	var out []v1alpha1.ExternalBackendPolicy
	for i := range random.IntN(4) {
		p := v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("p%d", i), UID: types.UID(fmt.Sprintf("uid-of-policy-%d", uids.Add(1))), Generation: 1,
		}}
		p.Spec.Mode = one(random, "", v1alpha1.PolicyModeEnforce, v1alpha1.PolicyModeEnforce, v1alpha1.PolicyModeAudit)
		p.Spec.NamespaceSelector = one(random, metav1.LabelSelector{}, metav1.LabelSelector{},
			metav1.LabelSelector{MatchLabels: map[string]string{"team": "a"}},
			metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "team", Operator: metav1.LabelSelectorOpDoesNotExist},
			}})
		for range random.IntN(3) {
			p.Spec.Allow = append(p.Spec.Allow, drawRule(random))
		}
		out = append(out, p)
	}
	return out
}

func drawRule(random *rand.Rand) v1alpha1.PolicyRule {
	var r v1alpha1.PolicyRule
	switch random.IntN(4) {
	case 0:
		r.AnyTarget = &v1alpha1.AnyTarget{}
	case 1:
		r.Hostnames = []string{one(random, "*.example.com", "pool.example.com", "*.example.org", "*.local")}
	default:
		r.CIDRs = []string{one(random,
			"203.0.113.0/24", "203.0.113.0/30", "203.0.113.1/32", "198.51.100.0/24", "0.0.0.0/0", "::/0", "10.96.0.0/12")}
		if random.IntN(3) == 0 {
			r.Hostnames = []string{"*.example.com"}
		}
	}
	if random.IntN(3) == 0 {
		r.Ports = []v1alpha1.PolicyPort{one(random, v1alpha1.PolicyPort{Port: 8080},
			v1alpha1.PolicyPort{Port: 8000, EndPort: 9999}, v1alpha1.PolicyPort{Protocol: corev1.ProtocolUDP, Port: 53})}
	}
	return r
}

// newPolicyCase publishes an ExternalBackend under drawn policies.
func newPolicyCase(t *testing.T, random *rand.Rand) *policyCase {
	c := &policyCase{testEnv: newTestEnv(t), random: random}
	c.resolver.known = map[string]resolve.Answer{
		"pool.example.com":  {Status: resolve.Current, Addrs: addresses(1, 6)},
		"other.example.org": {Status: resolve.Current, Addrs: addresses(4, 9)},
	}
	c.reconciler.policies.options.DefaultDeny = random.IntN(6) == 0
	if random.IntN(2) == 0 {
		c.reconciler.policies.options.ClusterCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	}
	c.spec(drawSpec(random))
	c.apply(drawPolicies(random))
	return c
}

// apply replaces all policies, and lets the manager act on them.
func (c *policyCase) apply(policies []v1alpha1.ExternalBackendPolicy) {
	c.t.Helper()
	ctx := c.t.Context()
	for i := range c.policies {
		c.ok(c.live.Delete(ctx, &c.policies[i]))
	}
	c.policies = nil
	for i := range policies {
		p := policies[i].DeepCopy()
		c.ok(c.live.Create(ctx, p))
		c.policies = append(c.policies, *p)
	}
	c.shown = -1
	c.reconciler.policies.rulesChanged()
	c.settle()
}

// compile compiles policies as the manager of the case does.
func (c *policyCase) compile(policies []v1alpha1.ExternalBackendPolicy) *policy.Set {
	options := c.reconciler.policies.options
	set, _ := policy.Compile(policy.Input{
		Policies: policies, DefaultDeny: options.DefaultDeny,
		ClusterRanges: policy.ClusterRanges{Declared: options.ClusterCIDRs},
	})
	return set
}

// read reads what the command reads.
func (c *policyCase) read() policyreport.Backend {
	c.t.Helper()
	ctx := c.t.Context()
	out := policyreport.Backend{Object: &v1alpha1.ExternalBackend{}}
	c.ok(c.live.Get(ctx, shop, out.Object))
	var service corev1.Service
	if err := c.live.Get(ctx, shop, &service); err == nil {
		out.Service = &service
	} else if !apierrors.IsNotFound(err) {
		c.t.Fatal(err)
	}
	var list discoveryv1.EndpointSliceList
	c.ok(c.live.List(ctx, &list))
	for i := range list.Items {
		if ours(&list.Items[i]) {
			out.Slices = append(out.Slices, &list.Items[i])
		}
	}
	return out
}

// publishedNow returns the addresses, or the name, that the case publishes.
func publishedNow(b policyreport.Backend) map[string]bool {
	out := map[string]bool{}
	for _, s := range b.Slices {
		for _, e := range s.Endpoints {
			out[e.Addresses[0]] = true
		}
	}
	if b.Service != nil && b.Service.Spec.ExternalName != "" && b.Service.Spec.ExternalName != plan.UnresolvableName {
		out[b.Service.Spec.ExternalName] = true
	}
	return out
}

// without returns the members of a that b lacks.
func without(a, b map[string]bool) map[string]bool {
	out := maps.Clone(a)
	maps.DeleteFunc(out, func(member string, _ bool) bool { return b[member] })
	return out
}

// foretell returns the subjects of the changes that the report foretells, by their effects.
func (c *policyCase) foretell(b policyreport.Backend, next []v1alpha1.ExternalBackendPolicy) foretold {
	out := foretold{}
	for _, change := range policyreport.Changes(c.compile(c.policies), c.compile(next), b, time.Now()) {
		if out[change.Effect] == nil {
			out[change.Effect] = map[string]bool{}
		}
		out[change.Effect][change.Subject] = true
	}
	return out
}

// foretold are subjects by effects.
type foretold map[policyreport.Effect]map[string]bool

// step changes the policies, and compares what was foretold with what the manager does. It returns
// what differs, and whether anything was withdrawn or newly published.
func (c *policyCase) step() (wrong string, hasEffect bool) {
	b := c.read()
	next := drawPolicies(c.random)
	byObjects := c.foretell(b, next)
	b.Answers = map[resolve.Question]resolve.Answer{}
	for name, answer := range c.resolver.known {
		b.Answers[resolve.Question{Name: name, Families: resolve.IPv4 | resolve.IPv6}] = answer
	}
	byNames := c.foretell(b, next)

	before, reported := publishedNow(b), c.wouldRefuse()
	c.apply(next)
	after := publishedNow(c.read())
	lost, gained := without(before, after), without(after, before)
	hasEffect = len(lost)+len(gained) > 0
	if wrong := compareWithNames(byNames, lost, gained); wrong != "" {
		return wrong, hasEffect
	}
	if now, foretells := c.wouldRefuse(), len(byNames[policyreport.WouldRefuse]) > 0; foretells && !now ||
		now && !reported && !foretells {
		return fmt.Sprintf("reported by Audit: before %t, now %t, foretold %t", reported, now, foretells), hasEffect
	}
	return compareWithoutNames(byObjects, lost, gained), hasEffect
}

// compareWithNames compares what was foretold with all names known, which has no exception.
func compareWithNames(byNames foretold, lost, gained map[string]bool) string {
	switch {
	case !maps.Equal(lost, byNames[policyreport.Withdrawn]):
		return fmt.Sprintf("withdrawn: %v, foretold %v", keys(lost), keys(byNames[policyreport.Withdrawn]))
	case !maps.Equal(gained, byNames[policyreport.Allowed]):
		return fmt.Sprintf("newly published: %v, foretold %v", keys(gained), keys(byNames[policyreport.Allowed]))
	case len(byNames[policyreport.Unknown]) > 0:
		return fmt.Sprintf("unknown, although all names are known: %v", keys(byNames[policyreport.Unknown]))
	}
	return ""
}

// compareWithoutNames compares what was foretold without knowing where names lead. That everything
// which is withdrawn was foretold has no exception. The name of another target may lead to an
// address, too, so that it stays.
func compareWithoutNames(byObjects foretold, lost, gained map[string]bool) string {
	spared := without(byObjects[policyreport.Withdrawn], lost)
	maps.DeleteFunc(spared, func(address string, _ bool) bool { return strings.HasPrefix(address, "203.0.113.") })
	unforeseen := without(gained, byObjects[policyreport.Allowed])
	switch missed := without(lost, byObjects[policyreport.Withdrawn]); {
	case len(missed) > 0:
		return fmt.Sprintf("withdrawn, and not foretold without names: %v", keys(missed))
	case len(spared) > 0:
		return fmt.Sprintf("not withdrawn, though foretold without names: %v", keys(spared))
	case len(unforeseen) > 0 && len(byObjects[policyreport.Unknown]) == 0:
		return fmt.Sprintf("newly published, and not foretold without names: %v", keys(unforeseen))
	}
	return ""
}

// wouldRefuse reports whether the manager says that policies in mode Audit would refuse something.
func (c *policyCase) wouldRefuse() bool {
	d, _ := c.reconciler.refusals.of(shop)
	return d.WouldRefuse
}

func keys(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }

// TestForetoldPolicyChangesComeTrueRandom: what the report foretells from objects that users can
// read is what the manager does after the policies have changed, in 10,000 drawn cases. With -short
// there are 480: under the race detector, 10,000 take ten minutes.
func TestForetoldPolicyChangesComeTrueRandom(t *testing.T) {
	managers, changes := 500, 20
	if testing.Short() {
		managers = 24
	}
	for part := range 2 {
		t.Run(strconv.Itoa(part), func(t *testing.T) {
			t.Parallel()
			effects := 0
			for i := range managers / 2 {
				effects += foretellAndCompare(t, uint64(2*i+part), changes)
			}
			if effects < managers*changes/8 {
				t.Errorf("only %d of %d changes had an effect", effects, managers*changes/2)
			}
		})
	}
}

// foretellAndCompare changes the policies of one manager, compares what follows with the report,
// and returns the number of changes that had an effect.
func foretellAndCompare(t *testing.T, seed uint64, changes int) (effects int) {
	c := newPolicyCase(t, rand.New(rand.NewPCG(seed, 16)))
	for i := range changes {
		before := c.policies
		wrong, hasEffect := c.step()
		if wrong != "" {
			t.Fatalf("manager %d, change %d: %s\nspec: %+v\npolicies before: %+v\nnow: %+v",
				seed, i, wrong, c.read().Object.Spec, before, c.policies)
		}
		if hasEffect {
			effects++
		}
	}
	return effects
}
