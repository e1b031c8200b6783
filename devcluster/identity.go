package devcluster

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"
)

// authority signs the certificates of the API server and of its clients.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
	pem  []byte
}

// keyPair is a certificate and its key, in PEM.
type keyPair struct{ cert, key []byte }

func newAuthority() (*authority, error) {
	key, _, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{Subject: pkix.Name{CommonName: "devcluster"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := signCertificate(template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{cert: cert, key: key, pem: pemBlock("CERTIFICATE", der)}, nil
}

// issue signs a certificate for a client (user and groups), which is also valid for a server at the
// given addresses.
func (a *authority) issue(user string, groups []string, ips ...net.IP) (keyPair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return keyPair{}, err
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
		IPAddresses: ips,
		DNSNames:    []string{"localhost", "kubernetes.default.svc"},
	}
	der, err := signCertificate(template, a.cert, key.Public(), a.key)
	if err != nil {
		return keyPair{}, err
	}
	return keyPair{cert: pemBlock("CERTIFICATE", der), key: keyPEM}, nil
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalECPrivateKey(key)
	return key, pemBlock("EC PRIVATE KEY", der), err
}

// signCertificate sets the serial number and the validity of a certificate and signs it. A cluster
// runs for hours at most.
func signCertificate(
	template, parent *x509.Certificate, public crypto.PublicKey, signer crypto.Signer,
) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(30*24*time.Hour)
	return x509.CreateCertificate(rand.Reader, template, parent, public, signer)
}

func pemBlock(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// UserKubeconfig writes a kubeconfig for a user with this name and these groups, and returns its
// path. RBAC decides what the user may do. Members of the group system:masters may do everything.
func (c *Cluster) UserKubeconfig(user string, groups ...string) (string, error) {
	pair, err := c.ca.issue(user, groups)
	if err != nil {
		return "", err
	}
	return c.writeKubeconfig(user, map[string]any{"client-certificate-data": pair.cert, "client-key-data": pair.key})
}

// ServiceAccountKubeconfig writes a kubeconfig with a token of the ServiceAccount, and returns its
// path. It has exactly the rights of a Pod with this ServiceAccount, for a day.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string) (string, error) {
	var answer struct{ Status struct{ Token string } }
	path := "/api/v1/namespaces/" + namespace + "/serviceaccounts/" + name + "/token"
	err := c.request(ctx, http.MethodPost, path, map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest",
		"spec": map[string]any{"expirationSeconds": 24 * 3600},
	}, &answer)
	if err != nil {
		return "", err
	}
	return c.writeKubeconfig(namespace+"."+name, map[string]any{"token": answer.Status.Token})
}

func (c *Cluster) writeKubeconfig(name string, user map[string]any) (string, error) {
	// JSON is valid YAML, and encodes []byte in base64, as kubeconfigs need it.
	text, err := json.MarshalIndent(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "devcluster",
		"clusters": []any{map[string]any{"name": "devcluster",
			"cluster": map[string]any{"server": c.server(), "certificate-authority-data": c.ca.pem}}},
		"users": []any{map[string]any{"name": name, "user": user}},
		"contexts": []any{map[string]any{"name": "devcluster",
			"context": map[string]any{"cluster": "devcluster", "user": name}}},
	}, "", "  ")
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.dir, filepath.Base(name)+".kubeconfig")
	return path, os.WriteFile(path, text, 0o600)
}

// newClient returns a client for this package, with an administrator's rights.
func (a *authority) newClient() (*http.Client, error) {
	pair, err := a.issue("devcluster", []string{"system:masters"})
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(pair.cert, pair.key)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig:   &tls.Config{Certificates: []tls.Certificate{cert}, RootCAs: roots},
		DisableKeepAlives: true, // the API server may be restarted at any time
	}}, nil
}

func (c *Cluster) server() string { return fmt.Sprintf("https://%s:%d", Outer4, apiPort) }
