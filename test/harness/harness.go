// Package harness runs tests on a [lab.Lab]: one for each test binary, one namespace for each test.
// Its methods fail the test where they can't do what they say, and wait, where they wait, for
// something to be seen and no longer than [Patience].
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

// Patience bounds every wait. It is never spent where things are as they should be.
const Patience = 45 * time.Second

// poll is how often a wait looks.
const poll = 20 * time.Millisecond

var (
	shared  *lab.Lab
	counter atomic.Int32
)

// Main is the whole of a TestMain: it builds what is missing, enters the namespaces, opens a lab
// with a manager that detects data races and an audit log, and runs the tests.
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

// Test is a test's part of the lab.
type Test struct {
	*lab.Lab
	T         *testing.T
	Namespace string

	suffix string // tells the names of its machines from those of other tests
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// New makes the test a namespace, which goes with it.
func New(t *testing.T) *Test {
	t.Helper()
	number := counter.Add(1)
	name := strings.Trim(notInNames.ReplaceAllString(strings.ToLower(t.Name()), "-"), "-")
	h := &Test{Lab: shared, T: t, Namespace: fmt.Sprintf("%.50s-%d", name, number), suffix: fmt.Sprintf("-%d", number)}
	namespace := &corev1.Namespace{}
	namespace.Name = h.Namespace
	h.ok(h.Client.Create(t.Context(), namespace))
	t.Cleanup(func() {
		// The namespace takes its time to go; what it leaves must not keep the next test's manager busy.
		if err := h.Client.DeleteAllOf(context.Background(), &v1alpha1.ExternalBackend{}, client.InNamespace(h.Namespace)); err != nil {
			t.Error(err)
		}
		if err := h.Client.Delete(context.Background(), namespace); err != nil {
			t.Error(err)
		}
	})
	return h
}

// Sub is h for a subtest: the same namespace, machines of its own.
func (h *Test) Sub(t *testing.T) *Test {
	return &Test{Lab: h.Lab, T: t, Namespace: h.Namespace, suffix: fmt.Sprintf("-%d", counter.Add(1))}
}

func (h *Test) ok(err error) {
	h.T.Helper()
	if err != nil {
		h.T.Fatal(err)
	}
}

// Apply applies YAML documents server-side, in the test's namespace where they name none. With
// args, it is a format.
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

// ApplyObject applies an object server-side, in the test's namespace where it names none.
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

// Key is the name of an object in the test's namespace.
func (h *Test) Key(name string) client.ObjectKey {
	return client.ObjectKey{Namespace: h.Namespace, Name: name}
}

// Eventually looks until check is content, and fails with what it said last.
func (h *Test) Eventually(what string, check func() error) {
	h.T.Helper()
	h.Within(Patience, what, check)
}

// Within is Eventually with a patience of its own, for what by contract may take longer.
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

// Manager is a manager that must end well.
type Manager struct {
	*lab.Manager
	t     *testing.T
	ended bool
}

// StartManager starts a manager, see [lab.Lab.StartManager]. Where the test has not ended it, its
// end does.
func (h *Test) StartManager(flags ...string) *Manager {
	h.T.Helper()
	started, err := h.Lab.StartManager(h.T.Context(), flags...)
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

// Stop ends the manager by SIGTERM; it must exit with 0.
func (m *Manager) Stop() {
	m.t.Helper()
	m.ended = true
	if err := m.Manager.Stop(); err != nil {
		m.t.Error(err)
	}
}

// Kill ends the manager by SIGKILL; it must have seen no data race.
func (m *Manager) Kill() {
	m.t.Helper()
	m.ended = true
	m.Manager.Kill()
	if strings.Contains(m.Tail(), "WARNING: DATA RACE") {
		m.t.Error("the manager has a data race")
	}
}

// Metrics are the values of all series by their text.
func (m *Manager) Metrics() map[string]float64 {
	m.t.Helper()
	metrics, err := m.Manager.Metrics(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	return metrics
}

// Machine adds a machine, which goes with the test. Its name is the given one with a suffix.
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

// Serve starts a server, which goes with the test; see [lab.Machine.Serve].
func (h *Test) Serve(m *lab.Machine, network string, port int) *lab.Server {
	h.T.Helper()
	s, err := m.Serve(network, port)
	h.ok(err)
	h.T.Cleanup(s.Stop)
	return s
}

// StartDNS starts a nameserver on a machine, which goes with the test, for zones and further server
// blocks; see [devcluster.Namespace.StartDNS].
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

// Writes counts what the manager writes in the test's namespace.
type Writes struct {
	*lab.Writes
	h *Test
}

// CountWrites begins to count; see [lab.Lab.CountWrites].
func (h *Test) CountWrites() Writes {
	h.T.Helper()
	w, err := h.Lab.CountWrites()
	h.ok(err)
	return Writes{w, h}
}

// Of are the writes since CountWrites of the given resources (endpointslices,
// externalbackends/status, ...; none: of all).
func (w Writes) Of(resources ...string) []lab.Write {
	w.h.T.Helper()
	writes, err := w.Since()
	w.h.ok(err)
	return slices.DeleteFunc(writes, func(one lab.Write) bool {
		return one.Namespace != w.h.Namespace || len(resources) > 0 && !slices.Contains(resources, one.Resource)
	})
}
