package integration

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/gitops"
	"github.com/external-backend/operator/test/harness"
)

const customizations = "../../config/argocd/resource_customizations"

var recordStates = flag.Bool("record-states", false,
	"write the objects of TestGitOpsTools beside the health checks of Argo CD")

// recorded are the entries of health_test.yaml so far, by kind and state.
var recorded struct {
	sync.Mutex
	tests map[string]map[string]string
}

// stalledAfter is more than the two minutes after which a missing Service counts as stalled.
const stalledAfter = 150 * time.Second

// gitopsState is a state of [gitops.States], and what Argo CD makes of it.
type gitopsState struct {
	name  string
	reach func(h *harness.Test)
	argo  gitops.Health // its message is a part of the message
}

func healthy(message string) gitops.Health { return gitops.Health{Status: "Healthy", Message: message} }
func degraded(message string) gitops.Health {
	return gitops.Health{Status: "Degraded", Message: message}
}
func progressing(message string) gitops.Health {
	return gitops.Health{Status: "Progressing", Message: message}
}

// TestGitOpsTools reaches every state of an ExternalBackend on a real cluster, and wants Argo CD's
// health check and kstatus to judge it as users expect.
func TestGitOpsTools(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 2)
	set.servers[1].SetSick(true)
	ns := startScriptedDNS(h)
	ns.set("nowhere.example.com", answerWithCode(dns.RcodeNameError))
	named := func(more string) string {
		return fmt.Sprintf(web, "") + more + fmt.Sprintf("dns: {nameservers: [%q]}\n", ns.V4)
	}
	const nowhere = "- {name: gone, hostname: nowhere.example.com}\n"
	const nobody = "- {name: nobody, address: 203.0.113.254}\n" // no machine has it
	const passthrough = "service: {type: Headless}\nports: [{name: web, port: 80}]\n" +
		"targets: [{name: a, hostname: www.example.com}]\ndns: {resolution: Passthrough}\n"
	slowly := func(targets string) string {
		return fmt.Sprintf(web, "") + "targets:\n" + targets +
			"healthCheck: {tcpSocket: {}, periodSeconds: 300, timeoutSeconds: 300, failureThreshold: 10}\n"
	}
	applied := func(spec, condition string, is metav1.ConditionStatus, reason string) func(h *harness.Test) {
		return func(h *harness.Test) {
			h.T.Helper()
			h.ApplyBackend("web", spec)
			h.WaitCondition("web", condition, is, reason)
		}
	}
	for _, s := range []gitopsState{
		{"ready", applied(onePort, "Ready", "True", ""), healthy("1 of 1 endpoints are ready.")},
		{"all-healthy", applied(spec(set.target(0, ""), "", ""), "Healthy", "True", "Healthy"),
			healthy("1 of 1 endpoints are ready.")},
		{"some-unhealthy", applied(spec(set.targets(), "", ""), "Healthy", "False", "SomeUnhealthy"),
			healthy("1 of 2 endpoints are ready. 1 of 2 probed endpoints are healthy.")},
		{"all-unhealthy", applied(spec(set.target(1, ""), "", ""), "Healthy", "False", "AllUnhealthy"),
			degraded("0 of 1 endpoints are ready.")},
		{"no-verdict-yet", applied(slowly(nobody), "Healthy", "Unknown", "Pending"),
			progressing("0 of 1")},
		{"draining", applied(onePort[:len(onePort)-2]+", adminState: Draining}]", "Ready", "False", "Draining"),
			degraded("0 of 1 endpoints are ready.")},
		{"name-not-found", applied(named("targets:\n"+nowhere), "Ready", "False", "ResolutionFailed"),
			degraded(`Target "gone" (NXDOMAIN)`)},
		{"one-name-not-found",
			applied(named("targets:\n"+nowhere+"- {name: a, address: 198.51.100.1}\n"), "NamesResolved", "False", ""),
			healthy("1 of 1 endpoints are ready. ")},
		{"invalid-spec",
			applied(onePort[:len(onePort)-2]+", ports: [{name: other, targetPort: 1}]}]", "Stalled", "True", "InvalidSpec"),
			degraded("spec.")},
		{"service-not-found", applied("serviceRef: {name: absent}"+onePort, "Ready", "False", "ServiceNotFound"),
			progressing(`Service "absent" does not exist`)},
		{"refused-by-policy",
			applied(strings.ReplaceAll(onePort, "198.51.100.1", "10.96.0.1"), "Permitted", "False", "TargetDenied"),
			degraded("")},
		{"passthrough", applied(passthrough, "Ready", "True", ""), healthy("")},
		{
			"stalled", func(h *harness.Test) {
				h.ApplyBackend("web", "serviceRef: {name: absent}"+onePort)
				h.Within(stalledAfter, "web to be stalled", func() error {
					for _, c := range h.Backend("web").Status.Conditions {
						if c.Type == v1alpha1.ConditionStalled && c.Status == metav1.ConditionTrue {
							return nil
						}
					}
					return fmt.Errorf("it is not")
				})
			},
			degraded(`Service "absent" does not exist`),
		},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			h := harness.New(t)
			s.reach(h)
			wantGitOps(h, "ExternalBackend", "web", s)
		})
	}
}

