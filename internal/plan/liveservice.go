package plan

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// Headless reports whether s has no virtual IP, so that its name resolves to its endpoints.
func Headless(s *corev1.Service) bool { return s.Spec.ClusterIP == corev1.ClusterIPNone }

// liveType returns the type of a live Service, in the words of the spec.
func liveType(s *corev1.Service) v1alpha1.ServiceType {
	if Headless(s) {
		return v1alpha1.ServiceTypeHeadless
	}
	return v1alpha1.ServiceType(cmp.Or(s.Spec.Type, corev1.ServiceTypeClusterIP))
}

// Families are the IP families that a Service serves.
type Families struct{ IPv4, IPv6 bool }

// FamiliesOf returns the families of a Service.
func FamiliesOf(s *corev1.Service) Families {
	return Families{
		IPv4: slices.Contains(s.Spec.IPFamilies, corev1.IPv4Protocol),
		IPv6: slices.Contains(s.Spec.IPFamilies, corev1.IPv6Protocol),
	}
}

func (f Families) serves(a netip.Addr) bool {
	if a.Is4() {
		return f.IPv4
	}
	return f.IPv6
}

// ServesPort reports whether s has a port with the name and protocol of p.
func ServesPort(s *corev1.Service, p *v1alpha1.Port) bool { return livePort(s, p) != nil }

// livePort returns the port of s with the name and protocol of p, or nil.
func livePort(s *corev1.Service, p *v1alpha1.Port) *corev1.ServicePort {
	for i := range s.Spec.Ports {
		l := &s.Spec.Ports[i]
		if l.Name == p.Name && cmp.Or(l.Protocol, corev1.ProtocolTCP) == p.EffectiveProtocol() {
			return l
		}
	}
	return nil
}

// GainsPorts reports whether next has ports, by name and protocol, that live lacks, and both have
// endpoints.
func GainsPorts(live, next *corev1.Service) bool {
	return live.Spec.Type != corev1.ServiceTypeExternalName && next.Spec.Type != corev1.ServiceTypeExternalName &&
		lacksPort(live, next)
}

// lacksPort reports whether other has a port that s lacks, by name and protocol.
func lacksPort(s, other *corev1.Service) bool {
	return slices.ContainsFunc(other.Spec.Ports, func(p corev1.ServicePort) bool {
		return !ServesPort(s, &v1alpha1.Port{Name: p.Name, Protocol: p.Protocol})
	})
}
