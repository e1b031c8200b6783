package credentials

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/external-backend/operator/api/v1alpha1"
)

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
	read := func(refs ...v1alpha1.CACertificateReference) (*Reader, int) {
		r := &Reader{
			Live: live, Namespace: "shop", NotPermitted: func(kind, name string) string { return kind + " " + name },
		}
		pool := r.Roots(t.Context(), "refs", refs)
		if pool == nil {
			return r, -1
		}
		return r, len(pool.Subjects()) //nolint:staticcheck // not the system's pool
	}
	if r, n := read(first, second); n != 2 || !r.Complete() {
		t.Errorf("%d certificates, %v", n, r.Problem)
	}

	one, _ := read(first)
	both, _ := read(first, second)
	if one.Identity() == both.Identity() {
		t.Error("one more reference is not noticed")
	}
	if r, n := read(); n != -1 || !r.Complete() {
		t.Errorf("without references: %d certificates, %v; want the system roots", n, r.Problem)
	}
	if r, n := read(first, v1alpha1.CACertificateReference{Name: "absent"}); n != -1 || r.Complete() {
		t.Errorf("one is missing: %d certificates", n)
	}
}

// testCertificate returns a self-signed certificate.
func testCertificate(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}
