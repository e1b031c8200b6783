package plan

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// ServiceTraits is all of a Service that its endpoints depend on.
type ServiceTraits struct {
	Families
	Headless, PublishNotReady, ZoneHints, NodeHints bool
	ServesPort                                      func(*v1alpha1.Port) bool
	// Ports are those of the Service, for people.
	Ports []string
	// Missing reports whether there is no Service.
	Missing bool
}

// TraitsOf returns the traits of a Service.
func TraitsOf(s *corev1.Service) ServiceTraits {
	t := ServiceTraits{
		Families: FamiliesOf(s), Headless: Headless(s), PublishNotReady: s.Spec.PublishNotReadyAddresses,
		ServesPort: func(p *v1alpha1.Port) bool { return ServesPort(s, p) },
	}
	t.ZoneHints, t.NodeHints = hints(s.Spec.TrafficDistribution)
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		t.Ports = append(t.Ports, fmt.Sprintf("%q (%s)", p.Name, cmp.Or(p.Protocol, corev1.ProtocolTCP)))
	}
	return t
}

// TraitsOfSlices returns the traits that keep slices as they are, if their Service is missing.
// publishNotReady is publishNotReadyAddresses of the Service when it was there last.
func TraitsOfSlices(published []*discoveryv1.EndpointSlice, publishNotReady bool) ServiceTraits {
	t := ServiceTraits{
		PublishNotReady: publishNotReady, ServesPort: func(*v1alpha1.Port) bool { return true }, Missing: true,
	}
	for _, s := range published {
		t.IPv4 = t.IPv4 || s.AddressType == discoveryv1.AddressTypeIPv4
		t.IPv6 = t.IPv6 || s.AddressType == discoveryv1.AddressTypeIPv6
		_, headless := s.Labels[corev1.IsHeadlessService]
		t.Headless = t.Headless || headless
		for i := range s.Endpoints {
			if h := s.Endpoints[i].Hints; h != nil {
				t.ZoneHints, t.NodeHints = t.ZoneHints || len(h.ForZones) > 0, t.NodeHints || len(h.ForNodes) > 0
			}
		}
	}
	return t
}

// hints returns which hints endpoints get for a trafficDistribution. An unknown one has none.
func hints(distribution *string) (zones, nodes bool) {
	if distribution == nil {
		return false, false
	}
	switch *distribution {
	case corev1.ServiceTrafficDistributionPreferSameNode:
		return true, true
	case corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferClose:
		return true, false
	}
	return false, false
}

// SliceTemplate returns what all slices of b have in common. service is the Service in front of
// them, or nil. No slice has a name of taken, or more than most endpoints.
func SliceTemplate(
	b *v1alpha1.ExternalBackend, service *corev1.Service, t *ServiceTraits, taken map[string]bool, most int,
) endpointslice.Template {
	return endpointslice.Template{
		Namespace: b.Namespace, Service: b.EffectiveServiceName(), Backend: b.Name,
		Labels: ServiceLabels(b), Owner: SliceOwner(b, service),
		Headless: t.Headless, ZoneHints: t.ZoneHints, NodeHints: t.NodeHints,
		Taken: taken, Max: most,
	}
}
