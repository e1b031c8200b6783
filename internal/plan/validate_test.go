package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
)

// TestValidate: each error names the field and what would be right.
func TestValidate(t *testing.T) {
	const targets = "targets: [{name: a, address: 203.0.113.1}]\n"
	local := corev1.ServiceInternalTrafficPolicyLocal
	for name, c := range map[string]struct {
		spec string
		live *corev1.Service
		want []string // in order; none where the spec is valid
	}{
		"plain":   {spec: "ports: [{port: 80}]\n" + targets},
		"labels":  {spec: "ports: [{port: 80}]\nservice: {labels: {team: shop, example.com/tier: db}, annotations: {Example.com/Note: x}}\n" + targets},
		"label":   {spec: "ports: [{port: 80}]\nservice: {labels: {'team shop': a, 'b!': b}}\n" + targets, want: []string{`spec.service.labels: Invalid value: "b!"`, "alphanumeric", `spec.service.labels: Invalid value: "team shop"`}},
		"note":    {spec: "ports: [{port: 80}]\nservice: {annotations: {'a/b/c': a}}\n" + targets, want: []string{`spec.service.annotations: Invalid value: "a/b/c"`}},
		"unknown": {spec: "ports: [{name: db, port: 80}]\ntargets: [{name: a, address: 203.0.113.1, ports: [{name: bd, targetPort: 81}]}]\n", want: []string{`spec.targets[0].ports[0].name: Invalid value: "bd": must be the name of a port in spec.ports`}},
		"local": {
			spec: "ports: [{port: 80}]\nservice: {type: LoadBalancer, externalTrafficPolicy: Local}\n" + targets,
			want: []string{"spec.targets[0].nodeName: Required value: wanted on every target"},
		},
		"local with a node": {spec: "ports: [{port: 80}]\nservice: {internalTrafficPolicy: Local}\ntargets: [{name: a, address: 203.0.113.1, nodeName: node}]\n"},
		"local Service of serviceRef": {
			spec: "ports: [{port: 80}]\nserviceRef: {name: s}\n" + targets,
			live: &corev1.Service{Spec: corev1.ServiceSpec{InternalTrafficPolicy: &local}},
			want: []string{"spec.targets[0].nodeName: Required value"},
		},
		"Passthrough behind a ClusterIP": {
			spec: "ports: [{port: 80}]\nserviceRef: {name: s}\ndns: {resolution: Passthrough}\ntargets: [{name: a, hostname: db.example.com}]\n",
			live: &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}},
			want: []string{`spec.dns.resolution: Invalid value: "Passthrough": kube-proxy knows no names`},
		},
		"header": {
			spec: "ports: [{port: 80}]\nhealthCheck: {httpGet: {httpHeaders: [{name: X-A, value: a}, {name: Connection, value: close}]}}\n" + targets,
			want: []string{`spec.healthCheck.httpGet.httpHeaders[1].name: Invalid value: "Connection": is the connection's own`},
		},
		"no port for the check": {spec: "ports: [{name: bd, port: 80}]\nhealthCheck: {tcpSocket: {port: db}}\n" + targets, want: []string{`spec.healthCheck.tcpSocket.port: Invalid value: "db": must be a number or the name`}},
		"a check over UDP":      {spec: "ports: [{name: dns, port: 53, protocol: UDP}]\nhealthCheck: {grpc: {port: dns}}\n" + targets, want: []string{`spec.healthCheck.grpc.port: Invalid value: "dns": must be the name of a TCP port`}},
		"nothing to probe":      {spec: "ports: [{port: 53, protocol: UDP}]\nhealthCheck: {tcpSocket: {}}\n" + targets, want: []string{"spec.healthCheck.tcpSocket.port: Required value: spec.ports has no TCP port"}},
		"more than are told": {
			spec: "ports: [{port: 80}]\nservice: {labels: {'a!': a, 'b!': b, 'c!': c, 'd!': d, 'e!': e}}\n" + targets,
			want: []string{`"a!"`, `"b!"`, `"c!"`, "; and 2 more"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var b v1alpha1.ExternalBackend
			if err := yaml.UnmarshalStrict([]byte(c.spec), &b.Spec); err != nil {
				t.Fatal(err)
			}
			got := Validate(&b, c.live)
			if len(c.want) == 0 && got != "" {
				t.Errorf("refused: %s", got)
			}
			rest := got
			for _, want := range c.want {
				var found bool
				if _, rest, found = strings.Cut(rest, want); !found {
					t.Errorf("%q lacks %q", got, want)
				}
			}
		})
	}
}
