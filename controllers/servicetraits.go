package controllers

import (
	"cmp"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
)

// serviceTraits is all of a Service that its endpoints depend on.
type serviceTraits struct {
	plan.Families
	Headless, PublishNotReady, ZoneHints, NodeHints bool
	ServesPort                                      func(*v1alpha1.Port) bool
	// ports are those of the Service, for people.
	ports   []string
	missing bool
}

// serviceTraits reads the traits from the Service. If that is missing, it reads them from the
// slices, so that these stay as they are.
func (r *reconciliation) serviceTraits() serviceTraits {
	if r.service == nil {
		return traitsOfSlices(r.slices, r.state.planning.publishNotReady)
	}
	s := r.service
	t := serviceTraits{
		Families: plan.FamiliesOf(s), Headless: plan.Headless(s), PublishNotReady: s.Spec.PublishNotReadyAddresses,
		ServesPort: func(p *v1alpha1.Port) bool { return plan.ServesPort(s, p) },
	}
	t.ZoneHints, t.NodeHints = hints(s.Spec.TrafficDistribution)
	for i := range s.Spec.Ports {
		p := &s.Spec.Ports[i]
		t.ports = append(t.ports, fmt.Sprintf("%q (%s)", p.Name, cmp.Or(p.Protocol, corev1.ProtocolTCP)))
	}
	return t
}

func traitsOfSlices(published []*discoveryv1.EndpointSlice, publishNotReady bool) serviceTraits {
	t := serviceTraits{
		PublishNotReady: publishNotReady, ServesPort: func(*v1alpha1.Port) bool { return true }, missing: true,
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

// reportMismatch reports why the slices may have no effect although they are as planned.
func (r *reconciliation) reportMismatch(t *serviceTraits, c *plan.Candidates) {
	b := r.backend
	var lacking []string
	for i := range b.Spec.Ports {
		if p := &b.Spec.Ports[i]; !t.ServesPort(p) {
			lacking = append(lacking, fmt.Sprintf("%q (%s)", p.Name, p.EffectiveProtocol()))
		}
	}

	switch {
	case t.missing:
		r.result.fail(v1alpha1.ReasonServiceNotFound, serviceNotFound(b), nil)
	case len(lacking) > 0:
		message := fmt.Sprintf("Service %q in namespace %q lacks ports of spec.ports, by name and protocol: %s. It has %s.",
			b.EffectiveServiceName(), b.Namespace, plan.FirstFew(lacking, 5), plan.FirstFew(t.ports, 5))
		r.result.fail(v1alpha1.ReasonPortMismatch, message, nil)
	case r.result.ok() && t.Headless && otherTargetPort(b) != "":
		r.result.statusInput.ProgrammedMessage = fmt.Sprintf("The Service is headless: its clients connect to the "+
			"targets' own ports, and learn that of port %q from DNS SRV records alone.", otherTargetPort(b))
	case r.result.ok() && t.ZoneHints:
		r.result.statusInput.ProgrammedMessage = plan.ExplainIgnoredHints(c, t.NodeHints)
	}
}

// serviceNotFound says where a Service was looked for.
func serviceNotFound(b *v1alpha1.ExternalBackend) string {
	return fmt.Sprintf("Service %q does not exist in namespace %q.", b.EffectiveServiceName(), b.Namespace)
}

// otherTargetPort names the first port with a different target port; "" where there is none.
func otherTargetPort(b *v1alpha1.ExternalBackend) string {
	for i := range b.Spec.Ports {
		if p := &b.Spec.Ports[i]; p.EffectiveTargetPort() != p.Port {
			return cmp.Or(p.Name, strconv.Itoa(int(p.Port)))
		}
	}
	return ""
}

// template is what all slices of the ExternalBackend share.
func (r *reconciliation) template(t serviceTraits) endpointslice.Template {
	b := r.backend
	return endpointslice.Template{
		Namespace: b.Namespace, Service: b.EffectiveServiceName(), Backend: b.Name,
		Labels: plan.ServiceLabels(b), Owner: plan.SliceOwner(b, r.service),
		Headless: t.Headless, ZoneHints: t.ZoneHints, NodeHints: t.NodeHints,
		Taken: r.state.planning.takenNames, Max: r.Options.MaxEndpointsPerSlice,
	}
}
