// Package admission_test tries the ValidatingAdmissionPolicy of config/policy with the API server's
// own CEL, and compares it with the decisions of the controller. It needs no cluster.
package admission_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/policy"
)

// read fills object from a file of config/policy, in which every field must be known.
func read(t testing.TB, file string, object any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../config/policy", file))
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.UnmarshalStrict(text, object); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
}

// guard is the policy as the API server runs it.
type guard struct {
	t         testing.TB
	validator validating.Validator
	params    *corev1.ConfigMap
}

// newGuard compiles the policy as the API server does when the policy is created, with the
// parameters of config/policy.
func newGuard(t testing.TB) *guard {
	t.Helper()
	var p admissionv1.ValidatingAdmissionPolicy
	g := &guard{t: t, params: &corev1.ConfigMap{}}
	read(t, "validating_admission_policy.yaml", &p)
	read(t, "parameters.yaml", g.params)
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}

	declared := cel.OptionalVariableDeclarations{HasParams: true}
	compile := func(expressions ...cel.ExpressionAccessor) cel.ConditionEvaluator {
		c := compiler.CompileCondition(expressions, declared, environment.NewExpressions)
		if errs := c.CompilationErrors(); len(errs) > 0 {
			t.Fatal(errs)
		}
		return c
	}
	for _, v := range p.Spec.Variables {
		variable := &validating.Variable{Name: v.Name, Expression: v.Expression}
		if r := compiler.CompileAndStoreVariable(variable, declared, environment.NewExpressions); r.Error != nil {
			t.Fatalf("variable %s: %v", v.Name, r.Error)
		}
	}

	var validations, messages, conditions []cel.ExpressionAccessor
	for _, v := range p.Spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: v.Expression, Reason: v.Reason})
		messages = append(messages, &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression})
	}
	for i := range p.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&p.Spec.MatchConditions[i]))
	}

	failure := p.Spec.FailurePolicy
	matcher := matchconditions.NewMatcher(compile(conditions...), failure, "policy", "validate", p.Name)
	g.validator = validating.NewValidator(
		compile(validations...), matcher, compile(), compile(messages...), failure, nil,
	)
	return g
}

// refusals returns the messages with which the guard refuses the spec in the namespace shop. A spec
// with an old one is an update.
func (g *guard) refusals(spec, old *v1alpha1.ExternalBackendSpec) []string {
	g.t.Helper()
	object := func(spec *v1alpha1.ExternalBackendSpec) runtime.Object {
		if spec == nil {
			return nil
		}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&v1alpha1.ExternalBackend{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "ExternalBackend"},
			ObjectMeta: metav1.ObjectMeta{Name: "db", Namespace: "shop"},
			Spec:       *spec,
		})
		if err != nil {
			g.t.Fatal(err)
		}
		return &unstructured.Unstructured{Object: content}
	}
	operation := admission.Create
	if old != nil {
		operation = admission.Update
	}
	kind := v1alpha1.GroupVersion.WithKind("ExternalBackend")
	resource := v1alpha1.GroupVersion.WithResource("externalbackends")
	attributes := &admission.VersionedAttributes{
		Attributes: admission.NewAttributesRecord(object(spec), object(old), kind, "shop", "db", resource, "",
			operation, nil, false, &user.DefaultInfo{}),
		VersionedKind:      kind,
		VersionedObject:    admission.NewLazyObject(object(spec)),
		VersionedOldObject: admission.NewLazyObject(object(old)),
	}

	result := g.validator.Validate(
		context.Background(), resource, attributes, g.params, nil, celconfig.RuntimeCELCostBudget, nil,
	)
	var messages []string
	for _, d := range result.Decisions {
		if d.Evaluation == validating.EvalError {
			g.t.Fatalf("an expression failed: %+v", d)
		}
		if d.Action == validating.ActionDeny {
			messages = append(messages, d.Message)
		}
	}
	return messages
}

// literal returns a spec with a target for each address.
func literal(addresses ...string) *v1alpha1.ExternalBackendSpec {
	spec := &v1alpha1.ExternalBackendSpec{Ports: []v1alpha1.Port{{Port: 5432}}}
	for i, a := range addresses {
		spec.Targets = append(spec.Targets, v1alpha1.Target{Name: fmt.Sprint("t", i), Address: a})
	}
	return spec
}

