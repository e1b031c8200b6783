package plan

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metadata "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/external-backend/operator/api/v1alpha1"
)

// Validate checks the spec: what the schema can't check, and again what a newer schema may have let
// through. live is the Service that spec.serviceRef names, or nil. The message names each field and
// what would be right. It is "" for a valid spec.
func Validate(b *v1alpha1.ExternalBackend, live *corev1.Service) string {
	errs := slices.Concat(
		validateSchema(b), validateMetadata(b.Spec.Service), validateDeletionPolicy(b), validateTargetPorts(b),
		validateNodeNames(b, live), validatePublishedName(b), validateCheckPort(b), validatePinnedTier(b))
	if Passthrough(b) && b.Spec.ServiceRef != nil && live != nil && !Headless(live) {
		errs = append(errs, field.Invalid(specPath.Child("dns", "resolution"), b.Spec.DNS.Resolution,
			"kube-proxy knows no names: the Service of serviceRef must be headless"))
	}

	return describeProblems(errs)
}

// validateMetadata checks the form of keys. The schema checks the values, and how many there are.
func validateMetadata(s *v1alpha1.Service) field.ErrorList {
	if s == nil {
		return nil
	}
	path := specPath.Child("service")
	errs := validation.ValidateLabels(plain(s.Labels), path.Child("labels"))
	errs = append(errs, metadata.ValidateAnnotations(plain(s.Annotations), path.Child("annotations"))...)
	slices.SortFunc(errs, func(a, b *field.Error) int { return cmp.Compare(a.Error(), b.Error()) }) // maps have no order
	return errs
}

// validateDeletionPolicy refuses a policy that this version does not know.
func validateDeletionPolicy(b *v1alpha1.ExternalBackend) field.ErrorList {
	return oneOf(specPath, "deletionPolicy", b.Spec.EffectiveDeletionPolicy(),
		v1alpha1.DeletionPolicyDelete, v1alpha1.DeletionPolicyRetain)
}

// validateTargetPorts requires that each port of a target names another port of spec.ports.
func validateTargetPorts(b *v1alpha1.ExternalBackend) field.ErrorList {
	known := make(map[string]bool, len(b.Spec.Ports))
	for i := range b.Spec.Ports {
		known[b.Spec.Ports[i].Name] = true
	}

	var errs field.ErrorList
	for i := range b.Spec.Targets {
		seen := map[string]bool{}
		for j, p := range b.Spec.Targets[i].Ports {
			name := specPath.Child("targets").Index(i).Child("ports").Index(j).Child("name")
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

// validatePublishedName requires exactly one target, with a hostname, if the name itself is
// published.
func validatePublishedName(b *v1alpha1.ExternalBackend) field.ErrorList {
	if Resolves(b) || len(b.Spec.Targets) == 1 && b.Spec.Targets[0].Hostname != "" {
		return nil
	}
	return field.ErrorList{field.Invalid(specPath.Child("targets"), len(b.Spec.Targets),
		"exactly one target, a hostname, is wanted where its name itself is published")}
}

// validatePinnedTier refuses a tier that no target can be in, because pinning it would take every
// endpoint out. The records of an srvName may be in the tier of their target and in every higher
// one.
func validatePinnedTier(b *v1alpha1.ExternalBackend) field.ErrorList {
	pinned := failover(b).Pinned
	if pinned == nil || slices.ContainsFunc(b.Spec.Targets, func(t v1alpha1.Target) bool {
		return t.EffectiveTier() == *pinned || t.SRVName != "" && t.EffectiveTier() < *pinned
	}) {
		return nil
	}
	path := specPath.Child("failover", "pinnedTier")
	return field.ErrorList{field.Invalid(path, *pinned, "no target can be in that tier")}
}

// validateNodeNames requires the node of every target if a traffic policy is Local: kube-proxy then
// drops the traffic of every node without an endpoint of its own.
func validateNodeNames(b *v1alpha1.ExternalBackend, live *corev1.Service) field.ErrorList {
	if !hasLocalPolicy(b, live) {
		return nil
	}
	var errs field.ErrorList
	for i := range b.Spec.Targets {
		if b.Spec.Targets[i].NodeName == "" {
			errs = append(errs, field.Required(specPath.Child("targets").Index(i).Child("nodeName"),
				"wanted on every target where the Service's internalTrafficPolicy or externalTrafficPolicy is Local"))
		}
	}
	return errs
}

// hasLocalPolicy reports whether one of the traffic policies of the Service is Local.
func hasLocalPolicy(b *v1alpha1.ExternalBackend, live *corev1.Service) bool {
	const internalLocal = corev1.ServiceInternalTrafficPolicyLocal
	const externalLocal = corev1.ServiceExternalTrafficPolicyLocal
	if b.Spec.ServiceRef == nil {
		s := service(b)
		return s.EffectiveExternalTrafficPolicy() == externalLocal || s.EffectiveInternalTrafficPolicy() == internalLocal
	}
	return live != nil && (live.Spec.ExternalTrafficPolicy == externalLocal ||
		live.Spec.InternalTrafficPolicy != nil && *live.Spec.InternalTrafficPolicy == internalLocal)
}

// validateCheckPort requires that the port of the health check exists and is a TCP port, because
// probes use TCP.
func validateCheckPort(b *v1alpha1.ExternalBackend) field.ErrorList {
	h := b.Spec.HealthCheck
	if h == nil {
		return nil
	}
	handler := "tcpSocket"
	if h.HTTPGet != nil {
		handler = "httpGet"
	} else if h.GRPC != nil {
		handler = "grpc"
	}
	path := specPath.Child("healthCheck", handler, "port")

	switch port := checkPort(h); {
	case port == nil:
		if !slices.ContainsFunc(b.Spec.Ports, func(p v1alpha1.Port) bool { return isTCP(p.Protocol) }) {
			return field.ErrorList{field.Required(path, "spec.ports has no TCP port that could be probed by default")}
		}
	case port.Type == intstr.String:
		i := slices.IndexFunc(b.Spec.Ports, func(p v1alpha1.Port) bool { return p.Name == port.StrVal })
		if i < 0 {
			return field.ErrorList{field.Invalid(path, port.StrVal, "must be a number or the name of a port in spec.ports")}
		}
		if !isTCP(b.Spec.Ports[i].Protocol) {
			return field.ErrorList{field.Invalid(path, port.StrVal, "must be the name of a TCP port: probes speak TCP")}
		}
	}
	return nil
}
