package controllers

import (
	"cmp"
	"crypto/tls"
	"net"
	"net/netip"
	"strconv"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
)

// dnsConfig is spec.dns with its defaults, as the resolver wants it.
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

// parseNameserver reads "IP", "IPv4:port" or "[IPv6]:port"; without a port it is 53, or 853 over
// TLS. What the schema lets in always parses.
func parseNameserver(text string, transport v1alpha1.DNSTransport) (netip.AddrPort, error) {
	if a, err := netip.ParseAddr(text); err == nil {
		return netip.AddrPortFrom(a, transport.DefaultPort()), nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return netip.AddrPort{}, err
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	return netip.AddrPortFrom(a, uint16(n)), nil
}

// families are those that a Service serves, as the resolver wants them.
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

// names are those that targets are given by.
type names struct {
	// questions are to be looked up, by target; refusals are what policy says of the names as such.
	// A name that it denies is not even asked for: a query, too, reaches someone.
	questions map[string]resolve.Question
	refusals  map[string]plan.Refusal
}

func wanted(b *v1alpha1.ExternalBackend, f plan.Families, view *policy.View) names {
	out := names{questions: map[string]resolve.Question{}, refusals: map[string]plan.Refusal{}}
	for i := range b.Spec.Targets {
		t := &b.Spec.Targets[i]
		name := cmp.Or(t.Hostname, t.SRVName)
		if name == "" || t.AdminState == v1alpha1.AdminStateDisabled {
			continue
		}
		var ports []policy.Port
		if t.SRVName == "" { // else the records say
			ports = targetPorts(b, t)
		}
		r := refusalOf(view.Lookup(name, ports...))
		out.refusals[t.Name] = r
		if !r.Denied {
			out.questions[t.Name] = resolve.Question{Name: name, SRV: t.SRVName != "", Families: families(f)}
		}
	}
	return out
}

// targetPorts are those that traffic of t goes to.
func targetPorts(b *v1alpha1.ExternalBackend, t *v1alpha1.Target) []policy.Port {
	ports := make([]policy.Port, len(b.Spec.Ports))
	for i := range b.Spec.Ports {
		p := &b.Spec.Ports[i]
		ports[i] = policy.Port{Protocol: p.EffectiveProtocol(), Port: uint16(plan.TargetPort(t, p))}
	}
	return ports
}

// seeds are what is published for each of the targets that choose approves.
func (n names) seeds(b *v1alpha1.ExternalBackend, published *endpointslice.PublishedEndpoints, choose func(target string) bool) map[string][]resolve.Addr {
	out := map[string][]resolve.Addr{}
	for _, e := range published.Endpoints() {
		question, ok := n.questions[e.Target]
		if !ok || !e.DrainUntil.IsZero() || !choose(e.Target) {
			continue
		}
		seed := resolve.Addr{IP: e.Addr, Rank: e.Rank}
		if question.SRV { // the record's port stands in the first of spec.ports
			for _, p := range e.Ports {
				if p.Name == b.Spec.Ports[0].Name {
					seed.Port = uint16(p.Port)
				}
			}
		}
		out[e.Target] = append(out[e.Target], seed)
	}
	return out
}

// wanted are what the resolver is to keep true. Only at the start is what stands in the slices the
// last good answer of a name: later on the engine knows better, and a target whose name was changed
// must not go on with the old one's addresses.
func (n names) wanted(b *v1alpha1.ExternalBackend, published *endpointslice.PublishedEndpoints, start bool) []resolve.Wanted {
	var seeds map[string][]resolve.Addr
	if start {
		seeds = n.seeds(b, published, func(string) bool { return true })
	}
	out := make([]resolve.Wanted, 0, len(n.questions))
	for target, question := range n.questions {
		out = append(out, resolve.Wanted{Question: question, Seed: seeds[target]})
	}
	return out
}

// answers turns the resolver's snapshot into one answer a target. Until a changed name has its
// first answer its target keeps what is published for it.
func (n names) answers(b *v1alpha1.ExternalBackend, published *endpointslice.PublishedEndpoints, snapshot map[resolve.Question]resolve.Answer) map[string]plan.Answer {
	out := make(map[string]plan.Answer, len(n.refusals))
	for target, r := range n.refusals {
		if r.Denied {
			out[target] = plan.Answer{Status: plan.AnswerCurrent, Refusal: r}
		}
	}
	waiting := map[string]bool{}
	for target, question := range n.questions {
		a, ok := snapshot[question]
		if !ok || a.Status == resolve.Pending && len(a.Addrs) == 0 {
			waiting[target] = true
			a = resolve.Answer{Status: resolve.Pending}
		}
		out[target] = answer(&a, n.refusals[target])
	}
	if len(waiting) == 0 {
		return out
	}
	for target, seed := range n.seeds(b, published, func(target string) bool { return waiting[target] }) {
		out[target] = answer(&resolve.Answer{Status: resolve.Pending, Addrs: seed}, n.refusals[target])
	}
	return out
}

// answer is one of the resolver's in the planner's words.
func answer(a *resolve.Answer, r plan.Refusal) plan.Answer {
	addrs := make([]plan.Addr, len(a.Addrs))
	for i, addr := range a.Addrs {
		addrs[i] = plan.Addr(addr)
	}
	return plan.Answer{Status: plan.AnswerStatus(a.Status), Addrs: addrs, Reason: a.Reason, Cause: a.Cause, Omitted: a.Omitted, Refusal: r}
}

// healthCheck is spec.healthCheck with its defaults, as the prober wants it; nil without one.
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

// probeEndpoints are the planned probes in the prober's words.
func probeEndpoints(probes []plan.Probe) []probe.Endpoint {
	out := make([]probe.Endpoint, len(probes))
	for i, p := range probes {
		out[i] = probe.Endpoint{ID: probe.ID(p.ID), Dial: p.Dial, Host: p.Host, Seed: probe.Verdict(p.InitialVerdict)}
	}
	return out
}

// dialled are the addresses of probes, each with the name that led to it, "" for a literal one.
func dialled(probes []plan.Probe) map[netip.AddrPort]string {
	out := make(map[netip.AddrPort]string, len(probes))
	for i := range probes {
		out[probes[i].Dial] = probes[i].Name
	}
	return out
}

// permit asks policy in the planner's words.
func permit(view *policy.View) plan.Permit {
	return func(name string, addr netip.Addr, ports []endpointslice.Port) plan.Refusal {
		var few [8]policy.Port
		return refusalOf(view.Target(name, addr, askedPorts(few[:0], ports)...))
	}
}

// permitUnnamed does so of an address of which nobody remembers the name.
func permitUnnamed(view *policy.View) func(netip.Addr, []endpointslice.Port) plan.Refusal {
	return func(addr netip.Addr, ports []endpointslice.Port) plan.Refusal {
		return refusalOf(view.Unnamed(addr, askedPorts(nil, ports)...))
	}
}

func askedPorts(room []policy.Port, ports []endpointslice.Port) []policy.Port {
	for _, p := range ports {
		room = append(room, policy.Port{Protocol: p.Protocol, Port: uint16(p.Port)})
	}
	return room
}

// refusalOf is a decision in the planner's words.
func refusalOf(d policy.Decision) plan.Refusal {
	r := plan.Refusal{Denied: !d.Allowed, WouldDeny: d.WouldDeny, KeepPublished: d.ByDiscoveryAlone}
	if r.Denied || r.WouldDeny {
		r.Kind = d.Kind.String()
		r.Port = endpointslice.Port{Port: int32(d.Port.Port), Protocol: d.Port.Protocol}
	}
	return r
}
