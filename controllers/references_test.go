package controllers

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/probe"
)

// specWithReference has a check that needs a ConfigMap.
const specWithReference = `{healthCheck: {tcpSocket: null, httpGet: {scheme: HTTPS},
	tls: {caCertificateRefs: [{kind: ConfigMap, name: ca}]}}}`

// TestMissingReferenceIsReadOften: a reference that is missing or unusable is read every five
// seconds for two minutes, and then every minute.
func TestMissingReferenceIsReadOften(t *testing.T) {
	good := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: testCertificate(t)}))
	for _, test := range []struct {
		name  string
		there map[time.Duration]string // what the ConfigMap holds from then on
		reads []time.Duration          // of the first 5 minutes
	}{
		{
			"never there", nil,
			append(every(referenceRetry, 0, 2*time.Minute), every(time.Minute, 3*time.Minute, 5*time.Minute)...),
		},
		{"there from the start", map[time.Duration]string{0: good}, every(time.Minute, 0, 5*time.Minute)},
		{
			"unusable, then mended", map[time.Duration]string{0: "no PEM", 62 * time.Second: good},
			append(every(referenceRetry, 0, 65*time.Second), every(time.Minute, 125*time.Second, 5*time.Minute)...),
		},
		{
			"broken by a renewal", map[time.Duration]string{0: good, 90 * time.Second: "no PEM"},
			slices.Concat(every(time.Minute, 0, time.Minute), every(referenceRetry, 2*time.Minute, 4*time.Minute),
				every(time.Minute, 5*time.Minute, 5*time.Minute)),
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				env := literalEnv(t)
				reader := &timedReads{Reader: env.live, start: time.Now(), holds: test.there}
				env.reconciler.Live = reader
				env.spec(specWithReference)
				for time.Since(reader.start) <= 5*time.Minute {
					result, err := env.reconcile()
					env.ok(err)
					time.Sleep(max(result.RequeueAfter, time.Millisecond))
				}
				if diff := cmp.Diff(test.reads, reader.reads); diff != "" {
					t.Error("reads, want -, got +:", diff)
				}
			})
		})
	}
}

// every returns the times from one to another, one step apart.
func every(step, from, to time.Duration) []time.Duration {
	var out []time.Duration
	for at := from; at <= to; at += step {
		out = append(out, at)
	}
	return out
}

// timedReads is an API server whose only ConfigMap changes with time. It records when it is read.
type timedReads struct {
	client.Reader
	start time.Time
	holds map[time.Duration]string
	reads []time.Duration
}

func (r *timedReads) Get(
	ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption,
) error {
	c, ok := o.(*corev1.ConfigMap)
	if !ok {
		return r.Reader.Get(ctx, key, o, options...)
	}
	now := time.Since(r.start)
	r.reads = append(r.reads, now.Truncate(time.Second))
	latest := time.Duration(-1)
	for at, text := range r.holds {
		if at <= now && at > latest {
			latest, c.Data = at, map[string]string{"ca.crt": text}
		}
	}
	if latest < 0 {
		return apierrors.NewNotFound(corev1.Resource("configmaps"), key.Name)
	}
	return nil
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

// TestCheckWaitsForItsReference: as long as the API server does not answer for a reference, the
// check does not run and the reference is read again soon. The spec is accepted.
func TestCheckWaitsForItsReference(t *testing.T) {
	env := newTestEnv(t)
	setVerdict(probe.Healthy, 1, 3)(env)
	env.reconciler.Live = muteReader{env.live}
	env.spec(literalSpec)
	env.spec(specWithReference)
	env.settle()
	env.expectCondition(v1alpha1.ConditionAccepted, "True")
	if !env.prober.check.Suspended {
		t.Error("it is probed without its roots")
	}
	if result, err := env.reconcile(); err != nil || result.RequeueAfter <= 0 || result.RequeueAfter > referenceRetry {
		t.Errorf("again after %v, %v", result.RequeueAfter, err)
	}
}

// muteReader is an API server that does not answer reads of ConfigMaps.
type muteReader struct{ client.Reader }

func (m muteReader) Get(ctx context.Context, key client.ObjectKey, o client.Object, options ...client.GetOption) error {
	if _, ok := o.(*corev1.ConfigMap); ok {
		return context.DeadlineExceeded
	}
	return m.Reader.Get(ctx, key, o, options...)
}

// TestInvalidSpecWaitsForNoReference: an invalid spec is not reconciled again because of what it
// refers to.
func TestInvalidSpecWaitsForNoReference(t *testing.T) {
	env := newTestEnv(t)
	env.spec(literalSpec)
	env.spec(specWithReference)
	env.settle()
	env.reconciler.states.of(shop).planning.refs.read = time.Now().Add(-time.Hour)
	env.spec(`{healthCheck: {httpGet: {scheme: HTTPS, httpHeaders: [{name: Connection, value: close}]},
		tls: {caCertificateRefs: [{kind: ConfigMap, name: ca}]}}}`)
	env.settle()
	env.expectCondition(v1alpha1.ConditionAccepted, "False InvalidSpec")
	if result, err := env.reconcile(); err != nil || result.RequeueAfter > 0 && result.RequeueAfter < time.Second {
		t.Errorf("again after %v, %v", result.RequeueAfter, err)
	}
}
