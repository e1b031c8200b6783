package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
)

// decode reads a spec as the API server hands it to the manager. It drops what the types lack.
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

// validParts are the ports and targets of a spec that is valid with them alone.
const validParts = "ports: [{port: 80}], targets: [{name: a, address: 203.0.113.1}]"

// TestUnknownFieldsAndValuesAreRefused reads specs that a CRD newer than the manager lets in. They
// have fields, union members and values that the types lack, and none of them may weaken a check.
func TestUnknownFieldsAndValuesAreRefused(t *testing.T) {
	for _, tt := range []struct{ added, want string }{
		{"healthCheck: {exec: {command: [true]}}", `unknown field "healthCheck.exec"`},
		{"healthCheck: {}", "spec.healthCheck: Invalid value: 0: exactly one of httpGet, tcpSocket and grpc"},
		{"healthCheck: {tcpSocket: {}, exec: {}}", `unknown field "healthCheck.exec"`},
		{"healthCheck: {httpGet: {expectedBody: ok}}", `unknown field "healthCheck.httpGet.expectedBody"`},
		{"healthCheck: {tcpSocket: {}, httpGet: {}}", "exactly one of httpGet, tcpSocket and grpc"},
		{"healthCheck: {tcpSocket: {}, mode: Shadow}", `spec.healthCheck.mode: Unsupported value: "Shadow"`},
		{"healthCheck: {tcpSocket: {}, initialState: Unknown}", "spec.healthCheck.initialState: Unsupported value"},
		{"healthCheck: {tcpSocket: {transport: MutualTLS}}", "spec.healthCheck.tcpSocket.transport: Unsupported value"},
		{"healthCheck: {grpc: {transport: QUIC}}", "spec.healthCheck.grpc.transport: Unsupported value"},
		{"healthCheck: {grpc: {mode: TLS}}", `unknown field "healthCheck.grpc.mode"`},
		{"healthCheck: {httpGet: {scheme: HTTP3}}", "spec.healthCheck.httpGet.scheme: Unsupported value"},
		{
			"healthCheck: {httpGet: {expectedStatuses: [2xx]}}",
			"spec.healthCheck.httpGet.expectedStatuses[0]: Invalid value",
		},
		{
			"healthCheck: {httpGet: {expectedStatuses: ['399-200']}}",
			"spec.healthCheck.httpGet.expectedStatuses[0]: Invalid value",
		},
		{
			"healthCheck: {tcpSocket: {}, tls: {}}",
			"spec.healthCheck.tls: Forbidden: wants httpGet.scheme HTTPS, or transport TLS",
		},
		{
			"healthCheck: {httpGet: {scheme: HTTPS}, tls: {verification: Chain}}",
			"spec.healthCheck.tls.verification: Unsupported value",
		},
		{
			"healthCheck: {httpGet: {scheme: HTTPS}, tls: {caCertificateRef: {}}}",
			`unknown field "healthCheck.tls.caCertificateRef"`,
		},
		{
			"healthCheck: {httpGet: {scheme: HTTPS}, tls: {caCertificateRefs: [{name: a, kind: ClusterTrustBundle}]}}",
			"spec.healthCheck.tls.caCertificateRefs[0].kind: Unsupported value",
		},
		{
			"healthCheck: {httpGet: {scheme: HTTPS}, tls: {caCertificateRefs: [{name: a, group: certificates.k8s.io}]}}",
			"spec.healthCheck.tls.caCertificateRefs[0].group: Unsupported value",
		},
		{
			"dns: {transport: TLS, tls: {caCertificateRefs: [{name: a, kind: Issuer}]}}",
			"spec.dns.tls.caCertificateRefs[0].kind: Unsupported value",
		},
		{"dns: {transport: HTTPS}", "spec.dns.transport: Unsupported value"},
		{"dns: {tls: {}}", "spec.dns.tls: Forbidden"},
		{"dns: {resolution: Cached}", "spec.dns.resolution: Unsupported value"},
		{"failover: {failback: Never}", "spec.failover.failback: Unsupported value"},
		{"failover: {whenNoTierQualifies: LastTier}", "spec.failover.whenNoTierQualifies: Unsupported value"},
		{"failover: {pinnedTier: 1}", "spec.failover.pinnedTier: Invalid value: 1: no target can be in that tier"},
		{"deletionPolicy: Archive", "spec.deletionPolicy: Unsupported value"},
		{"service: {type: Mesh}", "spec.service.type: Unsupported value"},
		{"service: {adoptionPolicy: Always}", "spec.service.adoptionPolicy: Unsupported value"},
		{"service: {internalTrafficPolicy: Zone}", "spec.service.internalTrafficPolicy: Unsupported value"},
		{"gatewayRef: {name: a}", `unknown field "gatewayRef"`},
		{
			"healthCheck: {httpGet: {httpHeaders: [{name: Host, value: a}, {name: host, value: b}]}}",
			"spec.healthCheck.httpGet.httpHeaders[1].name: Duplicate value",
		},
		{
			"healthCheck: {httpGet: {httpHeaders: [{name: Host, value: 'http://a'}]}}",
			"spec.healthCheck.httpGet.httpHeaders[0].value: Invalid value",
		},
	} {
		expectInvalid(t, "{"+validParts+", "+tt.added+"}", tt.want)
	}
}

