package controllers

import (
	"fmt"
	"net/netip"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/resolve"
	"github.com/external-backend/operator/internal/translate"
)

// filterPublished separates the endpoints that policy allows from those that it refuses.
func (r *reconciliation) filterPublished(
	published []*discoveryv1.EndpointSlice, refused []endpointslice.Endpoint,
) plan.Filtered {
	view := r.observed.view
	return plan.FilterPublished(plan.FilterInput{
		Backend: r.backend, Published: endpointslice.Published(published).Endpoints(), Withdrawn: refused,
		NamedAddrs: r.state.planning.named, Permit: translate.Permit(view), PermitUnnamed: translate.PermitUnnamed(view),
	})
}

// nameNotes is what policy says about a name that is published itself, whose addresses nobody
// checks. It is empty for all other ExternalBackends.
func (o *observation) nameNotes(b *v1alpha1.ExternalBackend) plan.TargetNotes {
	notes := plan.TargetNotes{Answer: plan.Answer{Status: plan.AnswerCurrent}}
	if plan.Resolves(b) {
		return notes
	}
	d := o.view.Name(b.Spec.Targets[0].Hostname, translate.TargetPorts(b, &b.Spec.Targets[0])...)
	if !d.Allowed {
		notes.Denied = d.Kind.String()
	}
	if d.WouldDeny {
		notes.Audited = d.Kind.String()
	}
	return notes
}

// withPublishableName returns b. If policy refuses the alias or its target is Disabled, the name is
// UnresolvableName, because an alias must have one.
func (o *observation) withPublishableName(b *v1alpha1.ExternalBackend) *v1alpha1.ExternalBackend {
	if plan.ServiceType(b) != v1alpha1.ServiceTypeExternalName {
		return b
	}
	if o.nameNotes(b).Denied == "" && b.Spec.Targets[0].AdminState != v1alpha1.AdminStateDisabled {
		return b
	}
	return plan.WithoutName(b)
}

// permittedDNS says how to look names up. It leaves out the nameservers that policy refuses.
func (r *reconciliation) permittedDNS() resolve.Config {
	spec, refs := r.backend.Spec.DNS, r.state.planning.refs
	if spec == nil || len(spec.Nameservers) == 0 {
		return translate.DNSConfig(spec, nil, refs.dnsMissing, refs.dnsRoots, refs.dnsIdentity)
	}

	status := &r.result.statusInput
	var allowed []netip.AddrPort
	for i, text := range spec.Nameservers {
		ns, err := translate.ParseNameserver(text, spec.Transport)
		d := r.observed.view.Nameserver(ns)
		d.Allowed = d.Allowed && err == nil
		if d.Allowed {
			allowed = append(allowed, ns)
		}
		field := fmt.Sprintf("spec.dns.nameservers[%d] (%s)", i, d.Kind)
		if !d.Allowed && status.Nameserver == "" {
			status.Nameserver = field
		}
		if d.WouldDeny && status.NameserverAudited == "" {
			status.NameserverAudited = field
		}
	}
	return translate.DNSConfig(
		spec, allowed, refs.dnsMissing || len(allowed) == 0, refs.dnsRoots, refs.dnsIdentity)
}
