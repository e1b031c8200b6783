package security

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

const (
	account = "external-backend-controller-manager"
	// metricsAddress is the address at which the manager serves metrics, as it does when installed.
	metricsAddress = "127.0.0.1:19443"
	user           = "system:serviceaccount:" + lab.SystemNamespace + ":" + account
)

// listed is the reason for a right to list.
const listed = "caches are filled by streaming watches; an API server that can't stream is asked for lists"

// unused maps each right that no request uses to the reason why the manager has it.
var unused = map[string]string{
	"update externalbackends.external-backend.io/finalizers": "admission checks it when a reference to the owner blocks its deletion; there is no separate request",
	"update services/finalizers":                             "the same, for slices that belong to a Service",
	"delete services":                                        "admission checks it when a reference to an owner changes",
	"create endpointslices.discovery.k8s.io/restricted":      "OpenShift checks it when a slice has an address of the cluster",
	"patch events.events.k8s.io":                             "an event that is repeated within minutes is counted up",
	"patch events":                                           "the same, for events of the leader election",
	"list endpoints":                                         listed,
	"list endpointslices.discovery.k8s.io":                   listed,
	"list externalbackendoverrides.external-backend.io":      listed,
	"list externalbackendpolicies.external-backend.io":       listed,
	"list externalbackends.external-backend.io":              listed,
	"list leases.coordination.k8s.io":                        listed,
	"list namespaces":                                        listed,
	"list nodes":                                             listed,
	"list servicecidrs.networking.k8s.io":                    listed,
	"list services":                                          listed,
}

// The manager uses each right that the manifests give it, apart from a few reviewed ones, and needs
// no other.
func TestManagerUsesExactlyItsRights(t *testing.T) {
	h := harness.New(t)
	granted := grants(h)
	leadOnce(h)
	m := h.StartManager("--leader-elect", "--metrics-secure=true", "--metrics-bind-address="+metricsAddress)
	exerciseRights(h)
	m.Stop()
	used, denied := requests(t, h.AuditLog)
	for _, d := range denied {
		t.Errorf("the manager was refused to %s", d)
	}
	for right := range granted {
		if !used[right] && unused[right] == "" {
			t.Errorf("the right to %s is granted and not used", right)
		}
	}
	for right := range unused {
		// Whether an event is repeated, and whether the API server streams, does not depend on us.
		depends := strings.HasPrefix(right, "list ") || strings.HasPrefix(right, "patch events")
		if !granted[right] || used[right] && !depends {
			t.Errorf("the right to %s: granted %t, used %t; it does not belong in the reviewed list", right,
				granted[right], used[right])
		}
	}
}

// leadOnce runs a manager that works alone, until it has led.
func leadOnce(h *harness.Test) {
	h.T.Helper()
	leader := h.StartManager("--leader-elect", "--shard=false")
	h.Eventually("a leader", func() error {
		var lease coordinationv1.Lease
		key := client.ObjectKey{Namespace: lab.SystemNamespace, Name: "external-backend.io"}
		if err := h.Client.Get(h.T.Context(), key, &lease); err != nil {
			return err
		}
		if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity == "" {
			return errors.New("nobody holds the Lease")
		}
		return nil
	})
	leader.Stop()
}

