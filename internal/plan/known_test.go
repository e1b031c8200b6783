package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
)

// decode reads a spec as the API server hands it to the manager: what the types lack is dropped.
func decode(t *testing.T, spec string) *v1alpha1.ExternalBackend {
	t.Helper()
	text, err := yaml.YAMLToJSON([]byte("spec: " + spec))
	if err != nil {
		t.Fatal(err)
	}
	var b v1alpha1.ExternalBackend
	if err := json.Unmarshal(text, &b); err != nil {
		t.Fatal(err)
	}
	return &b
}

// TestWhatIsNotKnownIsRefused: a CRD that is newer than the manager lets in fields, members and
// values that the types lack. Nothing of that may become a weaker check.
func TestWhatIsNotKnownIsRefused(t *testing.T) {
	const ok = "ports: [{port: 80}], targets: [{name: a, address: 203.0.113.1}]"
	for spec, want := range map[string]string{
		"{" + ok + ", healthCheck: {exec: {command: [true]}}}":                                                                     `unknown field "healthCheck.exec"`,
		"{" + ok + ", healthCheck: {}}":                                                                                            "spec.healthCheck: Invalid value: 0: exactly one of httpGet, tcpSocket and grpc",
		"{" + ok + ", healthCheck: {tcpSocket: {}, exec: {}}}":                                                                     `unknown field "healthCheck.exec"`,
		"{" + ok + ", healthCheck: {httpGet: {expectedBody: ok}}}":                                                                 `unknown field "healthCheck.httpGet.expectedBody"`,
		"{" + ok + ", healthCheck: {tcpSocket: {}, httpGet: {}}}":                                                                  "exactly one of httpGet, tcpSocket and grpc",
		"{" + ok + ", healthCheck: {tcpSocket: {}, mode: Shadow}}":                                                                 `spec.healthCheck.mode: Unsupported value: "Shadow"`,
		"{" + ok + ", healthCheck: {tcpSocket: {}, initialState: Unknown}}":                                                        "spec.healthCheck.initialState: Unsupported value",
		"{" + ok + ", healthCheck: {tcpSocket: {transport: MutualTLS}}}":                                                           "spec.healthCheck.tcpSocket.transport: Unsupported value",
		"{" + ok + ", healthCheck: {grpc: {transport: QUIC}}}":                                                                     "spec.healthCheck.grpc.transport: Unsupported value",
		"{" + ok + ", healthCheck: {grpc: {mode: TLS}}}":                                                                           `unknown field "healthCheck.grpc.mode"`,
		"{" + ok + ", healthCheck: {httpGet: {scheme: HTTP3}}}":                                                                    "spec.healthCheck.httpGet.scheme: Unsupported value",
		"{" + ok + ", healthCheck: {httpGet: {expectedStatuses: [2xx]}}}":                                                          "spec.healthCheck.httpGet.expectedStatuses[0]: Invalid value",
		"{" + ok + ", healthCheck: {httpGet: {expectedStatuses: ['399-200']}}}":                                                    "spec.healthCheck.httpGet.expectedStatuses[0]: Invalid value",
		"{" + ok + ", healthCheck: {tcpSocket: {}, tls: {}}}":                                                                      "spec.healthCheck.tls: Forbidden: wants httpGet.scheme HTTPS, or transport TLS",
		"{" + ok + ", healthCheck: {httpGet: {scheme: HTTPS}, tls: {verification: Chain}}}":                                        "spec.healthCheck.tls.verification: Unsupported value",
		"{" + ok + ", healthCheck: {httpGet: {scheme: HTTPS}, tls: {caCertificateRef: {}}}}":                                       `unknown field "healthCheck.tls.caCertificateRef"`,
		"{" + ok + ", healthCheck: {httpGet: {scheme: HTTPS}, tls: {caCertificateRefs: [{name: a, kind: ClusterTrustBundle}]}}}":   "spec.healthCheck.tls.caCertificateRefs[0].kind: Unsupported value",
		"{" + ok + ", healthCheck: {httpGet: {scheme: HTTPS}, tls: {caCertificateRefs: [{name: a, group: certificates.k8s.io}]}}}": "spec.healthCheck.tls.caCertificateRefs[0].group: Unsupported value",
		"{" + ok + ", dns: {transport: TLS, tls: {caCertificateRefs: [{name: a, kind: Issuer}]}}}":                                 "spec.dns.tls.caCertificateRefs[0].kind: Unsupported value",
		"{" + ok + ", dns: {transport: HTTPS}}":                                                                                    "spec.dns.transport: Unsupported value",
		"{" + ok + ", dns: {tls: {}}}":                                                                                             "spec.dns.tls: Forbidden",
		"{" + ok + ", dns: {resolution: Cached}}":                                                                                  "spec.dns.resolution: Unsupported value",
		"{" + ok + ", failover: {failback: Never}}":                                                                                "spec.failover.failback: Unsupported value",
		"{" + ok + ", failover: {whenNoTierQualifies: LastTier}}":                                                                  "spec.failover.whenNoTierQualifies: Unsupported value",
		"{" + ok + ", failover: {pinnedTier: 1}}":                                                                                  "spec.failover.pinnedTier: Invalid value: 1: no target can be in that tier",
		"{" + ok + ", deletionPolicy: Archive}":                                                                                    "spec.deletionPolicy: Unsupported value",
		"{" + ok + ", service: {type: Mesh}}":                                                                                      "spec.service.type: Unsupported value",
		"{" + ok + ", service: {adoptionPolicy: Always}}":                                                                          "spec.service.adoptionPolicy: Unsupported value",
		"{" + ok + ", service: {internalTrafficPolicy: Zone}}":                                                                     "spec.service.internalTrafficPolicy: Unsupported value",
		"{" + ok + ", gatewayRef: {name: a}}":                                                                                      `unknown field "gatewayRef"`,
		"{ports: [{port: 80, protocol: QUIC}]}":                                                                                    "spec.ports[0].protocol: Unsupported value",
		"{ports: [{port: 80}], targets: [{name: a, pod: b}]}":                                                                      "spec.targets[0]: Invalid value: 0: exactly one of address, hostname and srvName",
		"{ports: [{port: 80}], targets: [{name: a, address: 203.0.113.1, hostname: a.b}]}":                                         "spec.targets[0]: Invalid value: 2: exactly one of",
		"{ports: [{port: 80}], targets: [{name: a, address: nowhere}]}":                                                            `spec.targets[0].address: Invalid value: "nowhere"`,
		"{ports: [{port: 80}], targets: [{name: a, address: 203.0.113.1, adminState: Up}]}":                                        "spec.targets[0].adminState: Unsupported value",
		"{ports: [{port: 80}], targets: [{name: a, address: 203.0.113.1, priority: 1}]}":                                           `unknown field "targets[0].priority"`,
		"{ports: [{port: 80}], service: {type: ExternalName}}":                                                                     "spec.targets: Invalid value: 0: exactly one target, a hostname",
		"{ports: [{port: 80}], service: {type: Headless}, dns: {resolution: Passthrough}}":                                         "spec.targets: Invalid value: 0: exactly one target, a hostname",
		"{" + ok + ", healthCheck: {httpGet: {httpHeaders: [{name: Host, value: a}, {name: host, value: b}]}}}":                    "spec.healthCheck.httpGet.httpHeaders[1].name: Duplicate value",
		"{" + ok + ", healthCheck: {httpGet: {httpHeaders: [{name: Host, value: 'http://a'}]}}}":                                   "spec.healthCheck.httpGet.httpHeaders[0].value: Invalid value",
		"{ports: [{port: 80}], targets: [{name: a, address: 203.0.113.1, ports: [{targetPort: 1}, {targetPort: 2}]}]}":             "spec.targets[0].ports[1].name: Duplicate value",
	} {
		if got := Validate(decode(t, spec), &corev1.Service{}); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", spec, got, want)
		}
	}
}

