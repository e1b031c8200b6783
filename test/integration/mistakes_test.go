package integration

import (
	"cmp"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
	"github.com/external-backend/operator/test/harness/lab"
	"github.com/external-backend/operator/test/harness/pki"
)

// mistake is something that goes wrong, and what users read then.
type mistake struct {
	name string
	// make makes the mistake with an ExternalBackend named web. It returns pairs of a placeholder in
	// the expected words and the text that it stands for.
	make     func(h *harness.Test) []string
	expected []expectation
}

// expectation is the words that a source must contain, and those that it must not contain.
type expectation struct {
	source          source
	words, unwanted []string
}

// source is something that users read. In the expected words, NAMESPACE stands for the namespace.
type source struct {
	name string
	read func(h *harness.Test) string
}

func (s source) says(words ...string) expectation { return expectation{source: s, words: words} }

func (e expectation) butNot(words ...string) expectation {
	e.unwanted = words
	return e
}

// target is an entry in status.targets.
func target(name string) source {
	return source{"status.targets of " + name, func(h *harness.Test) string {
		for _, t := range h.Backend("web").Status.Targets {
			if t.Name == name {
				since := "never"
				if t.LastTransitionTime != nil {
					since = t.LastTransitionTime.Format(time.RFC3339)
				}
				return fmt.Sprintf("%s %s: %s; tier %d, %d of %d ready, since %s",
					t.State, t.Reason, t.Message, t.Tier, t.Endpoints.Ready, t.Endpoints.Total, since)
			}
		}
		return ""
	}}
}

// condition is a condition in status.
func condition(kind string) source {
	return source{"condition " + kind, func(h *harness.Test) string {
		b := h.Backend("web")
		c := meta.FindStatusCondition(b.Status.Conditions, kind)
		if c == nil || c.ObservedGeneration != b.Generation {
			return ""
		}
		return fmt.Sprintf("%s %s: %s", c.Status, c.Reason, c.Message)
	}}
}

var (
	// events are those about the ExternalBackend, a line each.
	events = source{"events", func(h *harness.Test) string {
		var list eventsv1.EventList
		if err := h.Client.List(h.T.Context(), &list, client.InNamespace(h.Namespace)); err != nil {
			h.T.Fatal(err)
		}
		var text strings.Builder
		for _, e := range list.Items {
			if e.Regarding.Name == "web" {
				fmt.Fprintf(&text, "%s %s: %s\n", e.Type, e.Reason, e.Note)
			}
		}
		return text.String()
	}}

	// columns are what kubectl get shows.
	columns = source{"columns", func(h *harness.Test) string {
		table := tableOf(h, "web")
		var text strings.Builder
		for i, column := range table.ColumnDefinitions {
			fmt.Fprintf(&text, "%s=%v ", strings.ToUpper(column.Name), table.Rows[0].Cells[i])
		}
		return text.String()
	}}

	// logged is what the manager logged about the namespace.
	logged = source{"log", func(h *harness.Test) string { return managerLog(shared.manager, h.Namespace) }}

	// metrics are the series of the ExternalBackend, a line each.
	metrics = source{"metrics", func(h *harness.Test) string {
		all, err := shared.manager.Metrics(h.T.Context())
		if err != nil {
			h.T.Fatal(err)
		}
		var text strings.Builder
		for _, series := range slices.Sorted(maps.Keys(all)) {
			if strings.Contains(series, h.Namespace) {
				fmt.Fprintf(&text, "%s %v\n", series, all[series])
			}
		}
		return text.String()
	}}
)

// refusal is the API server's answer when an ExternalBackendPolicy with this CIDR is created.
func refusal(cidr string) source {
	return source{"answer of the API server", func(h *harness.Test) string {
		p := &v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: h.Namespace}}
		p.Spec.Allow = []v1alpha1.PolicyRule{{CIDRs: []string{cidr}}}
		return fmt.Sprint(h.Client.Create(h.T.Context(), p, client.DryRunAll))
	}}
}

// applies makes a mistake in the spec.
func applies(spec string, args ...any) func(h *harness.Test) []string {
	return func(h *harness.Test) []string {
		h.ApplyBackend("web", spec, args...)
		return nil
	}
}

// besides makes a mistake that needs other objects, too.
func besides(documents, spec string) func(h *harness.Test) []string {
	return func(h *harness.Test) []string {
		h.Apply(documents)
		h.ApplyBackend("web", spec)
		return nil
	}
}

