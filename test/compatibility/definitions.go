// Package compatibility finds the changes of a CustomResourceDefinition that would break a stored
// object or a manifest, and those of the values that apply to absent fields. crdify judges most of
// a schema; this package adds what it does not know.
package compatibility

import (
	"fmt"
	"slices"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// Breaking returns the breaking changes from one definition to the next, sorted. Each begins with
// the version and the path of the field, if it is about one.
func Breaking(was, is *apiextensions.CustomResourceDefinition) []string {
	var found []string
	report := func(format string, args ...any) { found = append(found, fmt.Sprintf(format, args...)) }

	for _, fixed := range []struct{ what, was, is string }{
		{"group", was.Spec.Group, is.Spec.Group},
		{"scope", string(was.Spec.Scope), string(is.Spec.Scope)},
		{"kind", was.Spec.Names.Kind, is.Spec.Names.Kind},
		{"list kind", was.Spec.Names.ListKind, is.Spec.Names.ListKind},
		{"plural name", was.Spec.Names.Plural, is.Spec.Names.Plural},
		{"singular name", was.Spec.Names.Singular, is.Spec.Names.Singular},
	} {
		if fixed.was != fixed.is {
			report("the %s %q became %q", fixed.what, fixed.was, fixed.is)
		}
	}
	for _, name := range missing(was.Spec.Names.ShortNames, is.Spec.Names.ShortNames) {
		report("the short name %s is gone", name)
	}
	for _, name := range missing(was.Spec.Names.Categories, is.Spec.Names.Categories) {
		report("the category %s is gone", name)
	}

	for _, old := range was.Spec.Versions {
		i := slices.IndexFunc(is.Spec.Versions, func(v apiextensions.CustomResourceDefinitionVersion) bool {
			return v.Name == old.Name
		})
		if i < 0 {
			report("%s: the version is gone", old.Name)
			continue
		}
		for _, change := range breakingOfVersion(&old, &is.Spec.Versions[i]) {
			report("%s: %s", old.Name, change)
		}
	}
	slices.Sort(found)
	return found
}

// missing returns what a list has lost.
func missing(was, is []string) []string {
	return slices.DeleteFunc(slices.Clone(was), func(one string) bool { return slices.Contains(is, one) })
}

func breakingOfVersion(was, is *apiextensions.CustomResourceDefinitionVersion) []string {
	var found []string
	if was.Served && !is.Served {
		found = append(found, "the version is not served any more")
	}
	if was.Storage && !is.Storage {
		found = append(found, "objects are not stored in this version any more")
	}
	found = append(found, breakingOfSubresources(was, is)...)

	paths := func(fields []apiextensions.SelectableField) (paths []string) {
		for _, field := range fields {
			paths = append(paths, field.JSONPath)
		}
		return paths
	}
	for _, path := range missing(paths(was.SelectableFields), paths(is.SelectableFields)) {
		found = append(found, fmt.Sprintf("%s can't be used as a field selector any more", path))
	}

	schema := comparison{}
	schema.compare("", schemaOf(was), schemaOf(is))
	return append(found, schema.found...)
}

func schemaOf(v *apiextensions.CustomResourceDefinitionVersion) *apiextensions.JSONSchemaProps {
	if v.Schema == nil || v.Schema.OpenAPIV3Schema == nil {
		return &apiextensions.JSONSchemaProps{}
	}
	return v.Schema.OpenAPIV3Schema
}

// breakingOfSubresources looks at status and scale. A status that becomes a subresource is ignored
// in writes of the object from then on.
func breakingOfSubresources(was, is *apiextensions.CustomResourceDefinitionVersion) []string {
	old, now := was.Subresources, is.Subresources
	if old == nil {
		old = &apiextensions.CustomResourceSubresources{}
	}
	if now == nil {
		now = &apiextensions.CustomResourceSubresources{}
	}
	var found []string
	_, hadStatus := schemaOf(was).Properties["status"]
	switch {
	case old.Status != nil && now.Status == nil:
		found = append(found, "the subresource status is gone")
	case old.Status == nil && now.Status != nil && hadStatus:
		found = append(found, "status became a subresource")
	}
	if old.Scale != nil && (now.Scale == nil || *old.Scale != *now.Scale) {
		found = append(found, "the subresource scale is gone or another one")
	}
	return found
}
