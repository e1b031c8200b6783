// Package translate says the same thing in the types of several packages: those of the API, of
// policy, of the planner, of the resolver and of the prober.
package translate

import (
	"crypto/tls"
	"crypto/x509"
	"net/netip"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

// DNSConfig returns spec.dns with its defaults, in the types of the resolver.
func DNSConfig(
	spec *v1alpha1.DNS, nameservers []netip.AddrPort, noQueries bool, roots *x509.CertPool, identity string,
) resolve.Config {
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
		c.TLS = &tls.Config{MinVersion: tls.VersionTLS12, ServerName: spec.TLS.ServerName, RootCAs: roots}
		c.TLSIdentity = spec.TLS.ServerName + "\x00" + identity
	}
	return c
}

// ParseNameserver reads "IP", "IPv4:port" or "[IPv6]:port". The default port is 53, or 853 over
// TLS. There is no error for what the schema accepts.
func ParseNameserver(text string, transport v1alpha1.DNSTransport) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a, transport.DefaultPort()), nil
	}
	return netip.ParseAddrPort(text)
}

// Families returns the families of a Service in the type of the resolver.
func Families(f plan.Families) resolve.Families {
	var out resolve.Families
	if f.IPv4 {
		out |= resolve.IPv4
	}
	if f.IPv6 {
		out |= resolve.IPv6
	}
	return out
}

// TargetPorts returns the ports to which t gets traffic.
func TargetPorts(b *v1alpha1.ExternalBackend, t *v1alpha1.Target) []policy.Port {
	ports := make([]policy.Port, len(b.Spec.Ports))
	for i := range b.Spec.Ports {
		p := &b.Spec.Ports[i]
		ports[i] = policy.Port{Protocol: p.EffectiveProtocol(), Port: uint16(plan.TargetPort(t, p, false, 0))}
	}
	return ports
}

// Answer converts an answer of the resolver to the type of the planner.
func Answer(a *resolve.Answer, r plan.Refusal) plan.Answer {
	addrs := make([]plan.Addr, len(a.Addrs))
	for i, addr := range a.Addrs {
		addrs[i] = plan.Addr(addr)
	}
	return plan.Answer{
		Status: plan.AnswerStatus(a.Status), Addrs: addrs, Reason: a.Reason, Cause: a.Cause, Omitted: a.Omitted, Refusal: r,
	}
}

// Credentials are what the Secrets and ConfigMaps of a health check contain.
type Credentials struct {
	Roots       *x509.CertPool   // nil: the system's roots
	Certificate *tls.Certificate // shown to a peer that asks for one; may be nil
	// Identity is a digest of both.
	Identity string
	// Missing reports whether something could not be read.
	Missing bool
}

// HealthCheck returns spec.healthCheck with its defaults, in the types of the prober; nil without
// one.
func HealthCheck(h *v1alpha1.HealthCheck, credentials Credentials) *probe.Check {
	if h == nil {
		return nil
	}
	c := &probe.Check{
		Period:           h.EffectivePeriod(),
		Timeout:          h.EffectiveTimeout(),
		Confirm:          h.EffectiveConfirmPeriod(),
		SuccessThreshold: int(h.EffectiveSuccessThreshold()),
		FailureThreshold: int(h.EffectiveFailureThreshold()),
		Suspended:        credentials.Missing,
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
		c.TLS = &probe.TLS{
			RootCAs: credentials.Roots, Certificate: credentials.Certificate, Identity: credentials.Identity,
		}
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

// ProbeEndpoints converts the planned probes to the type of the prober. It also returns their
// addresses, each with the name that led to it; "" for an address in spec.
func ProbeEndpoints(probes []plan.Probe) ([]probe.Endpoint, map[netip.AddrPort]string) {
	out, dial := make([]probe.Endpoint, len(probes)), make(map[netip.AddrPort]string, len(probes))
	for i, p := range probes {
		dial[p.Dial] = p.Name
		out[i] = probe.Endpoint{ID: probe.ID(p.ID), Dial: p.Dial, Host: p.Host, Seed: probe.Verdict(p.SeedVerdict)}
	}
	return out, dial
}

// Permit asks policy about an address that a name led to, in the types of the planner.
func Permit(view *policy.View) plan.Permit {
	return func(name string, addr netip.Addr, ports []endpointslice.Port) plan.Refusal {
		var buffer [8]policy.Port
		return RefusalOf(view.Target(name, addr, policyPorts(buffer[:0], ports)...))
	}
}

// PermitUnnamed asks policy about an address whose name is no longer known.
func PermitUnnamed(view *policy.View) func(netip.Addr, []endpointslice.Port) plan.Refusal {
	return func(addr netip.Addr, ports []endpointslice.Port) plan.Refusal {
		return RefusalOf(view.Unnamed(addr, policyPorts(nil, ports)...))
	}
}

// policyPorts appends ports to buffer in the type of policy.
func policyPorts(buffer []policy.Port, ports []endpointslice.Port) []policy.Port {
	for _, p := range ports {
		buffer = append(buffer, policy.Port{Protocol: p.Protocol, Port: uint16(p.Port)})
	}
	return buffer
}

// RefusalOf converts a decision of policy to the type of the planner.
func RefusalOf(d policy.Decision) plan.Refusal {
	r := plan.Refusal{Denied: !d.Allowed, WouldDeny: d.WouldDeny, KeepPublished: d.ByDiscoveryAlone}
	if r.Denied || r.WouldDeny {
		r.Kind = d.Kind.String()
		r.Port = endpointslice.Port{Port: int32(d.Port.Port), Protocol: d.Port.Protocol}
	}
	return r
}
