package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority signs certificates; cert and key are its own, in PEM.
type authority struct {
	keyPair
	template *x509.Certificate
	signer   *ecdsa.PrivateKey
}

// keyPair is a certificate and its key, in PEM.
type keyPair struct{ cert, key string }

func newAuthority(t *testing.T) *authority {
	t.Helper()
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{signer: signer, template: &x509.Certificate{IsCA: true, BasicConstraintsValid: true}}
	a.keyPair = a.sign(t, a.template, signer)
	return a
}

// issue signs a certificate of the template's names and addresses. It is good from an hour ago on, and where the template says nothing else for an hour more.
func (a *authority) issue(t *testing.T, template *x509.Certificate) keyPair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return a.sign(t, template, key)
}

func (a *authority) sign(t *testing.T, template *x509.Certificate, key *ecdsa.PrivateKey) keyPair {
	t.Helper()
	template.SerialNumber, template.NotBefore = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour)
	if template.NotAfter.IsZero() {
		template.NotAfter = time.Now().Add(time.Hour)
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, a.template, key.Public(), a.signer)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return keyPair{
		string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})),
		string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})),
	}
}

// files writes both to files of the test's.
func (p keyPair) files(t *testing.T) (cert, key string) {
	t.Helper()
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	for path, text := range map[string]string{cert: p.cert, key: p.key} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}
