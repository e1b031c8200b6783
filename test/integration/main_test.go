// Package integration holds the manager, as it is installed, against a real API server with
// kube-controller-manager: what becomes of Services, slices and status when users, others and
// failures touch them. Traffic is the matter of test/dataplane.
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
	// The tests wait far more than they work. Who says -parallel is heard: flags are parsed later.
	if err := flag.Set("test.parallel", "12"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	harness.Main(m, devcluster.Options{WithoutProxy: true, WithoutDNS: true})
}

// shared is the manager of all tests that run side by side, and how many of them do. Those that
// need a manager of their own run one by one, and before these, as the testing package has it.
var shared struct {
	sync.Mutex
	users   int
	manager *lab.Manager
	rights  rights
}

// parallel begins a test that shares a manager with others.
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

// release ends the manager with the last test that uses it.
func release(h *harness.Test) {
	shared.Lock()
	defer shared.Unlock()
	if h.T.Failed() {
		h.T.Logf("the manager said of the test's namespace:\n%s", saidOf(shared.manager, h.Namespace))
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

// saidOf is the end of what the manager said of a namespace.
func saidOf(m *lab.Manager, namespace string) string {
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

// rights watches what the API server refuses the manager for want of a right, from its making on.
type rights struct{ offset int64 }

func watchRights(h *harness.Test) rights {
	h.T.Helper()
	info, err := os.Stat(h.AuditLog)
	if err != nil {
		h.T.Fatal(err)
	}
	return rights{info.Size()}
}

// wantNoDenial wants that the manager was allowed all that it asked for, but for Secrets and
// ConfigMaps, which an admin grants by namespace.
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
			break // a line that is being written
		}
		asked++
		if entry.Annotations["authorization.k8s.io/decision"] == "forbid" &&
			!slices.Contains([]string{"secrets", "configmaps"}, entry.ObjectRef.Resource) {
			h.T.Errorf("the manager has no right to %s %s", entry.Verb, entry.RequestURI)
		}
	}
	if asked == 0 {
		h.T.Error("the audit log tells of no request by the manager")
	}
}

// edit changes an object as a user with an editor would, but again where others were quicker.
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

// waitGone waits until an object of that kind and name is no more.
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

// waitNoSlices waits until no slice stands behind the Service.
func waitNoSlices(h *harness.Test, service string) {
	h.T.Helper()
	h.Eventually("the slices of "+service+" to go", func() error {
		if left := h.Slices(service); len(left) > 0 {
			return fmt.Errorf("%d are left", len(left))
		}
		return nil
	})
}

// waitTarget waits until status tells this of a target; an empty reason stands for none.
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

// waitMessage waits until a condition's message has these words in it.
func waitMessage(h *harness.Test, backend, condition string, words ...string) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("condition %s of %s to speak of %q", condition, backend, words), func() error {
		c := meta.FindStatusCondition(h.Backend(backend).Status.Conditions, condition)
		for _, word := range words {
			if c == nil || !strings.Contains(c.Message, word) {
				return fmt.Errorf("it is %+v", c)
			}
		}
		return nil
	})
}

// wantStalled wants Stalled to be True for the reason, or with an empty one to be absent.
func wantStalled(h *harness.Test, backend, reason string) {
	h.T.Helper()
	c := meta.FindStatusCondition(h.Backend(backend).Status.Conditions, v1alpha1.ConditionStalled)
	switch {
	case reason == "" && c != nil:
		h.T.Errorf("%s is Stalled: %+v", backend, c)
	case reason != "" && (c == nil || c.Status != metav1.ConditionTrue || c.Reason != reason):
		h.T.Errorf("Stalled of %s is %+v, not True for %s", backend, c, reason)
	}
}

