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

// Refusal is a field that an ExternalBackend can't express, and why. Without a field it is about
// the whole object.
type Refusal struct {
	Object string `json:"object"`
	Field  string `json:"field"`
	Why    string `json:"why"`
}

func (r Refusal) String() string {
	if r.Field == "" {
		return fmt.Sprintf("%s: %s", r.Object, r.Why)
	}
	return fmt.Sprintf("%s: %s: %s", r.Object, r.Field, r.Why)
}

// Result is what one source becomes.
type Result struct {
	// Source names the object, such as Service shop/legacy.
	Source  string
	Backend *v1alpha1.ExternalBackend
	// Incomplete says why Backend can't be applied; "" if it can. There is a refusal then, too.
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
// EndpointSlices belong to the Service that they are behind; after the others there is a result for
// each whose Service is missing. Objects of other kinds are skipped. An object that can't be read
// has no influence on the others. An error means that o does not suit the objects.
func Import(objects []*unstructured.Unstructured, o Options) ([]Result, error) {
	var out []Result
	behind, alone := groupByService(objects, o)
	known := readers()
	for _, u := range objects {
		read := known[u.GetKind()+"."+u.GroupVersionKind().Group]
		if isService(u) {
			read = func(d *draft, u *unstructured.Unstructured) { readService(d, u, behind[keyOf(u, o.Namespace)]) }
		}
		if read != nil {
			out = append(out, importOne(u, o, read))
		}
	}
	out = append(out, alone...)
	if len(out) > 1 && o.Name != "" {
		return nil, fmt.Errorf("there are %d objects to import, and only one can have the name %s", len(out), o.Name)
	}
	return out, nil
}

func isService(u *unstructured.Unstructured) bool {
	return u.GetKind() == "Service" && u.GroupVersionKind().Group == ""
}

// importOne makes an ExternalBackend from one object.
func importOne(u *unstructured.Unstructured, o Options, read reader) Result {
	d := newDraft(u, o)
	if !d.checkNames(u) {
		return d.Result
	}
	read(d, u)
	if d.unreadable {
		return d.bounded()
	}
	return d.finish()
}

// checkNames checks the name and the namespace of an object: both are printed in commands.
func (d *draft) checkNames(u *unstructured.Unstructured) bool {
	if len(validation.IsDNS1123Subdomain(u.GetName())) > 0 {
		d.fail("metadata.name", "%q must be a DNS subdomain", clip(u.GetName()))
	}
	if ns := u.GetNamespace(); ns != "" && len(validation.IsDNS1123Label(ns)) > 0 {
		d.fail("metadata.namespace", "%q must be a DNS label", clip(ns))
	}
	return !d.unreadable
}

// keyOf returns the namespace and the name of an object.
func keyOf(u *unstructured.Unstructured, namespace string) string {
	return cmp.Or(u.GetNamespace(), namespace) + "/" + u.GetName()
}

// published is what others publish behind a Service.
type published struct {
	slices    []*discoveryv1.EndpointSlice
	endpoints *corev1.Endpoints //nolint:staticcheck // Endpoints are deprecated, and are there.
	// refusals are the fields that are not known or can't be read, by object.
	refusals []Refusal
	// unreadable names the last object that can't be read; "" if there is none.
	unreadable string
}

// groupByService collects Endpoints and EndpointSlices by their Service. alone are those whose
// Service is missing.
func groupByService(objects []*unstructured.Unstructured, o Options) (behind map[string]*published, alone []Result) {
	behind = map[string]*published{}
	for _, u := range objects {
		if isService(u) {
			behind[keyOf(u, o.Namespace)] = &published{}
		}
	}
	for _, u := range objects {
		var key, field string
		switch u.GetKind() + "." + u.GroupVersionKind().Group {
		case "Endpoints.":
			key, field = keyOf(u, o.Namespace), "metadata.name"
		case "EndpointSlice.discovery.k8s.io":
			key = cmp.Or(u.GetNamespace(), o.Namespace) + "/" + u.GetLabels()[discoveryv1.LabelServiceName]
			field = "metadata.labels." + discoveryv1.LabelServiceName
		default:
			continue
		}
		if p := behind[key]; p != nil {
			p.add(u)
			continue
		}
		d := newDraft(u, o)
		d.fail(field, "Service %s is missing; import both together", clip(key))
		alone = append(alone, d.Result)
	}
	return behind, alone
}

// add decodes Endpoints or an EndpointSlice.
func (p *published) add(u *unstructured.Unstructured) {
	object := u.GetKind() + " " + clip(u.GetName())
	var into any
	if u.GetKind() == "Endpoints" {
		p.endpoints = new(corev1.Endpoints) //nolint:staticcheck // Endpoints are deprecated, and are there.
		into = p.endpoints
	} else {
		s := &discoveryv1.EndpointSlice{}
		p.slices = append(p.slices, s)
		into = s
	}
	unknown, err := decode(u, into)
	p.refusals = append(p.refusals, refuseUnknown(object, unknown)...)
	if err != nil {
		field, why := wrongField(err)
		p.refusals = append(p.refusals, Refusal{object, field, why})
		p.unreadable = object
	}
	slices.SortStableFunc(p.slices, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
}
