// Package harness runs tests on a [lab.Lab]. A test binary has one lab, and each test has a
// namespace of its own. A method that can't do its work fails the test. A method that waits, waits
// until it sees a certain state, and for no longer than [Patience].
package harness

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/devcluster"
	"github.com/external-backend/operator/test/harness/lab"
)

// Patience bounds every wait. A test that passes never waits that long.
const Patience = 90 * time.Second

// FastPace makes a health check judge quickly: Unhealthy takes about 100 ms, Healthy one success.
// Only silence takes as long as the timeout, so that a slow machine is not taken for a dead one.
// HTTPCheck is a health check at that pace for servers of the lab.
const (
	FastPace  = "periodSeconds: 1, timeoutSeconds: 5, confirmPeriodMilliseconds: 100, failureThreshold: 2"
	HTTPCheck = "{httpGet: {path: " + lab.HealthPath + "}, " + FastPace + "}"
)

// poll is the time between two checks of a wait.
const poll = 20 * time.Millisecond

var (
	shared  *lab.Lab
	counter atomic.Int32
)

// Main does all that a TestMain has to do: it builds missing binaries, enters the namespaces, opens
// a lab with an audit log and a manager that detects data races, and runs the tests.
func Main(m *testing.M, options devcluster.Options) {
	if devcluster.Nsenter() == "" {
		var versions []string
		if options.Kubernetes != "" {
			versions = append(versions, options.Kubernetes)
		}
		if err := lab.Prepare(context.Background(), os.Stderr, true, versions...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	devcluster.Enter()
	os.Exit(run(m, options))
}

func run(m *testing.M, options devcluster.Options) int {
	options.Audit = true
	var err error
	if shared, err = lab.Open(context.Background(), options, true); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := shared.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// Test is one test's share of the lab.
type Test struct {
	*lab.Lab
	T         *testing.T
	Namespace string

	suffix string // keeps the names of its machines apart from those of other tests
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// New creates a namespace for the test, and deletes it when the test ends.
func New(t *testing.T) *Test {
	t.Helper()
	number := counter.Add(1)
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(t.Name()), "-"), "-")
	h := &Test{Lab: shared, T: t, Namespace: fmt.Sprintf("%.50s-%d", name, number), suffix: fmt.Sprintf("-%d", number)}
	namespace := &corev1.Namespace{}
	namespace.Name = h.Namespace
	h.ok(h.Client.Create(t.Context(), namespace))
	t.Cleanup(func() {
		// It takes a while until a namespace is gone. Its ExternalBackends must not keep the manager of
		// the next test busy.
		ctx := context.Background()
		err := h.Client.DeleteAllOf(ctx, &v1alpha1.ExternalBackend{}, client.InNamespace(h.Namespace))
		if err != nil {
			t.Error(err)
		}
		if err := h.Client.Delete(ctx, namespace); err != nil {
			t.Error(err)
		}
	})
	return h
}

// Sub returns h for a subtest, which has the same namespace and machines of its own.
func (h *Test) Sub(t *testing.T) *Test {
	return &Test{Lab: h.Lab, T: t, Namespace: h.Namespace, suffix: fmt.Sprintf("-%d", counter.Add(1))}
}

func (h *Test) ok(err error) {
	h.T.Helper()
	if err != nil {
		h.T.Fatal(err)
	}
}

// Apply applies YAML documents server-side. An object without a namespace goes into the test's.
// With args, documents is a format.
func (h *Test) Apply(documents string, args ...any) {
	h.T.Helper()
	if len(args) > 0 {
		documents = fmt.Sprintf(documents, args...)
	}
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(documents), 4096)
	for {
		u := &unstructured.Unstructured{}
		if err := decoder.Decode(&u.Object); err != nil {
			if !errors.Is(err, io.EOF) {
				h.T.Fatalf("%v in\n%s", err, documents)
			}
			return
		}
		if len(u.Object) > 0 {
			h.apply(u)
		}
	}
}

// ApplyBackend applies an ExternalBackend in the test's namespace. spec holds the lines of its
// spec, which are not indented. With args, spec is a format.
func (h *Test) ApplyBackend(name, spec string, args ...any) {
	h.T.Helper()
	if len(args) > 0 {
		spec = fmt.Sprintf(spec, args...)
	}
	h.Apply("apiVersion: external-backend.io/v1alpha1\nkind: ExternalBackend\nmetadata: {name: " + name + "}\nspec:\n  " +
		strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  "))
}

// ApplyService applies a Service in the test's namespace. spec holds the fields of its spec as a
// YAML flow mapping, without braces. With args, spec is a format.
func (h *Test) ApplyService(name, spec string, args ...any) {
	h.T.Helper()
	h.Apply("apiVersion: v1\nkind: Service\nmetadata: {name: "+name+"}\nspec: {"+spec+"}", args...)
}

// ApplyObject applies an object server-side. Without a namespace it goes into the test's.
func (h *Test) ApplyObject(o client.Object) {
	h.T.Helper()
	kind, err := apiutil.GVKForObject(o, h.Client.Scheme())
	h.ok(err)
	u := &unstructured.Unstructured{}
	h.ok(h.Client.Scheme().Convert(o, u, nil))
	u.SetGroupVersionKind(kind)
	unstructured.RemoveNestedField(u.Object, "status")
	h.apply(u)
}

func (h *Test) apply(u *unstructured.Unstructured) {
	h.T.Helper()
	if namespaced, err := h.Client.IsObjectNamespaced(u); err == nil && namespaced && u.GetNamespace() == "" {
		u.SetNamespace(h.Namespace)
	}
	err := h.Client.Apply(h.T.Context(), client.ApplyConfigurationFromUnstructured(u), client.FieldOwner("test"),
		client.ForceOwnership)
	if err != nil {
		h.T.Fatalf("apply %s %s: %v", u.GetKind(), u.GetName(), err)
	}
}

// Key returns the key of an object in the test's namespace.
func (h *Test) Key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: h.Namespace, Name: name}
}

