package plan

import (
	"cmp"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/external-backend/operator/api/v1alpha1"
)

// The CustomResourceDefinition may be newer than the manager, and objects may be older than both.
// So this file does not rely on the schema where a misread spec would weaken a check. It refuses
// what this version does not know, and what was published before stays.

// validateSchema refuses fields, members of unions and values that this version does not know.
func validateSchema(b *v1alpha1.ExternalBackend) field.ErrorList {
	var errs field.ErrorList
	for _, text := range b.Spec.Unknown {
		errs = append(errs, field.Forbidden(specPath, text+": this version of the manager does not know it"))
	}
	errs = append(errs, validateService(b.Spec.Service, specPath.Child("service"))...)
	for i := range b.Spec.Ports {
		errs = append(errs, oneOf(specPath.Child("ports").Index(i), "protocol", b.Spec.Ports[i].EffectiveProtocol(),
			corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)...)
	}
	for i := range b.Spec.Targets {
		errs = append(errs, validateTarget(&b.Spec.Targets[i], specPath.Child("targets").Index(i))...)
	}

	f, path := b.Spec.Failover, specPath.Child("failover")
	return slices.Concat(errs,
		validateDNS(b.Spec.DNS, specPath.Child("dns")),
		validateHealthCheck(b.Spec.HealthCheck, specPath.Child("healthCheck")),
		oneOf(path, "failback", f.EffectiveFailback(), v1alpha1.FailbackAutomatic, v1alpha1.FailbackManual),
		oneOf(path, "whenNoTierQualifies", f.EffectiveWhenNoTierQualifies(),
			v1alpha1.NoTierHealthyEndpoints, v1alpha1.NoTierAllEndpoints))
}

// oneOf refuses a value of a child of path that is not among values.
func oneOf[T ~string](path *field.Path, child string, value T, values ...T) field.ErrorList {
	if slices.Contains(values, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path.Child(child), value, values)}
}

// exactlyOne refuses a union unless exactly one of its members is set.
func exactlyOne(path *field.Path, members string, set ...bool) field.ErrorList {
	n := len(slices.DeleteFunc(set, func(isSet bool) bool { return !isSet }))
	if n == 1 {
		return nil
	}
	return field.ErrorList{field.Invalid(path, n,
		"exactly one of "+members+" is wanted, as far as this version of the manager knows")}
}

// validateService does not check fields that only the API server acts on.
func validateService(s *v1alpha1.Service, path *field.Path) field.ErrorList {
	return slices.Concat(
		oneOf(path, "type", s.EffectiveType(), v1alpha1.ServiceTypeClusterIP, v1alpha1.ServiceTypeHeadless,
			v1alpha1.ServiceTypeNodePort, v1alpha1.ServiceTypeLoadBalancer, v1alpha1.ServiceTypeExternalName),
		oneOf(path, "adoptionPolicy", s.EffectiveAdoptionPolicy(),
			v1alpha1.AdoptionPolicyNever, v1alpha1.AdoptionPolicyIfSelectorless),
		oneOf(path, "sessionAffinity", s.EffectiveSessionAffinity(),
			corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP),
		oneOf(path, "internalTrafficPolicy", s.EffectiveInternalTrafficPolicy(),
			corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal),
		oneOf(path, "externalTrafficPolicy", s.EffectiveExternalTrafficPolicy(),
			corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal))
}

func validateTarget(t *v1alpha1.Target, path *field.Path) field.ErrorList {
	errs := exactlyOne(path, "address, hostname and srvName", t.Address != "", t.Hostname != "", t.SRVName != "")
	if _, err := netip.ParseAddr(t.Address); t.Address != "" && err != nil {
		errs = append(errs, field.Invalid(path.Child("address"), t.Address, "must be an IP address"))
	}
	return append(errs, oneOf(path, "adminState", t.EffectiveAdminState(),
		v1alpha1.AdminStateActive, v1alpha1.AdminStateDraining, v1alpha1.AdminStateDisabled)...)
}

func validateDNS(d *v1alpha1.DNS, path *field.Path) field.ErrorList {
	errs := slices.Concat(
		oneOf(path, "resolution", d.EffectiveResolution(),
			v1alpha1.DNSResolutionResolve, v1alpha1.DNSResolutionPassthrough),
		oneOf(path, "transport", d.EffectiveTransport(),
			v1alpha1.DNSTransportUDP, v1alpha1.DNSTransportTCP, v1alpha1.DNSTransportTLS))
	if d == nil || d.TLS == nil {
		return errs
	}
	path = path.Child("tls")
	if d.EffectiveTransport() != v1alpha1.DNSTransportTLS {
		errs = append(errs, field.Forbidden(path, "may only be set with transport TLS"))
	}
	return append(errs, validateRefs(d.TLS.CACertificateRefs, path)...)
}

