package security

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// marker stands in everything that nobody may be told. It is part of a DNS name, too.
const marker = "marker-7f3a9c"

// wantUnsaid wants none of these words in the manager's log, metrics and events, in what it
// publishes, and in status.
func wantUnsaid(h *harness.Test, logFile, metrics string, words ...string) {
	h.T.Helper()
	log, err := os.ReadFile(logFile)
	if err != nil {
		h.T.Fatal(err)
	}
	told := map[string]string{"the log": string(log), "metrics": metrics}
	for _, list := range append(lists(), &eventsv1.EventList{}) {
		if err := h.Client.List(h.T.Context(), list); err != nil {
			h.T.Fatal(err)
		}
		_ = meta.EachListItem(list, func(o runtime.Object) error {
			if b, ok := o.(*v1alpha1.ExternalBackend); ok {
				b.Spec, b.ManagedFields = v1alpha1.ExternalBackendSpec{}, nil // the author's own words
			}
			text, err := json.Marshal(o)
			told[fmt.Sprintf("%T", o)] += string(text)
			return err
		})
	}
	for where, text := range told {
		for _, word := range words {
			if at := strings.Index(strings.ToLower(text), strings.ToLower(word)); at >= 0 {
				h.T.Errorf("%s tells %q: ...%s...", where, word, text[max(0, at-200):min(len(text), at+100)])
			}
		}
	}
}

// leak is a server that puts the marker into its answers, where a careless client would repeat it.
type leak struct {
	name, handler string
	serve         func(f *farm, port int)
	change        func(*v1alpha1.HealthCheck)
	reason        string // what becomes of its endpoint; "": it is healthy
}

// leaks are such servers, for clients that trust the certificate of a ConfigMap.
func leaks(t testing.TB, certificate tls.Certificate) []leak {
	says := func(text string) func(*farm, int) {
		return func(f *farm, port int) {
			endless{say: func(w io.Writer) { _, _ = io.WriteString(w, text) }}.serve(t, f, port)
		}
	}
	goesOn := func(f *farm, port int) { endless{say: repeat("", marker)}.serve(t, f, port) }
	secure := func(f *farm, port int) {
		listener := f.open(t, port, false)
		answer(
			tls.NewListener(listener,
				&tls.Config{Certificates: []tls.Certificate{certificate}, ClientAuth: tls.RequestClientCert}),
			f.serve,
		)
	}
	trusts := func(kind v1alpha1.CACertificateKind, name, server string) func(*v1alpha1.HealthCheck) {
		return func(h *v1alpha1.HealthCheck) {
			h.TLS = &v1alpha1.TLS{
				ServerName:        server,
				CACertificateRefs: []v1alpha1.CACertificateReference{{Kind: kind, Name: name}},
			}
		}
	}
	return []leak{
		{"status", "http",
			says("HTTP/1.1 500 " + marker + "\r\nX-Error: " + marker + "\r\nContent-Length: 13\r\n\r\n" + marker), nil,
			v1alpha1.TargetReasonUnexpectedStatus},
		{
			"body",
			"http",
			says("HTTP/1.1 200 " + marker + "\r\nSet-Cookie: " + marker + "\r\nContent-Length: 13\r\n\r\n" + marker),
			func(h *v1alpha1.HealthCheck) {
				h.HTTPGet.HTTPHeaders = []v1alpha1.HTTPHeader{{Name: "Authorization", Value: "Bearer " + marker}}
			},
			"",
		},
		{"garbage", "http", says(marker), nil, v1alpha1.TargetReasonUnexpectedResponse},
		{"no-http2", "grpc", says(marker), nil, v1alpha1.TargetReasonUnexpectedResponse},
		{"text", "tcp", goesOn, func(h *v1alpha1.HealthCheck) { h.TCPSocket.Send = marker },
			v1alpha1.TargetReasonUnexpectedResponse},
		{"grpc-message", "grpc", func(f *farm, port int) {
			answer(f.open(t, port, false), func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/grpc")
				w.Header().Set("Grpc-Message", marker)
				w.Header().Set("Grpc-Status", "13")
			})
		}, nil, v1alpha1.TargetReasonUnexpectedStatus},
		{"issuer", "https", secure, trusts(v1alpha1.CACertificateKindSecret, "of-farm", marker+".example"),
			v1alpha1.TargetReasonTLSUnknownAuthority},
		{"subject", "https", secure, trusts(v1alpha1.CACertificateKindConfigMap, "authority", "other.example"),
			v1alpha1.TargetReasonTLSNameMismatch},
		{"client", "https", secure, func(h *v1alpha1.HealthCheck) {
			trusts(v1alpha1.CACertificateKindConfigMap, "authority", marker+".example")(h)
			h.TLS.ClientCertificateRef = &v1alpha1.SecretReference{Name: "client"}
		}, ""},
	}
}

// leakPort is the first port of the farm with a leak.
const leakPort = 9500