// grants returns the rights that roles give the manager's ServiceAccount, each as
// "verb resource.group/subresource".
func grants(h *harness.Test) map[string]bool {
	h.T.Helper()
	out := map[string]bool{}
	isOurs := func(s rbacv1.Subject) bool { return s.Kind == "ServiceAccount" && s.Name == account }
	add := func(ref rbacv1.RoleRef, namespace string) {
		var rules []rbacv1.PolicyRule
		var err error
		if ref.Kind == "Role" {
			var role rbacv1.Role
			err = h.Client.Get(h.T.Context(), client.ObjectKey{Namespace: namespace, Name: ref.Name}, &role)
			rules = role.Rules
		} else {
			var role rbacv1.ClusterRole
			err = h.Client.Get(h.T.Context(), client.ObjectKey{Name: ref.Name}, &role)
			rules = role.Rules
		}
		if err != nil {
			h.T.Fatal(err)
		}
		for _, rule := range rules {
			for _, verb := range rule.Verbs {
				for _, group := range rule.APIGroups {
					for _, resource := range rule.Resources {
						out[right(verb, group, resource)] = true
					}
				}
			}
		}
	}
	var everywhere rbacv1.ClusterRoleBindingList
	var somewhere rbacv1.RoleBindingList
	for _, list := range []client.ObjectList{&everywhere, &somewhere} {
		if err := h.Client.List(h.T.Context(), list); err != nil {
			h.T.Fatal(err)
		}
	}
	for _, b := range everywhere.Items {
		if slices.ContainsFunc(b.Subjects, isOurs) {
			add(b.RoleRef, "")
		}
	}
	for _, b := range somewhere.Items {
		if slices.ContainsFunc(b.Subjects, isOurs) && b.Namespace == lab.SystemNamespace {
			add(b.RoleRef, b.Namespace)
		}
	}
	return out
}

// right returns a right as text. resource may have a subresource.
func right(verb, group, resource string) string {
	resource, sub, isSub := strings.Cut(resource, "/")
	if group != "" {
		resource += "." + group
	}
	if isSub {
		resource += "/" + sub
	}
	return verb + " " + resource
}

// requests reads from the audit log which rights the manager has used, and which it lacked. Access
// to Secrets and ConfigMaps does not count: administrators grant it.
func requests(t *testing.T, path string) (used map[string]bool, denied []string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	used = map[string]bool{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var entry struct {
			Verb        string
			User        struct{ Username string }
			ObjectRef   *struct{ Resource, Subresource, APIGroup string }
			Annotations map[string]string
		}
		if err := json.Unmarshal(lines.Bytes(), &entry); err != nil || entry.User.Username != user || entry.ObjectRef == nil {
			continue // another user, or a line that is still being written
		}
		resource := entry.ObjectRef.Resource
		if entry.ObjectRef.Subresource != "" {
			resource += "/" + entry.ObjectRef.Subresource
		}
		r := right(entry.Verb, entry.ObjectRef.APIGroup, resource)
		if entry.Annotations["authorization.k8s.io/decision"] == "allow" {
			used[r] = true
		} else if resource != "secrets" && resource != "configmaps" {
			denied = append(denied, r)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return used, denied
}

// exerciseRights makes the manager send every kind of request to the API server.
func exerciseRights(h *harness.Test) {
	h.T.Helper()
	env := sharedEnvironment(h)
	// The manager creates and updates a Service and slices, and reports a denial by an event.
	h.Apply(made, env.allowed.V4, "a: b")
	h.WaitReady("made")
	h.Apply(made, env.allowed.V4, "a: c")
	h.Apply(writtenByHand, env.allowed.V4)
	for _, name := range []string{"adopted", "attached"} {
		h.WaitCondition(name, v1alpha1.ConditionProgrammed, metav1.ConditionTrue, "")
	}
	h.WaitEvent("made", v1alpha1.ReasonTargetDenied)
	h.WaitEvent("adopted", "ForeignEndpointsRemoved")
	waitPolicyStatus(h)
	// One override is applied. The other one ended days ago, and is deleted.
	h.Apply(overrides, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	h.WaitEvent("made", "Overridden")
	h.Eventually("the end of an old override", func() error {
		ended := &v1alpha1.ExternalBackendOverride{}
		if err := h.Client.Get(h.T.Context(), h.Key("ended"), ended); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is still there: %v", err)
		}
		return nil
	})
	forceConflicts(h)
	scrape(h)
}

// waitPolicyStatus applies a policy that refuses nothing, and waits for its status.
func waitPolicyStatus(h *harness.Test) {
	h.T.Helper()
	p := &v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: h.Namespace}}
	h.Apply("apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackendPolicy\nmetadata: {name: %s}\n"+
		"spec: {mode: Audit, namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}}", h.Namespace)
	h.T.Cleanup(func() { _ = h.Client.Delete(context.Background(), p) })
	h.Eventually("the status of a policy", func() error {
		if err := h.Client.Get(h.T.Context(), client.ObjectKeyFromObject(p), p); err != nil {
			return err
		}
		if p.Status.ObservedGeneration != p.Generation {
			return fmt.Errorf("it is %+v", p.Status)
		}
		return nil
	})
}

