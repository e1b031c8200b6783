package controllers

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/credentials"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/translate"
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

// credentials returns what a health check needs.
func (r *references) credentials() translate.Credentials {
	return translate.Credentials{
		Roots: r.checkRoots, Certificate: r.certificate, Identity: r.checkIdentity, Missing: r.checkMissing,
	}
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
	silent := logr.NewContext(ctx, logr.Discard())
	check := credentials.Reader{Live: live, Namespace: b.Namespace, NotPermitted: func(kind, name string) string {
		return fmt.Sprintf("the operator may not read %s %q: bind the ClusterRole external-backend-reference-reader "+
			"to its ServiceAccount by a RoleBinding in namespace %q", kind, name, b.Namespace)
	}}
	dns := check
	out := references{generation: b.Generation}
	if t := checkTLS(b); t != nil {
		out.checkRoots = check.Roots(silent, "spec.healthCheck.tls.caCertificateRefs", t.CACertificateRefs)
		if t.ClientCertificateRef != nil {
			out.certificate = check.Certificate(silent, "spec.healthCheck.tls.clientCertificateRef", t.ClientCertificateRef)
		}
		out.checkIdentity = check.Identity()
	}
	if t := dnsTLS(b); t != nil {
		out.dnsRoots = dns.Roots(silent, "spec.dns.tls.caCertificateRefs", t.CACertificateRefs)
		out.dnsIdentity = dns.Identity()
	}

	out.checkMissing, out.dnsMissing = !check.Complete(), !dns.Complete()
	out.problem = cmp.Or(check.Problem, dns.Problem)
	if err := cmp.Or(check.Err, dns.Err); err != nil {
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
