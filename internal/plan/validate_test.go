package plan

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
)

// TestErrorsNameFieldAndRemedy validates specs. Each error names the field and what would be right.
func TestErrorsNameFieldAndRemedy(t *testing.T) {
	const onePort, oneTarget = "ports: [{port: 80}]\n", "targets: [{name: a, address: 203.0.113.1}]\n"
	local := corev1.ServiceInternalTrafficPolicyLocal
	for name, c := range map[string]struct {
		spec string
		live *corev1.Service
		want []string // in this order; none for a valid spec
	}{
		"plain": {spec: onePort + oneTarget},
		"labels": {
			spec: onePort + oneTarget +
				"service: {labels: {team: shop, example.com/tier: db}, annotations: {Example.com/Note: x}}\n",
		},
		"wrong labels": {
			spec: onePort + oneTarget + "service: {labels: {'team shop': a, 'b!': b}}\n",
			want: []string{
				`spec.service.labels: Invalid value: "b!"`, "alphanumeric", `spec.service.labels: Invalid value: "team shop"`,
			},
		},
		"wrong annotation": {
			spec: onePort + oneTarget + "service: {annotations: {'a/b/c': a}}\n",
			want: []string{`spec.service.annotations: Invalid value: "a/b/c"`},
		},
		"unknown port of a target": {
			spec: "ports: [{name: db, port: 80}]\n" +
				"targets: [{name: a, address: 203.0.113.1, ports: [{name: bd, targetPort: 81}]}]\n",
			want: []string{
				`spec.targets[0].ports[0].name: Invalid value: "bd": must be the name of a port in spec.ports`,
			},
		},
		"Local": {
			spec: onePort + oneTarget + "service: {type: LoadBalancer, externalTrafficPolicy: Local}\n",
			want: []string{"spec.targets[0].nodeName: Required value: wanted on every target"},
		},
		"Local with a node": {
			spec: onePort + "service: {internalTrafficPolicy: Local}\n" +
				"targets: [{name: a, address: 203.0.113.1, nodeName: node}]\n",
		},
		"Local Service of serviceRef": {
			spec: onePort + oneTarget + "serviceRef: {name: s}\n",
			live: &corev1.Service{Spec: corev1.ServiceSpec{InternalTrafficPolicy: &local}},
			want: []string{"spec.targets[0].nodeName: Required value"},
		},
		"Passthrough behind a ClusterIP": {
			spec: onePort + "serviceRef: {name: s}\ndns: {resolution: Passthrough}\n" +
				"targets: [{name: a, hostname: db.example.com}]\n",
			live: &corev1.Service{Spec: corev1.ServiceSpec{ClusterIP: "10.0.0.1"}},
			want: []string{`spec.dns.resolution: Invalid value: "Passthrough": kube-proxy knows no names`},
		},
		"header of the connection": {
			spec: onePort + oneTarget +
				"healthCheck: {httpGet: {httpHeaders: [{name: X-A, value: a}, {name: Connection, value: close}]}}\n",
			want: []string{
				`spec.healthCheck.httpGet.httpHeaders[1].name: Invalid value: "Connection": is the connection's own`,
			},
		},
		"unknown port of the check": {
			spec: "ports: [{name: bd, port: 80}]\nhealthCheck: {tcpSocket: {port: db}}\n" + oneTarget,
			want: []string{`spec.healthCheck.tcpSocket.port: Invalid value: "db": must be a number or the name`},
		},
		"check over UDP": {
			spec: "ports: [{name: dns, port: 53, protocol: UDP}]\nhealthCheck: {grpc: {port: dns}}\n" + oneTarget,
			want: []string{`spec.healthCheck.grpc.port: Invalid value: "dns": must be the name of a TCP port`},
		},
		"no port to check": {
			spec: "ports: [{port: 53, protocol: UDP}]\nhealthCheck: {tcpSocket: {}}\n" + oneTarget,
			want: []string{"spec.healthCheck.tcpSocket.port: Required value: spec.ports has no TCP port"},
		},
		"more errors than a message shows": {
			spec: onePort + oneTarget + "service: {labels: {'a!': a, 'b!': b, 'c!': c, 'd!': d, 'e!': e}}\n",
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
