package integration

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/test/harness"
)

// Only clients that the API server authenticates and RBAC authorizes get metrics.
func TestMetricsNeedAuthorization(t *testing.T) {
	h := harness.New(t)
	const address = "127.0.0.1:29443"
	h.StartManager("--metrics-secure", "--metrics-bind-address="+address)
	h.Apply(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: stranger}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: scraper}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: external-backend-metrics-reader}
subjects: [{kind: ServiceAccount, name: scraper, namespace: %[1]s}]
`, h.Namespace)
	t.Cleanup(func() {
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: h.Namespace}}
		if err := h.Client.Delete(context.Background(), binding); err != nil {
			t.Error(err)
		}
	})
	h.ApplyBackend("web", onePort)
	h.WaitReady("web")
	// The manager's certificate is self-signed.
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	h.Eventually("metrics to be served", func() error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			err = conn.Close()
		}
		return err
	})
	scrape := func(token string) (int, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	token := func(account string) string {
		t.Helper()
		request := &authenticationv1.TokenRequest{}
		o := named(h, &corev1.ServiceAccount{}, account)
		if err := h.Client.SubResource("token").Create(t.Context(), o, request); err != nil {
			t.Fatal(err)
		}
		return request.Status.Token
	}
	for _, tc := range []struct {
		name, token string
		want        int
	}{
		{"nobody", "", http.StatusUnauthorized},
		{"a stranger", token("stranger"), http.StatusForbidden},
	} {
		if code, body := scrape(tc.token); code != tc.want || strings.Contains(body, "externalbackend_") {
			t.Errorf("%s gets %d: %.200s", tc.name, code, body)
		}
	}
	scraper := token("scraper")
	h.Eventually("metrics", func() error {
		code, body := scrape(scraper)
		want := fmt.Sprintf(`externalbackend_endpoints{name="web",namespace=%q,state="Unprobed"} 1`, h.Namespace)
		if code != http.StatusOK || !strings.Contains(body, want) {
			return fmt.Errorf("the answer is %d: %.200s", code, body)
		}
		return nil
	})
	if resp, err := http.Get("http://" + address + "/metrics"); err == nil {
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			t.Error("metrics are served without TLS")
		}
	}
}
