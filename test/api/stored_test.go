package api

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// emptyStructs has every optional object as {}, without optional fields.
const emptyStructs = `
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: empty, namespace: default}
spec:
  service: {}
  ports: [{port: 80}]
  targets: [{name: a, address: 203.0.113.1, ports: [{targetPort: 8080}]}]
  dns: {}
  healthCheck: {tcpSocket: {}}
  failover: {}
`

// writtenOut has every field with its default value.
const writtenOut = `
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: written-out, namespace: default}
spec:
  service:
    {name: written-out, type: ClusterIP, adoptionPolicy: Never, sessionAffinity: None,
     internalTrafficPolicy: Cluster, publishNotReadyAddresses: false}
  ports: [{name: "", port: 80, targetPort: 80, protocol: TCP}]
  deletionPolicy: Delete
  targets: [{name: a, address: 203.0.113.1, ports: [{targetPort: 80}], tier: 0, adminState: Active}]
  dns: {resolution: Resolve, transport: UDP, minTTLSeconds: 5,
        maxTTLSeconds: 3600, staleSeconds: 86400, removalDelaySeconds: 0}
  healthCheck:
    mode: Enforce
    httpGet: {path: /, scheme: HTTP, expectedStatuses: ["200-399"]}
    periodSeconds: 10
    timeoutSeconds: 3
    successThreshold: 1
    failureThreshold: 3
    confirmPeriodMilliseconds: 1000
    initialState: NotReady
  failover: {minHealthyPercent: 1, whenNoTierQualifies: HealthyEndpoints, failbackDelaySeconds: 60, failback: Automatic}
  drainSeconds: 0
`

