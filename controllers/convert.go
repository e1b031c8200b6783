package controllers

import (
	"crypto/tls"
	"net/netip"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

// dnsConfig returns spec.dns with its defaults, in the types of the resolver.
func dnsConfig(spec *v1alpha1.DNS, nameservers []netip.AddrPort, noQueries bool, secrets references) resolve.Config {
	c := resolve.Config{
		Nameservers:  nameservers,
		Transport:    resolve.Transport(spec.EffectiveTransport()),
		MinTTL:       spec.EffectiveMinTTL(),
		MaxTTL:       spec.EffectiveMaxTTL(),
		Stale:        spec.EffectiveStale(),
		RemovalDelay: spec.EffectiveRemovalDelay(),
		NoQueries:    noQueries,
	}
	if spec.EffectiveTransport() == v1alpha1.DNSTransportTLS && spec.TLS != nil {
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: spec.TLS.ServerName, RootCAs: secrets.dnsRoots}
		c.TLSIdentity = spec.TLS.ServerName + "\x00" + secrets.dnsIdentity
	}
	return c
}

// parseNameserver reads "IP", "IPv4:port" or "[IPv6]:port". The default port is 53, or 853 over
// TLS. There is no error for what the schema accepts.
func parseNameserver(text string, transport v1alpha1.DNSTransport) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a, transport.DefaultPort()), nil
	}
	return netip.ParseAddrPort(text)
}

// families returns the families of a Service in the type of the resolver.
func families(f plan.Families) resolve.Families {
	var out resolve.Families
	if f.IPv4 {
		out |= resolve.IPv4
	}
	if f.IPv6 {
		out |= resolve.IPv6
	}
	return out
}

// targetPorts returns the ports to which t gets traffic.
func targetPorts(b *v1alpha1.ExternalBackend, t *v1alpha1.Target) []policy.Port {
	ports := make([]policy.Port, len(b.Spec.Ports))
	for i := range b.Spec.Ports {
		p := &b.Spec.Ports[i]
		ports[i] = policy.Port{Protocol: p.EffectiveProtocol(), Port: uint16(plan.TargetPort(t, p, false, 0))}
	}
	return ports
}

// answer converts an answer of the resolver to the type of the planner.
func answer(a *resolve.Answer, r plan.Refusal) plan.Answer {
	addrs := make([]plan.Addr, len(a.Addrs))
	for i, addr := range a.Addrs {
		addrs[i] = plan.Addr(addr)
	}
	return plan.Answer{
		Status: plan.AnswerStatus(a.Status), Addrs: addrs, Reason: a.Reason, Cause: a.Cause, Omitted: a.Omitted, Refusal: r,
	}
}

// healthCheck returns spec.healthCheck with its defaults, in the types of the prober; nil without
// one.
func healthCheck(h *v1alpha1.HealthCheck, secrets references) *probe.Check {
	if h == nil {
		return nil
	}
	c := &probe.Check{
		Period:           h.EffectivePeriod(),
		Timeout:          h.EffectiveTimeout(),
		Confirm:          h.EffectiveConfirmPeriod(),
		SuccessThreshold: int(h.EffectiveSuccessThreshold()),
		FailureThreshold: int(h.EffectiveFailureThreshold()),
		Suspended:        secrets.checkMissing,
	}
	switch {
	case h.HTTPGet != nil:
		c.HTTP = httpGet(h.HTTPGet)
	case h.TCPSocket != nil:
		c.TCP = &probe.TCPSocket{Send: h.TCPSocket.Send, Expect: h.TCPSocket.Expect}
	case h.GRPC != nil:
		c.GRPC = &probe.GRPC{Service: h.GRPC.Service}
	}
	if h.SpeaksTLS() {
		c.TLS = &probe.TLS{RootCAs: secrets.checkRoots, Certificate: secrets.certificate, Identity: secrets.checkIdentity}
		if h.TLS != nil {
			c.TLS.ServerName = h.TLS.ServerName
			c.TLS.InsecureSkipVerify = h.TLS.EffectiveVerification() == v1alpha1.TLSVerificationNone
		}
	}
	return c
}

func httpGet(h *v1alpha1.HTTPGet) *probe.HTTPGet {
	out := &probe.HTTPGet{Path: h.EffectivePath()}
	for _, header := range h.HTTPHeaders {
		out.Headers = append(out.Headers, probe.Header{Name: header.Name, Value: header.Value})
	}
	for _, text := range h.EffectiveExpectedStatuses() {
		if from, to, ok := plan.ParseStatusRange(text); ok { // a valid spec has no other
			out.Expected = append(out.Expected, probe.StatusRange{From: from, To: to})
		}
	}
	return out
}

// probeEndpoints converts the planned probes to the type of the prober. It also returns their
// addresses, each with the name that led to it; "" for an address in spec.
func probeEndpoints(probes []plan.Probe) ([]probe.Endpoint, map[netip.AddrPort]string) {
	out, dial := make([]probe.Endpoint, len(probes)), make(map[netip.AddrPort]string, len(probes))
	for i, p := range probes {
		dial[p.Dial] = p.Name
		out[i] = probe.Endpoint{ID: probe.ID(p.ID), Dial: p.Dial, Host: p.Host, Seed: probe.Verdict(p.SeedVerdict)}
	}
	return out, dial
}

// permit asks policy about an address that a name led to, in the types of the planner.
func permit(view *policy.View) plan.Permit {
	return func(name string, addr netip.Addr, ports []endpointslice.Port) plan.Refusal {
		var buffer [8]policy.Port
		return refusalOf(view.Target(name, addr, policyPorts(buffer[:0], ports)...))
	}
}

// permitUnnamed asks policy about an address whose name is no longer known.
func permitUnnamed(view *policy.View) func(netip.Addr, []endpointslice.Port) plan.Refusal {
	return func(addr netip.Addr, ports []endpointslice.Port) plan.Refusal {
		return refusalOf(view.Unnamed(addr, policyPorts(nil, ports)...))
	}
}

// policyPorts appends ports to buffer in the type of policy.
func policyPorts(buffer []policy.Port, ports []endpointslice.Port) []policy.Port {
	for _, p := range ports {
		buffer = append(buffer, policy.Port{Protocol: p.Protocol, Port: uint16(p.Port)})
	}
	return buffer
}

// refusalOf converts a decision of policy to the type of the planner.
func refusalOf(d policy.Decision) plan.Refusal {
	r := plan.Refusal{Denied: !d.Allowed, WouldDeny: d.WouldDeny, KeepPublished: d.ByDiscoveryAlone}
	if r.Denied || r.WouldDeny {
		r.Kind = d.Kind.String()
		r.Port = endpointslice.Port{Port: int32(d.Port.Port), Protocol: d.Port.Protocol}
	}
	return r
}