// waitConflict waits until ServiceConflict shows in all conditions that it has to show in, and in
// an event.
func waitConflict(h *harness.Test, backend string) {
	h.T.Helper()
	h.WaitCondition(backend, v1alpha1.ConditionProgrammed, metav1.ConditionFalse, v1alpha1.ReasonServiceConflict)
	h.WaitCondition(backend, v1alpha1.ConditionReady, metav1.ConditionFalse, v1alpha1.ReasonServiceConflict)
	wantStalled(h, backend, "") // not before two minutes have passed
	h.WaitEvent(backend, v1alpha1.ReasonServiceConflict)
}

// waitProgrammed waits until all is as planned.
func waitProgrammed(h *harness.Test, backend string) *v1alpha1.ExternalBackend {
	h.T.Helper()
	return h.WaitCondition(backend, v1alpha1.ConditionProgrammed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed)
}

// at is a place to serve at.
func at(addr string) netip.AddrPort { return netip.MustParseAddrPort(addr) }

// farm is HTTP servers for targets a, b, c..
type farm struct {
	*lab.Machine // that of the first
	servers      []*lab.Server
	places       []netip.AddrPort
}

// newFarm starts servers on one machine, told apart by their ports.
func newFarm(h *harness.Test, n int) farm {
	h.T.Helper()
	f := farm{Machine: h.Machine("farm")}
	for i := range n {
		f.add(h, f.Machine, uint16(8001+i))
	}
	return f
}

// newHosts starts each server on a machine of its own.
func newHosts(h *harness.Test, n int) farm {
	h.T.Helper()
	f := farm{}
	for i := range n {
		f.add(h, h.Machine(fmt.Sprintf("host%d", i)), 8001)
	}
	return f
}

func (f *farm) add(h *harness.Test, m *lab.Machine, port uint16) {
	h.T.Helper()
	if f.Machine == nil {
		f.Machine = m
	}
	f.servers, f.places = append(f.servers, h.Serve(m, "http", int(port))), append(f.places, m.At4(port))
}

// at is where target i serves.
func (f farm) at(i int) netip.AddrPort { return f.places[i] }

// target is the YAML of target i for a backend with a port named web. more is further fields, such
// as ", tier: 1".
func (f farm) target(i int, more string) string {
	return fmt.Sprintf("- {name: \"%c\", address: %s, ports: [{name: web, targetPort: %d}]%s}\n", 'a'+i, f.at(i).Addr(),
		f.at(i).Port(), more)
}

// targets is the YAML of all targets, without more.
func (f farm) targets() string {
	var text strings.Builder
	for i := range f.servers {
		text.WriteString(f.target(i, ""))
	}
	return text.String()
}

// picture is all that the operator answers for of the objects it writes: what is written in them,
// not what the API server keeps about them.
type picture struct {
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

// take takes a picture of a Service that may not be there, and of the slices behind it. Without
// identity UIDs and the slices' names are left out.
func take(h *harness.Test, service string, identity bool) picture {
	h.T.Helper()
	p := picture{Slices: map[string]object[sliceContent]{}}
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

// waitPicture waits until all is as in the picture.
func waitPicture(h *harness.Test, service string, want picture, identity bool) {
	h.T.Helper()
	h.Eventually(service+" and its slices to be as they were", func() error {
		if diff := gocmp.Diff(want, take(h, service, identity)); diff != "" {
			return errors.New("-want +got:\n" + diff)
		}
		return nil
	})
}

// waitRest waits until the manager has written nothing in the test's namespace for as long as it
// takes to hold a status back.
func waitRest(h *harness.Test) {
	h.T.Helper()
	const quiet = 11 * time.Second
	writes := h.CountWrites()
	since, seen := time.Now(), 0
	h.Within(time.Minute, "the manager to come to rest", func() error {
		if n := len(writes.Of()); n > seen {
			since, seen = time.Now(), n
		}
		if time.Since(since) < quiet {
			return fmt.Errorf("it has written %v", writes.Of())
		}
		return nil
	})
}

// fetchJSON sends a request that must be answered with 200 and JSON.
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
