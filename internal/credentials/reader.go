// Package credentials reads the certificates and keys to which an ExternalBackend refers.
package credentials

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

// Reader reads references one by one and remembers the first that can't be used.
type Reader struct {
	Live      client.Reader
	Namespace string
	// NotPermitted says for people that an object may not be read. It gets the kind and the name.
	NotPermitted func(kind, name string) string
	// Problem is the first problem with a reference, for users.
	Problem plan.References
	// Err is an error of the API server, which says nothing about the reference.
	Err error

	digest []byte
}

// Complete reports whether everything could be read.
func (r *Reader) Complete() bool { return r.Problem.Reason == "" && r.Err == nil }

// Identity returns a digest of everything that has been read since the last call.
func (r *Reader) Identity() string {
	sum := sha256.Sum256(r.digest)
	r.digest = nil
	return hex.EncodeToString(sum[:])
}

// Roots returns a pool of the certificates of all refs. It returns nil if there are no refs, which
// stands for the system roots, and if one of them can't be read.
func (r *Reader) Roots(ctx context.Context, list string, refs []v1alpha1.CACertificateReference) *x509.CertPool {
	if len(refs) == 0 {
		return nil
	}
	pool := x509.NewCertPool()
	for i := range refs {
		field, kind, key := fmt.Sprintf("%s[%d]", list, i), refs[i].EffectiveKind(), refs[i].EffectiveKey()
		pem, ok := r.data(ctx, field, kind, refs[i].Name, key)
		if !ok {
			return nil
		}
		if !pool.AppendCertsFromPEM(pem) {
			r.fail(v1alpha1.ReasonInvalidRef, "%s: key %q of %s %q holds no PEM certificate", field, key, kind, refs[i].Name)
			return nil
		}
		r.digest = append(r.digest, pem...)
	}
	return pool
}

// data reads one key of a ConfigMap or Secret. It reports whether the key exists.
func (r *Reader) data(
	ctx context.Context, field string, kind v1alpha1.CACertificateKind, name, key string,
) ([]byte, bool) {
	var value []byte
	var ok bool
	if kind == v1alpha1.CACertificateKindSecret {
		var s corev1.Secret
		if !r.get(ctx, field, string(kind), name, &s) {
			return nil, false
		}
		value, ok = s.Data[key]
	} else {
		var c corev1.ConfigMap
		if !r.get(ctx, field, string(kind), name, &c) {
			return nil, false
		}
		text, isText := c.Data[key]
		if value, ok = c.BinaryData[key]; isText {
			value, ok = []byte(text), true
		}
	}
	if !ok {
		r.fail(v1alpha1.ReasonInvalidRef, "%s: %s %q has no key %q", field, kind, name, key)
	}
	return value, ok
}

// Certificate reads a key pair from a Secret. It returns nil if it can't be used.
func (r *Reader) Certificate(ctx context.Context, field string, ref *v1alpha1.SecretReference) *tls.Certificate {
	var s corev1.Secret
	if !r.get(ctx, field, "Secret", ref.Name, &s) {
		return nil
	}
	crt, key := s.Data[corev1.TLSCertKey], s.Data[corev1.TLSPrivateKeyKey]
	c, err := tls.X509KeyPair(crt, key)
	switch {
	case s.Type != corev1.SecretTypeTLS:
		r.fail(v1alpha1.ReasonInvalidRef, "%s: Secret %q is of type %q, not kubernetes.io/tls", field, ref.Name, s.Type)
		return nil
	case err != nil: // the error may quote the key
		r.fail(v1alpha1.ReasonInvalidRef,
			"%s: tls.crt and tls.key of Secret %q are no certificate with its private key", field, ref.Name)
		return nil
	}
	r.digest = append(append(r.digest, crt...), key...)
	return &c
}

// get reads an object. It reports whether it could.
func (r *Reader) get(ctx context.Context, field, kind, name string, into client.Object) bool {
	err := r.Live.Get(ctx, types.NamespacedName{Namespace: r.Namespace, Name: name}, into)
	switch {
	case err == nil:
		return true
	case apierrors.IsNotFound(err):
		r.fail(v1alpha1.ReasonRefNotFound, "%s: %s %q does not exist in namespace %q", field, kind, name, r.Namespace)
	case apierrors.IsForbidden(err):
		r.fail(v1alpha1.ReasonRefNotPermitted, "%s: %s", field, r.NotPermitted(kind, name))
	default:
		r.Err = err
	}
	return false
}

// fail records the first problem.
func (r *Reader) fail(reason, format string, args ...any) {
	if r.Problem.Reason == "" {
		r.Problem = plan.References{Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
}