// manifests returns objects that are stored as they are written.
func manifests(t *testing.T) map[string][]*unstructured.Unstructured {
	t.Helper()
	check := func(name, check string) string {
		return "apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackend\nmetadata: {name: " + name +
			", namespace: default}\n" +
			"spec: {ports: [{port: 80}], healthCheck: " + check + "}\n"
	}
	out := map[string][]*unstructured.Unstructured{}
	for name, text := range map[string]string{
		"empty structs":     emptyStructs,
		"defaults, written": writtenOut,
		"empty httpGet":     check("http", "{httpGet: {}}"),
		"empty grpc":        check("grpc", "{grpc: {}}"),
		"empty tls":         check("https", "{httpGet: {scheme: HTTPS}, tls: {}}"),
		"grpc over TLS": check("grpc-tls",
			"{grpc: {transport: TLS}, tls: {caCertificateRefs: [{kind: ConfigMap, name: ca}, {kind: Secret, name: ca, group: \"\", key: tls.crt}]}}"),
		"plaintext, written":  check("plaintext", "{grpc: {transport: Plaintext}}"),
		"empty tls of dns":    "apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackend\nmetadata: {name: dot, namespace: default}\nspec: {ports: [{port: 80}], dns: {transport: TLS, tls: {}}}\n",
		"policy":              "apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackendPolicy\nmetadata: {name: least}\nspec: {namespaceSelector: {}, allow: [{anyTarget: {}, ports: [{port: 53}]}]}\n",
		"policy, written out": "apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackendPolicy\nmetadata: {name: most}\nspec: {mode: Enforce, namespaceSelector: {}, allow: [{cidrs: [203.0.113.0/24], ports: [{protocol: TCP, port: 53, endPort: 53}]}], allowNameservers: [198.51.100.53]}\n",
		"override":            "apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackendOverride\nmetadata: {name: most, namespace: default}\nspec: {externalBackendRef: {name: db}, pinnedTier: 0, targets: [{name: a, adminState: Active}], expirationTime: \"2026-12-01T10:00:00Z\"}\n",
		"policy, no rules":    "apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackendPolicy\nmetadata: {name: none}\nspec: {namespaceSelector: {}}\n",
	} {
		out[name] = []*unstructured.Unstructured{object(t, text)}
	}
	files, err := filepath.Glob(filepath.Join(root, "config/samples/v1alpha1_*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		out[filepath.Base(file)] = documents(t, file)
	}
	return out
}

// ours reports whether the object belongs to this project's API.
func ours(u *unstructured.Unstructured) bool {
	return strings.HasPrefix(u.GetAPIVersion(), "external-backend.io/")
}

// The API server adds nothing to a spec and removes nothing from it.
func TestStoredAsWritten(t *testing.T) {
	for name, objects := range manifests(t) {
		for _, u := range objects {
			if !ours(u) {
				continue
			}
			want := u.DeepCopy()
			if err := api.Create(t.Context(), u, client.DryRunAll); err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			if diff := cmp.Diff(specOf(t, want), specOf(t, u)); diff != "" {
				t.Errorf("%s, -written +stored:\n%s", name, diff)
			}
		}
	}
}

// specOf returns the spec in a form that can be compared.
func specOf(t *testing.T, u *unstructured.Unstructured) string {
	t.Helper()
	text, err := yaml.Marshal(u.Object["spec"])
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// A manifest can be applied client-side, server-side by another owner, and again. Only the first
// time changes something, and kubectl diff shows no difference.
func TestRepeatedApplyChangesNothing(t *testing.T) {
	k := newKubectl(t)
	for name, objects := range manifests(t) {
		var all bytes.Buffer
		for _, u := range objects {
			if ours(u) {
				text, err := json.Marshal(u)
				if err != nil {
					t.Fatal(err)
				}
				all.WriteString("---\n" + string(text) + "\n")
			}
		}
		manifest := all.String()
		t.Run(name, func(t *testing.T) {
			defer k.run(t, manifest, "delete", "-f", "-", "--wait=false")
			var first string
			for _, apply := range [][]string{
				{"apply", "-f", "-"}, {"apply", "-f", "-"},
				{"apply", "--server-side", "--force-conflicts", "-f", "-"}, {"apply", "--server-side", "-f", "-"},
				{"apply", "--server-side", "--force-conflicts", "--field-manager=flux", "-f", "-"},
			} {
				k.run(t, manifest, apply...)
				is := k.run(t, manifest, "get", "-f", "-", "-o",
					`jsonpath={range .items[*]}{.metadata.generation}{end}{.metadata.generation}`)
				if first == "" {
					first = is
				}
				if is != first {
					t.Errorf("after %v, the generation is %s, want %s", apply, is, first)
				}
				k.run(t, manifest, "diff", "-f", "-")
			}
		})
	}
}

// kubectl runs the kubectl of the same version as the API server.
type kubectl struct{ binary, kubeconfig string }

func newKubectl(t *testing.T) kubectl {
	t.Helper()
	dir, err := assets()
	if err != nil {
		t.Fatal(err)
	}
	user, err := environment.AddUser(administrator, nil)
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := user.KubeConfig()
	if err != nil {
		t.Fatal(err)
	}
	k := kubectl{filepath.Join(dir, "kubectl"), filepath.Join(t.TempDir(), "kubeconfig")}
	if err := os.WriteFile(k.kubeconfig, kubeconfig, 0o600); err != nil {
		t.Fatal(err)
	}
	return k
}

// run runs kubectl and fails the test if it fails. kubectl diff fails if there is a difference.
func (k kubectl) run(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), k.binary, append([]string{"--kubeconfig=" + k.kubeconfig}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// A rule holds in the same way for an absent field and for a field with its default value.
func TestRulesHoldForDefaultsToo(t *testing.T) {
	nodePort := set("spec.ports.0.nodePort", "30080")
	local := set("spec.service.internalTrafficPolicy", "Local")
	tls := set("spec.healthCheck.tls", "{}")
	for _, c := range []struct {
		what       string
		field      string // absent, or with its default
		value      string
		mutate     mutation
		wantErrors []string
	}{
		{"nodePort", "spec.service.type", "ClusterIP", nodePort, []string{"nodePort"}},
		{"Passthrough", "spec.service.type", "ClusterIP", all(set("spec.targets", "[{name: a, hostname: db.example.com}]"),
			set("spec.dns.resolution", "Passthrough")), []string{"spec.dns.resolution"}},
		{"externalTrafficPolicy", "spec.service.type", "ClusterIP", set("spec.service.externalTrafficPolicy", "Cluster"),
			[]string{"spec.service.externalTrafficPolicy"}},
		{"loadBalancerClass", "spec.service.type", "ClusterIP", set("spec.service.loadBalancerClass", "a"),
			[]string{"spec.service.loadBalancerClass"}},
		{"source ranges", "spec.service.type", "ClusterIP", set("spec.service.loadBalancerSourceRanges", "[203.0.113.0/24]"),
			[]string{"spec.service.loadBalancerSourceRanges"}},
		{"families", "spec.service.type", "ClusterIP", set("spec.service.ipFamilies", "[IPv4]"), nil},
		{"affinity's timeout", "spec.service.sessionAffinity", "None", set("spec.service.sessionAffinityTimeoutSeconds", "5"),
			[]string{"sessionAffinityTimeoutSeconds"}},
		{"Local", "spec.service.externalTrafficPolicy", "Cluster", all(set("spec.service.type", "NodePort"), local),
			[]string{"spec.targets"}},
		{"not Local", "spec.service.internalTrafficPolicy", "Cluster", none, nil},
		{"two targets", "spec.dns.resolution", "Resolve",
			set("spec.targets", "[{name: a, hostname: a.example.com}, {name: b, hostname: b.example.com}]"), nil},
		{"tls of dns", "spec.dns.transport", "UDP", set("spec.dns.tls", "{}"), []string{"spec.dns.tls"}},
		{"a check", "spec.ports.0.protocol", "TCP", set("spec.healthCheck.tcpSocket", "{}"), nil},
		{"the same port twice", "spec.ports.0.protocol", "TCP", set("spec.ports.1.port", "5432"), []string{"same port"}},
		{"the same nodePort twice", "spec.ports.0.protocol", "TCP",
			all(set("spec.service.type", "NodePort"), nodePort, set("spec.ports.1.nodePort", "30080")), []string{"nodePort"}},
		{"tls with httpGet", "spec.healthCheck.httpGet.scheme", "HTTP", all(set("spec.healthCheck.httpGet.path", "/"), tls),
			[]string{"spec.healthCheck.tls"}},
		{"tls with tcpSocket", "spec.healthCheck.tcpSocket.transport", "Plaintext",
			all(set("spec.healthCheck.tcpSocket.port", "1"), tls), []string{"spec.healthCheck.tls"}},
		{"tls with grpc", "spec.healthCheck.grpc.transport", "Plaintext", all(set("spec.healthCheck.grpc.port", "1"), tls),
			[]string{"spec.healthCheck.tls"}},
		{"a name beside another", "spec.ports.0.name", "''", set("spec.targets", "[]"), []string{"spec.ports"}},
	} {
		for way, def := range map[string]mutation{"absent": unset(c.field), "written out": set(c.field, c.value)} {
			t.Run(c.what+", "+way, func(t *testing.T) {
				u := object(t, baseBackend)
				c.mutate(t, u)
				def(t, u)
				check(t, api.Create(t.Context(), u, client.DryRunAll), c.wantErrors)
			})
		}
	}
}
