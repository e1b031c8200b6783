// Package integration tests the installed manager with a real API server and
// kube-controller-manager: what happens to Services, slices and status when users, other clients
// and failures change something. Package dataplane tests traffic.
package integration

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
)

func TestMain(m *testing.M) {
	// The tests mostly wait. -parallel overrides this value, because flags are parsed later.
	if err := flag.Set("test.parallel", "12"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	harness.Main(m, devcluster.Options{WithoutProxy: true, WithoutDNS: true})
}

// shared is the manager of all parallel tests, and the number of tests that use it. Tests with
// their own manager run one by one. The testing package runs them before the parallel ones.
var shared struct {
	sync.Mutex
	users   int
	manager *lab.Manager
	rights  rights
}

// parallel starts a parallel test, which shares a manager with others.
func parallel(t *testing.T) *harness.Test {
	t.Helper()
	t.Parallel()
	h := harness.New(t)
	shared.Lock()
	defer shared.Unlock()
	if shared.manager == nil {
		shared.rights = watchRights(h)
		var err error
		if shared.manager, err = h.Lab.StartManager(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	shared.users++
	t.Cleanup(func() { release(h) })
	return h
}

// release ends the use of the shared manager. The last test stops it.
func release(h *harness.Test) {
	shared.Lock()
	defer shared.Unlock()
	if h.T.Failed() {
		h.T.Logf("the manager's log of the test's namespace:\n%s", managerLog(shared.manager, h.Namespace))
	}
	if shared.users--; shared.users > 0 {
		return
	}
	if err := shared.manager.Stop(); err != nil {
		h.T.Errorf("%v; it said:\n%s", err, shared.manager.Tail())
	}
	shared.manager = nil
	shared.rights.wantNoDenial(h)
}

// managerLog returns the last lines of the manager's log about a namespace.
func managerLog(m *lab.Manager, namespace string) string {
	text, err := os.ReadFile(m.Log)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, namespace) {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines[max(0, len(lines)-40):], "")
}

// rights watches for requests of the manager that RBAC denies, from watchRights on.
type rights struct{ offset int64 }

func watchRights(h *harness.Test) rights {
	h.T.Helper()
	info, err := os.Stat(h.AuditLog)
	if err != nil {
		h.T.Fatal(err)
	}
	return rights{info.Size()}
}

// wantNoDenial fails the test for each denied request of the manager. Requests for Secrets and
// ConfigMaps do not count: administrators grant them by namespace.
func (r rights) wantNoDenial(h *harness.Test) {
	h.T.Helper()
	text, err := os.ReadFile(h.AuditLog)
	if err != nil {
		h.T.Fatal(err)
	}
	asked := 0
	for line := range strings.Lines(string(text[min(r.offset, int64(len(text))):])) {
		if !strings.Contains(line, `"system:serviceaccount:`+lab.SystemNamespace+`:`) {
			continue
		}
		var entry struct {
			Verb, RequestURI string
			ObjectRef        struct{ Resource string }
			Annotations      map[string]string
		}
		if err := json.Unmarshal([]byte(line), &entry); err != nil {
			break // the API server is still writing this line
		}
		asked++
		if entry.Annotations["authorization.k8s.io/decision"] == "forbid" &&
			!slices.Contains([]string{"secrets", "configmaps"}, entry.ObjectRef.Resource) {
			h.T.Errorf("the manager has no right to %s %s", entry.Verb, entry.RequestURI)
		}
	}
	if asked == 0 {
		h.T.Error("the audit log has no request of the manager")
	}
}

// edit reads an object, changes it and updates it. It tries again after a conflict.
func edit[O client.Object](h *harness.Test, o O, change func(O)) {
	h.T.Helper()
	key := client.ObjectKeyFromObject(o)
	if key.Namespace == "" {
		key.Namespace = h.Namespace
	}
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		if err := h.Client.Get(h.T.Context(), key, o); err != nil {
			return err
		}
		change(o)
		return h.Client.Update(h.T.Context(), o)
	})
	if err != nil {
		h.T.Fatalf("edit %s: %v", key, err)
	}
}

