package plan

import (
	"cmp"
	"net/netip"

	"github.com/external-backend/operator/api/v1alpha1"
)

// ProbeID identifies a probed endpoint by its target, its address and its first port. The port is
// needed because two SRV records may share a host.
type ProbeID struct {
	Target string
	Addr   netip.Addr
	Port   uint16
}

// Probe is one endpoint to probe.
type Probe struct {
	ID   ProbeID
	Dial netip.AddrPort
	// Host is the hostname of the target, or "" for a literal address.
	Host string
	// Name is the DNS name that led to the address, that of an SRV record included. Policy judges
	// the address by it.
	Name string
	// SeedVerdict is read back from the slice and the status. It holds until the first probe.
	SeedVerdict Verdict
}

// Verdict is what the probes say about an endpoint.
type Verdict uint8

const (
	// Unknown means that there is no verdict yet.
	Unknown Verdict = iota
	// Healthy means that successThreshold probes in a row have succeeded.
	Healthy
	// Unhealthy means that failureThreshold probes in a row have failed.
	Unhealthy
)

// ProbeState is what is known about a probed endpoint.
type ProbeState struct {
	Verdict Verdict
	// Reason is the fixed word for the last failure. Detail says for people what the probe saw and
	// what it expected. Both are "" if nothing is known.
	Reason, Detail string
}

// Cause returns in a phrase what the last failure was.
func (s *ProbeState) Cause() string { return cmp.Or(s.Detail, reasonPhrases[s.Reason], s.Reason) }

// reasonPhrases are the causes of failures without details.
var reasonPhrases = map[string]string{
	v1alpha1.TargetReasonConnectionRefused:  "connection refused",
	v1alpha1.TargetReasonConnectionReset:    "connection reset",
	v1alpha1.TargetReasonTimeout:            "no answer in time",
	v1alpha1.TargetReasonUnreachable:        "network or host unreachable",
	v1alpha1.TargetReasonUnexpectedResponse: "unexpected answer",

	v1alpha1.TargetReasonTLSUnknownAuthority: "the certificate is from an authority that is not trusted " +
		"(healthCheck.tls.caCertificateRefs)",
	v1alpha1.TargetReasonTLSNameMismatch: "the certificate does not have the expected name " +
		"(healthCheck.tls.serverName)",

	v1alpha1.TargetReasonTLSCertificateExpired: "the certificate has expired, or is not valid yet",
	v1alpha1.TargetReasonTLSVerificationFailed: "the certificate can't be verified",
	v1alpha1.TargetReasonTLSHandshakeFailed:    "the TLS handshake failed",

	v1alpha1.TargetReasonTLSClientCertificateRequired: "the server wants a client certificate " +
		"(healthCheck.tls.clientCertificateRef)",
}