// TestWrongPortsAndTargetsAreRefused covers what the schema would refuse too.
func TestWrongPortsAndTargetsAreRefused(t *testing.T) {
	for _, tt := range []struct{ spec, want string }{
		{"{ports: [{port: 80, protocol: QUIC}]}", "spec.ports[0].protocol: Unsupported value"},
		{
			"{ports: [{port: 80}], targets: [{name: a, pod: b}]}",
			"spec.targets[0]: Invalid value: 0: exactly one of address, hostname and srvName",
		},
		{
			"{ports: [{port: 80}], targets: [{name: a, address: 203.0.113.1, hostname: a.b}]}",
			"spec.targets[0]: Invalid value: 2: exactly one of",
		},
		{
			"{ports: [{port: 80}], targets: [{name: a, address: nowhere}]}",
			`spec.targets[0].address: Invalid value: "nowhere"`,
		},
		{
			"{ports: [{port: 80}], targets: [{name: a, address: 203.0.113.1, adminState: Up}]}",
			"spec.targets[0].adminState: Unsupported value",
		},
		{
			"{ports: [{port: 80}], targets: [{name: a, address: 203.0.113.1, priority: 1}]}",
			`unknown field "targets[0].priority"`,
		},
		{
			"{ports: [{port: 80}], service: {type: ExternalName}}",
			"spec.targets: Invalid value: 0: exactly one target, a hostname",
		},
		{
			"{ports: [{port: 80}], service: {type: Headless}, dns: {resolution: Passthrough}}",
			"spec.targets: Invalid value: 0: exactly one target, a hostname",
		},
		{
			"{ports: [{port: 80}], targets: [{name: a, address: 203.0.113.1, ports: [{targetPort: 1}, {targetPort: 2}]}]}",
			"spec.targets[0].ports[1].name: Duplicate value",
		},
	} {
		expectInvalid(t, tt.spec, tt.want)
	}
}

func expectInvalid(t *testing.T, spec, want string) {
	t.Helper()
	if got := Validate(decode(t, spec), &corev1.Service{}); !strings.Contains(got, want) {
		t.Errorf("%s: %q, want %q", spec, got, want)
	}
}

// TestKnownValuesAreAccepted holds the other side of the same rules.
func TestKnownValuesAreAccepted(t *testing.T) {
	const ok = "ports: [{port: 80}], " +
		"targets: [{name: a, address: 203.0.113.1}, {name: b, srvName: _a._tcp.example.com, tier: 3}]"
	for _, added := range []string{
		"",
		", healthCheck: {httpGet: {scheme: HTTPS}, tls: {caCertificateRefs: [{name: a}]}}",
		", healthCheck: {httpGet: {scheme: HTTPS}, tls: {caCertificateRefs: [{name: b, kind: Secret, group: ''}]}}",
		", healthCheck: {tcpSocket: {transport: TLS}, tls: {verification: None}}",
		", healthCheck: {httpGet: {httpHeaders: [{name: HOST, value: '[2001:db8::1]:8443'}]}}",
		", healthCheck: {httpGet: {httpHeaders: [{name: Host, value: 'db.example.com:80'}]}}",
		", healthCheck: {httpGet: {expectedStatuses: ['200', 300-399]}}",
		", service: {trafficDistribution: PreferSomethingNew}",
		", failover: {pinnedTier: 0}",
		", failover: {pinnedTier: 3}",
		", failover: {pinnedTier: 127}", // where a record of the srvName may be
	} {
		spec := "{" + ok + added + "}"
		if got := Validate(decode(t, spec), &corev1.Service{}); got != "" {
			t.Errorf("%s: %s", spec, got)
		}
	}
}

// TestParseStatusRange reads what the schema admits, and nothing else.
func TestParseStatusRange(t *testing.T) {
	for text, want := range map[string][2]int{
		"200": {200, 200}, "200-399": {200, 399}, "100-599": {100, 599}, "": {}, "-": {}, "200-": {}, "399-200": {},
		"99": {}, "600": {}, "200-300-400": {}, "2xx": {}, "+200": {},
	} {
		from, to, ok := ParseStatusRange(text)
		if ok != (want != [2]int{}) || ok && [2]int{from, to} != want {
			t.Errorf("%q: %d to %d, %t", text, from, to, ok)
		}
	}
}
