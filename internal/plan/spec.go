package plan

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// ServiceType returns the type of the Service in the spec; "" if somebody else owns it.
func ServiceType(b *v1alpha1.ExternalBackend) v1alpha1.ServiceType {
	if b.Spec.ServiceRef != nil {
		return ""
	}
	return b.Spec.Service.EffectiveType()
}

// service returns spec.service, or an empty one.
func service(b *v1alpha1.ExternalBackend) *v1alpha1.Service {
	if b.Spec.Service != nil {
		return b.Spec.Service
	}
	return &v1alpha1.Service{}
}

// Passthrough reports whether the name of the target itself is published, unresolved.
func Passthrough(b *v1alpha1.ExternalBackend) bool {
	return b.Spec.DNS.EffectiveResolution() == v1alpha1.DNSResolutionPassthrough
}

// Resolves reports whether targets are published by address, so that names are resolved and
// endpoints are probed.
func Resolves(b *v1alpha1.ExternalBackend) bool {
	return ServiceType(b) != v1alpha1.ServiceTypeExternalName && !Passthrough(b)
}

// observes reports whether b's probes report health, but change no endpoint.
func observes(b *v1alpha1.ExternalBackend) bool {
	return b.Spec.HealthCheck != nil && b.Spec.HealthCheck.EffectiveMode() == v1alpha1.HealthCheckModeObserve
}

// failover returns b's spec.failover with its defaults.
func failover(b *v1alpha1.ExternalBackend) Failover {
	s := b.Spec.Failover
	f := Failover{
		MinHealthyPercent: s.EffectiveMinHealthyPercent(),
		FailbackDelay:     s.EffectiveFailbackDelay(),
		Manual:            s.EffectiveFailback() == v1alpha1.FailbackManual,
	}
	if s != nil {
		f.Pinned = s.PinnedTier
	}
	return f
}

// targetName returns the DNS name of t; "" for a literal address.
func targetName(t *v1alpha1.Target) string { return cmp.Or(t.Hostname, t.SRVName) }

// tierOf returns the tier of an endpoint of t whose SRV record has that rank.
func tierOf(t *v1alpha1.Target, rank uint8) int32 { return min(127, t.EffectiveTier()+int32(rank)) }

// TargetPort returns the port number that traffic for p goes to at t. srvPort is the port of the
// SRV record, 0 without one; it replaces that of the first of spec.ports.
func TargetPort(t *v1alpha1.Target, p *v1alpha1.Port, first bool, srvPort uint16) int32 {
	if first && srvPort != 0 {
		return int32(srvPort)
	}
	for i := range t.Ports {
		if t.Ports[i].Name == p.Name {
			return t.Ports[i].TargetPort
		}
	}
	return p.EffectiveTargetPort()
}

// checkPort returns the port of spec.healthCheck: a number, a name, or nil for the first TCP port.
func checkPort(h *v1alpha1.HealthCheck) *intstr.IntOrString {
	switch {
	case h.HTTPGet != nil:
		return h.HTTPGet.Port
	case h.TCPSocket != nil:
		return h.TCPSocket.Port
	case h.GRPC != nil:
		return h.GRPC.Port
	}
	return nil
}

// probePort returns the port that probes of t go to. ok is false if there is none, which validation
// refuses.
func probePort(b *v1alpha1.ExternalBackend, t *v1alpha1.Target, srvPort uint16) (port uint16, ok bool) {
	want := checkPort(b.Spec.HealthCheck)
	if want != nil && want.Type == intstr.Int {
		return uint16(want.IntVal), want.IntVal > 0 && want.IntVal <= 65535
	}
	for i := range b.Spec.Ports {
		p := &b.Spec.Ports[i]
		if want == nil && isTCP(p.Protocol) || want != nil && want.StrVal == p.Name {
			return uint16(TargetPort(t, p, i == 0, srvPort)), true
		}
	}
	return 0, false
}

func isTCP(p corev1.Protocol) bool { return p == "" || p == corev1.ProtocolTCP }

// slicePorts returns the ports of an endpoint of t that the Service serves, sorted by name.
func slicePorts(
	b *v1alpha1.ExternalBackend, t *v1alpha1.Target, served func(*v1alpha1.Port) bool, srvPort uint16,
) []Port {
	ports := make([]Port, 0, len(b.Spec.Ports))
	for i := range b.Spec.Ports {
		p := &b.Spec.Ports[i]
		if !served(p) {
			continue
		}
		port := Port{Name: p.Name, Port: TargetPort(t, p, i == 0, srvPort), Protocol: p.EffectiveProtocol()}
		if p.AppProtocol != nil {
			port.AppProtocol = *p.AppProtocol
		}
		ports = append(ports, port)
	}
	slices.SortFunc(ports, endpointslice.ComparePorts)
	return ports
}

// ServiceLabels returns the labels of spec.service. The slices have them, too, because kube-proxy
// and others select slices by the labels of their Service.
func ServiceLabels(b *v1alpha1.ExternalBackend) map[string]string { return plain(service(b).Labels) }

// plain returns m with plain strings.
func plain[V ~string](m map[string]V) map[string]string {
	out := make(map[string]string, len(m)+1)
	for k, v := range m {
		out[k] = string(v)
	}
	return out
}
