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

// Validate checks what the schema can't say within its budget. live is the Service that
// spec.serviceRef names, or nil. The message names each field and what would be right; "" where all
// is well.
func Validate(b *v1alpha1.ExternalBackend, live *corev1.Service) string {
	spec := field.NewPath("spec")
	var errs field.ErrorList
	errs = append(errs, validateKnown(b, spec)...)
	errs = append(errs, validateMetadata(b.Spec.Service, spec.Child("service"))...)
	if !knownPolicy(b) {
		errs = append(errs, field.NotSupported(spec.Child("deletionPolicy"), b.Spec.DeletionPolicy,
			[]v1alpha1.DeletionPolicy{v1alpha1.DeletionPolicyDelete, v1alpha1.DeletionPolicyRetain}))
	}
	errs = append(errs, validateTargets(b, spec.Child("targets"))...)
	errs = append(errs, validateLocal(b, live, spec.Child("targets"))...)
	errs = append(errs, validateName(b, spec.Child("targets"))...)
	errs = append(errs, validateCheck(b, spec.Child("healthCheck"))...)
	errs = append(errs, validatePin(b, spec.Child("failover", "pinnedTier"))...)
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
	// they come in a map's order
	slices.SortFunc(errs, func(a, b *field.Error) int { return cmp.Compare(a.Error(), b.Error()) })
	return errs
}

func validateTargets(b *v1alpha1.ExternalBackend, path *field.Path) field.ErrorList {
	known := make(map[string]bool, len(b.Spec.Ports))
	for i := range b.Spec.Ports {
		known[b.Spec.Ports[i].Name] = true
	}
	var errs field.ErrorList
	for i := range b.Spec.Targets {
		seen := map[string]bool{}
		for j, p := range b.Spec.Targets[i].Ports {
			name := path.Index(i).Child("ports").Index(j).Child("name")
			switch {
			case !known[p.Name]:
				errs = append(errs, field.Invalid(name, p.Name, "must be the name of a port in spec.ports"))
			case seen[p.Name]:
				errs = append(errs, field.Duplicate(name, p.Name))
			}
			seen[p.Name] = true
		}
	}
	return errs
}

// validateName: what is published as a name is one target, a hostname.
func validateName(b *v1alpha1.ExternalBackend, path *field.Path) field.ErrorList {
	if Resolves(b) || len(b.Spec.Targets) == 1 && b.Spec.Targets[0].Hostname != "" {
		return nil
	}
	return field.ErrorList{field.Invalid(path, len(b.Spec.Targets), "exactly one target, a hostname, is wanted where its name itself is published")}
}

// validatePin: a pin of a tier in which no target can be would take every endpoint out. The records
// of an srvName may be in its target's tier and in every higher one.
func validatePin(b *v1alpha1.ExternalBackend, path *field.Path) field.ErrorList {
	if b.Spec.Failover == nil || b.Spec.Failover.PinnedTier == nil {
		return nil
	}
	pin := *b.Spec.Failover.PinnedTier
	if slices.ContainsFunc(b.Spec.Targets, func(t v1alpha1.Target) bool {
		return t.EffectiveTier() == pin || t.SRVName != "" && t.EffectiveTier() < pin
	}) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, pin, "no target can be in that tier")}
}

// validateLocal: with a traffic policy Local kube-proxy drops the traffic of every node without an
// endpoint of its own.
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
	return s.EffectiveExternalTrafficPolicy() == corev1.ServiceExternalTrafficPolicyLocal ||
		s.EffectiveInternalTrafficPolicy() == corev1.ServiceInternalTrafficPolicyLocal
}

func validateCheck(b *v1alpha1.ExternalBackend, path *field.Path) field.ErrorList {
	h := b.Spec.HealthCheck
	if h == nil {
		return nil
	}
	handler := path.Child("tcpSocket")
	if h.HTTPGet != nil {
		handler = path.Child("httpGet")
	} else if h.GRPC != nil {
		handler = path.Child("grpc")
	}
	return validatePort(b, checkPort(h), handler.Child("port"))
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
