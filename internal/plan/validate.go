package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metadata "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/external-backend/operator/api/v1alpha1"
)

// maxErrors is how many errors one message tells.
const maxErrors = 3

// hopByHop are the headers that concern one connection (RFC 9110, 7.6.1), or that the probe itself has to set.
var hopByHop = []string{
	"connection", "content-length", "host", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade",
}

// Validate checks what the schema can't say within its budget. live is the Service that spec.serviceRef names, or nil. The message names each field and what would
// be right; "" where all is well.
func Validate(b *v1alpha1.ExternalBackend, live *corev1.Service) string {
	spec := field.NewPath("spec")
	var errs field.ErrorList
	errs = append(errs, validateMetadata(b.Spec.Service, spec.Child("service"))...)
	if !knownPolicy(b) {
		errs = append(errs, field.NotSupported(spec.Child("deletionPolicy"), b.Spec.DeletionPolicy,
			[]v1alpha1.DeletionPolicy{v1alpha1.DeletionPolicyDelete, v1alpha1.DeletionPolicyRetain}))
	}
	errs = append(errs, validateTargets(b, spec.Child("targets"))...)
	errs = append(errs, validateLocal(b, live, spec.Child("targets"))...)
	errs = append(errs, validateCheck(b, spec.Child("healthCheck"))...)
	if Passthrough(b) && b.Spec.ServiceRef != nil && live != nil && !Headless(live) {
		errs = append(errs, field.Invalid(spec.Child("dns", "resolution"), b.Spec.DNS.Resolution, "kube-proxy knows no names: the Service of serviceRef must be headless"))
	}
	var texts []string
	for _, e := range errs[:min(len(errs), maxErrors)] {
		texts = append(texts, e.Error())
	}
	if more := len(errs) - len(texts); more > 0 {
		texts = append(texts, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(texts, "; ")
}

// validateMetadata: the schema checks values and how many there are, but not the form of keys.
func validateMetadata(s *v1alpha1.Service, path *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	errs := validation.ValidateLabels(plain(s.Labels), path.Child("labels"))
	errs = append(errs, metadata.ValidateAnnotations(plain(s.Annotations), path.Child("annotations"))...)
	slices.SortFunc(errs, func(a, b *field.Error) int { return cmp.Compare(a.Error(), b.Error()) }) // they come in a map's order
	return errs
}

func validateTargets(b *v1alpha1.ExternalBackend, path *field.Path) field.ErrorList {
	known := make(map[string]bool, len(b.Spec.Ports))
	for i := range b.Spec.Ports {
		known[b.Spec.Ports[i].Name] = true
	}
	var errs field.ErrorList
	for i := range b.Spec.Targets {
		for j, p := range b.Spec.Targets[i].Ports {
			if !known[p.Name] {
				errs = append(errs, field.Invalid(path.Index(i).Child("ports").Index(j).Child("name"), p.Name, "must be the name of a port in spec.ports"))
			}
		}
	}
	return errs
}

// validateLocal: with a traffic policy Local kube-proxy drops the traffic of every node without an endpoint of its own.
func validateLocal(b *v1alpha1.ExternalBackend, live *corev1.Service, path *field.Path) field.ErrorList {
	if !localOnly(b, live) {
		return nil
	}
	var errs field.ErrorList
	for i := range b.Spec.Targets {
		if b.Spec.Targets[i].NodeName == "" {
			errs = append(errs, field.Required(path.Index(i).Child("nodeName"), "wanted on every target where the Service's internalTrafficPolicy or externalTrafficPolicy is Local"))
		}
	}
	return errs
}

func localOnly(b *v1alpha1.ExternalBackend, live *corev1.Service) bool {
	if b.Spec.ServiceRef != nil {
		return live != nil && (live.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal ||
			live.Spec.InternalTrafficPolicy != nil && *live.Spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal)
	}
	s := service(b)
	return s.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal ||
		s.InternalTrafficPolicy != nil && *s.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
}

func validateCheck(b *v1alpha1.ExternalBackend, path *field.Path) field.ErrorList {
	h := b.Spec.HealthCheck
	if h == nil {
		return nil
	}
	var errs field.ErrorList
	handler := path.Child("tcpSocket")
	if h.HTTPGet != nil {
		handler = path.Child("httpGet")
		for i, header := range h.HTTPGet.HTTPHeaders {
			if slices.Contains(hopByHop, strings.ToLower(header.Name)) {
				errs = append(errs, field.Invalid(handler.Child("httpHeaders").Index(i).Child("name"), header.Name, "is the connection's own; use httpGet.host for the Host header"))
			}
		}
	} else if h.GRPC != nil {
		handler = path.Child("grpc")
	}
	return append(errs, validatePort(b, checkPort(h), handler.Child("port"))...)
}

// validatePort: probes speak TCP, so that the port they go to must.
func validatePort(b *v1alpha1.ExternalBackend, want *intstr.IntOrString, path *field.Path) field.ErrorList {
	switch {
	case want == nil:
		if !slices.ContainsFunc(b.Spec.Ports, func(p v1alpha1.Port) bool { return isTCP(p.Protocol) }) {
			return field.ErrorList{field.Required(path, "spec.ports has no TCP port that could be probed by default")}
		}
	case want.Type == intstr.String:
		i := slices.IndexFunc(b.Spec.Ports, func(p v1alpha1.Port) bool { return p.Name == want.StrVal })
		if i < 0 {
			return field.ErrorList{field.Invalid(path, want.StrVal, "must be a number or the name of a port in spec.ports")}
		}
		if !isTCP(b.Spec.Ports[i].Protocol) {
			return field.ErrorList{field.Invalid(path, want.StrVal, "must be the name of a TCP port: probes speak TCP")}
		}
	}
	return nil
}
