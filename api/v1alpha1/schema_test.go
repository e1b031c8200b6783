package v1alpha1

import (
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	schemacel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apimachinery/pkg/util/sets"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"
	"sigs.k8s.io/yaml"
)

// crds returns the schema of each kind, by its plural name.
func crds(t *testing.T) map[string]*apiextensionsv1.JSONSchemaProps {
	t.Helper()
	out := map[string]*apiextensionsv1.JSONSchemaProps{}
	const dir = "../../config/crd/bases/"
	files, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		text, err := os.ReadFile(dir + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Fatal(err)
		}
		out[crd.Spec.Names.Plural] = crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	}
	return out
}

// walk visits a schema and all schemas below it. required reports whether the parent requires it.
func walk(
	s *apiextensionsv1.JSONSchemaProps,
	path string,
	required bool,
	visit func(path string, s *apiextensionsv1.JSONSchemaProps, required bool),
) {
	visit(path, s, required)
	for _, name := range slices.Sorted(maps.Keys(s.Properties)) {
		property := s.Properties[name]
		walk(&property, strings.TrimPrefix(path+"."+name, "."), slices.Contains(s.Required, name), visit)
	}
	if s.Items != nil && s.Items.Schema != nil {
		walk(s.Items.Schema, path+"[]", true, visit)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		walk(s.AdditionalProperties.Schema, path+"{}", true, visit)
	}
}

// A default in the schema would be written into the specs of users, and could never change. Only
// the status of each kind has one.
func TestSpecsHaveNoDefaultInTheSchema(t *testing.T) {
	var found, want []string
	for kind, s := range crds(t) {
		want = append(want, kind+` status: {"observedGeneration":-1}`)
		walk(s, "", true, func(path string, s *apiextensionsv1.JSONSchemaProps, _ bool) {
			if s.Default != nil {
				found = append(found, fmt.Sprintf("%s %s: %s", kind, path, s.Default.Raw))
			}
		})
	}
	if !slices.Equal(found, want) {
		t.Errorf("defaults %q, want %q", found, want)
	}
}

// An optional field of a spec is absent by being left out. No empty value means the same.
func TestAbsentFieldsHaveNoOtherSpelling(t *testing.T) {
	mayBeEmpty := []string{
		"externalbackends spec.ports[].name", // as in ServiceSpec
		"externalbackends spec.targets[].ports[].name",
		"externalbackends spec.healthCheck.tls.caCertificateRefs[].group",       // the core group is ""
		"externalbackends spec.dns.tls.caCertificateRefs[].group",               // the core group is ""
		"externalbackendpolicies spec.namespaceSelector.matchExpressions[].key", // upstream's
	}
	for kind, s := range crds(t) {
		walk(s, "", true, func(path string, s *apiextensionsv1.JSONSchemaProps, required bool) {
			name := kind + " " + path
			if !strings.HasPrefix(path, "spec.") || required || slices.Contains(mayBeEmpty, name) {
				return
			}
			if s.Type == "string" && len(s.Enum) == 0 && (s.MinLength == nil || *s.MinLength == 0) {
				t.Errorf("%s may be empty", name)
			}
			if slices.ContainsFunc(s.Enum, func(v apiextensionsv1.JSON) bool { return string(v.Raw) == `""` }) {
				t.Errorf("%s may be empty", name)
			}
			if s.Type == "integer" && s.Minimum == nil {
				t.Errorf("%s has no minimum", name)
			}
		})
	}
}

// A zero is refused or means zero. Where it means zero, the field is a pointer, so that it can be
// written.
func TestZeroMeansZero(t *testing.T) {
	zeroes := []string{
		"spec.drainSeconds", "spec.targets[].tier", "spec.dns.staleSeconds", "spec.dns.removalDelaySeconds",
		"spec.failover.failbackDelaySeconds", "spec.failover.pinnedTier",
		"spec.pinnedTier", // of an ExternalBackendOverride
	}
	var found []string
	for _, s := range crds(t) {
		walk(s, "", true, func(path string, s *apiextensionsv1.JSONSchemaProps, required bool) {
			if s.Type == "integer" && strings.HasPrefix(path, "spec.") && !required && *s.Minimum <= 0 {
				found = append(found, path)
			}
		})
	}
	if !sets.New(found...).Equal(sets.New(zeroes...)) {
		t.Errorf("0 is allowed in %v, want %v", found, zeroes)
	}
	zero := int32(0)
	var b ExternalBackendSpec
	b.DrainSeconds, b.Targets = &zero, []Target{{Tier: &zero}}
	b.DNS = &DNS{StaleSeconds: &zero, RemovalDelaySeconds: &zero}
	b.Failover = &Failover{FailbackDelaySeconds: &zero, PinnedTier: &zero}
	text, err := yaml.Marshal([]any{b, ExternalBackendOverrideSpec{PinnedTier: &zero}})
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(text), ": 0\n"); n != len(zeroes) {
		t.Errorf("%d zeroes are written, want %d:\n%s", n, len(zeroes), text)
	}
}

