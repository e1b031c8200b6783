package controllers

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

const (
	// referencePeriod is how often Secrets and ConfigMaps are read again. They are not watched,
	// because that would need the right to list them.
	referencePeriod = time.Minute
	// referenceRetry is used instead for the first fastRetryTime after a reference was found missing
	// or unusable: somebody may be about to create it. If the API server did not answer, the time
	// doubles with each try, up to referencePeriod.
	referenceRetry = 5 * time.Second
	fastRetryTime  = 2 * time.Minute
)

// references is what the Secrets and ConfigMaps of an ExternalBackend contain.
type references struct {
	checkRoots, dnsRoots *x509.CertPool
	certificate          *tls.Certificate
	// The identities are digests of what was read.
	checkIdentity, dnsIdentity string
	// checkMissing and dnsMissing report whether something that probes, or DNS queries, need could
	// not be read. problem says what, if users can fix it.
	checkMissing, dnsMissing bool
	problem                  plan.References

	generation   int64     // of the ExternalBackend
	read         time.Time // last
	missingSince time.Time
	failures     int // how many times in a row the API server did not answer
}

// period returns how long after the last time they are read again.
func (r *references) period() time.Duration {
	switch {
	case r.failures > 0:
		return min(referenceRetry<<min(r.failures-1, 10), referencePeriod)
	case r.problem.Reason != "" && r.read.Sub(r.missingSince) < fastRetryTime:
		return referenceRetry
	default:
		return referencePeriod
	}
}

// due reports whether the references of b have to be read again.
func (r *references) due(b *v1alpha1.ExternalBackend, now time.Time) bool {
	return r.generation != b.Generation || now.Sub(r.read) >= r.period()
}

// next returns when they have to be read again; zero if b has none.
func (r *references) next(b *v1alpha1.ExternalBackend) time.Time {
	if !hasReferences(b) || r.read.IsZero() {
		return time.Time{}
	}
	return r.read.Add(r.period())
}

func checkTLS(b *v1alpha1.ExternalBackend) *v1alpha1.TLS {
	if b.Spec.HealthCheck == nil {
		return nil
	}
	return b.Spec.HealthCheck.TLS
}

func dnsTLS(b *v1alpha1.ExternalBackend) *v1alpha1.DNSTLS {
	if b.Spec.DNS == nil {
		return nil
	}
	return b.Spec.DNS.TLS
}

func hasReferences(b *v1alpha1.ExternalBackend) bool {
	t, d := checkTLS(b), dnsTLS(b)
	return t != nil && (len(t.CACertificateRefs) > 0 || t.ClientCertificateRef != nil) ||
		d != nil && len(d.CACertificateRefs) > 0
}

// readReferences reads the Secrets and ConfigMaps that b names, in its own namespace. If the API
// server does not answer, it returns what was read before; what was never read is missing.
func readReferences(
	ctx context.Context, live client.Reader, b *v1alpha1.ExternalBackend, before references, now time.Time,
) references {
	if !before.due(b, now) {
		return before
	}

	// The client logs bodies at high verbosity, which must not happen to Secrets.
	check := referenceReader{ctx: logr.NewContext(ctx, logr.Discard()), live: live, namespace: b.Namespace}
	dns := check
	out := references{generation: b.Generation}
	if t := checkTLS(b); t != nil {
		out.checkRoots = check.roots("spec.healthCheck.tls.caCertificateRefs", t.CACertificateRefs)
		if t.ClientCertificateRef != nil {
			out.certificate = check.certificate("spec.healthCheck.tls.clientCertificateRef", t.ClientCertificateRef)
		}
		out.checkIdentity = check.identity()
	}
	if t := dnsTLS(b); t != nil {
		out.dnsRoots = dns.roots("spec.dns.tls.caCertificateRefs", t.CACertificateRefs)
		out.dnsIdentity = dns.identity()
	}

	out.checkMissing, out.dnsMissing = !check.complete(), !dns.complete()
	out.problem = cmp.Or(check.problem, dns.problem)
	if err := cmp.Or(check.err, dns.err); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Can't read a reference, what was read before stays")
		failures := before.failures + 1
		if before.generation == b.Generation {
			out = before
		}
		out.failures = failures
	}

	out.read = now
	if out.missingSince = out.read; before.problem.Reason != "" && before.generation == b.Generation {
		out.missingSince = before.missingSince
	}
	return out
}

// referenceReader reads references one by one and remembers the first that can't be used.
type referenceReader struct {
	ctx       context.Context
	live      client.Reader
	namespace string
	digest    []byte
	problem   plan.References // with a reference, for users
	err       error           // of the API server, which says nothing about the reference
}

// complete reports whether everything could be read.
func (r *referenceReader) complete() bool { return r.problem.Reason == "" && r.err == nil }

// identity returns a digest of everything that has been read since the last call.
func (r *referenceReader) identity() string {
	sum := sha256.Sum256(r.digest)
	r.digest = nil
	return hex.EncodeToString(sum[:])
}

// roots returns a pool of the certificates of all refs. It returns nil if there are no refs, which
// stands for the system roots, and if one of them can't be read.
func (r *referenceReader) roots(list string, refs []v1alpha1.CACertificateReference) *x509.CertPool {
	if len(refs) == 0 {
		return nil
	}
	pool := x509.NewCertPool()
	for i := range refs {
		field, kind, key := fmt.Sprintf("%s[%d]", list, i), refs[i].EffectiveKind(), refs[i].EffectiveKey()
		pem, ok := r.data(field, kind, refs[i].Name, key)
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
func (r *referenceReader) data(field string, kind v1alpha1.CACertificateKind, name, key string) ([]byte, bool) {
	var value []byte
	var ok bool
	if kind == v1alpha1.CACertificateKindSecret {
		var s corev1.Secret
		if !r.get(field, string(kind), name, &s) {
			return nil, false
		}
		value, ok = s.Data[key]
	} else {
		var c corev1.ConfigMap
		if !r.get(field, string(kind), name, &c) {
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

// certificate reads a key pair from a Secret. It returns nil if it can't be used.
func (r *referenceReader) certificate(field string, ref *v1alpha1.SecretReference) *tls.Certificate {
	var s corev1.Secret
	if !r.get(field, "Secret", ref.Name, &s) {
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
func (r *referenceReader) get(field, kind, name string, into client.Object) bool {
	err := r.live.Get(r.ctx, types.NamespacedName{Namespace: r.namespace, Name: name}, into)
	switch {
	case err == nil:
		return true
	case apierrors.IsNotFound(err):
		r.fail(v1alpha1.ReasonRefNotFound, "%s: %s %q does not exist in namespace %q", field, kind, name, r.namespace)
	case apierrors.IsForbidden(err):
		r.fail(v1alpha1.ReasonRefNotPermitted, "%s: the operator may not read %s %q: bind the ClusterRole "+
			"external-backend-reference-reader to its ServiceAccount by a RoleBinding in namespace %q",
			field, kind, name, r.namespace)
	default:
		r.err = err
	}
	return false
}

// fail records the first problem.
func (r *referenceReader) fail(reason, format string, args ...any) {
	if r.problem.Reason == "" {
		r.problem = plan.References{Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
}