// overrides wants the time at which the first one ends.
const overrides = `
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackendOverride
metadata: {name: lasting}
spec: {externalBackendRef: {name: made}, pinnedTier: 0, expirationTime: %q}
---
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackendOverride
metadata: {name: ended}
spec: {externalBackendRef: {name: made}, pinnedTier: 0, expirationTime: "2026-01-01T00:00:00Z"}
`

// forceConflicts makes the manager's cache stale: its next write meets an object that was changed
// or deleted meanwhile.
func forceConflicts(h *harness.Test) {
	h.T.Helper()
	h.Eventually("the manager to write to a slice and a Service that have just changed", func() error {
		used, _ := requests(h.T, h.AuditLog)
		if used["get services"] && used["get endpointslices.discovery.k8s.io"] {
			return nil
		}
		service := h.Service("made")
		metav1.SetMetaDataLabel(&service.ObjectMeta, "a", fmt.Sprint("x", len(service.ResourceVersion)))
		for i := range 5 {
			service.Labels["n"] = fmt.Sprint(i)
			_ = h.Client.Update(h.T.Context(), service)
		}
		for _, s := range h.Slices("made") {
			_ = h.Client.Delete(h.T.Context(), &s)
		}
		return errors.New("it has not read the objects again")
	})
}

// scrape requests metrics with a token, which the manager has authenticated and authorized.
func scrape(h *harness.Test) {
	h.T.Helper()
	path, err := h.ServiceAccountKubeconfig(h.T.Context(), lab.SystemNamespace, account)
	if err != nil {
		h.T.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		h.T.Fatal(err)
	}
	insecure := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	for token, want := range map[string]int{"": http.StatusUnauthorized, config.BearerToken: http.StatusForbidden} {
		request, _ := http.NewRequestWithContext(h.T.Context(), http.MethodGet, "https://"+metricsAddress+"/metrics", nil)
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := insecure.Do(request)
		if err != nil {
			h.T.Fatal(err)
		}
		response.Body.Close()
		if response.StatusCode != want {
			h.T.Errorf("metrics answer %d, not %d", response.StatusCode, want)
		}
	}
}

const made = `
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: made}
spec:
  service: {labels: {%[2]s}}
  ports: [{name: web, port: 7001}]
  targets: [{name: good, address: %[1]s}, {name: bad, address: 100.100.100.200}]
`

const writtenByHand = `
apiVersion: v1
kind: Service
metadata: {name: adopted}
spec: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4], ports: [{name: web, port: 7001}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: adopted}
subsets: [{addresses: [{ip: %[1]s}], ports: [{name: web, port: 7001}]}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: adopted-by-hand, labels: {kubernetes.io/service-name: adopted}}
addressType: IPv4
ports: [{name: web, port: 7001}]
endpoints: [{addresses: ["%[1]s"]}]
---
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: adopted}
spec:
  service: {adoptionPolicy: IfSelectorless}
  ports: [{name: web, port: 7001}]
  targets: [{name: good, address: %[1]s}]
---
apiVersion: v1
kind: Service
metadata: {name: attached}
spec: {ipFamilyPolicy: SingleStack, ipFamilies: [IPv4], ports: [{name: web, port: 7001}]}
---
apiVersion: external-backend.io/v1alpha1
kind: ExternalBackend
metadata: {name: attached}
spec:
  serviceRef: {name: attached}
  ports: [{name: web, port: 7001}]
  targets: [{name: good, address: %[1]s}]
`
