package main

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// goType is what the Go types know of a kind, and its schema does not.
type goType struct {
	// defaults are the values that apply where a field is absent, by the field's path in JSON, such
	// as spec.targets[].tier. They come from the methods of api/v1alpha1/defaults.go: the default of
	// periodSeconds is what EffectivePeriod or EffectivePeriodSeconds returns.
	defaults map[string]string
	// order has all paths in the order of the Go fields.
	order []string
}

// readType reads the Go type of a kind.
func readType(object any) *goType {
	out := &goType{defaults: map[string]string{}}
	out.add(reflect.TypeOf(object), "")
	return out
}

func (g *goType) add(t reflect.Type, path string) {
	switch t.Kind() {
	case reflect.Pointer:
		g.add(t.Elem(), path)
		return
	case reflect.Slice:
		g.add(t.Elem(), path+"[]")
		return
	case reflect.Struct:
	default:
		return
	}

	for field := range t.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if name == "" || name == "-" || name == "metadata" {
			continue
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		g.order = append(g.order, at)
		if value, ok := defaultOf(t, field); ok && strings.HasPrefix(at, "spec.") {
			g.defaults[at] = value
		}
		g.add(field.Type, at)
	}
}

// sorted returns the names of the fields of the object at path, in the order of the Go fields.
func (g *goType) sorted(path string, object *apiextensionsv1.JSONSchemaProps) []string {
	position := func(name string) int {
		if at := slices.Index(g.order, path+"."+name); at >= 0 {
			return at
		}
		return len(g.order)
	}
	return slices.SortedFunc(maps.Keys(object.Properties), func(a, b string) int {
		return cmp.Or(cmp.Compare(position(a), position(b)), strings.Compare(a, b))
	})
}

// units are the endings of field names that their methods leave out, and the units that they mean.
var units = []struct {
	ending string
	unit   time.Duration
}{{"Seconds", time.Second}, {"Milliseconds", time.Millisecond}}

// defaultOf returns the default of one field. Numbers have none where the method returns 0 but the
// field must be positive: there the default is the value of another field.
func defaultOf(t reflect.Type, field reflect.StructField) (string, bool) {
	if field.Type.Kind() == reflect.Bool {
		return "false", true
	}

	empty, unit := reflect.New(t), time.Second
	method := empty.MethodByName("Effective" + field.Name)
	for _, u := range units {
		if name, ok := strings.CutSuffix(field.Name, u.ending); ok && !method.IsValid() {
			method, unit = empty.MethodByName("Effective"+name), u.unit
		}
	}
	if !method.IsValid() || method.Type().NumIn() != 0 || method.Type().NumOut() != 1 {
		return "", false
	}

	value := method.Call(nil)[0]
	if duration, ok := reflect.TypeAssert[time.Duration](value); ok {
		return fmt.Sprint(int64(duration / unit)), true
	}
	if words, ok := reflect.TypeAssert[[]string](value); ok {
		return strings.Join(words, ", "), true
	}
	if value.IsZero() && field.Type.Kind() != reflect.Pointer {
		return "", false
	}
	return fmt.Sprint(value.Interface()), true
}
