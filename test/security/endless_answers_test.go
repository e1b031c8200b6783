package security

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/test/harness"
)

// endlessServer never ends its answer to a probe of one handler.
type endlessServer struct {
	name    string
	handler string
	secure  bool // the answer is within TLS
	write   func(io.Writer)
	state   string // the state that the endpoints get
	reason  string // the reason in status
}

// repeat writes head, and then tail again and again until the connection ends.
func repeat(head, tail string) func(io.Writer) {
	return func(w io.Writer) {
		_, err := io.WriteString(w, head)
		for chunk := strings.Repeat(tail, 1+4096/len(tail)); err == nil; {
			_, err = io.WriteString(w, chunk)
		}
	}
}

// drip writes a byte of text a second.
func drip(text string) func(io.Writer) {
	return func(w io.Writer) {
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for i := range text {
			if _, err := io.WriteString(w, text[i:i+1]); err != nil {
				return
			}
			<-ticker.C
		}
	}
}

const (
	ok       = "HTTP/1.1 200 OK\r\n"
	settings = "\x00\x00\x00\x04\x00\x00\x00\x00\x00"
	// A TLS record of 16 KiB.
	record = "\x16\x03\x03\x40\x00"
)

// endlessServers has a server for every part of an answer that a probe reads.
var endlessServers = []endlessServer{
	{"body", "http", false, repeat(ok+"\r\n", "x"), harness.Healthy, ""},
	{"chunks", "http", false, repeat(ok+"Transfer-Encoding: chunked\r\n\r\n", "5\r\nhello\r\n"), harness.Healthy, ""},
	{"chunk-extension", "http", false, repeat(ok+"Transfer-Encoding: chunked\r\n\r\n5;", "x"), harness.Unhealthy,
		v1alpha1.TargetReasonUnexpectedResponse},
	{"headers", "http", false, repeat(ok, "X-Header: value\r\n"), harness.Unhealthy,
		v1alpha1.TargetReasonUnexpectedResponse},
	{"header", "http", false, repeat(ok+"X-Header: ", "x"), harness.Unhealthy, v1alpha1.TargetReasonUnexpectedResponse},
	{"interim", "http", false, repeat("", "HTTP/1.1 100 Continue\r\n\r\n"), harness.Unhealthy,
		v1alpha1.TargetReasonUnexpectedResponse},
	{"drip", "http", false, drip(ok + "\r\n"), harness.Unhealthy, v1alpha1.TargetReasonTimeout},
	{"tls-body", "https", true, repeat(ok+"\r\n", "x"), harness.Healthy, ""},
	{"tls-headers", "https", true, repeat(ok, "X-Header: value\r\n"), harness.Unhealthy,
		v1alpha1.TargetReasonUnexpectedResponse},
	{"tls-records", "https", false, repeat("", record+"\x02\x00\xff\xff"+strings.Repeat("x", 16<<10-4)),
		harness.Unhealthy, v1alpha1.TargetReasonTLSHandshakeFailed},
	{"tls-drip", "https", false, drip(record + "\x02\x00\xff\xff"), harness.Unhealthy, v1alpha1.TargetReasonTimeout},
	{"text", "tcp", false, repeat("", "PIN"), harness.Unhealthy, v1alpha1.TargetReasonUnexpectedResponse},
	{"grpc-settings", "grpc", false, repeat("", settings), harness.Unhealthy, v1alpha1.TargetReasonUnexpectedResponse},
	{"grpc-pings", "grpc", false, repeat(settings, "\x00\x00\x08\x06\x00\x00\x00\x00\x00"+"12345678"),
		harness.Unhealthy, v1alpha1.TargetReasonUnexpectedResponse},
	{"grpc-data", "grpc", false, repeat(settings, "\x00\x00\x05\x00\x00\x00\x00\x00\x01"+"\x00\x00\x00\x00\x02"),
		harness.Unhealthy, v1alpha1.TargetReasonUnexpectedResponse},
	{"grpc-headers", "grpc", false,
		repeat(settings+"\x00\x00\x01\x01\x00\x00\x00\x00\x01\x88", "\x00\x00\x01\x09\x00\x00\x00\x00\x01\x88"),
		harness.Unhealthy, v1alpha1.TargetReasonUnexpectedResponse},
	{"grpc-drip", "grpc", false, drip(settings + settings + settings), harness.Unhealthy, v1alpha1.TargetReasonTimeout},
}