// remove deletes an object.
func remove(h *harness.Test, o client.Object, options ...client.DeleteOption) {
	h.T.Helper()
	if err := h.Client.Delete(h.T.Context(), o, options...); err != nil {
		h.T.Fatal(err)
	}
}

// waitGone waits until there is no object of this kind and name.
func waitGone(h *harness.Test, o client.Object, name string) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("%T %s to go", o, name), func() error {
		err := h.Client.Get(h.T.Context(), h.Key(name), o)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return cmp.Or(err, errors.New("it is there"))
	})
}

// waitNoSlices waits until there is no slice behind the Service.
func waitNoSlices(h *harness.Test, service string) {
	h.T.Helper()
	h.Eventually("the slices of "+service+" to go", func() error {
		if left := h.Slices(service); len(left) > 0 {
			return fmt.Errorf("%d are left", len(left))
		}
		return nil
	})
}

// waitTarget waits until status has this state and reason for a target. An empty reason means none.
func waitTarget(h *harness.Test, backend, target string, state v1alpha1.TargetState, reason string) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("target %s of %s to be %s %s", target, backend, state, reason), func() error {
		all := h.Backend(backend).Status.Targets
		i := slices.IndexFunc(all, func(s v1alpha1.TargetStatus) bool { return s.Name == target })
		if i < 0 || all[i].State != state || all[i].Reason != reason {
			return fmt.Errorf("the targets are %+v", all)
		}
		return nil
	})
}

// waitMessage waits until a condition's message contains these words.
func waitMessage(h *harness.Test, backend, condition string, words ...string) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("condition %s of %s to contain %q", condition, backend, words), func() error {
		c := meta.FindStatusCondition(h.Backend(backend).Status.Conditions, condition)
		for _, word := range words {
			if c == nil || !strings.Contains(c.Message, word) {
				return fmt.Errorf("it is %+v", c)
			}
		}
		return nil
	})
}

// wantStalled fails the test unless Stalled is True with the reason. With an empty reason it must
// be absent.
func wantStalled(h *harness.Test, backend, reason string) {
	h.T.Helper()
	c := meta.FindStatusCondition(h.Backend(backend).Status.Conditions, v1alpha1.ConditionStalled)
	switch {
	case reason == "" && c != nil:
		h.T.Errorf("%s is Stalled: %+v", backend, c)
	case reason != "" && (c == nil || c.Status != metav1.ConditionTrue || c.Reason != reason):
		h.T.Errorf("Stalled of %s is %+v, want True with reason %s", backend, c, reason)
	}
}

// waitConflict waits until the conditions and an event report ServiceConflict.
func waitConflict(h *harness.Test, backend string) {
	h.T.Helper()
	h.WaitCondition(backend, v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonServiceConflict)
	h.WaitCondition(backend, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonServiceConflict)
	wantStalled(h, backend, "") // Stalled comes after two minutes
	h.WaitEvent(backend, v1alpha1.ReasonServiceConflict)
}