// twoTargets returns onePort with a further target b.
func twoTargets(b string) string {
	return strings.TrimSuffix(onePort, "]") + ", {name: b, " + b + "}]"
}

// checked returns a spec with a target at this address and this check.
func checked(at netip.AddrPort, check string) string {
	const target = "targets: [{name: a, address: %s, ports: [{name: web, targetPort: %d}]}]\n"
	return fmt.Sprintf(web, "") + fmt.Sprintf(target, at.Addr(), at.Port()) + "healthCheck: {" + check + ", " +
		harness.FastPace + "}"
}

// serveNothing starts a web server without pages, and stops it when the test ends. With a config it
// uses TLS.
func serveNothing(h *harness.Test, m *lab.Machine, port uint16, config *tls.Config) netip.AddrPort {
	h.T.Helper()
	listener, err := m.Listen("tcp", m.At4(port).String())
	if err != nil {
		h.T.Fatal(err)
	}
	if config != nil {
		listener = tls.NewListener(listener, config)
	}
	server := &http.Server{
		Handler: http.NotFoundHandler(), ReadHeaderTimeout: 10 * time.Second, ErrorLog: log.New(io.Discard, "", 0),
	}
	var done sync.WaitGroup
	done.Go(func() { _ = server.Serve(listener) }) // ends with Close
	h.T.Cleanup(func() {
		server.Close()
		done.Wait()
	})
	return m.At4(port)
}

// authorities creates the ConfigMap ca, which the manager may read. Its key ca.crt has the
// authority ca, and its key other has the other one.
func authorities(h *harness.Test, ca, other *pki.Authority) {
	h.T.Helper()
	h.AllowReferences()
	h.ApplyObject(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "ca"},
		Data:       map[string]string{"ca.crt": string(ca.Cert), "other": string(other.Cert)},
	})
}

// failOver makes tier 1 take over from tier 0. FIRST stands for the address of tier 0's only
// target.
func failOver(h *harness.Test) (serverSet, []string) {
	h.T.Helper()
	set := startServersApart(h, 2)
	h.ApplyBackend("web", spec(set.target(0, "")+set.target(1, ", tier: 1"), "", "failover: {failbackDelaySeconds: 600}"))
	waitTarget(h, "web", "a", v1alpha1.TargetStateHealthy, "")
	waitTarget(h, "web", "b", v1alpha1.TargetStateHealthy, "")
	waitActive(h, "web", 0)
	set.servers[0].SetSick(true)
	waitActive(h, "web", 1)
	return set, []string{"FIRST", set.at(0).String()}
}

// recreate deletes the Service and waits for a new one. OLD and NEW stand for their cluster IPs.
func recreate(h *harness.Test) []string {
	h.T.Helper()
	h.ApplyBackend("web", onePort)
	h.WaitReady("web")
	old, s := h.Service("web"), &corev1.Service{}
	// The manager creates a Service again only if its cache had it. If it reverts a change, it did.
	edit(h, old.DeepCopy(), func(s *corev1.Service) { s.Spec.Ports[0].Port++ })
	h.Eventually("the Service's port to be back", func() error {
		if is, want := h.Service("web").Spec.Ports[0].Port, old.Spec.Ports[0].Port; is != want {
			return fmt.Errorf("it is %d, not %d", is, want)
		}
		return nil
	})
	remove(h, old.DeepCopy())
	h.Eventually("the Service to be created again", func() error {
		if err := h.Client.Get(h.T.Context(), h.Key("web"), s); err != nil {
			return err
		}
		if s.UID == old.UID {
			return errors.New("it is the old one")
		}
		return nil
	})
	return []string{"OLD", old.Spec.ClusterIP, "NEW", s.Spec.ClusterIP}
}

// wait waits until the source contains all of the words, and none of the unwanted ones.
func (e expectation) wait(h *harness.Test, names *strings.Replacer) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("%s to contain %q", e.source.name, e.words), func() error {
		text := e.source.read(h)
		for _, word := range e.words {
			if word = names.Replace(word); !strings.Contains(text, word) {
				return fmt.Errorf("%q is missing in: %s", word, cmp.Or(text, "(nothing)"))
			}
		}
		for _, word := range e.unwanted {
			if strings.Contains(text, word) {
				return fmt.Errorf("%q is in: %s", word, text)
			}
		}
		return nil
	})
}
