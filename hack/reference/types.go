package main

import (
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// typeOf says which values a field takes: its type and bounds. If it has fields of its own, it
// links to their section.
func typeOf(heading string, s *apiextensionsv1.JSONSchemaProps) string {
	if below, suffix := objectBelow(s); below != nil {
		text := "object"
		if suffix != "" {
			text = "list of objects"
		}
		return join(fmt.Sprintf("[%s](#%s)", text, anchor(heading+suffix)), bounds(s))
	}
	if s.Items != nil && s.Items.Schema != nil {
		return join("list of "+plural(typeName(s.Items.Schema)), bounds(s), each(s.Items.Schema))
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		value := s.AdditionalProperties.Schema
		return join("map of "+plural(typeName(value)), bounds(s), each(value))
	}
	return join(typeName(s), bounds(s))
}

func typeName(s *apiextensionsv1.JSONSchemaProps) string {
	switch {
	case s.XIntOrString:
		return "integer or string"
	case s.Format == "date-time":
		return "time (RFC 3339)"
	}
	return s.Type
}

func plural(name string) string {
	if name == "" {
		return "values"
	}
	return name + "s"
}

func each(s *apiextensionsv1.JSONSchemaProps) string {
	if text := bounds(s); text != "" {
		return "each " + text
	}
	return ""
}

// join joins the texts that are not empty.
func join(texts ...string) string {
	var out []string
	for _, text := range texts {
		if text != "" {
			out = append(out, text)
		}
	}
	return strings.Join(out, ", ")
}

// bounds says how large or long a value may be, and which forms it may have.
func bounds(s *apiextensionsv1.JSONSchemaProps) string {
	var words []string
	for _, word := range s.Enum {
		words = append(words, code(strings.Trim(string(word.Raw), `"`)))
		if string(word.Raw) == `""` {
			words[len(words)-1] = code(`""`)
		}
	}
	parts := []string{
		alternatives(words),
		span(number(s.Minimum), number(s.Maximum), ""),
		span(s.MinLength, s.MaxLength, " characters"),
		span(s.MinItems, s.MaxItems, " entries"),
		span(s.MinProperties, s.MaxProperties, " entries"),
	}
	if s.Pattern != "" {
		parts = append(parts, "matches "+code(s.Pattern))
	}
	return join(parts...)
}

// alternatives returns "a, b or c".
func alternatives(words []string) string {
	if len(words) < 2 {
		return strings.Join(words, "")
	}
	last := len(words) - 1
	return strings.Join(words[:last], ", ") + " or " + words[last]
}

func number(f *float64) *int64 {
	if f == nil {
		return nil
	}
	return new(int64(*f))
}

// span says from where to where a number goes.
func span(low, high *int64, unit string) string {
	switch {
	case low != nil && high != nil && *low == *high:
		return fmt.Sprintf("%d%s", *low, unit)
	case low != nil && high != nil:
		return fmt.Sprintf("%d to %d%s", *low, *high, unit)
	case high != nil:
		return fmt.Sprintf("at most %d%s", *high, unit)
	case low != nil:
		return fmt.Sprintf("at least %d%s", *low, unit)
	}
	return ""
}
