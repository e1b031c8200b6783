package plugin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/external-backend/operator/internal/probe"
)

// TestProbeTexts compares what a probe prints with golden files.
func TestProbeTexts(t *testing.T) {
	since := metav1.NewTime(testNow.Add(-time.Hour))
	golden(t, "probe-certificate", probeText(&probeReport{
		Namespace: "shop", Name: "db",
		Names: []nameResult{{Target: "a", Name: "db.example.com", Took: "12ms", Addresses: []string{"203.0.113.10"}}},
		Probes: []probeResult{{
			Target: "a", Address: "203.0.113.10:8443", Host: "db.example.com", Verdict: "Unhealthy", Took: "9.1ms",
			Reason: probe.ReasonTLSNameMismatch, Message: "the certificate does not have the expected name",
			ServerName: "db.example.com",
			Certificates: []probe.Certificate{{
				Subject: "CN=other\x1b[31m", Issuer: "CN=root", Names: []string{"other.example.com"}, Omitted: 2,
				NotBefore: testNow, NotAfter: testNow.AddDate(1, 0, 0),
			}},
			Steps: []probeStep{
				{Name: "connect", Took: "1.2ms"}, {Name: "TLS", Took: "7.9ms", Error: "the name does not match"},
			},
			Manager: managerVerdict{Verdict: "Healthy", Since: &since},
		}},
	}))
	golden(t, "probe-unchecked", probeText(&probeReport{
		Namespace: "shop", Name: "db",
		Names: []nameResult{
			{Target: "b", Name: "gone.example.com", Problem: "NXDOMAIN"},
			{Target: "c", Name: "x.example.org", Refused: "not allowed by any policy"},
		},
		Refused: []refusedProbe{{Address: "127.0.0.1", Why: "loopback address"}},
		Notes:   []string{`you may not get Secret "keys" in namespace "shop"`},
	}))
}

func probeText(r *probeReport) string {
	var out strings.Builder
	r.write(&out)
	return out.String()
}

// probeFile runs `probe -f` with a manifest, against an API server that has objects. forbidden is
// what may not be read, such as Secret.
func probeFile(t *testing.T, manifest, forbidden string, despite bool) (string, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "backend.yaml")
	if err := os.WriteFile(path, []byte(manifest), 0o600); err != nil {
		t.Fatal(err)
	}
	objects := []client.Object{&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}}
	c := interceptor.NewClient(fake.NewClientBuilder().WithScheme(newScheme()).WithObjects(objects...).Build(),
		interceptor.Funcs{Get: func(
			ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, options ...client.GetOption,
		) error {
			if _, isSecret := o.(*corev1.Secret); isSecret && forbidden == "Secret" {
				return apierrors.NewForbidden(corev1.Resource("secrets"), key.Name, errors.New("no"))
			}
			return c.Get(ctx, key, o, options...)
		}})
	var out bytes.Buffer
	p := newPlugin(genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &out, ErrOut: &out}, "test")
	o := &probeCommand{files: []string{path}, despite: despite, manager: managerFlags{defaultPolicy: "Allow"}}
	args := []string{}
	backends, err := p.backendsToProbe(t.Context(), c, o, "shop", &args)
	if err != nil {
		return "", err
	}
	var reports []*probeReport
	for _, objects := range backends {
		report, err := p.probeBackend(t.Context(), c, o, objects)
		if err != nil {
			return "", err
		}
		reports = append(reports, report)
	}
	err = p.printProbes(reports, "")
	return out.String(), err
}

// TestProbeObeysPolicyAndRights: what policy refuses is not dialled, unless the user says so. A
// check that needs a Secret which the user may not read is not run without it.
func TestProbeObeysPolicyAndRights(t *testing.T) {
	dialled := 0
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { dialled++ }))
	t.Cleanup(server.Close)
	port := server.Listener.Addr().(*net.TCPAddr).Port
	manifest := func(check string) string {
		return fmt.Sprintf(`apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: db}
spec: {ports: [{name: http, port: 80, targetPort: %d}], healthCheck: {httpGet: {%s}},
  targets: [{name: a, address: 127.0.0.1}]}`, port, check)
	}

	out, err := probeFile(t, manifest("path: /"), "", false)
	if dialled > 0 || err == nil || errors.Is(err, errFinding) || !strings.Contains(out, "loopback address") {
		t.Errorf("dialled %d times, %v:\n%s", dialled, err, out)
	}
	out, err = probeFile(t, manifest("path: /"), "", true)
	if dialled != 1 || err != nil || !strings.Contains(out, "here:    Healthy") || !strings.Contains(out, "despite that") {
		t.Errorf("despite policy: dialled %d times, %v:\n%s", dialled, err, out)
	}
	out, err = probeFile(t, manifest(`expectedStatuses: ["404"]`), "", true)
	if !errors.Is(err, errFinding) || !strings.Contains(out, "UnexpectedStatus") {
		t.Errorf("another status: %v:\n%s", err, out)
	}

	dialled = 0
	withSecret := strings.Replace(manifest("scheme: HTTPS"), "healthCheck: {",
		"healthCheck: {tls: {clientCertificateRef: {name: keys}}, ", 1)
	out, err = probeFile(t, withSecret, "Secret", true)
	if dialled > 0 || err == nil || errors.Is(err, errFinding) || !strings.Contains(out, `you may not get Secret "keys"`) {
		t.Errorf("without the Secret: dialled %d times, %v:\n%s", dialled, err, out)
	}
}

// TestProbeSaysWhatIsNotToBeChecked: an ExternalBackend without anything to check is an error that
// says so.
func TestProbeSaysWhatIsNotToBeChecked(t *testing.T) {
	for spec, want := range map[string]string{
		"{ports: [{port: 80}], targets: [{name: a, address: 203.0.113.1}]}": "no spec.healthCheck",
		"{ports: [{port: 80}], healthCheck: {tcpSocket: {port: absent}}}":   "not valid",
	} {
		manifest := "apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackend\nmetadata: {name: db}\nspec: " + spec
		if _, err := probeFile(t, manifest, "", false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", spec, err)
		}
	}
}
