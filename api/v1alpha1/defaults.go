package v1alpha1

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The spec is stored as it was written: the schema adds no default to it. The methods of this file
// alone return the values that apply, and a nil receiver stands for an object that is absent.

// EffectiveServiceName returns the name of the Service that b publishes endpoints for.
func (b *ExternalBackend) EffectiveServiceName() string {
	switch {
	case b.Spec.ServiceRef != nil:
		return b.Spec.ServiceRef.Name
	case b.Spec.Service != nil:
		return cmp.Or(b.Spec.Service.Name, b.Name)
	}
	return b.Name
}

// EffectiveDrain returns drainSeconds or its default.
func (s *ExternalBackendSpec) EffectiveDrain() time.Duration { return seconds(s.DrainSeconds, 0) }

// EffectiveDeletionPolicy returns deletionPolicy or its default.
func (s *ExternalBackendSpec) EffectiveDeletionPolicy() DeletionPolicy {
	return cmp.Or(s.DeletionPolicy, DeletionPolicyDelete)
}

// EffectiveType returns type or its default.
func (s *Service) EffectiveType() ServiceType {
	if s == nil {
		return ServiceTypeClusterIP
	}
	return cmp.Or(s.Type, ServiceTypeClusterIP)
}

// EffectiveAdoptionPolicy returns adoptionPolicy or its default.
func (s *Service) EffectiveAdoptionPolicy() AdoptionPolicy {
	if s == nil {
		return AdoptionPolicyNever
	}
	return cmp.Or(s.AdoptionPolicy, AdoptionPolicyNever)
}

// EffectiveSessionAffinity returns sessionAffinity or its default.
func (s *Service) EffectiveSessionAffinity() corev1.ServiceAffinity {
	if s == nil {
		return corev1.ServiceAffinityNone
	}
	return cmp.Or(s.SessionAffinity, corev1.ServiceAffinityNone)
}

// EffectiveSessionAffinityTimeoutSeconds returns sessionAffinityTimeoutSeconds or its default. It
// applies where sessionAffinity is ClientIP.
func (s *Service) EffectiveSessionAffinityTimeoutSeconds() int32 {
	if s == nil {
		return corev1.DefaultClientIPServiceAffinitySeconds
	}
	return valueOr(s.SessionAffinityTimeoutSeconds, corev1.DefaultClientIPServiceAffinitySeconds)
}

// EffectiveInternalTrafficPolicy returns internalTrafficPolicy or its default.
func (s *Service) EffectiveInternalTrafficPolicy() corev1.ServiceInternalTrafficPolicy {
	if s == nil {
		return corev1.ServiceInternalTrafficPolicyCluster
	}
	return valueOr(s.InternalTrafficPolicy, corev1.ServiceInternalTrafficPolicyCluster)
}

// EffectiveExternalTrafficPolicy returns externalTrafficPolicy or its default. It applies to types
// that have one.
func (s *Service) EffectiveExternalTrafficPolicy() corev1.ServiceExternalTrafficPolicy {
	if s == nil {
		return corev1.ServiceExternalTrafficPolicyCluster
	}
	return cmp.Or(s.ExternalTrafficPolicy, corev1.ServiceExternalTrafficPolicyCluster)
}

// EffectiveTargetPort returns targetPort or its default.
func (p *Port) EffectiveTargetPort() int32 { return cmp.Or(p.TargetPort, p.Port) }

// EffectiveProtocol returns protocol or its default.
func (p *Port) EffectiveProtocol() corev1.Protocol { return cmp.Or(p.Protocol, corev1.ProtocolTCP) }

// EffectiveTier returns tier or its default.
func (t *Target) EffectiveTier() int32 { return valueOr(t.Tier, 0) }

// EffectiveAdminState returns adminState or its default.
func (t *Target) EffectiveAdminState() AdminState { return cmp.Or(t.AdminState, AdminStateActive) }

// EffectiveResolution returns resolution or its default.
func (d *DNS) EffectiveResolution() DNSResolution {
	if d == nil {
		return DNSResolutionResolve
	}
	return cmp.Or(d.Resolution, DNSResolutionResolve)
}

// EffectiveTransport returns transport or its default.
func (d *DNS) EffectiveTransport() DNSTransport {
	if d == nil {
		return DNSTransportUDP
	}
	return cmp.Or(d.Transport, DNSTransportUDP)
}

// DefaultPort returns the port of a nameserver that is written without one.
func (t DNSTransport) DefaultPort() uint16 {
	if t == DNSTransportTLS {
		return 853
	}
	return 53
}

// EffectiveMaxTTL returns maxTTLSeconds or its default.
func (d *DNS) EffectiveMaxTTL() time.Duration {
	if d == nil {
		d = &DNS{}
	}
	return time.Duration(cmp.Or(d.MaxTTLSeconds, 3600)) * time.Second
}

// EffectiveMinTTL returns minTTLSeconds or its default, or maxTTLSeconds where that is less.
func (d *DNS) EffectiveMinTTL() time.Duration {
	if d == nil {
		d = &DNS{}
	}
	return min(time.Duration(cmp.Or(d.MinTTLSeconds, 5))*time.Second, d.EffectiveMaxTTL())
}

// EffectiveStale returns staleSeconds or its default.
func (d *DNS) EffectiveStale() time.Duration {
	if d == nil {
		d = &DNS{}
	}
	return seconds(d.StaleSeconds, 86400)
}

// EffectiveRemovalDelay returns removalDelaySeconds or its default.
func (d *DNS) EffectiveRemovalDelay() time.Duration {
	if d == nil {
		d = &DNS{}
	}
	return seconds(d.RemovalDelaySeconds, 0)
}

