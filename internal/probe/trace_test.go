package probe

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// traced runs a check against a listener.
func traced(t *testing.T, c Check, addr net.Addr, host string) Trace {
	t.Helper()
	c.Timeout = 5 * time.Second
	return Run(t.Context(), &c, Endpoint{Dial: netip.MustParseAddrPort(addr.String()), Host: host})
}

// stepsOf returns the names of the steps. The last one has "!" if it failed.
func stepsOf(trace Trace) string {
	var names []string
	for _, s := range trace.Steps {
		if s.Err != "" {
			s.Name += "!"
		}
		names = append(names, s.Name)
	}
	return strings.Join(names, " ")
}

// TestTraceHasTheStepsOfACheck: each kind of check has its steps, and the verdict and reason that
// the engine has.
func TestTraceHasTheStepsOfACheck(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/live" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(plain.Close)
	closed := local(t)
	_ = closed.Close()
	server, listener := grpc.NewServer(), local(t)
	statuses := health.NewServer()
	statuses.SetServingStatus("dead", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	grpc_health_v1.RegisterHealthServer(server, statuses)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)

	for _, test := range []struct {
		name   string
		check  Check
		addr   net.Addr
		want   Verdict
		reason string
		steps  string
		answer string
	}{
		{"TCP", Check{TCP: &TCPSocket{}}, plain.Listener.Addr(), Healthy, "", "connect", ""},
		{"refused", Check{TCP: &TCPSocket{}}, closed.Addr(), Unhealthy, ReasonConnectionRefused, "connect!", ""},
		{
			"text", Check{TCP: &TCPSocket{Send: "PING\r\n\r\n", Expect: "400"}}, plain.Listener.Addr(),
			Healthy, "", "connect request answer", `"HTTP/1.1 400 Bad Request"`,
		},
		{
			"HTTP", Check{HTTP: &HTTPGet{Path: "/live"}}, plain.Listener.Addr(), Healthy, "",
			"connect request answer", `"HTTP/1.1 200 OK"`,
		},
		{
			"HTTP 503", Check{HTTP: &HTTPGet{Path: "/ready"}}, plain.Listener.Addr(), Unhealthy, ReasonUnexpectedStatus,
			"connect request answer", `"HTTP/1.1 503 Service Unavailable"`,
		},
		{"gRPC", Check{GRPC: &GRPC{}}, listener.Addr(), Healthy, "", "connect request answer", ""},
		{
			"gRPC not serving", Check{GRPC: &GRPC{Service: "dead"}}, listener.Addr(), Unhealthy, ReasonGRPCNotServing,
			"connect request answer", "",
		},
	} {
		trace := traced(t, test.check, test.addr, "")
		if trace.Verdict != test.want || trace.Reason != test.reason || stepsOf(trace) != test.steps ||
			trace.Answer != test.answer {
			t.Errorf("%s: %+v, steps %q", test.name, trace, stepsOf(trace))
		}
	}
}

// TestTraceShowsRefusedCertificates: the certificates of a peer are shown, with the name that was
// expected, also if they are refused.
func TestTraceShowsRefusedCertificates(t *testing.T) {
	root := newCertificates(t)
	later := time.Now().Add(24 * time.Hour)
	for _, test := range []struct {
		name        string
		certificate tls.Certificate
		trusted     bool
		reason      string
	}{
		{"good", root.leaf(t, "db.example.com", later), true, ""},
		{"wrong name", root.leaf(t, "other.example.com", later), true, ReasonTLSNameMismatch},
		{"expired", root.leaf(t, "db.example.com", time.Now().Add(-time.Hour)), true, ReasonTLSCertificateExpired},
		{"unknown authority", root.leaf(t, "db.example.com", later), false, ReasonTLSUnknownAuthority},
	} {
		server := httptest.NewUnstartedServer(http.NotFoundHandler())
		server.Config.ErrorLog = quiet
		server.TLS = &tls.Config{Certificates: []tls.Certificate{test.certificate}}
		server.StartTLS()
		check := Check{HTTP: &HTTPGet{Expected: []StatusRange{{404, 404}}}, TLS: &TLS{}}
		check.TLS.RootCAs = newCertificates(t).pool()
		if test.trusted {
			check.TLS.RootCAs = root.pool()
		}
		trace := traced(t, check, server.Listener.Addr(), "db.example.com")
		server.Close()

		steps := "connect TLS request answer"
		if test.reason != "" {
			steps = "connect TLS!"
		}
		if trace.Reason != test.reason || stepsOf(trace) != steps || trace.ServerName != "db.example.com" {
			t.Errorf("%s: %+v, steps %q", test.name, trace, stepsOf(trace))
		}
		if len(trace.Certificates) != 1 || !slices.Equal(trace.Certificates[0].Names, test.certificate.Leaf.DNSNames) ||
			!trace.Certificates[0].NotAfter.Equal(test.certificate.Leaf.NotAfter) {
			t.Errorf("%s: certificates %+v", test.name, trace.Certificates)
		}
	}
}

// TestSilenceIsTimedOut: a peer that never answers fails when the check's timeout is over. If the
// caller gives up before, the verdict is unknown.
func TestSilenceIsTimedOut(t *testing.T) {
	listener := local(t)
	e := Endpoint{Dial: netip.MustParseAddrPort(listener.Addr().String())}
	trace := Run(t.Context(), &Check{HTTP: &HTTPGet{}, Timeout: 50 * time.Millisecond}, e)
	if trace.Verdict != Unhealthy || trace.Reason != ReasonTimeout || stepsOf(trace) != "connect request answer!" {
		t.Errorf("%+v, steps %q", trace, stepsOf(trace))
	}

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if trace := Run(ctx, &Check{HTTP: &HTTPGet{}, Timeout: time.Minute}, e); trace.Verdict != Unknown {
		t.Errorf("given up: %+v", trace)
	}
}

// TestAnswersAreShownOnlyAsText: bytes of a peer that are not plain text are not shown.
func TestAnswersAreShownOnlyAsText(t *testing.T) {
	for in, want := range map[string]string{
		"HTTP/1.1 200 OK\r\nx": `"HTTP/1.1 200 OK"`, "\x1b[31mred\n": "", "\x00\x01": "", `say "hi"`: `"say \"hi\""`,
		strings.Repeat("x", 200): `"` + strings.Repeat("x", maxShownAnswer) + `"`,
	} {
		var trace Trace
		trace.answered([]byte(in))
		if trace.Answer != want {
			t.Errorf("%q: %s", in, trace.Answer)
		}
	}
}