// validateRefs checks the caCertificateRefs of the TLS options at path.
func validateRefs(refs []v1alpha1.CACertificateReference, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range refs {
		ref := path.Child("caCertificateRefs").Index(i)
		errs = slices.Concat(errs,
			oneOf(ref, "group", refs[i].Group, corev1.GroupName),
			oneOf(ref, "kind", refs[i].EffectiveKind(),
				v1alpha1.CACertificateKindConfigMap, v1alpha1.CACertificateKindSecret))
	}
	return errs
}

func validateHealthCheck(h *v1alpha1.HealthCheck, path *field.Path) field.ErrorList {
	if h == nil {
		return nil
	}
	errs := slices.Concat(
		exactlyOne(path, "httpGet, tcpSocket and grpc", h.HTTPGet != nil, h.TCPSocket != nil, h.GRPC != nil),
		oneOf(path, "mode", h.EffectiveMode(), v1alpha1.HealthCheckModeEnforce, v1alpha1.HealthCheckModeObserve),
		oneOf(path, "initialState", h.EffectiveInitialState(),
			v1alpha1.InitialStateNotReady, v1alpha1.InitialStateReady))

	checkTransport := func(handler string, t v1alpha1.Transport) {
		errs = append(errs, oneOf(path.Child(handler), "transport", t, v1alpha1.TransportPlaintext, v1alpha1.TransportTLS)...)
	}
	if h.HTTPGet != nil {
		errs = append(errs, validateHTTPGet(h.HTTPGet, path.Child("httpGet"))...)
	}
	if h.TCPSocket != nil {
		checkTransport("tcpSocket", h.TCPSocket.EffectiveTransport())
	}
	if h.GRPC != nil {
		checkTransport("grpc", h.GRPC.EffectiveTransport())
	}
	if h.TLS == nil {
		return errs
	}

	path = path.Child("tls")
	if !h.SpeaksTLS() {
		errs = append(errs, field.Forbidden(path, "wants httpGet.scheme HTTPS, or transport TLS in tcpSocket or grpc"))
	}
	return slices.Concat(errs,
		oneOf(path, "verification", h.TLS.EffectiveVerification(),
			v1alpha1.TLSVerificationFull, v1alpha1.TLSVerificationNone),
		validateRefs(h.TLS.CACertificateRefs, path))
}

// statusRange is the pattern of the schema for expectedStatuses.
var statusRange = regexp.MustCompile(`^([1-5][0-9]{2})(?:-([1-5][0-9]{2}))?$`)

// ParseStatusRange reads one of expectedStatuses, such as "200" or "200-399". ok is false if text
// is neither a status nor a range.
func ParseStatusRange(text string) (from, to int, ok bool) {
	part := statusRange.FindStringSubmatch(text)
	if part == nil {
		return 0, 0, false
	}
	from, _ = strconv.Atoi(part[1]) // three digits
	to, _ = strconv.Atoi(cmp.Or(part[2], part[1]))
	return from, to, from <= to
}

func validateHTTPGet(g *v1alpha1.HTTPGet, path *field.Path) field.ErrorList {
	errs := oneOf(path, "scheme", g.EffectiveScheme(), corev1.URISchemeHTTP, corev1.URISchemeHTTPS)
	for i, text := range g.ExpectedStatuses {
		if _, _, ok := ParseStatusRange(text); !ok {
			errs = append(errs, field.Invalid(path.Child("expectedStatuses").Index(i), text,
				`must be a status, such as "200", or a range, such as "200-399"`))
		}
	}
	return append(errs, validateHeaders(g.HTTPHeaders, path.Child("httpHeaders"))...)
}

// hopByHopHeaders are headers of one connection (RFC 9110, 7.6.1), or set by the probe itself.
var hopByHopHeaders = []string{
	"connection", "content-length", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
	"te", "trailer", "transfer-encoding", "upgrade",
}

// hostHeader is the pattern of a name or an address, IPv6 in brackets, with or without a port
// (RFC 9110, 7.2).
var hostHeader = regexp.MustCompile(
	`^([A-Za-z0-9_]([-A-Za-z0-9_.]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]+\])(:[1-9][0-9]{0,4})?$`)

// maxHostHeader is the length of the longest host name, with a port.
const maxHostHeader = 253 + len(":65535")

func validateHeaders(headers []v1alpha1.HTTPHeader, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	hosts := 0
	for i := range headers {
		switch name := strings.ToLower(headers[i].Name); {
		case slices.Contains(hopByHopHeaders, name):
			errs = append(errs, field.Invalid(path.Index(i).Child("name"), headers[i].Name, "is the connection's own"))
		case name != "host":
		case hosts > 0:
			errs = append(errs, field.Duplicate(path.Index(i).Child("name"), headers[i].Name))
		default:
			hosts++
			if value := headers[i].Value; len(value) > maxHostHeader || !hostHeader.MatchString(value) {
				errs = append(errs, field.Invalid(path.Index(i).Child("value"), value,
					`must be a host name or address, with or without a port, such as "db.example.com:8443"`))
			}
		}
	}
	return errs
}

var specPath = field.NewPath("spec")