// EffectiveKind returns kind or its default.
func (r *CACertificateReference) EffectiveKind() CACertificateKind {
	return cmp.Or(r.Kind, CACertificateKindConfigMap)
}

// EffectiveKey returns key or its default.
func (r *CACertificateReference) EffectiveKey() string { return cmp.Or(r.Key, "ca.crt") }

// EffectiveMode returns mode or its default.
func (h *HealthCheck) EffectiveMode() HealthCheckMode {
	return cmp.Or(h.Mode, HealthCheckModeEnforce)
}

// EffectivePeriod returns periodSeconds or its default.
func (h *HealthCheck) EffectivePeriod() time.Duration {
	return time.Duration(cmp.Or(h.PeriodSeconds, 10)) * time.Second
}

// EffectiveTimeout returns timeoutSeconds or its default.
func (h *HealthCheck) EffectiveTimeout() time.Duration {
	return time.Duration(cmp.Or(h.TimeoutSeconds, 3)) * time.Second
}

// EffectiveConfirmPeriod returns confirmPeriodMilliseconds or its default.
func (h *HealthCheck) EffectiveConfirmPeriod() time.Duration {
	return time.Duration(cmp.Or(h.ConfirmPeriodMilliseconds, 1000)) * time.Millisecond
}

// EffectiveSuccessThreshold returns successThreshold or its default.
func (h *HealthCheck) EffectiveSuccessThreshold() int32 { return cmp.Or(h.SuccessThreshold, 1) }

// EffectiveFailureThreshold returns failureThreshold or its default.
func (h *HealthCheck) EffectiveFailureThreshold() int32 { return cmp.Or(h.FailureThreshold, 3) }

// EffectiveInitialState returns initialState or its default.
func (h *HealthCheck) EffectiveInitialState() InitialState {
	return cmp.Or(h.InitialState, InitialStateNotReady)
}

// SpeaksTLS reports whether the check asks for TLS: by its scheme or transport, never by tls.
func (h *HealthCheck) SpeaksTLS() bool {
	switch {
	case h.HTTPGet != nil:
		return h.HTTPGet.EffectiveScheme() == corev1.URISchemeHTTPS
	case h.TCPSocket != nil:
		return h.TCPSocket.EffectiveTransport() == TransportTLS
	case h.GRPC != nil:
		return h.GRPC.EffectiveTransport() == TransportTLS
	}
	return false
}

// EffectivePath returns path or its default.
func (g *HTTPGet) EffectivePath() string { return cmp.Or(g.Path, "/") }

// EffectiveScheme returns scheme or its default.
func (g *HTTPGet) EffectiveScheme() corev1.URIScheme {
	return cmp.Or(g.Scheme, corev1.URISchemeHTTP)
}

// EffectiveExpectedStatuses returns expectedStatuses or its default.
func (g *HTTPGet) EffectiveExpectedStatuses() []string {
	if len(g.ExpectedStatuses) == 0 {
		return []string{"200-399"}
	}
	return g.ExpectedStatuses
}

// EffectiveTransport returns transport or its default.
func (s *TCPSocket) EffectiveTransport() Transport { return cmp.Or(s.Transport, TransportPlaintext) }

// EffectiveTransport returns transport or its default.
func (g *GRPC) EffectiveTransport() Transport { return cmp.Or(g.Transport, TransportPlaintext) }

// EffectiveVerification returns verification or its default.
func (t *TLS) EffectiveVerification() TLSVerification {
	if t == nil {
		return TLSVerificationFull
	}
	return cmp.Or(t.Verification, TLSVerificationFull)
}

// EffectiveMinHealthyPercent returns minHealthyPercent or its default.
func (f *Failover) EffectiveMinHealthyPercent() int32 {
	if f == nil {
		return 1
	}
	return cmp.Or(f.MinHealthyPercent, 1)
}

// EffectiveWhenNoTierQualifies returns whenNoTierQualifies or its default.
func (f *Failover) EffectiveWhenNoTierQualifies() NoTierPolicy {
	if f == nil {
		return NoTierHealthyEndpoints
	}
	return cmp.Or(f.WhenNoTierQualifies, NoTierHealthyEndpoints)
}

// EffectiveFailbackDelay returns failbackDelaySeconds or its default.
func (f *Failover) EffectiveFailbackDelay() time.Duration {
	if f == nil {
		f = &Failover{}
	}
	return seconds(f.FailbackDelaySeconds, 60)
}

// EffectiveFailback returns failback or its default.
func (f *Failover) EffectiveFailback() FailbackMode {
	if f == nil {
		return FailbackAutomatic
	}
	return cmp.Or(f.Failback, FailbackAutomatic)
}

// EffectiveMode returns mode or its default.
func (s *ExternalBackendPolicySpec) EffectiveMode() PolicyMode {
	return cmp.Or(s.Mode, PolicyModeEnforce)
}

// EffectiveProtocol returns protocol or its default.
func (p *PolicyPort) EffectiveProtocol() corev1.Protocol {
	return cmp.Or(p.Protocol, corev1.ProtocolTCP)
}

// EffectiveEndPort returns endPort or its default.
func (p *PolicyPort) EffectiveEndPort() int32 { return cmp.Or(p.EndPort, p.Port) }

func valueOr[T any](value *T, absent T) T {
	if value == nil {
		return absent
	}
	return *value
}

func seconds(value *int32, absent int32) time.Duration {
	return time.Duration(valueOr(value, absent)) * time.Second
}