// Parts of the messages of a refusal.
const (
	always   = "has, or embeds, an unspecified, loopback"
	metadata = "has a cloud metadata address"
	cluster  = "has an address of this cluster"
	name     = "has a name of this cluster"
)

// expect fails the test unless each refusal contains the text that want has in its place.
func expect(t *testing.T, what string, got []string, want ...string) {
	t.Helper()
	if !slices.EqualFunc(got, want, strings.Contains) {
		t.Errorf("%s: refused as %q, want %q", what, got, want)
	}
}

// A literal address is refused for the range that it lies in, or that an IPv4 address inside it
// lies in. The message names the target and not the address.
func TestForbiddenLiteralAddressesAreRefused(t *testing.T) {
	g := newGuard(t)
	g.params.Data["clusterCIDRs"] = "10.96.0.0/12, 10.244.0.0/16\nfd00:244::/64 # pods"
	for want, addresses := range map[string][]string{
		always: {
			"0.1.2.3", "127.0.0.1", "169.254.169.254", "224.0.0.1", "255.255.255.255", "::1", "fe80::1", "ff02::1",
			"::7f00:1", "::ffff:0:7f00:1", "64:ff9b::7f00:1", "64:ff9b::a9fe:a9fe", "64:ff9b::e000:1", "64:ff9b::ffff:ffff",
			"64:ff9b::5:1", "64:ff9b::1", "64:ff9b:1::a9fe:a9fe", "64:ff9b:1:12::a9fe:a9fe",
			"2002:7f00:1::1", "2002:a9fe:a9fe::", "2002:e000:1::1", "2002:ffff:ffff::1", "2002:1::1",
			"2001:0:7f00:1::1", "2001:0:cb00:7101:0:f227:80ff:fffe", "2001:0:cb00:7101:0:f227:5601:5601",
			"2001:0:cb00:7101:0:f227:1fff:fffe",
			"2001:db8::5efe:7f00:1", "2001:db8:1:2:0:5efe:a9fe:a9fe", "2001:db8:1:2:200:5efe:e000:1", "2001:db8::5efe:ffff:ffff",
		},
		metadata: {
			"100.100.100.200", "168.63.129.16", "192.0.0.192", "100.80.80.80", "100.96.0.96",
			"fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42", "fd00:a9fe:a9fe::1",
			"fd00:100::100:200",
		},
		cluster: {"10.96.0.1", "10.111.255.255", "10.244.7.7", "fd00:244::7"},
		"": {
			"203.0.113.10", "240.0.0.1", "10.0.0.1", "2001:db8::10", "fd12::1",
			"64:ff9b::cb00:7101", "64:ff9b:1::cb00:7101", "2002:cb00:7101::1",
			"2001:db8::100:5efe:7f00:1", "2001:db8::7f00:1", "2001:0:cb00:7101:0:f227:34ff:8efe", "2001:4860::7f00:1",
		},
	} {
		for _, a := range addresses {
			refusals := g.refusals(literal("203.0.113.1", a), nil)
			if want == "" {
				expect(t, a, refusals)
				continue
			}
			expect(t, a, refusals, want)
			if len(refusals) == 1 && (!strings.HasPrefix(refusals[0], "target t1 ") || strings.Contains(refusals[0], a)) {
				t.Errorf("%s: %q does not name the target alone", a, refusals[0])
			}
		}
	}
}

// A nameserver, with or without a port, is refused like an address of a target.
func TestForbiddenNameserversAreRefused(t *testing.T) {
	g := newGuard(t)
	g.params.Data["clusterCIDRs"] = "10.96.0.0/12"
	for ns, want := range map[string][]string{
		"198.51.100.53":            nil,
		"198.51.100.53:5353":       nil,
		"2001:db8::53":             nil,
		"[2001:db8::53]:53":        nil,
		"169.254.20.10":            {always},
		"169.254.20.10:53":         {always},
		"[fe80::53]:53":            {always},
		"[64:ff9b:0:0::7f00:1]:53": {always},
		"10.96.0.10":               {cluster},
		"10.96.0.10:53":            {cluster},
		"[fd00:ec2::254]:53":       {metadata},
	} {
		spec := literal("203.0.113.1")
		spec.DNS = &v1alpha1.DNS{Nameservers: []string{"198.51.100.1", ns}}
		expect(t, ns, g.refusals(spec, nil), want...)
	}
}