// Eventually calls check until it returns nil, and fails the test with its last error.
func (h *Test) Eventually(what string, check func() error) {
	h.T.Helper()
	h.Within(Patience, what, check)
}

// Within is Eventually with another patience, for states that may take longer by contract.
func (h *Test) Within(patience time.Duration, what string, check func() error) {
	h.T.Helper()
	deadline := time.Now().Add(patience)
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			h.T.Fatalf("waited %v for: %s; at last: %v", patience, what, err)
		}
		<-ticker.C
	}
}

// Manager is a manager that must end without an error.
type Manager struct {
	*lab.Manager
	t     *testing.T
	ended bool
}

// StartManager starts a manager, see [lab.Lab.StartManager]. It is stopped at the end of the test
// at the latest.
func (h *Test) StartManager(flags ...string) *Manager {
	h.T.Helper()
	return h.keepManager(h.Lab.StartManager(h.T.Context(), flags...))
}

// StartManagerOn is StartManager on a machine, which has a network of its own.
func (h *Test) StartManagerOn(on *lab.Machine, flags ...string) *Manager {
	h.T.Helper()
	return h.keepManager(h.Lab.StartManagerOn(h.T.Context(), on, flags...))
}

func (h *Test) keepManager(started *lab.Manager, err error) *Manager {
	h.T.Helper()
	h.ok(err)
	m := &Manager{Manager: started, t: h.T}
	h.T.Cleanup(func() {
		if !m.ended {
			m.Stop()
		}
		if h.T.Failed() {
			h.T.Logf("the manager (%s) said:\n%s", m.Log, m.Tail())
		}
	})
	return m
}

// Stop ends the manager by SIGTERM. It must exit with 0.
func (m *Manager) Stop() {
	m.t.Helper()
	m.ended = true
	if err := m.Manager.Stop(); err != nil {
		m.t.Error(err)
	}
}

// Kill ends the manager by SIGKILL. It must not have logged a data race.
func (m *Manager) Kill() {
	m.t.Helper()
	m.ended = true
	m.Manager.Kill()
	if strings.Contains(m.Tail(), "WARNING: DATA RACE") {
		m.t.Error("the manager has a data race")
	}
}

// Metrics returns the value of each series, by the text of the series.
func (m *Manager) Metrics() map[string]float64 {
	m.t.Helper()
	metrics, err := m.Manager.Metrics(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	return metrics
}

// Machine adds a machine, and removes it when the test ends. Its name gets a suffix.
func (h *Test) Machine(name string) *lab.Machine {
	h.T.Helper()
	m, err := h.AddMachine(name + h.suffix)
	h.ok(err)
	h.T.Cleanup(func() {
		if err := m.Close(); err != nil {
			h.T.Error(err)
		}
	})
	return m
}

// Serve starts a server, and stops it when the test ends; see [lab.Machine.Serve].
func (h *Test) Serve(m *lab.Machine, network string, port int) *lab.Server {
	h.T.Helper()
	s, err := m.Serve(network, port)
	h.ok(err)
	h.T.Cleanup(s.Stop)
	return s
}

// StartDNS starts a nameserver on a machine for zones and further server blocks, and stops it when
// the test ends; see [devcluster.Namespace.StartDNS].
func (h *Test) StartDNS(m *lab.Machine, zones map[string]string, blocks ...string) *devcluster.Nameserver {
	h.T.Helper()
	s, err := m.StartDNS(h.T.Context(), zones, strings.Join(blocks, ""))
	h.ok(err)
	h.T.Cleanup(func() {
		if err := s.Close(); err != nil {
			h.T.Error(err)
		}
	})
	return s
}

// WaitChecked waits until each server has been checked often enough to change its verdict.
func (h *Test) WaitChecked(servers ...*lab.Server) {
	h.T.Helper()
	for _, s := range servers {
		until := s.Checks() + 4 // two rounds of two addresses, or more
		h.Eventually("further checks", func() error {
			if n := s.Checks(); n < until {
				return fmt.Errorf("%d of %d came", n, until)
			}
			return nil
		})
	}
}

// AllowReferences lets the manager read Secrets and ConfigMaps in the test's namespace, as an
// administrator does.
func (h *Test) AllowReferences() {
	h.T.Helper()
	h.Apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: external-backend-reference-reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: external-backend-reference-reader}
subjects: [{kind: ServiceAccount, name: external-backend-controller-manager, namespace: %s}]
`, lab.SystemNamespace)
}

// Writes counts the manager's writes in the test's namespace.
type Writes struct {
	*lab.Writes
	h *Test
}

// CountWrites starts to count; see [lab.Lab.CountWrites].
func (h *Test) CountWrites() Writes {
	h.T.Helper()
	w, err := h.Lab.CountWrites()
	h.ok(err)
	return Writes{w, h}
}

// Of returns the writes of the given resources (endpointslices, externalbackends/status, ...) since
// CountWrites. Without resources it returns all writes.
func (w Writes) Of(resources ...string) []lab.Write {
	w.h.T.Helper()
	writes, err := w.Since()
	w.h.ok(err)
	return slices.DeleteFunc(writes, func(one lab.Write) bool {
		return one.Namespace != w.h.Namespace || len(resources) > 0 && !slices.Contains(resources, one.Resource)
	})
}
