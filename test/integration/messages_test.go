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
	"testing"
	"time"

	"github.com/miekg/dns"
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

// mistake is something that goes wrong, and what a person reads then.
type mistake struct {
	name string
	// make makes it with an ExternalBackend named web. It returns names and the texts that they stand
	// for in the words, in pairs.
	make func(h *harness.Test) []string
	told []told
}

// told is the words that a person must read in a place, and those that must not be there.
type told struct {
	place       place
	words, lies []string
}

// place is where a person looks. In the words, NAMESPACE stands for the namespace.
type place struct {
	name string
	read func(h *harness.Test) string
}

func (p place) says(words ...string) told { return told{place: p, words: words} }

func (t told) butNot(words ...string) told {
	t.lies = words
	return t
}

// target is an entry of status.targets.
func target(name string) place {
	return place{"status.targets of " + name, func(h *harness.Test) string {
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
func condition(kind string) place {
	return place{"condition " + kind, func(h *harness.Test) string {
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
	events = place{"events", func(h *harness.Test) string {
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
	columns = place{"columns", func(h *harness.Test) string {
		table := tableOf(h, "web")
		var text strings.Builder
		for i, column := range table.ColumnDefinitions {
			fmt.Fprintf(&text, "%s=%v ", strings.ToUpper(column.Name), table.Rows[0].Cells[i])
		}
		return text.String()
	}}

	// logged is what the manager logged about the namespace.
	logged = place{"log", func(h *harness.Test) string { return managerLog(shared.manager, h.Namespace) }}

	// metrics are the series of the ExternalBackend, a line each.
	metrics = place{"metrics", func(h *harness.Test) string {
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

// refusal is the API server's answer to an ExternalBackendPolicy that allows this CIDR.
func refusal(cidr string) place {
	return place{"answer of the API server", func(h *harness.Test) string {
		p := &v1alpha1.ExternalBackendPolicy{ObjectMeta: metav1.ObjectMeta{Name: h.Namespace}}
		p.Spec.Allow = []v1alpha1.PolicyRule{{CIDRs: []string{cidr}}}
		return fmt.Sprint(h.Client.Create(h.T.Context(), p, client.DryRunAll))
	}}
}

// applies makes a mistake that is in the spec alone.
func applies(spec string, args ...any) func(h *harness.Test) []string {
	return func(h *harness.Test) []string {
		h.ApplyBackend("web", spec, args...)
		return nil
	}
}

// besides makes one that needs other objects, too.
func besides(documents, spec string) func(h *harness.Test) []string {
	return func(h *harness.Test) []string {
		h.Apply(documents)
		h.ApplyBackend("web", spec)
		return nil
	}
}

// twoTargets is onePort with a further target b.
func twoTargets(b string) string {
	return strings.TrimSuffix(onePort, "]") + ", {name: b, " + b + "}]"
}

// checked is a backend with a target at this place and this check.
func checked(at netip.AddrPort, check string) string {
	const target = "targets: [{name: a, address: %s, ports: [{name: web, targetPort: %d}]}]\n"
	return fmt.Sprintf(web, "") + fmt.Sprintf(target, at.Addr(), at.Port()) + "healthCheck: {" + check + ", " + harness.FastPace + "}"
}

// serveNothing starts a web server without any page, over TLS where config is not nil. It goes with
// the test.
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

// authorities makes the ConfigMap ca, which the manager may read, with ca under ca.crt and the
// other authority under other.
func authorities(h *harness.Test, ca, other *pki.Authority) {
	h.T.Helper()
	h.AllowReferences()
	h.ApplyObject(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "ca"},
		Data:       map[string]string{"ca.crt": string(ca.Cert), "other": string(other.Cert)},
	})
}

// failOver lets tier 1 take over from tier 0. FIRST stands for where tier 0's only target is
// probed.
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

// recreate deletes the Service. OLD and NEW stand for the cluster IPs before and after.
func recreate(h *harness.Test) []string {
	h.T.Helper()
	h.ApplyBackend("web", onePort)
	h.WaitReady("web")
	old, s := h.Service("web"), &corev1.Service{}
	// The manager restores at once what it has seen. One that mends the Service has seen it.
	edit(h, old.DeepCopy(), func(s *corev1.Service) { s.Spec.Ports[0].Port++ })
	h.Eventually("the Service's port to be back", func() error {
		if is, want := h.Service("web").Spec.Ports[0].Port, old.Spec.Ports[0].Port; is != want {
			return fmt.Errorf("it is %d, not %d", is, want)
		}
		return nil
	})
	remove(h, old.DeepCopy())
	h.Eventually("the Service to be made anew", func() error {
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

// For each mistake, one place names the field or the endpoint, what is there and what was expected.
func TestMessagesExplainMistakes(t *testing.T) {
	h := parallel(t)
	set := startServers(h, 1)
	ca, other := newAuthority(t), newAuthority(t)
	certificate, err := issue(t, ca, time.Now().Add(time.Hour), "web.example.com").TLS()
	if err != nil {
		t.Fatal(err)
	}
	pageless := serveNothing(h, set.Machine, 8080, nil)
	secure := serveNothing(h, set.Machine, 8443, &tls.Config{Certificates: []tls.Certificate{certificate}})
	mutual := serveNothing(h, set.Machine, 8444, &tls.Config{
		Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
	})
	closed := set.At4(8009)
	ns := startScriptedDNS(h)
	ns.set("nowhere.example.com", answerWithCode(dns.RcodeNameError))
	unknownName := fmt.Sprintf(web, "") + "targets: [{name: db, hostname: nowhere.example.com}]\n" +
		fmt.Sprintf("dns: {nameservers: [%q]}\n", ns.V4) + "healthCheck: {tcpSocket: {}, " + harness.FastPace + "}"

	// https is a check of a server over TLS that trusts a key of the ConfigMap ca.
	https := func(at netip.AddrPort, key, more string) func(h *harness.Test) []string {
		return func(h *harness.Test) []string {
			authorities(h, ca, other)
			h.ApplyBackend("web",
				checked(at,
					"httpGet: {scheme: HTTPS}, tls: {caCertificateRefs: [{kind: ConfigMap, name: ca, key: "+key+"}]"+more+"}"),
			)
			return nil
		}
	}
	const named, misnamed = ", serverName: web.example.com", ", serverName: other.example.com"
	const selecting = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {selector: {app: web}, ports: [{name: web, port: 80}]}"

	for _, tc := range []mistake{
		// What probes see.
		{"probe path 404", applies(checked(pageless, "httpGet: {path: /missing}")), []told{
			target("a").says("Unhealthy UnexpectedStatus: 404, expected 200-399, at " + pageless.String()),
			events.says(`Target "a" at `+pageless.String()+" is unhealthy", "404, expected 200-399"),
			condition("Ready").says("False AllUnhealthy: ", "404, expected 200-399"),
		}},
		{"probe port closed", applies(checked(set.at(0), "tcpSocket: {port: 8009}")), []told{
			events.says(`Warning EndpointUnhealthy: Target "a" at ` + closed.String() + " is unhealthy: ConnectionRefused"),
			target("a").says("Unhealthy ConnectionRefused: connection refused, at " + closed.String()),
		}},
		{"wrong CA", https(secure, "other", named), []told{
			target("a").says("Unhealthy TLSUnknownAuthority: ", "healthCheck.tls.caCertificateRefs", secure.String()),
			events.says("Warning EndpointUnhealthy: ", secure.String(), "TLSUnknownAuthority"),
		}},
		{"wrong name", https(secure, "ca.crt", misnamed), []told{
			target("a").says("Unhealthy TLSNameMismatch: ", "healthCheck.tls.serverName", secure.String()),
			events.says("Warning EndpointUnhealthy: ", secure.String(), "TLSNameMismatch"),
		}},
		{"target by IP", https(secure, "ca.crt", ""), []told{
			target("a").says("Unhealthy TLSNameMismatch: ", "healthCheck.tls.serverName", secure.String())}},
		{"client certificate missing", https(mutual, "ca.crt", named), []told{
			target("a").says("Unhealthy TLSClientCertificateRequired: ", "wants a client certificate",
				"healthCheck.tls.clientCertificateRef", mutual.String()),
			events.says("TLSClientCertificateRequired"),
		}},

		// What the spec refers to.
		{"key absent in a ConfigMap", https(secure, "absent", named), []told{
			condition("ResolvedRefs").says("False InvalidRef: ", "spec.healthCheck.tls.caCertificateRefs[0]",
				`ConfigMap "ca" has no key "absent"`),
			events.says("Warning InvalidRef: ", `has no key "absent"`),
		}},
		{"Service with a selector exists", besides(selecting, onePort), []told{
			condition("Programmed").says("False ServiceConflict: ", `Service "web"`, "has a selector",
				"choose another spec.service.name").
				butNot("serviceRef", "adoptionPolicy"),
		}},
		{"adopting a Service with a selector", besides(selecting, "service: {adoptionPolicy: IfSelectorless}"+onePort), []told{
			condition("Programmed").says("False ServiceConflict: ", `Service "web"`, "has a selector", "can't be adopted").
				butNot("serviceRef", "adoptionPolicy"),
		}},
		{"serviceRef to a Service with a selector", besides(selecting, "serviceRef: {name: web}"+onePort), []told{
			condition("Programmed").says("False ServiceConflict: ", `Service "web" in namespace "NAMESPACE" has a selector`,
				"Remove the selector, or name another Service in spec.serviceRef"),
		}},
		{"serviceRef to a missing Service", applies("serviceRef: {name: elsewhere}" + onePort), []told{
			condition("Programmed").says(`False ServiceNotFound: Service "elsewhere" does not exist in namespace "NAMESPACE"`),
			events.says(`Warning ServiceNotFound: Service "elsewhere" does not exist in namespace "NAMESPACE"`),
		}},
		{"PortMismatch", besides("apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{name: http, port: 80}, {name: dns, port: 53, protocol: UDP}]}",
			"serviceRef: {name: web}"+onePort), []told{
			condition("Programmed").says(`False PortMismatch: Service "web" in namespace "NAMESPACE"`, `"web" (TCP)`,
				`It has "http" (TCP), "dns" (UDP)`),
			events.says("Warning PortMismatch: ", `It has "http" (TCP), "dns" (UDP)`),
		}},

		// What policy refuses.
		{"policy refuses the probe's port", func(h *harness.Test) []string {
			policy(h, "narrow", "allow: [{cidrs: [198.51.100.0/24], ports: [{port: 8080}]}]")
			h.ApplyBackend("web", onePort+"\nhealthCheck: {tcpSocket: {port: 9999}, "+harness.FastPace+"}")
			return nil
		}, []told{
			condition("Permitted").says("False TargetDenied: ", `"a"`, "port 9999/TCP of spec.healthCheck").butNot("8080"),
			target("a").says("Denied TargetDenied: port 9999/TCP of spec.healthCheck"),
			events.says("Warning TargetDenied: ", "port 9999/TCP of spec.healthCheck"),
		}},
		{"policy with host bits in a CIDR", func(*harness.Test) []string { return nil }, []told{
			refusal("198.51.100.7/24").says("spec.allow[0].cidrs[0]", "198.51.100.7/24", "no bit set beyond its prefix length"),
			refusal("198.51.100.0/24").says("<nil>"),
		}},

		// What addresses and names come to.
		{"name that doesn't exist, with a check", applies(unknownName), []told{
			columns.says("HEALTHY=Unknown ", "STATUS=ResolutionFailed "),
			target("db").says("Unresolved NameNotFound: ", "NXDOMAIN"),
			condition("NamesResolved").says("False ResolutionFailed: ", `"db"`, "NXDOMAIN"),
		}},
		{"new object, nothing resolved", applies(unknownName), []told{
			events.says("Warning ResolutionFailed: ").butNot("TierChanged"),
			logged.says("ResolutionFailed").butNot("TierChanged"),
		}},
		{"IPv6 target, IPv4 Service", applies(fmt.Sprintf(web, "") + `targets: [{name: a, address: "2001:db8::1"}]`), []told{
			target("a").says("FamilyNotServed: ", "does not serve IPv6", "spec.service.ipFamilies"),
			condition("Ready").says("False FamilyNotServed: ", "does not serve IPv6", "spec.service.ipFamilies"),
		}},
		{"duplicate address", applies(twoTargets("address: 198.51.100.1")), []told{
			target("b").says("DuplicateAddress: ", `target "a"`)}},
		{"duplicate address of a sibling", func(h *harness.Test) []string {
			h.ApplyService("theirs", "ports: [{name: web, port: 80}]")
			h.ApplyBackend("first", "serviceRef: {name: theirs}"+onePort)
			h.WaitReady("first")
			h.ApplyBackend("web", "serviceRef: {name: theirs}"+onePort)
			return nil
		}, []told{target("a").says("DuplicateAddress: ", `ExternalBackend "first"`)}},

		// Who has traffic, why, and since when.
		{"incident", func(h *harness.Test) []string {
			_, names := failOver(h)
			return names
		}, []told{
			target("a").says("Unhealthy UnexpectedStatus: 503, expected 200-399, at FIRST", "tier 0, 0 of 1 ready, since 20"),
			target("b").says("Healthy ", "tier 1, 1 of 1 ready, since 20"),
			condition("Ready").says("Tier 1 is active. 0 of 1 endpoints of tier 0 are healthy."),
			events.says(`Warning EndpointUnhealthy: Target "a" at FIRST is unhealthy`,
				"Normal TierChanged: Tier 1 is active in place of tier 0. 0 of 1 endpoints of tier 0 are healthy."),
			logged.says("at FIRST is unhealthy", "Tier 1 is active in place of tier 0", "Healthy is False, SomeUnhealthy"),
		}},
		{"failback that waits", func(h *harness.Test) []string {
			set, names := failOver(h)
			set.servers[0].SetSick(false)
			return names
		}, []told{
			condition("Ready").says("Tier 1 is active. Tier 0 qualifies again, and waits for failbackDelaySeconds."),
			events.says(`Normal EndpointHealthy: Target "a" at FIRST is healthy again`),
		}},
		{"pin", applies(twoTargets("address: 198.51.100.2, tier: 1") + "\nfailover: {pinnedTier: 1}"), []told{
			condition("Ready").says("Tier 1 is active. spec.failover.pinnedTier pins it.")}},
		{"pin that takes everything out", func(h *harness.Test) []string {
			spec := twoTargets("address: 198.51.100.2, tier: 1, adminState: Disabled")
			h.ApplyBackend("web", spec)
			h.WaitReady("web")
			h.ApplyBackend("web", spec+"\nfailover: {pinnedTier: 1}")
			return nil
		}, []told{
			events.says("Warning TierChanged: Tier 1 is active in place of tier 0. spec.failover.pinnedTier pins it. No endpoint is ready."),
			condition("Ready").says("False ", "spec.failover.pinnedTier is 1, and no endpoint is in that tier."),
		}},
		{"pin of a tier without targets", applies(onePort + "\nfailover: {pinnedTier: 3}"), []told{
			condition("Accepted").says("False InvalidSpec: spec.failover.pinnedTier: Invalid value: 3: no target can be in that tier"),
			events.says("Warning InvalidSpec: spec.failover.pinnedTier: "),
		}},
		{"Headless with another targetPort", applies("service: {type: Headless}" + onePort), []told{
			condition("Programmed").says("True ", "headless", `port "web"`, "SRV")}},
		{"Service deleted and made anew", recreate, []told{
			events.says(`Warning ServiceRecreated: Service "web" was deleted`, "its cluster IP was OLD and is NEW")}},
		{"backend that publishes nothing", applies("ports: [{name: web, port: 80}]"), []told{
			metrics.says(`externalbackend_ready{name="web",namespace="NAMESPACE"} 0`,
				`externalbackend_ready_endpoints{name="web",namespace="NAMESPACE"} 0`),
			columns.says("READY=0/0 ", "STATUS=NoReadyEndpoints "),
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			h := harness.New(t)
			t.Cleanup(func() {
				if t.Failed() {
					t.Logf("the manager said:\n%s", managerLog(shared.manager, h.Namespace))
				}
			})
			names := strings.NewReplacer(append(tc.make(h), "NAMESPACE", h.Namespace)...)
			for _, told := range tc.told {
				told.wait(h, names)
			}
		})
	}
}

// wait waits until a person reads all of the words in their place, and none of the lies.
func (t told) wait(h *harness.Test, names *strings.Replacer) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("%s to say %q", t.place.name, t.words), func() error {
		text := t.place.read(h)
		for _, word := range t.words {
			if word = names.Replace(word); !strings.Contains(text, word) {
				return fmt.Errorf("%q is missing in: %s", word, cmp.Or(text, "(nothing)"))
			}
		}
		for _, word := range t.lies {
			if strings.Contains(text, word) {
				return fmt.Errorf("%q is in: %s", word, text)
			}
		}
		return nil
	})
}
