package integration

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/test/harness"
)

// An error that the schema can't find is reported with its field, and everything that is published
// stays.
func TestInvalidSpecKeepsWhatIsPublished(t *testing.T) {
	h := parallel(t)
	const spec = "ports: [{name: web, port: 80, targetPort: 8080}]\ntargets: [{name: a, address: 198.51.100.%d, ports: [{name: %s, targetPort: 8080}]}]\n%s"
	h.ApplyBackend("web", spec, 1, "web", "")
	h.WaitReady("web")
	before := takeSnapshot(h, "web", true)
	for _, tc := range []struct{ name, port, more, field string }{
		{"unknown port", "other", "", "spec.targets[0].ports[0].name"},
		{"hop-by-hop header", "web", "healthCheck: {httpGet: {httpHeaders: [{name: Connection, value: close}]}}",
			"spec.healthCheck.httpGet.httpHeaders[0].name"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := h.Sub(t)
			h.ApplyBackend("web", spec, 2, tc.port, tc.more)
			h.WaitCondition("web", "Accepted", metav1.ConditionFalse, "InvalidSpec")
			h.WaitCondition("web", "Ready", metav1.ConditionFalse, "InvalidSpec")
			wantStalled(h, "web", "InvalidSpec")
			waitMessage(h, "web", "Accepted", tc.field)
			h.WaitEvent("web", "InvalidSpec")
			waitSnapshot(h, "web", before, true)
			h.ApplyBackend("web", spec, 1, "web", "")
			h.WaitReady("web")
			wantStalled(h, "web", "")
			waitSnapshot(h, "web", before, true)
		})
	}
	// Nothing was published before.
	h.ApplyBackend("new", spec, 1, "other", "")
	h.WaitCondition("new", "Ready", metav1.ConditionFalse, "InvalidSpec")
	wantStalled(h, "new", "InvalidSpec")
	if n := len(h.Slices("new")); n > 0 {
		t.Errorf("%d slices are published", n)
	}
}

// A Secret or ConfigMap that is missing, invalid or not readable stops the probes that need it, and
// nothing else.
func TestMissingReferenceStopsOnlyProbes(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 1)
	https := func(tls string) string {
		return "service: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4]}\nports: [{name: web, port: 80}]\ntargets:\n" +
			set.targets() + tls
	}
	h.ApplyBackend("web", https(""))
	h.WaitStates("web", harness.All(harness.Healthy, set.at(0)))

	const checked = "healthCheck: {httpGet: {scheme: HTTPS}, tls: %s, " + harness.FastPace + "}"
	refused := func(reason, tls string, words ...string) {
		t.Helper()
		h.ApplyBackend("web", https(fmt.Sprintf(checked, tls)))
		h.WaitCondition("web", "ResolvedRefs", metav1.ConditionFalse, reason)
		waitMessage(h, "web", "ResolvedRefs", words...)
		h.WaitReady("web") // traffic goes on
		wantStalled(h, "web", "")
		h.WaitStates("web", harness.All(harness.Healthy, set.at(0)))
	}
	// The manager lacks the right. The message names the role to bind.
	refused("RefNotPermitted", "{caCertificateRefs: [{kind: ConfigMap, name: ca, key: ca.crt}]}",
		"spec.healthCheck.tls.caCertificateRefs[0]", "ca", "external-backend-reference-reader")
	h.WaitEvent("web", "RefNotPermitted")
	h.AllowReferences()
	refused("RefNotFound", "{caCertificateRefs: [{kind: ConfigMap, name: other}]}",
		"spec.healthCheck.tls.caCertificateRefs[0]", `ConfigMap "other" does not exist`)
	refused("RefNotFound", "{caCertificateRefs: [{kind: Secret, name: ca}]}",
		"spec.healthCheck.tls.caCertificateRefs[0]", `Secret "ca" does not exist`)
	refused("RefNotFound", "{clientCertificateRef: {name: client}}", "spec.healthCheck.tls.clientCertificateRef",
		`Secret "client" does not exist`)
	ca := newAuthority(t)
	h.ApplyObject(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "ca"},
		Data:       map[string]string{"ca.crt": "no PEM", "good": string(ca.Cert)},
	})
	refused("InvalidRef", "{caCertificateRefs: [{kind: ConfigMap, name: ca}]}",
		"spec.healthCheck.tls.caCertificateRefs[0]", `key "ca.crt" of ConfigMap "ca" holds no PEM certificate`)
	refused("InvalidRef", "{caCertificateRefs: [{kind: ConfigMap, name: ca, key: absent}]}",
		`ConfigMap "ca" has no key "absent"`)
	h.ApplyObject(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "opaque"},
		Data:       map[string][]byte{"tls.crt": ca.Cert, "tls.key": ca.Key},
	})
	refused("InvalidRef", "{clientCertificateRef: {name: opaque}}", "spec.healthCheck.tls.clientCertificateRef",
		"kubernetes.io/tls")

	// The references exist, so probes start. They fail, because the server has no TLS.
	h.ApplyObject(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "client"},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{"tls.crt": ca.Cert, "tls.key": ca.Key},
	})
	h.ApplyBackend("web",
		https(
			fmt.Sprintf(checked,
				"{caCertificateRefs: [{kind: ConfigMap, name: ca, key: good}], clientCertificateRef: {name: client}}"),
		),
	)
	h.WaitCondition("web", "ResolvedRefs", metav1.ConditionTrue, "ResolvedRefs")
	h.WaitStates("web", harness.All(harness.Unhealthy, set.at(0)))
	waitTarget(h, "web", "a", "Unhealthy", "TLSHandshakeFailed")
	wantStalled(h, "web", "")
}

// A missing reference is found within a minute of its creation, without a change of the spec.
func TestReferenceIsFoundOnceItExists(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 1)
	h.AllowReferences()
	h.ApplyBackend("web",
		"ports: [{name: web, port: 80}]\ntargets:\n%shealthCheck: {httpGet: {scheme: HTTPS}, tls: {caCertificateRefs: [{kind: ConfigMap, name: ca}]}, %s}",
		set.targets(), harness.FastPace)
	h.WaitCondition("web", "ResolvedRefs", metav1.ConditionFalse, "RefNotFound")
	waitTarget(h, "web", "a", "Unknown", "")
	h.ApplyObject(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "ca"},
		Data:       map[string]string{"ca.crt": string(newAuthority(t).Cert)},
	})
	h.Within(time.Minute+harness.Patience, "the ConfigMap to be found", func() error {
		c := meta.FindStatusCondition(h.Backend("web").Status.Conditions, "ResolvedRefs")
		if c.Status != metav1.ConditionTrue {
			return fmt.Errorf("it is %+v", c)
		}
		return nil
	})
	waitTarget(h, "web", "a", "Unhealthy", "TLSHandshakeFailed")
}