// TestMarkers puts a marker into Secrets and ConfigMaps, certificates, headers, answers of servers
// and of nameservers, and wants the manager to repeat it nowhere, at the highest verbosity.
func TestMarkers(t *testing.T) {
	h := harness.New(t)
	w := theWorld(h)
	h.AllowReferences()
	certificate := selfSigned(t, marker)
	around := func(pem []byte) []byte { return append([]byte(marker+"\n"), pem...) }
	named := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: h.Namespace, Name: name} }
	h.ApplyObject(&corev1.ConfigMap{
		ObjectMeta: named("authority"),
		Data:       map[string]string{"ca.crt": string(around(certificatePEM(certificate))), "other": marker},
	})
	h.ApplyObject(&corev1.Secret{
		ObjectMeta: named("of-farm"),
		Data:       map[string][]byte{"ca.crt": around(certificatePEM(w.good.certificate)), "other": []byte(marker)},
	})
	h.ApplyObject(&corev1.Secret{ObjectMeta: named("client"), Type: corev1.SecretTypeTLS, Data: map[string][]byte{
		corev1.TLSCertKey: around(certificatePEM(certificate)), corev1.TLSPrivateKeyKey: around(keyPEM(t, certificate))}})
	h.ApplyObject(&corev1.Secret{
		ObjectMeta: named("broken"),
		Data: map[string][]byte{
			"ca.crt":                []byte(marker),
			corev1.TLSCertKey:       []byte(marker),
			corev1.TLSPrivateKeyKey: []byte(marker),
		},
	})
	all := leaks(t, certificate)
	at := func(i int) netip.Addr { return goodAddr(45000+i, netip.IPv4Unspecified()) }
	for i, l := range all {
		l.serve(w.good, leakPort+i)
		b := newBackend(l.name, byName[l.handler])
		b.Spec.Ports[0].Port = int32(leakPort + i)
		b.Spec.HealthCheck.TimeoutSeconds = 2
		if l.change != nil {
			l.change(b.Spec.HealthCheck)
		}
		b.Spec.Targets = []v1alpha1.Target{{Name: "t", Address: at(i).String()}}
		h.ApplyObject(b)
	}
	broken := newBackend("broken", byName["https"])
	broken.Spec.HealthCheck.TLS = &v1alpha1.TLS{ClientCertificateRef: &v1alpha1.SecretReference{Name: "broken"}}
	h.ApplyObject(broken)
	whispers(h, w)

	m := h.StartManager("--zap-log-level=9", "--resolv-conf="+w.dns.resolvConf)
	for i, l := range all {
		state := harness.Unhealthy
		if l.reason == "" {
			state = harness.Healthy
		}
		h.Eventually(l.name+" to be judged", func() error {
			is := targetOf(h.Backend(l.name), "t")
			if endpointsAt(h, l.name)[at(i)] != state || is.Reason != l.reason {
				return fmt.Errorf("it is %q and %s for %q, not for %q", endpointsAt(h, l.name)[at(i)], is.State,
					is.Reason, l.reason)
			}
			return nil
		})
	}
	h.WaitCondition("broken", v1alpha1.ConditionResolvedRefs, metav1.ConditionFalse, v1alpha1.ReasonInvalidRef)
	h.WaitReady("whispered")
	h.WaitCondition("failed", v1alpha1.ConditionNamesResolved, metav1.ConditionFalse, v1alpha1.ReasonResolutionFailed)
	metrics, err := json.Marshal(m.Metrics())
	if err != nil {
		t.Fatal(err)
	}
	m.Stop()
	wantUnsaid(h, m.Log, string(metrics), marker, "PRIVATE KEY", "BEGIN CERTIFICATE")
}

// whispers has the nameserver say the marker beside its answers: as texts, as an alias, as what
// explains a failure (RFC 8914).
func whispers(h *harness.Test, w world) {
	h.T.Helper()
	text := func(name string) dnsmessage.Resource {
		header := dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(name + "."), Class: dnsmessage.ClassINET}
		return dnsmessage.Resource{Header: header, Body: &dnsmessage.TXTResource{TXT: []string{marker}}}
	}
	w.dns.tell("whispered.good.example", func(r *reply, _ int) {
		end := marker + ".good.example"
		r.alias(end)
		r.add(end, goodAddr(46000, netip.IPv4Unspecified()))
		r.Answers = append(r.Answers, text(end))
		r.Additionals = append(r.Additionals, text(r.name))
	})
	w.dns.tell("failed.good.example", func(r *reply, n int) {
		silence(r, n)
		explained := dnsmessage.OPTResource{Options: []dnsmessage.Option{{Code: 15, Data: append([]byte{0, 0}, marker...)}}}
		r.Additionals = append(r.Additionals,
			dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: dnsmessage.MustNewName(".")}, Body: &explained})
	})
	for _, name := range []string{"whispered", "failed"} {
		b := newBackend(name, byName["none"])
		b.Spec.Targets = []v1alpha1.Target{{Name: "t", Hostname: name + ".good.example"}}
		h.ApplyObject(b)
	}
}
