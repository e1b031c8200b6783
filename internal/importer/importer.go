// Package importer makes ExternalBackends from objects of other kinds that lead outside of the
// cluster. It is pure. What an ExternalBackend can't express it refuses, field by field.
package importer

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/external-backend/operator/api/v1alpha1"
)

const (
	// maxRemarks bounds the refusals, and the notes, about one object.
	maxRemarks = 100
	// maxText bounds a text from an object that a refusal or a note repeats.
	maxText = 100
	// maxTargets and maxPorts are bounds of the schema of ExternalBackends.
	maxTargets, maxPorts = 1024, 100
)

// Port is a port that the user names for a source that has none.
type Port struct {
	Name string
	Port int32
}

// ParsePorts reads ports such as 5432 or postgres=5432.
func ParsePorts(texts []string) ([]Port, error) {
	var out []Port
	for _, text := range texts {
		name, number, named := strings.Cut(text, "=")
		if !named {
			name, number = "", text
		}
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%q must be NUMBER or NAME=NUMBER, with a number from 1 to 65535", clip(text))
		}
		out = append(out, Port{name, int32(n)})
	}
	return out, nil
}

// Options say what the sources don't.
type Options struct {
	// Namespace is that of objects that have none.
	Namespace string
	// Name is the name of the ExternalBackend; "" for a name that follows from the source.
	Name string
	// Ports are the ports of a Service of type ExternalName that has none.
	Ports []Port
}

// Refusal is a field that an ExternalBackend can't express, and why.
type Refusal struct {
	Object string `json:"object"`
	Field  string `json:"field"`
	Why    string `json:"why"`
}

func (r Refusal) String() string { return fmt.Sprintf("%s: %s: %s", r.Object, r.Field, r.Why) }

// Result is what one source becomes.
type Result struct {
	// Source names the object, such as Service shop/legacy.
	Source  string
	Backend *v1alpha1.ExternalBackend
	// Incomplete says what Backend lacks, so that the API server would refuse it; "" for nothing.
	Incomplete string
	// Refusals are fields that get lost. Notes say what else differs, and changes no traffic.
	Refusals []Refusal
	Notes    []string
	// Next are the steps that move the traffic. A line that begins with $ is a command.
	Next []string
}

// reader reads a source of one kind.
type reader func(d *draft, u *unstructured.Unstructured)

// readers returns the kinds of sources but for Services, whose endpoints are objects of their own.
func readers() map[string]reader {
	return map[string]reader{
		"ServiceEntry.networking.istio.io":         readServiceEntry,
		"Backend.gateway.envoyproxy.io":            readEnvoyBackend,
		"ClusterEndpoint.sealos.io":                readClusterEndpoint,
		"ClusterEndpoint.sealyun.com":              readClusterEndpoint,
		"DiscoveredService.discovery.k8sready.com": readDiscoveredService,
	}
}

// Import makes an ExternalBackend from every source among objects, in their order. Endpoints and
// EndpointSlices belong to the Service that they are behind. Objects of other kinds are skipped. An
// error means that an object can't be read at all.
func Import(objects []*unstructured.Unstructured, o Options) ([]Result, error) {
	var out []Result
	behind, err := groupByService(objects, o.Namespace)
	if err != nil {
		return nil, err
	}
	known := readers()
	for _, u := range objects {
		read := known[u.GetKind()+"."+u.GroupVersionKind().Group]
		if u.GetKind() == "Service" && u.GroupVersionKind().Group == "" {
			read = func(d *draft, u *unstructured.Unstructured) { readService(d, u, behind[keyOf(u, o.Namespace)]) }
		}
		if read == nil {
			continue
		}
		if err := checkNames(u); err != nil {
			return nil, err
		}
		d := newDraft(u, o)
		read(d, u)
		if d.err != nil {
			return nil, fmt.Errorf("%s: %w", d.Source, d.err)
		}
		out = append(out, d.finish())
	}
	if len(out) > 1 && o.Name != "" {
		return nil, fmt.Errorf("there are %d objects to import, and only one can have the name %s", len(out), o.Name)
	}
	return out, nil
}

// checkNames checks the name and the namespace of an object: both are printed in commands.
func checkNames(u *unstructured.Unstructured) error {
	if len(validation.IsDNS1123Subdomain(u.GetName())) > 0 {
		return fmt.Errorf("%s: metadata.name: %q must be a DNS subdomain", u.GetKind(), clip(u.GetName()))
	}
	if ns := u.GetNamespace(); ns != "" && len(validation.IsDNS1123Label(ns)) > 0 {
		return fmt.Errorf("%s %s: metadata.namespace: %q must be a DNS label", u.GetKind(), clip(u.GetName()), clip(ns))
	}
	return nil
}

// keyOf returns the namespace and the name of an object.
func keyOf(u *unstructured.Unstructured, namespace string) string {
	return cmp.Or(u.GetNamespace(), namespace) + "/" + u.GetName()
}

// published is what others publish behind a Service.
type published struct {
	slices    []*discoveryv1.EndpointSlice
	endpoints *corev1.Endpoints //nolint:staticcheck // Endpoints are deprecated, and are there.
	// unknown are the fields that are not known, by object.
	unknown []Refusal
}

// groupByService collects Endpoints and EndpointSlices by their Service.
func groupByService(objects []*unstructured.Unstructured, namespace string) (map[string]*published, error) {
	out := map[string]*published{}
	services := map[string]bool{}
	for _, u := range objects {
		if u.GetKind() == "Service" && u.GroupVersionKind().Group == "" {
			services[keyOf(u, namespace)] = true
		}
	}
	for _, u := range objects {
		var key string
		switch u.GetKind() + "." + u.GroupVersionKind().Group {
		case "Endpoints.":
			key = keyOf(u, namespace)
		case "EndpointSlice.discovery.k8s.io":
			key = cmp.Or(u.GetNamespace(), namespace) + "/" + u.GetLabels()[discoveryv1.LabelServiceName]
		default:
			continue
		}
		if !services[key] {
			return nil, fmt.Errorf("%s %s: its Service %s is missing; import both together",
				u.GetKind(), clip(keyOf(u, namespace)), clip(key))
		}
		if out[key] == nil {
			out[key] = &published{}
		}
		if err := out[key].add(u); err != nil {
			return nil, fmt.Errorf("%s %s: %w", u.GetKind(), clip(keyOf(u, namespace)), err)
		}
	}
	return out, nil
}

// add decodes Endpoints or an EndpointSlice.
func (p *published) add(u *unstructured.Unstructured) error {
	object := u.GetKind() + " " + clip(u.GetName())
	if u.GetKind() == "Endpoints" {
		p.endpoints = new(corev1.Endpoints) //nolint:staticcheck // Endpoints are deprecated, and are there.
		unknown, err := decode(u, p.endpoints)
		p.unknown = append(p.unknown, refuseUnknown(object, unknown)...)
		return err
	}
	var s discoveryv1.EndpointSlice
	unknown, err := decode(u, &s)
	p.unknown = append(p.unknown, refuseUnknown(object, unknown)...)
	p.slices = append(p.slices, &s)
	slices.SortStableFunc(p.slices, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return err
}
