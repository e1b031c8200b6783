package compatibility

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/external-backend/operator/api/v1alpha1"
)

// Defaults returns the values that apply to absent fields, by the method of the API that returns
// them. The schema has no defaults, so it does not show when one changes.
func Defaults() map[string]string {
	all := map[string]string{}
	seen := map[reflect.Type]bool{}
	collect(reflect.TypeFor[v1alpha1.ExternalBackend](), seen, all)
	collect(reflect.TypeFor[v1alpha1.ExternalBackendPolicy](), seen, all)
	for _, transport := range []v1alpha1.DNSTransport{"", v1alpha1.DNSTransportUDP, v1alpha1.DNSTransportTLS} {
		all[fmt.Sprintf("DNSTransport(%q).DefaultPort", transport)] = fmt.Sprint(transport.DefaultPort())
	}
	return all
}

// collect calls the methods Effective… of an empty value of a type, and of the types of its fields.
func collect(t reflect.Type, seen map[reflect.Type]bool, all map[string]string) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map:
		collect(t.Elem(), seen, all)
		return
	case reflect.Struct:
	default:
		return
	}
	if seen[t] || t.PkgPath() != reflect.TypeFor[v1alpha1.ExternalBackend]().PkgPath() {
		return
	}
	seen[t] = true
	empty := reflect.New(t)
	for i := range empty.NumMethod() {
		method := empty.Type().Method(i)
		if strings.HasPrefix(method.Name, "Effective") && method.Type.NumIn() == 1 {
			all[t.Name()+"."+method.Name] = fmt.Sprintf("%v", empty.Method(i).Call(nil)[0])
		}
	}
	for field := range t.Fields() {
		collect(field.Type, seen, all)
	}
}