// The status has no enums, so a later version may add a word to it without breaking clients of this
// one.
func TestStatusHasNoEnums(t *testing.T) {
	for kind, s := range crds(t) {
		walk(s, "", true, func(path string, s *apiextensionsv1.JSONSchemaProps, _ bool) {
			if strings.HasPrefix(path, "status.") && !strings.HasPrefix(path, "status.conditions[]") && len(s.Enum) > 0 {
				t.Errorf("%s %s has an enum", kind, path)
			}
		})
	}
}

// The API server refuses a CRD whose rules may cost too much. Ours cost at most a fifth of that,
// because rules will be added, and the API server's estimates may change.
func TestRulesCostAFifthOfTheLimit(t *testing.T) {
	const share = 5
	for kind, s := range crds(t) {
		var internal apiextensions.JSONSchemaProps
		err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(s, &internal, nil)
		if err != nil {
			t.Fatal(err)
		}
		structural, err := schema.NewStructural(&internal)
		if err != nil {
			t.Fatal(err)
		}
		c := costs{T: t, env: environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())}
		c.add(structural, model.SchemaDeclType(structural, true), "", 1)
		t.Logf("%s: the rules cost %.1f %% of the limit; the dearest, of %q, costs %.1f %% of the limit for one", kind,
			100*float64(c.total)/validation.StaticEstimatedCRDCostLimit,
			c.where, 100*float64(c.most)/validation.StaticEstimatedCostLimit)
		if c.rules == 0 || c.total > validation.StaticEstimatedCRDCostLimit/share {
			t.Errorf("%s: %d rules cost %d", kind, c.rules, c.total)
		}
	}
}

// costs adds up what rules may cost, as the API server estimates it.
type costs struct {
	*testing.T
	env         *environment.EnvSet
	total, most uint64
	where       string
	rules       int
}

func (c *costs) add(s *schema.Structural, declared *apiservercel.DeclType, path string, times uint64) {
	c.Helper()
	results, err := schemacel.Compile(s, declared, celconfig.PerCallLimit, c.env, schemacel.NewExpressionsEnvLoader())
	if err != nil {
		c.Fatal(err)
	}
	for _, r := range results {
		if r.Error != nil {
			c.Fatalf("%s: %v", path, r.Error)
		}
		if r.MaxCost > math.MaxInt64/times-c.total {
			c.Fatalf("a rule of %s has no bound", path)
		}
		cost := r.MaxCost * times
		c.rules++
		c.total += cost
		if cost > c.most {
			c.most, c.where = cost, path
		}
	}
	for name, property := range s.Properties {
		if escaped, ok := apiservercel.Escape(name); ok {
			if f, ok := declared.Fields[escaped]; ok {
				c.add(&property, f.Type, path+"."+name, times)
			}
		}
	}
	below := func(s *schema.Structural, bound *int64) {
		if bound == nil {
			if path != ".metadata" && hasRules(s) {
				c.Fatalf("%s has no bound", path)
			}
			return
		}
		if uint64(*bound) > math.MaxInt32/max(times, 1) {
			c.Fatalf("%s is too large", path)
		}
		c.add(s, declared.ElemType, path+"[]", times*uint64(*bound))
	}
	if s.Items != nil {
		below(s.Items, s.ValueValidation.MaxItems)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Structural != nil {
		below(s.AdditionalProperties.Structural, s.ValueValidation.MaxProperties)
	}
}

func hasRules(s *schema.Structural) bool { return len(s.XValidations) > 0 }
