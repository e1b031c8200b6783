package controllers

import (
	"cmp"
	"fmt"
	"strconv"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
)

// serviceTraits reads the traits from the Service. If that is missing, it reads them from the
// slices, so that these stay as they are.
func (r *reconciliation) serviceTraits() plan.ServiceTraits {
	if r.service == nil {
		return plan.TraitsOfSlices(r.slices, r.state.planning.publishNotReady)
	}
	return plan.TraitsOf(r.service)
}

// reportMismatch reports why the slices may have no effect although they are as planned.
func (r *reconciliation) reportMismatch(t *plan.ServiceTraits, c *plan.Candidates) {
	b := r.backend
	var lacking []string
	for i := range b.Spec.Ports {
		if p := &b.Spec.Ports[i]; !t.ServesPort(p) {
			lacking = append(lacking, fmt.Sprintf("%q (%s)", p.Name, p.EffectiveProtocol()))
		}
	}

	switch {
	case t.Missing:
		r.result.fail(v1alpha1.ReasonServiceNotFound, serviceNotFound(b), nil)
	case len(lacking) > 0:
		message := fmt.Sprintf("Service %q in namespace %q lacks ports of spec.ports, by name and protocol: %s. It has %s.",
			b.EffectiveServiceName(), b.Namespace, plan.FirstFew(lacking, 5), plan.FirstFew(t.Ports, 5))
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
func (r *reconciliation) template(t plan.ServiceTraits) endpointslice.Template {
	return plan.SliceTemplate(r.backend, r.service, &t, r.state.planning.takenNames, r.Options.MaxEndpointsPerSlice)
}