const (
	// endlessPort is the first port of these servers.
	endlessPort = 9000
	// endlessTargets is the number of targets that each of them has.
	endlessTargets = 64
	// maxGrowth bounds how much memory they may cost the manager, in bytes. The race detector
	// multiplies what the manager uses.
	maxGrowth = 256 << 20
)

// serve answers all connections to a port of the allowed servers.
func (e endlessServer) serve(t testing.TB, s *allowedServers, port int) {
	t.Helper()
	listener := s.open(t, port, e.secure)
	go func() { // ends with the program
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_ = conn.SetDeadline(time.Now().Add(time.Minute))
				go func() { _, _ = io.Copy(io.Discard, conn) }() // ends with the connection
				e.write(conn)
			}()
		}
	}()
}

// backend returns an ExternalBackend whose targets are probed at a port.
func (e endlessServer) backend(number, port int) *v1alpha1.ExternalBackend {
	b := newBackend(e.name, handlerNamed[e.handler])
	at := new(intstr.FromInt32(int32(port)))
	switch h := b.Spec.HealthCheck; {
	case h.HTTPGet != nil:
		h.HTTPGet.Port = at
	case h.TCPSocket != nil:
		h.TCPSocket.Port = at
	default:
		h.GRPC.Port = at
	}
	b.Spec.HealthCheck.TimeoutSeconds = 3
	for i := range endlessTargets {
		address := allowedAddr(43000+number*endlessTargets+i, netip.IPv4Unspecified()).String()
		b.Spec.Targets = append(b.Spec.Targets, v1alpha1.Target{Name: fmt.Sprint("t", i), Address: address})
	}
	return b
}

// Servers whose answers never end get a verdict, cost bounded memory, and do not delay the verdicts
// of others. One kind of server answers at a time: what they send takes most of a small machine.
func TestEndlessAnswersStayBounded(t *testing.T) {
	h, other := harness.New(t), harness.New(t)
	env := sharedEnvironment(h)
	m := h.StartManager()
	bystander := newBystander(other, len(endlessServers)) // each of its servers gets sick once
	size := func() float64 { return m.Metrics()["process_resident_memory_bytes"] }
	before, most := size(), 0.0

	for i, e := range endlessServers {
		e.serve(t, env.allowed, endlessPort+i)
		h.ApplyObject(e.backend(i, endlessPort+i))
		bystander.flip(i, harness.Unhealthy)
		wantVerdict(h, e.name, e.state, e.reason)
		most = max(most, size())
		bystander.flip(i, harness.Healthy)
		if env.allowed.visits(allowedAddr(43000+i*endlessTargets, netip.IPv4Unspecified())) == 0 {
			t.Errorf("no probe reached %s", e.name)
		}
		if err := h.Client.Delete(t.Context(), h.Backend(e.name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("the manager has grown from %.0f to %.0f MiB", before/(1<<20), most/(1<<20))
	if most > before+maxGrowth {
		t.Errorf("the manager has grown from %.0f to %.0f MiB", before/(1<<20), most/(1<<20))
	}
	m.Stop()
}

// wantVerdict waits until all endpoints have the state, and status the reason.
func wantVerdict(h *harness.Test, name, state, reason string) {
	h.T.Helper()
	h.Eventually(fmt.Sprintf("all of %s to be %q", name, state), func() error {
		endpoints := h.Endpoints(name)
		for _, e := range endpoints {
			if e.State != state {
				return fmt.Errorf("%s is %q", e.At, e.State)
			}
		}
		if len(endpoints) != endlessTargets {
			return fmt.Errorf("there are %d", len(endpoints))
		}
		for _, is := range h.Backend(name).Status.Targets {
			if is.Reason != reason {
				return fmt.Errorf("%s is %s for %q, not %q", is.Name, is.State, is.Reason, reason)
			}
		}
		return nil
	})
}