// TestWhatIsKnownIsAccepted holds the other side of the same rules.
func TestWhatIsKnownIsAccepted(t *testing.T) {
	const ok = "ports: [{port: 80}], targets: [{name: a, address: 203.0.113.1}, {name: b, srvName: _a._tcp.example.com, tier: 3}]"
	for _, spec := range []string{
		"{" + ok + "}",
		"{" + ok + ", healthCheck: {httpGet: {scheme: HTTPS}, tls: {caCertificateRefs: [{name: a}, {name: b, kind: Secret, group: ''}]}}}",
		"{" + ok + ", healthCheck: {tcpSocket: {transport: TLS}, tls: {verification: None}}}",
		"{" + ok + ", healthCheck: {httpGet: {httpHeaders: [{name: HOST, value: '[2001:db8::1]:8443'}]}}}",
		"{" + ok + ", healthCheck: {httpGet: {httpHeaders: [{name: Host, value: 'db.example.com:80'}], expectedStatuses: ['200', 300-399]}}}",
		"{" + ok + ", service: {trafficDistribution: PreferSomethingNew}}",
		"{" + ok + ", failover: {pinnedTier: 0}}",
		"{" + ok + ", failover: {pinnedTier: 3}}",
		"{" + ok + ", failover: {pinnedTier: 127}}", // where a record of the srvName may be
	} {
		if got := Validate(decode(t, spec), &corev1.Service{}); got != "" {
			t.Errorf("%s: %s", spec, got)
		}
	}
}

// TestServiceTypeInStatus: with serviceRef it is that of the Service which is there.
func TestServiceTypeInStatus(t *testing.T) {
	const own, ref = "{ports: [{port: 80}], service: {type: NodePort}}", "{ports: [{port: 80}], serviceRef: {name: s}}"
	service := func(kind corev1.ServiceType, ip string) *corev1.Service {
		return &corev1.Service{Spec: corev1.ServiceSpec{Type: kind, ClusterIP: ip}}
	}
	for _, c := range []struct {
		spec string
		live *corev1.Service
		want v1alpha1.ServiceType
	}{
		{own, nil, v1alpha1.ServiceTypeNodePort},
		{own, service(corev1.ServiceTypeClusterIP, "10.96.0.1"), v1alpha1.ServiceTypeNodePort},
		{ref, nil, ""},
		{ref, service("", "10.96.0.1"), v1alpha1.ServiceTypeClusterIP},
		{ref, service(corev1.ServiceTypeClusterIP, corev1.ClusterIPNone), v1alpha1.ServiceTypeHeadless},
		{ref, service(corev1.ServiceTypeLoadBalancer, "10.96.0.1"), v1alpha1.ServiceTypeLoadBalancer},
	} {
		got := Status(StatusInput{Backend: decode(t, c.spec), Service: c.live, Now: testNow}).Status.ServiceType
		if got != c.want {
			t.Errorf("%s, %v: %q, want %q", c.spec, c.live, got, c.want)
		}
	}
}
