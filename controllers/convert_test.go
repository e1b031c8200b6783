package controllers

import (
	"encoding/pem"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
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

		c := healthCheck(&h, references{})
		if (c.TLS != nil) != want || want && c.TLS.InsecureSkipVerify {
			t.Errorf("%s: %+v", spec, c.TLS)
		}
	}
}

// TestAllReferencedRootsAreTrusted: every certificate of every reference is trusted. If one
// reference can't be read, the check does not run with the others alone.
func TestAllReferencedRootsAreTrusted(t *testing.T) {
	bundle := func() []byte { return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: testCertificate(t)}) }
	old, next := bundle(), bundle()
	live := fake.NewClientBuilder().WithObjects(
		&corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "old"},
			Data:       map[string]string{"ca.crt": string(old)},
		},
		&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "next"},
			Data:       map[string][]byte{"tls.crt": next},
		},
	).Build()
	first := v1alpha1.CACertificateReference{Name: "old"}
	second := v1alpha1.CACertificateReference{Kind: v1alpha1.CACertificateKindSecret, Name: "next", Key: "tls.crt"}
	read := func(refs ...v1alpha1.CACertificateReference) (*referenceReader, int) {
		r := &referenceReader{ctx: t.Context(), live: live, namespace: "shop"}
		pool := r.roots("refs", refs)
		if pool == nil {
			return r, -1
		}
		return r, len(pool.Subjects()) //nolint:staticcheck // not the system's pool
	}
	if r, n := read(first, second); n != 2 || !r.complete() {
		t.Errorf("%d certificates, %v", n, r.problem)
	}

	one, _ := read(first)
	both, _ := read(first, second)
	if one.identity() == both.identity() {
		t.Error("one more reference is not noticed")
	}
	if r, n := read(); n != -1 || !r.complete() {
		t.Errorf("without references: %d certificates, %v; want the system roots", n, r.problem)
	}
	if r, n := read(first, v1alpha1.CACertificateReference{Name: "absent"}); n != -1 || r.complete() {
		t.Errorf("one is missing: %d certificates", n)
	}
}