// waitProgrammed waits until Programmed is True.
func waitProgrammed(h *harness.Test, backend string) *v1alpha1.ExternalBackend {
	h.T.Helper()
	return h.WaitCondition(backend, v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
}

// at parses an address and port.
func at(addr string) netip.AddrPort { return netip.MustParseAddrPort(addr) }

// serverSet is a set of HTTP servers for targets a, b, c and so on.
type serverSet struct {
	*lab.Machine // of the first server
	servers      []*lab.Server
	addrs        []netip.AddrPort
}

// startServers starts servers at different ports of one machine.
func startServers(h *harness.Test, n int) serverSet {
	h.T.Helper()
	set := serverSet{Machine: h.Machine("servers")}
	for i := range n {
		set.add(h, set.Machine, uint16(8001+i))
	}
	return set
}

// startServersApart starts each server on its own machine.
func startServersApart(h *harness.Test, n int) serverSet {
	h.T.Helper()
	set := serverSet{}
	for i := range n {
		set.add(h, h.Machine(fmt.Sprintf("host%d", i)), 8001)
	}
	return set
}

func (set *serverSet) add(h *harness.Test, m *lab.Machine, port uint16) {
	h.T.Helper()
	if set.Machine == nil {
		set.Machine = m
	}
	set.servers, set.addrs = append(set.servers, h.Serve(m, "http", int(port))), append(set.addrs, m.At4(port))
}

// at returns the endpoint of target i.
func (set serverSet) at(i int) netip.AddrPort { return set.addrs[i] }

// target returns the YAML of target i for an ExternalBackend with a port named web. more has
// further fields, such as ", tier: 1".
func (set serverSet) target(i int, more string) string {
	return fmt.Sprintf("- {name: \"%c\", address: %s, ports: [{name: web, targetPort: %d}]%s}\n", 'a'+i, set.at(i).Addr(),
		set.at(i).Port(), more)
}

// targets returns the YAML of all targets, without further fields.
func (set serverSet) targets() string {
	var text strings.Builder
	for i := range set.servers {
		text.WriteString(set.target(i, ""))
	}
	return text.String()
}

// snapshot is the content of the objects that the operator writes, without what the API server
// adds.
type snapshot struct {
	Service object[corev1.ServiceSpec]
	Slices  map[string]object[sliceContent]
}

type object[Content any] struct {
	UID                 string
	Labels, Annotations map[string]string
	Owners              []metav1.OwnerReference
	Content             Content
}

type sliceContent struct {
	Type      discoveryv1.AddressType
	Endpoints []discoveryv1.Endpoint
	Ports     []discoveryv1.EndpointPort
}

// takeSnapshot takes a snapshot of a Service, which may not exist, and of the slices behind it.
// Without identity, it contains no UIDs and no names of slices.
func takeSnapshot(h *harness.Test, service string, identity bool) snapshot {
	h.T.Helper()
	p := snapshot{Slices: map[string]object[sliceContent]{}}
	var s corev1.Service
	if err := h.Client.Get(h.T.Context(), h.Key(service), &s); client.IgnoreNotFound(err) != nil {
		h.T.Fatal(err)
	}
	p.Service = objectOf(&s, s.Spec, identity)
	for _, slice := range h.Slices(service) {
		name := slice.Name
		if !identity {
			name = fmt.Sprintf("%s %d", slice.AddressType, len(p.Slices))
		}
		p.Slices[name] = objectOf(&slice, sliceContent{slice.AddressType, slice.Endpoints, slice.Ports}, identity)
	}
	return p
}

func objectOf[Content any](o client.Object, content Content, identity bool) object[Content] {
	out := object[Content]{
		Labels:      o.GetLabels(),
		Annotations: o.GetAnnotations(),
		Owners:      o.GetOwnerReferences(),
		Content:     content,
	}
	if identity {
		out.UID = string(o.GetUID())
	}
	return out
}

// waitSnapshot waits until the objects are as in the snapshot.
func waitSnapshot(h *harness.Test, service string, want snapshot, identity bool) {
	h.T.Helper()
	h.Eventually(service+" and its slices to be as in the snapshot", func() error {
		if diff := gocmp.Diff(want, takeSnapshot(h, service, identity)); diff != "" {
			return errors.New("-want +got:\n" + diff)
		}
		return nil
	})
}

// waitQuiet waits until the manager has written nothing in the test's namespace for longer than it
// delays a status.
func waitQuiet(h *harness.Test) {
	h.T.Helper()
	const quiet = 11 * time.Second
	writes := h.CountWrites()
	since, last := time.Now(), 0
	h.Within(time.Minute, "the manager to write nothing", func() error {
		if n := len(writes.Of()); n > last {
			since, last = time.Now(), n
		}
		if time.Since(since) < quiet {
			return fmt.Errorf("it has written %v", writes.Of())
		}
		return nil
	})
}

// fetchJSON sends a request, whose answer must be JSON with status 200.
func fetchJSON(h *harness.Test, client *http.Client, req *http.Request, into any) {
	h.T.Helper()
	resp, err := client.Do(req)
	if err != nil {
		h.T.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		h.T.Fatalf("%s: %s", req.URL, resp.Status)
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		h.T.Fatal(err)
	}
}
