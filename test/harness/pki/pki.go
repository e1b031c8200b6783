// Package pki makes certificates for tests and benchmarks.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// KeyPair is a certificate and its key, in PEM.
type KeyPair struct{ Cert, Key []byte }

// Authority signs certificates. Its KeyPair is its own.
type Authority struct {
	KeyPair
	template *x509.Certificate
	signer   *ecdsa.PrivateKey
}

// NewAuthority makes an authority that is good for a day.
func NewAuthority() (*Authority, error) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &Authority{signer: signer, template: &x509.Certificate{
		Subject: pkix.Name{CommonName: "an authority"}, // without, OpenSSL takes all that it issues for self-signed
		IsCA:    true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, NotAfter: time.Now().Add(24 * time.Hour),
	}}
	a.KeyPair, err = a.sign(a.template, signer)
	return a, err
}

// Issue signs a certificate for these names and literal addresses, at least one, which is good from
// an hour ago on until then. Servers and clients can use it.
func (a *Authority) Issue(notAfter time.Time, names ...string) (KeyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return KeyPair{}, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{
			CommonName: names[0],
		}, NotAfter: notAfter, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	return a.sign(template, key)
}

func (a *Authority) sign(template *x509.Certificate, key *ecdsa.PrivateKey) (KeyPair, error) {
	now := time.Now()
	template.SerialNumber, template.NotBefore = big.NewInt(now.UnixNano()), now.Add(-time.Hour)
	cert, err := x509.CreateCertificate(rand.Reader, template, a.template, key.Public(), a.signer)
	if err != nil {
		return KeyPair{}, err
	}
	private, err := x509.MarshalECPrivateKey(key)
	return KeyPair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private}),
	}, err
}

// Pool holds the authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.Cert)
	return pool
}

// TLS is the pair for crypto/tls.
func (p KeyPair) TLS() (tls.Certificate, error) { return tls.X509KeyPair(p.Cert, p.Key) }

// Write writes both into a directory, as NAME.crt and NAME.key, and returns their paths.
func (p KeyPair) Write(dir, name string) (cert, key string, err error) {
	cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	return cert, key, errors.Join(os.WriteFile(cert, p.Cert, 0o600), os.WriteFile(key, p.Key, 0o600))
}