// A name of the cluster's domain is refused where the name itself is published, and not where it is
// resolved.
func TestPublishedClusterNamesAreRefused(t *testing.T) {
	g := newGuard(t)
	spec := func(hostname, serviceType, resolution string) *v1alpha1.ExternalBackendSpec {
		spec := literal()
		spec.Service = &v1alpha1.Service{Type: v1alpha1.ServiceType(serviceType)}
		spec.DNS = &v1alpha1.DNS{Resolution: v1alpha1.DNSResolution(resolution)}
		spec.Targets = []v1alpha1.Target{{Name: "only", Hostname: hostname}}
		return spec
	}
	for _, c := range []struct {
		spec *v1alpha1.ExternalBackendSpec
		want []string
	}{
		{spec("db.shop.svc.cluster.local", "ExternalName", ""), []string{name}},
		{spec("db.shop.svc.cluster.local", "Headless", "Passthrough"), []string{name}},
		{spec("cluster.local", "ExternalName", ""), []string{name}},
		{spec("notcluster.local", "ExternalName", ""), nil},
		{spec("db.example.com", "ExternalName", ""), nil},
		{spec("db.shop.svc.cluster.local", "ClusterIP", "Resolve"), nil},
	} {
		expect(t, fmt.Sprint(c.spec), g.refusals(c.spec, nil), c.want...)
	}
	g.params.Data["clusterDomain"] = "k8s.example.org\n"
	expect(t, "another domain", g.refusals(spec("db.shop.svc.k8s.example.org", "ExternalName", ""), nil), name)
	expect(t, "cluster.local then", g.refusals(spec("db.shop.svc.cluster.local", "ExternalName", ""), nil))
}

// An exempt namespace may use the addresses of the cluster and of metadata services, and not those
// forbidden always.
func TestExemptNamespacesMayUseGuardedAddresses(t *testing.T) {
	g := newGuard(t)
	g.params.Data["clusterCIDRs"] = "10.96.0.0/12"
	g.params.Data["exemptNamespaces"] = "other\nshop"
	expect(t, "guarded", g.refusals(literal("10.96.0.1", "100.100.100.200"), nil))
	expect(t, "forbidden always", g.refusals(literal("2002:7f00:1::1"), nil), always)
	g.params.Data["exemptNamespaces"] = "shopping"
	expect(t, "another namespace", g.refusals(literal("10.96.0.1", "100.100.100.200"), nil), metadata, cluster)
}

// Ranges that are absent or cannot be read forbid nothing, and do not lift what is forbidden
// always.
func TestUnreadableParametersForbidNothing(t *testing.T) {
	g := newGuard(t)
	g.params.Data = map[string]string{"clusterCIDRs": "10.96.0.0/33, pods, 10.96.0.1", "metadataCIDRs": ""}
	expect(t, "unreadable", g.refusals(literal("10.96.0.1", "100.100.100.200"), nil))
	g.params.Data = nil
	expect(t, "no data", g.refusals(literal("10.96.0.1", "127.0.0.1"), nil), always)
}

// An ExternalBackend that was accepted before may still change its labels, but not its spec.
func TestOnlyAChangedSpecIsChecked(t *testing.T) {
	g := newGuard(t)
	expect(t, "same spec", g.refusals(literal("127.0.0.1"), literal("127.0.0.1")))
	expect(t, "another spec", g.refusals(literal("127.0.0.1"), literal("127.0.0.2")), always)
	expect(t, "mended", g.refusals(literal("203.0.113.1"), literal("127.0.0.2")))
}

// The largest spec, with as many ranges as the parameters allow, stays within the API server's cost
// limits. Beyond them the API server would refuse it.
func TestLargestSpecStaysWithinCostLimits(t *testing.T) {
	g := newGuard(t)
	for i := range 20 {
		g.params.Data["clusterCIDRs"] += fmt.Sprintf("fd00:1234:5678:9abc:def0:1234:%x:0/112 10.%d.0.0/16\n", i, i+1)
	}
	var addresses []string
	for i := range 1024 {
		addresses = append(addresses, fmt.Sprintf("64:ff9b:1:1111:2222:3333:%x:%x", 0xcb00+i/256, 0x7100+i))
	}
	largest := literal(addresses...)
	for i := range largest.Targets {
		for j := range 20 {
			port := v1alpha1.TargetPort{Name: fmt.Sprint("port-", j), TargetPort: 5432}
			largest.Targets[i].Ports = append(largest.Targets[i].Ports, port)
		}
	}
	largest.DNS = &v1alpha1.DNS{Nameservers: slices.Repeat([]string{"[2001:db8:1111:2222:3333:4444:5555:6666]:53"}, 8)}
	before := largest.DeepCopy()
	before.Targets[1023].Ports[19].TargetPort++
	expect(t, "accepted", g.refusals(largest, before))
}

