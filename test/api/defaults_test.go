package api

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// Defaults appear where their parent object is present, and nowhere else.
func TestDefaults(t *testing.T) {
	const header = "apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackend\nmetadata: {name: defaults, namespace: default}\n"
	const policyHeader = "apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackendPolicy\nmetadata: {name: defaults}\n"
	for _, tc := range []struct{ desc, given, want string }{
		{"parents absent", header + `
spec:
  ports: [{port: 80}]
`, `
ports: [{name: "", port: 80, protocol: TCP}]
drainSeconds: 0
`},
		{"parents empty, httpGet", header + `
spec:
  service: {}
  ports: [{port: 80}]
  targets: [{name: a, address: 203.0.113.1, ports: [{targetPort: 8080}]}]
  dns: {}
  healthCheck: {httpGet: {}}
  failover: {}
`, `
service: {type: ClusterIP, adoptionPolicy: Never, publishNotReadyAddresses: false}
ports: [{name: "", port: 80, protocol: TCP}]
targets: [{name: a, address: 203.0.113.1, ports: [{name: "", targetPort: 8080}], tier: 0, adminState: Active}]
dns:
  resolution: Resolve
  transport: UDP
  minTTLSeconds: 5
  maxTTLSeconds: 3600
  staleSeconds: 86400
  removalDelaySeconds: 0
healthCheck:
  mode: Enforce
  httpGet: {path: /, scheme: HTTP, expectedStatuses: ["200-399"]}
  periodSeconds: 10
  timeoutSeconds: 3
  successThreshold: 1
  failureThreshold: 3
  confirmPeriodMilliseconds: 1000
  initialState: NotReady
  panicThreshold: 0
failover: {minHealthyPercent: 1, failbackDelaySeconds: 60, failback: Automatic}
drainSeconds: 0
`},
		{"tls and grpc", header + `
spec:
  ports: [{name: a, port: 80}]
  dns: {transport: TLS, tls: {caCertificateRefs: [{name: ca}]}}
  healthCheck: {grpc: {transport: TLS}, tls: {caCertificateRefs: [{name: ca}]}}
`, `
ports: [{name: a, port: 80, protocol: TCP}]
dns:
  resolution: Resolve
  transport: TLS
  tls: {caCertificateRefs: [{kind: ConfigMap, name: ca, key: ca.crt}]}
  minTTLSeconds: 5
  maxTTLSeconds: 3600
  staleSeconds: 86400
  removalDelaySeconds: 0
healthCheck:
  mode: Enforce
  grpc: {transport: TLS}
  tls: {caCertificateRefs: [{kind: ConfigMap, name: ca, key: ca.crt}], verification: Full}
  periodSeconds: 10
  timeoutSeconds: 3
  successThreshold: 1
  failureThreshold: 3
  confirmPeriodMilliseconds: 1000
  initialState: NotReady
  panicThreshold: 0
drainSeconds: 0
`},
		{"grpc mode; a zero that is no default", header + `
spec:
  ports: [{name: a, port: 80}]
  dns: {staleSeconds: 0}
  healthCheck: {grpc: {}}
  failover: {failbackDelaySeconds: 0}
`, `
ports: [{name: a, port: 80, protocol: TCP}]
dns:
  resolution: Resolve
  transport: UDP
  minTTLSeconds: 5
  maxTTLSeconds: 3600
  staleSeconds: 0
  removalDelaySeconds: 0
healthCheck:
  mode: Enforce
  grpc: {transport: Plaintext}
  periodSeconds: 10
  timeoutSeconds: 3
  successThreshold: 1
  failureThreshold: 3
  confirmPeriodMilliseconds: 1000
  initialState: NotReady
  panicThreshold: 0
failover: {minHealthyPercent: 1, failbackDelaySeconds: 0, failback: Automatic}
drainSeconds: 0
`},
		{"policy", policyHeader + `
spec:
  namespaceSelector: {}
  allow: [{ports: [{port: 53}]}]
`, `
mode: Enforce
namespaceSelector: {}
allow: [{ports: [{protocol: TCP, port: 53}]}]
`},
	} {
		t.Run(tc.desc, func(t *testing.T) {
			u := object(t, tc.given)
			if err := api.Create(t.Context(), u, client.DryRunAll); err != nil {
				t.Fatal(err)
			}
			got, err := yaml.Marshal(u.Object["spec"])
			if err != nil {
				t.Fatal(err)
			}
			// Through the same encoding, so that numbers and order compare.
			var spec any
			if err := yaml.Unmarshal([]byte(tc.want), &spec); err != nil {
				t.Fatal(err)
			}
			want, err := yaml.Marshal(spec)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
