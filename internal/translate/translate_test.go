package translate

import (
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
)

// TestSchemeOrTransportSelectsTLS: the scheme or the transport alone decides whether a check uses
// TLS. Where tls is absent its defaults apply.
func TestSchemeOrTransportSelectsTLS(t *testing.T) {
	for spec, want := range map[string]bool{
		"{httpGet: {}}":                                  false,
		"{httpGet: {scheme: HTTP}}":                      false,
		"{httpGet: {scheme: HTTPS}}":                     true,
		"{tcpSocket: {}}":                                false,
		"{tcpSocket: {transport: Plaintext}}":            false,
		"{tcpSocket: {transport: TLS}}":                  true,
		"{grpc: {}}":                                     false,
		"{grpc: {transport: Plaintext}}":                 false,
		"{grpc: {transport: TLS}}":                       true,
		"{tcpSocket: {transport: TLS}, tls: {}}":         true,
		"{grpc: {transport: TLS}, tls: {serverName: a}}": true,
	} {
		var h v1alpha1.HealthCheck
		if err := yaml.UnmarshalStrict([]byte(spec), &h); err != nil {
			t.Fatal(err)
		}

		c := HealthCheck(&h, Credentials{})
		if (c.TLS != nil) != want || want && c.TLS.InsecureSkipVerify {
			t.Errorf("%s: %+v", spec, c.TLS)
		}
	}
}
