package compatibility

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/crdify/pkg/config"
	"sigs.k8s.io/crdify/pkg/validations"
	"sigs.k8s.io/crdify/pkg/validations/property"
)

type (
	schema     = apiextensions.JSONSchemaProps
	comparator = validations.Comparator[schema]
)

// comparison collects the breaking changes of a schema.
type comparison struct{ found []string }

func (c *comparison) report(path, change string) {
	if path == "" {
		path = "."
	}
	c.found = append(c.found, path+": "+change)
}

// compare compares two schemas of one field, and those of the fields in it. A field that is new is
// not looked at: whether it has to be set is seen in its parent.
func (c *comparison) compare(path string, was, is *schema) {
	old, now := alone(was), alone(is)
	for _, judge := range judges {
		result := judge.Compare(old, now)
		for _, change := range result.Errors {
			c.report(path, result.Name+": "+change)
		}
	}
	for _, change := range differences(old, now) {
		c.report(path, change)
	}

	for _, name := range slices.Sorted(maps.Keys(was.Properties)) {
		old := was.Properties[name]
		if now, stays := is.Properties[name]; stays {
			c.compare(path+"."+name, &old, &now)
		} else {
			c.report(path+"."+name, "the field is gone")
		}
	}
	c.compareInner(path+"[]", itemsOf(was), itemsOf(is))
	c.compareInner(path+"{}", valuesOf(was), valuesOf(is))
}

// compareInner compares the schemas of the items of a list or of the values of a map.
func (c *comparison) compareInner(path string, was, is *schema) {
	switch {
	case was != nil && is != nil:
		c.compare(path, was, is)
	case was != nil:
		c.report(path, "the schema is gone")
	case is != nil:
		c.report(path, "there is a schema now")
	}
}

func itemsOf(s *schema) *schema {
	if s.Items == nil {
		return nil
	}
	return s.Items.Schema
}

func valuesOf(s *schema) *schema {
	if s.AdditionalProperties == nil {
		return nil
	}
	return s.AdditionalProperties.Schema
}

// alone returns a copy of a schema without the schemas that compare looks at one by one.
func alone(s *schema) *schema {
	lone := s.DeepCopy()
	lone.Properties = nil
	if itemsOf(s) != nil {
		lone.Items = nil
	}
	if valuesOf(s) != nil {
		lone.AdditionalProperties = nil
	}
	return lone
}

// differences returns how two schemas differ, keyword by keyword.
func differences(was, is *schema) []string {
	old, now := keywords(was), keywords(is)
	names := maps.Clone(old)
	maps.Copy(names, now)
	var found []string
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if a, b := string(old[name]), string(now[name]); a != b {
			found = append(found, fmt.Sprintf("%s: %q became %q", name, a, b))
		}
	}
	return found
}

// keywords returns the JSON of each keyword of a schema.
func keywords(s *schema) map[string]json.RawMessage {
	text, err := json.Marshal(s)
	words := map[string]json.RawMessage{}
	if err == nil {
		err = json.Unmarshal(text, &words)
	}
	if err != nil {
		panic(err) // a schema is made of JSON
	}
	return words
}

// judges are asked one after the other. Each removes from both schemas what it has judged. What
// differs after that, such as the type of a list, counts as breaking, because nobody knows it.
var judges = slices.Concat([]comparator{rules{}, texts{}}, judgesOfCrdify())

func judgesOfCrdify() []comparator {
	registry := validations.NewRegistry()
	for _, register := range []func(validations.Registry){
		property.RegisterDefault, property.RegisterEnum, property.RegisterRequired, property.RegisterType,
		property.RegisterMaximum, property.RegisterMaxItems, property.RegisterMaxLength, property.RegisterMaxProperties,
		property.RegisterMinimum, property.RegisterMinItems, property.RegisterMinLength, property.RegisterMinProperties,
	} {
		register(registry)
	}
	var all []comparator
	for _, name := range slices.Sorted(slices.Values(registry.Registered())) {
		settings := map[string]any{}
		if name == "enum" {
			settings["additionPolicy"] = property.AdditionPolicyAllow
		}
		judge, err := registry.Validation(name, settings)
		if err != nil {
			panic(err) // the settings above are wrong
		}
		judge.SetEnforcement(config.EnforcementPolicyError)
		all = append(all, judge.(comparator))
	}
	return all
}

// rules judges CEL rules: a new or changed one may refuse what was accepted before. One that is
// gone and a changed message do no harm.
type rules struct{}

// Compare implements the interface of crdify.
func (rules) Compare(was, is *schema) validations.ComparisonResult {
	same := func(a, b apiextensions.ValidationRule) bool {
		optional := func(r apiextensions.ValidationRule) bool { return r.OptionalOldSelf != nil && *r.OptionalOldSelf }
		return a.Rule == b.Rule && optional(a) == optional(b)
	}
	result := validations.ComparisonResult{Name: "rule"}
	for _, rule := range is.XValidations {
		if !slices.ContainsFunc(was.XValidations, func(old apiextensions.ValidationRule) bool { return same(old, rule) }) {
			result.Errors = append(result.Errors, fmt.Sprintf("new or changed: %s", rule.Rule))
		}
	}
	was.XValidations, is.XValidations = nil, nil
	return result
}

// texts judges what else a value has to look like. A pattern, a format or an enum that is gone does
// no harm, nor do descriptions.
type texts struct{}

// Compare implements the interface of crdify.
func (texts) Compare(was, is *schema) validations.ComparisonResult {
	result := validations.ComparisonResult{Name: "form"}
	for _, form := range []struct {
		name    string
		was, is *string
	}{{"pattern", &was.Pattern, &is.Pattern}, {"format", &was.Format, &is.Format}} {
		if *form.is != "" && *form.is != *form.was {
			result.Errors = append(result.Errors, fmt.Sprintf("the %s %q became %q", form.name, *form.was, *form.is))
		}
		*form.was, *form.is = "", ""
	}
	if len(is.Enum) == 0 {
		was.Enum = nil
	}
	for _, s := range []*schema{was, is} {
		s.Description, s.Title, s.Example, s.ExternalDocs = "", "", nil, nil
	}
	return result
}