// TestGitOpsToolsOnPolicies does the same with the states of an ExternalBackendPolicy.
func TestGitOpsToolsOnPolicies(t *testing.T) {
	parallel(t)
	applied := func(spec string) func(h *harness.Test) {
		return func(h *harness.Test) {
			h.T.Helper()
			h.ApplyBackend("web", onePort)
			policy(h, "web", spec)
		}
	}
	const one = "Selects 1 ExternalBackends in 1 namespaces."
	for _, s := range []gitopsState{
		{"refuses-nothing", applied("allow: [{cidrs: [198.51.100.0/24]}]"), healthy(one)},
		{"refuses", applied("allow: [{cidrs: [192.0.2.0/24]}]"),
			healthy(one + " Something of 1 of them is refused.")},
		{"would-refuse", applied("mode: Audit, allow: [{cidrs: [192.0.2.0/24]}]"),
			healthy(one + " Something of 1 of them would be refused.")},
		{"invalid", func(h *harness.Test) {
			h.Apply("apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackendPolicy\nmetadata: {name: web-%s}\n"+
				"spec: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s, \"no key!\": a}}}", h.Namespace)
			p := &v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: "web-" + h.Namespace}}
			h.T.Cleanup(func() { _ = h.Client.Delete(context.Background(), p) })
		}, degraded("spec.namespaceSelector.matchLabels[no key!]: not a selector requirement")},
	} {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			h := harness.New(t)
			s.reach(h)
			wantGitOps(h, "ExternalBackendPolicy", "web-"+h.Namespace, s)
		})
	}
}

// wantGitOps compares what the tools say of the live object. It waits: a message may still settle.
func wantGitOps(h *harness.Test, kind, name string, s gitopsState) {
	h.T.Helper()
	wantKstatus, known := gitops.States[kind][s.name]
	if !known {
		h.T.Fatalf("gitops.States lacks %s of %s", s.name, kind)
	}
	o := &unstructured.Unstructured{}
	o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	key := h.Key(name)
	if kind == "ExternalBackendPolicy" {
		key.Namespace = ""
	}

	var health gitops.Health
	h.Eventually("GitOps tools to see "+s.argo.Status+" and "+wantKstatus, func() error {
		if err := h.Client.Get(h.T.Context(), key, o); err != nil {
			return err
		}
		var err error
		if health, err = gitops.ArgoHealth(h.T.Context(), customizations, o); err != nil {
			return err
		}
		kstatus, err := gitops.Kstatus(o)
		if err != nil {
			return err
		}
		if health.Status != s.argo.Status || !strings.Contains(health.Message, s.argo.Message) || kstatus != wantKstatus {
			return fmt.Errorf("Argo CD says %+v, kstatus says %s", health, kstatus)
		}
		return nil
	})

	for _, waiting := range []*unstructured.Unstructured{gitops.Edited(o), gitops.New(o)} {
		if is, err := gitops.ArgoHealth(h.T.Context(), customizations, waiting); err != nil || is.Status != "Progressing" {
			h.T.Errorf("an edit that the operator has not seen: %+v, %v", is, err)
		}
		if is, err := gitops.Kstatus(waiting); err != nil || is != "InProgress" {
			h.T.Errorf("an edit that the operator has not seen: kstatus says %s, %v", is, err)
		}
	}
	if is, err := gitops.Kstatus(gitops.Deleted(o)); err != nil || is != "Terminating" {
		h.T.Errorf("one that is being deleted: kstatus says %s, %v", is, err)
	}
	if *recordStates {
		recordState(h, s.name, o, health)
	}
}

// recordState writes the object into the folder of its health check, and adds it to
// health_test.yaml.
func recordState(h *harness.Test, name string, o *unstructured.Unstructured, health gitops.Health) {
	h.T.Helper()
	folder := filepath.Join(customizations, v1alpha1.GroupVersion.Group, o.GetKind())
	path := filepath.Join("testdata", name+".yaml")
	recordObject(h, o, filepath.Join(folder, path))
	recorded.Lock()
	defer recorded.Unlock()
	entry, err := yaml.Marshal([]any{map[string]any{
		"healthStatus": map[string]any{"status": health.Status, "message": health.Message}, "inputPath": path,
	}})
	if err != nil {
		h.T.Fatal(err)
	}
	if recorded.tests == nil {
		recorded.tests = map[string]map[string]string{}
	}
	if recorded.tests[o.GetKind()] == nil {
		recorded.tests[o.GetKind()] = map[string]string{}
	}
	entries := recorded.tests[o.GetKind()]
	entries[name] = string(entry)
	tests := "tests:\n"
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		tests += entries[name]
	}
	if err := os.WriteFile(filepath.Join(folder, "health_test.yaml"), []byte(tests), 0o644); err != nil {
		h.T.Fatal(err)
	}
}

// recordObject writes the object as kubectl get -o yaml prints it.
func recordObject(h *harness.Test, o *unstructured.Unstructured, path string) {
	h.T.Helper()
	o.SetManagedFields(nil)
	text, err := yaml.Marshal(o.Object)
	if err != nil {
		h.T.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		h.T.Fatal(err)
	}
}
