package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
)

// kinds are the Go types of all kinds.
var kinds = map[string]any{
	"ExternalBackend":         v1alpha1.ExternalBackend{},
	"ExternalBackendOverride": v1alpha1.ExternalBackendOverride{},
	"ExternalBackendPolicy":   v1alpha1.ExternalBackendPolicy{},
}

const apiIntroduction = `# API

All kinds of %s, with all of their fields. ` + "`kubectl explain`" + ` shows the same texts. A spec is
stored as it was written: a default in the tables below is the value that applies where the field is absent, and is not
added to the object. [The guide](../guide.md) shows what the fields are for.

`

// apiPage describes every kind, from its CustomResourceDefinition.
func apiPage(root string) (string, error) {
	crds, err := readCRDs(root)
	if err != nil {
		return "", err
	}

	var out strings.Builder
	fmt.Fprintf(&out, generated, "api/v1alpha1")
	fmt.Fprintf(&out, apiIntroduction, code(v1alpha1.GroupVersion.String()))
	for _, crd := range crds {
		if err := addKind(&out, &crd); err != nil {
			return "", err
		}
	}
	return strings.TrimRight(out.String(), "\n") + "\n", nil
}

// readCRDs returns the CustomResourceDefinitions, sorted by kind.
func readCRDs(root string) ([]apiextensionsv1.CustomResourceDefinition, error) {
	files, err := filepath.Glob(filepath.Join(root, "config/crd/bases/*.yaml"))
	if err != nil {
		return nil, err
	}
	var out []apiextensionsv1.CustomResourceDefinition
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		out = append(out, crd)
	}
	slices.SortFunc(out, func(a, b apiextensionsv1.CustomResourceDefinition) int {
		return strings.Compare(a.Spec.Names.Kind, b.Spec.Names.Kind)
	})
	return out, nil
}

// addKind describes one kind.
func addKind(out *strings.Builder, crd *apiextensionsv1.CustomResourceDefinition) error {
	names, version := crd.Spec.Names, &crd.Spec.Versions[0]
	object, ok := kinds[names.Kind]
	if !ok {
		return fmt.Errorf("hack/reference/api.go does not know the Go type of %s", names.Kind)
	}
	schema := version.Schema.OpenAPIV3Schema
	fmt.Fprintf(out, "## %s\n\n%s\n", names.Kind, paragraph(escape(schema.Description)))

	var columns []string
	for _, column := range version.AdditionalPrinterColumns {
		name := strings.ToUpper(column.Name)
		if column.Priority > 0 {
			name += " (wide)"
		}
		columns = append(columns, name)
	}
	fmt.Fprintf(out, "- Scope: %s\n", crd.Spec.Scope)
	fmt.Fprintf(out, "- Names for kubectl: %s, %s\n", code(names.Plural), code(strings.Join(names.ShortNames, ", ")))
	fmt.Fprintf(out, "- Columns: %s\n\n", strings.Join(columns, ", "))
	addRules(out, schema.XValidations)

	page := apiSection{Builder: out, goType: readType(object)}
	for _, name := range []string{"spec", "status"} {
		if property, ok := schema.Properties[name]; ok {
			page.add(names.Kind+"."+name, name, &property)
		}
	}
	return nil
}

// apiSection writes the fields of one kind.
type apiSection struct {
	*strings.Builder
	*goType
}

// add describes an object, and then the objects below it. The heading has the kind and the path.
func (s *apiSection) add(heading, path string, object *apiextensionsv1.JSONSchemaProps) {
	fmt.Fprintf(s, "### %s\n\n", heading)
	if object.Description != "" {
		fmt.Fprintf(s, "%s\n", paragraph(escape(stopped(object.Description))))
	}
	addRules(s.Builder, object.XValidations)

	names := s.sorted(path, object)
	header(s.Builder, "field", "type", "default", "meaning")
	for _, name := range names {
		property := object.Properties[name]
		cells(s.Builder, code(name), typeOf(heading+"."+name, &property),
			s.defaultCell(path+"."+name, &property, slices.Contains(object.Required, name)), meaning(&property))
	}
	s.WriteByte('\n')

	for _, name := range names {
		property := object.Properties[name]
		if below, suffix := objectBelow(&property); below != nil {
			below.Description = property.Description
			s.add(heading+"."+name+suffix, path+"."+name+suffix, below)
		}
	}
}

// objectBelow returns the object that a field is, or is a list of, if it has fields of its own.
func objectBelow(s *apiextensionsv1.JSONSchemaProps) (*apiextensionsv1.JSONSchemaProps, string) {
	if len(s.Properties) > 0 {
		return s, ""
	}
	if s.Items != nil && s.Items.Schema != nil && len(s.Items.Schema.Properties) > 0 {
		return s.Items.Schema, "[]"
	}
	return nil, ""
}

// defaultCell says what applies where a field is absent.
func (s *apiSection) defaultCell(path string, property *apiextensionsv1.JSONSchemaProps, required bool) string {
	if required {
		return "required"
	}
	if value, ok := effectiveDefault(s.defaults, path, property); ok {
		return code(value)
	}
	return ""
}

// effectiveDefault returns the value that applies where a field is absent.
func effectiveDefault(
	defaults map[string]string, path string, property *apiextensionsv1.JSONSchemaProps,
) (string, bool) {
	if property.Default != nil {
		return string(property.Default.Raw), true
	}
	if len(property.Enum) == 1 { // it can only be that
		return string(property.Enum[0].Raw), true
	}
	value, ok := defaults[path]
	return value, ok
}

// meaning is a field's description, and the rules that the API server checks for it alone.
func meaning(s *apiextensionsv1.JSONSchemaProps) string {
	text := escape(stopped(s.Description))
	rules := s.XValidations
	if len(s.Properties) > 0 { // its own section has them
		rules = nil
	}
	if s.Items != nil && s.Items.Schema != nil && len(s.Items.Schema.Properties) == 0 {
		rules = append(slices.Clone(rules), s.Items.Schema.XValidations...)
	}
	for _, rule := range rules {
		text += " *Rule:* " + escape(stopped(ruleText(rule)))
	}
	return text
}

// addRules lists what the API server checks of an object as a whole.
func addRules(out *strings.Builder, rules apiextensionsv1.ValidationRules) {
	if len(rules) == 0 {
		return
	}
	out.WriteString("Rules:\n\n")
	for _, rule := range rules {
		text := escape(ruleText(rule))
		if rule.FieldPath != "" {
			text = code(strings.TrimPrefix(rule.FieldPath, ".")) + ": " + text
		}
		fmt.Fprintf(out, "- %s\n", strings.ReplaceAll(strings.TrimSuffix(paragraph(text), "\n"), "\n", "\n  "))
	}
	out.WriteByte('\n')
}

// ruleText is what the API server answers where the rule is broken.
func ruleText(rule apiextensionsv1.ValidationRule) string {
	if rule.Message != "" {
		return rule.Message
	}
	return rule.Rule
}