// Admission never refuses an address that the controller allows. Of plain addresses, which embed no
// other, it accepts none that the controller refuses.
func TestAdmissionAgreesWithTheController(t *testing.T) {
	g := newGuard(t)
	declared := []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12"), netip.MustParsePrefix("fd00:96::/112")}
	g.params.Data["clusterCIDRs"] = "10.96.0.0/12 fd00:96::/112"
	set, _ := policy.Compile(policy.Input{ClusterRanges: policy.ClusterRanges{Declared: declared}})
	view := set.For(nil)
	r := rand.New(rand.NewPCG(1, 2))
	pick := func(from ...string) []byte { return netip.MustParseAddr(from[r.IntN(len(from))]).AsSlice() }
	for range 400 {
		b := pick("203.0.113.1", "127.0.0.1", "169.254.169.254", "224.0.0.1", "0.0.0.1", "255.255.255.255", "10.96.0.1",
			"100.100.100.200", "240.0.0.1")
		b[r.IntN(4)] += byte(r.IntN(2))
		plain := r.IntN(3) == 0
		if !plain {
			around := pick("::", "::ffff:0:0:0", "64:ff9b::", "64:ff9b:1::", "64:ff9b:1:7f:1::", "2002::", "2001::",
				"2001:db8::", "2001:db8::5efe:0:0", "2001:db8:0:0:200:5efe::", "fd00:96::")
			at := []int{12, 2, 4}[r.IntN(3)]
			if r.IntN(4) == 0 {
				for i := range b {
					b[i] = ^b[i]
				}
			}
			b = slices.Concat(around[:at], b, around[at+4:])
		}
		a, _ := netip.AddrFromSlice(b)
		if a.Is4In6() {
			continue
		}

		refused, decision := len(g.refusals(literal(a.String()), nil)) > 0, view.Target("", a)
		if refused && decision.Allowed || plain && refused == decision.Allowed {
			t.Errorf("%s: refused by admission %t, controller %+v", a, refused, decision)
		}
	}
}

// The parameters list the metadata addresses that the controller knows.
func TestParametersListTheMetadataAddresses(t *testing.T) {
	g := newGuard(t)
	set, _ := policy.Compile(policy.Input{})
	listed := 0
	separator := func(r rune) bool { return strings.ContainsRune(", \n", r) }
	for _, word := range strings.FieldsFunc(g.params.Data["metadataCIDRs"], separator) {
		if p, err := netip.ParsePrefix(word); err == nil {
			listed++
			if d := set.For(nil).Target("", p.Addr()); d.Kind != policy.Metadata {
				t.Errorf("%s: %+v", word, d)
			}
		}
	}
	if listed != 12 {
		t.Errorf("%d metadata ranges", listed)
	}
}

// The binding names the policy and its parameters, and denies.
func TestBindingNamesPolicyAndParameters(t *testing.T) {
	var b admissionv1.ValidatingAdmissionPolicyBinding
	var p admissionv1.ValidatingAdmissionPolicy
	var params corev1.ConfigMap
	read(t, "validating_admission_policy_binding.yaml", &b)
	read(t, "validating_admission_policy.yaml", &p)
	read(t, "parameters.yaml", &params)

	if b.Spec.PolicyName != p.Name || b.Spec.ParamRef.Name != params.Name ||
		b.Spec.ParamRef.Namespace != params.Namespace {
		t.Errorf("%+v", b.Spec)
	}
	if want := []admissionv1.ValidationAction{admissionv1.Deny}; !slices.Equal(b.Spec.ValidationActions, want) {
		t.Errorf("actions %v, want %v", b.Spec.ValidationActions, want)
	}
	if want := (admissionv1.ParamKind{APIVersion: "v1", Kind: params.Kind}); *p.Spec.ParamKind != want {
		t.Errorf("paramKind %v, want %v", p.Spec.ParamKind, want)
	}
}
