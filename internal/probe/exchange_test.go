package probe

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// hear feeds an exchange in pieces of at most size bytes, and ends it with err where it isn't
// done by then.
func hear(x exchange, in []byte, size int, err error) answer {
	for len(in) > 0 {
		n := min(size, len(in))
		if a := x.feed(bytes.Clone(in[:n])); a.done {
			a.reply = nil
			return a
		}
		in = in[n:]
	}
	return x.cut(err)
}

func httpFor(h HTTPGet) *httpExchange {
	x := &httpExchange{request: newHTTPRequest(&h), host: "db.example.com"}
	x.begin(nil)
	return x
}

// TestHTTPResponsesAreJudged feeds whole and broken responses, in pieces of all sizes.
func TestHTTPResponsesAreJudged(t *testing.T) {
	ok := outcome{result: success}
	chunk := "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
	for _, test := range []struct {
		name string
		in   string
		err  error // what follows
		want outcome
		keep bool
	}{
		{"with a length", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", io.EOF, ok, true},
		{"empty", "HTTP/1.1 200 OK\r\ncontent-length:0\r\n\r\n", io.EOF, ok, true},
		{"no body by its status", "HTTP/1.1 204 No Content\r\n\r\n", io.EOF, ok, true},
		{"not modified", "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n", io.EOF, ok, true},
		{
			"a redirect", "HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/\r\nContent-Length: 0\r\n\r\n", io.EOF, ok,
			true,
		},
		{"until the peer closes", "HTTP/1.1 200 OK\r\n\r\nhello", io.EOF, ok, false},
		{"until a reset", "HTTP/1.1 200 OK\r\n\r\nhello", syscall.ECONNRESET, failed(ReasonConnectionReset), false},
		{"bare line feeds", "HTTP/1.1 200 OK\nContent-Length: 2\n\nok", io.EOF, ok, true},
		{"no phrase", "HTTP/1.1 200\r\nContent-Length: 0\r\n\r\n", io.EOF, ok, true},
		{"closing", "HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n", io.EOF, ok, false},
		{
			"closing, among options", "HTTP/1.1 200 OK\r\nConnection: x , close\r\nContent-Length: 0\r\n\r\n", io.EOF, ok,
			false,
		},
		{"1.0", "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", io.EOF, ok, false},
		{"1.0 until the peer closes", "HTTP/1.0 200 OK\r\n\r\nok", io.EOF, ok, false},
		{"1.0 kept alive", "HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok", io.EOF, ok, true},
		{"more than was asked for", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n", io.EOF, ok, false},
		{
			"after interim ones",
			"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" +
				"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
			io.EOF, ok, true,
		},
		{
			"interim ones without end", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 2000), io.EOF,
			failed(ReasonUnexpectedResponse), false,
		},
		{"chunks", chunk + "5\r\nhello\r\n3;x=y\r\n123\r\n0\r\n\r\n", io.EOF, ok, true},
		{"chunks with a trailer", chunk + "5\r\nhello\r\n0\r\nA: b\r\n\r\n", io.EOF, ok, true},
		{"chunks and more", chunk + "0\r\n\r\nx", io.EOF, ok, false},
		{"a chunk cut off", chunk + "5\r\nhel", io.EOF, failed(ReasonUnexpectedResponse), false},
		{"a chunk without size", chunk + "\r\nhello", io.EOF, failed(ReasonUnexpectedResponse), false},
		{"a chunk that is longer than it says", chunk + "2\r\nhello", io.EOF, failed(ReasonUnexpectedResponse), false},
		{"a chunk size out of bounds", chunk + "ffffffffffffffffff\r\n", io.EOF, failed(ReasonUnexpectedResponse), false},
		{"a chunk size that is none", chunk + "xyz\r\n", io.EOF, failed(ReasonUnexpectedResponse), false},
		{
			"a chunk extension without end", chunk + "1;" + strings.Repeat("x", 33000), io.EOF,
			failed(ReasonUnexpectedResponse), false,
		},
		{"many chunks", chunk + strings.Repeat("1\r\nx\r\n", 3000) + "0\r\n\r\n", io.EOF, ok, true},
		{
			"many chunks with long extensions",
			chunk + strings.Repeat("1;"+strings.Repeat("x", 100)+"\r\nx\r\n", 1000) + "0\r\n\r\n", io.EOF, ok, false,
		},
		{"chunks of two bytes", chunk + strings.Repeat("2\r\nxy\r\n", 2000) + "0\r\n\r\n", io.EOF, ok, true},
		{"endless tiny chunks", chunk + strings.Repeat("1\r\nx\r\n", 5000), os.ErrDeadlineExceeded, ok, false},
		{"endless chunks", chunk + "ffffff\r\n" + strings.Repeat("x", 5000), os.ErrDeadlineExceeded, ok, false},
		{"an endless body", "HTTP/1.1 200 OK\r\n\r\n" + strings.Repeat("x", 5000), os.ErrDeadlineExceeded, ok, false},
		{
			"a body that is too long", "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n" + strings.Repeat("x", 4096),
			os.ErrDeadlineExceeded, ok, false,
		},
		{"the longest body", "HTTP/1.1 200 OK\r\nContent-Length: 4096\r\n\r\n" + strings.Repeat("x", 4096), io.EOF, ok, true},
		{
			"a body cut off", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", io.EOF, failed(ReasonUnexpectedResponse),
			false,
		},
		{
			"a body that never comes", "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n", os.ErrDeadlineExceeded,
			failed(ReasonTimeout), false,
		},
		{
			"an error needs no body", "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 5\r\n\r\n", os.ErrDeadlineExceeded,
			failed(ReasonUnexpectedStatus), false,
		},
		{"a switch of protocols", "HTTP/1.1 101 Switching Protocols\r\n\r\n", io.EOF, failed(ReasonUnexpectedStatus), false},
		{
			"both length and chunks", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
			io.EOF, ok, false,
		},
		{
			"another coding", "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", io.EOF, failed(ReasonUnexpectedResponse),
			false,
		},
		{
			"a length that is none", "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", io.EOF,
			failed(ReasonUnexpectedResponse), false,
		},
		{
			"two lengths", "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx", io.EOF,
			failed(ReasonUnexpectedResponse), false,
		},
		{"a field without colon", "HTTP/1.1 200 OK\r\nnonsense\r\n\r\n", io.EOF, failed(ReasonUnexpectedResponse), false},
		{"no status", "HTTP/1.1 OK\r\n\r\n", io.EOF, failed(ReasonUnexpectedResponse), false},
		{"a status of four digits", "HTTP/1.1 2000 OK\r\n\r\n", io.EOF, failed(ReasonUnexpectedResponse), false},
		{"HTTP/2", "HTTP/2 200 OK\r\n\r\n", io.EOF, failed(ReasonUnexpectedResponse), false},
		{"another protocol", "SSH-2.0-OpenSSH_9.9\r\n", os.ErrDeadlineExceeded, failed(ReasonUnexpectedResponse), false},
		{"TLS", "\x15\x03\x01\x00\x02\x02\x16", io.EOF, failed(ReasonUnexpectedResponse), false},
		{"half a head", "HTTP/1.1 200 OK\r\nContent-", io.EOF, failed(ReasonUnexpectedResponse), false},
		{"the longest head", longHead(32 << 10), io.EOF, ok, true},
		{"a head that is too long", longHead(32<<10 + 1), os.ErrDeadlineExceeded, failed(ReasonUnexpectedResponse), false},
		{"nothing", "", io.EOF, failed(ReasonUnexpectedResponse), false},
		{"silence", "", os.ErrDeadlineExceeded, failed(ReasonTimeout), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, size := range []int{1, 7, 1 << 20} {
				a := hear(httpFor(HTTPGet{}), []byte(test.in), size, test.err)
				// What comes after the end, in a piece of its own, shows between two probes.
				keep := test.keep || size == 1 && a.keep && strings.Contains(test.name, "more")
				if a.result != test.want.result || a.reason != test.want.reason || a.keep != keep || a.ignored != (test.in == "") {
					t.Errorf("in pieces of %d: %+v, want %+v, keep %v", size, a, test.want, keep)
				}
			}
		})
	}
}

// longHead is a response of size bytes, all of them headers.
func longHead(size int) string {
	const begin, end = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: ", "\r\n\r\n"
	return begin + strings.Repeat("x", size-len(begin)-len(end)) + end
}

// TestIdleHTTPHoldsNoHead reads the longest head that there may be: none of it stays in memory
// between two probes.
func TestIdleHTTPHoldsNoHead(t *testing.T) {
	x := httpFor(HTTPGet{})
	if a := hear(x, []byte(longHead(32<<10)), 100, io.EOF); !a.keep || x.head != nil {
		t.Errorf("%+v, and %d bytes of its head are held", a, cap(x.head))
	}
}

// TestExpectedStatusesSucceed checks each status against the expected ones, 200 to 399 by
// default.
func TestExpectedStatusesSucceed(t *testing.T) {
	for _, test := range []struct {
		expected []StatusRange
		status   int
		want     bool
	}{
		{nil, 200, true}, {nil, 399, true}, {nil, 400, false}, {nil, 503, false},
		{[]StatusRange{{401, 401}, {500, 599}}, 401, true},
		{[]StatusRange{{401, 401}, {500, 599}}, 200, false},
		{[]StatusRange{{401, 401}, {500, 599}}, 599, true},
		{[]StatusRange{{301, 301}}, 302, false},
	} {
		in := fmt.Sprintf("HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n", test.status)
		a := hear(httpFor(HTTPGet{Expected: test.expected}), []byte(in), 100, io.EOF)
		if got := a.outcome.result == success; got != test.want || !got && a.reason != ReasonUnexpectedStatus {
			t.Errorf("%d of %v: %+v", test.status, test.expected, a)
		}
	}
}

// TestHTTPRequestsAreWellFormed compares requests byte for byte. No path and no header can add a
// line.
func TestHTTPRequestsAreWellFormed(t *testing.T) {
	for _, test := range []struct {
		name string
		get  HTTPGet
		host string
		dial string
		want string
	}{
		{
			"defaults", HTTPGet{}, "", "192.0.2.1:80",
			"GET / HTTP/1.1\r\nHost: 192.0.2.1\r\nUser-Agent: external-backend-operator\r\nAccept: */*\r\n\r\n",
		},
		{
			"the target's hostname", HTTPGet{Path: "/healthz?full=1"}, "db.example.com", "192.0.2.1:80",
			"GET /healthz?full=1 HTTP/1.1\r\nHost: db.example.com\r\nUser-Agent: external-backend-operator\r\nAccept: */*\r\n\r\n",
		},
		{
			"IPv6", HTTPGet{}, "", "[2001:db8::1]:80",
			"GET / HTTP/1.1\r\nHost: [2001:db8::1]\r\nUser-Agent: external-backend-operator\r\nAccept: */*\r\n\r\n",
		},
		{
			"headers", HTTPGet{Headers: []Header{{"X-Probe", "1"}, {"User-Agent", "me"}, {"accept", "text/plain"}}},
			"db.example.com", "192.0.2.1:80",
			"GET / HTTP/1.1\r\nHost: db.example.com\r\nUser-Agent: me\r\nAccept: text/plain\r\nX-Probe: 1\r\n\r\n",
		},
		{
			"nothing is smuggled", HTTPGet{
				Path: "/a b\r\nX: y",
				Headers: []Header{
					{"A", "b\r\nX: y"}, {"A:b", "c"}, {"A b", "c"}, {"A\r\nX", "c"}, {"Tab", "a\tb c"}, {"Content-Length", "5"},
				},
			}, "", "192.0.2.1:80",
			"GET /a%20b%0D%0AX:%20y HTTP/1.1\r\nHost: 192.0.2.1\r\nUser-Agent: external-backend-operator\r\nAccept: */*\r\nTab: a\tb c\r\n\r\n",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			check := &Check{HTTP: &test.get}
			got, enough := newHandler(check).exchange(Endpoint{Host: test.host, Dial: addrPort(test.dial)}).begin(nil)
			if diff := cmp.Diff(test.want, string(got)); diff != "" || enough {
				t.Error(diff)
			}
		})
	}
}

// TestHostHeaderNamesThePort checks that a Host header has the port unless it is the scheme's
// default, as RFC 9110 (section 7.2) asks for. The Host header of a check is sent as it is. Its
// name is the server name for TLS, too.
func TestHostHeaderNamesThePort(t *testing.T) {
	for _, test := range []struct {
		given      string // Host among the headers
		target     string // Endpoint.Host
		dial       string
		http       string // Host over http
		https      string // Host over https
		serverName string
	}{
		{"", "db.example.com", "192.0.2.1:80", "db.example.com", "db.example.com:80", "db.example.com"},
		{"", "db.example.com", "192.0.2.1:443", "db.example.com:443", "db.example.com", "db.example.com"},
		{"", "db.example.com", "192.0.2.1:8443", "db.example.com:8443", "db.example.com:8443", "db.example.com"},
		{"", "", "192.0.2.1:8080", "192.0.2.1:8080", "192.0.2.1:8080", "192.0.2.1"},
		{"", "", "[2001:db8::1]:443", "[2001:db8::1]:443", "[2001:db8::1]", "2001:db8::1"},
		{"", "", "[fe80::1%eth0]:80", "[fe80::1]", "[fe80::1]:80", "fe80::1"},
		{"a.example", "db.example.com", "192.0.2.1:8080", "a.example", "a.example", "a.example"},
		{"a.example:81", "db.example.com", "192.0.2.1:8080", "a.example:81", "a.example:81", "a.example"},
		{"2001:db8::2", "db.example.com", "192.0.2.1:8080", "[2001:db8::2]", "[2001:db8::2]", "2001:db8::2"},
		{"[2001:db8::2]", "", "192.0.2.1:80", "[2001:db8::2]", "[2001:db8::2]", "2001:db8::2"},
		{"[2001:db8::2]:81", "", "192.0.2.1:80", "[2001:db8::2]:81", "[2001:db8::2]:81", "2001:db8::2"},
	} {
		get := &HTTPGet{Headers: []Header{{"X", "1"}, {"hOST", test.given}}}
		endpoint := Endpoint{Host: test.target, Dial: addrPort(test.dial)}
		plain, secure := newHandler(&Check{HTTP: get}), newHandler(&Check{HTTP: get, TLS: &TLS{}})
		if got := plain.exchange(endpoint).(*httpExchange).host; got != test.http {
			t.Errorf("%+v: over http %s", test, got)
		}
		if got := secure.exchange(endpoint).(*httpExchange).host; got != test.https {
			t.Errorf("%+v: over https %s", test, got)
		}
		if got := secure.serverName(endpoint); got != test.serverName {
			t.Errorf("%+v: server name %s", test, got)
		}
		named := newHandler(&Check{HTTP: get, TLS: &TLS{ServerName: "tls.example"}})
		if got := named.serverName(endpoint); got != "tls.example" {
			t.Errorf("%+v: server name %s, though one was given", test, got)
		}
	}
}

// TestTextSucceedsWithTheExpectedOne feeds answers with and without the expected text.
func TestTextSucceedsWithTheExpectedOne(t *testing.T) {
	for _, test := range []struct {
		in     string
		err    error
		result result
		reason string
	}{
		{"+PONG\r\n", io.EOF, success, ""},
		{"noise, then +PONG", io.EOF, success, ""},
		{"-LOADING\r\n", os.ErrDeadlineExceeded, failure, ReasonUnexpectedResponse},
		{"-ERR", io.EOF, failure, ReasonUnexpectedResponse},
		{"", io.EOF, failure, ReasonUnexpectedResponse},
		{"", os.ErrDeadlineExceeded, failure, ReasonTimeout},
		{"", syscall.ECONNRESET, failure, ReasonConnectionReset},
		{strings.Repeat("x", 4091) + "+PONG", os.ErrDeadlineExceeded, success, ""},
		{strings.Repeat("x", 4092) + "+PONG", os.ErrDeadlineExceeded, failure, ReasonUnexpectedResponse},
	} {
		for _, size := range []int{1, 3, 1 << 20} {
			x := &textExchange{TCPSocket: &TCPSocket{Send: "PING\r\n", Expect: "+PONG"}}
			if out, enough := x.begin(nil); string(out) != "PING\r\n" || enough {
				t.Fatalf("%q, %v", out, enough)
			}
			if a := hear(x, []byte(test.in), size, test.err); a.result != test.result || a.reason != test.reason || a.keep {
				t.Errorf("%.20q in pieces of %d: %+v", test.in, size, a)
			}
		}
	}
	if _, enough := (&textExchange{TCPSocket: &TCPSocket{Send: "QUIT\r\n"}}).begin(nil); !enough {
		t.Error("nothing is expected, yet it waits")
	}
}

// h2 builds what a gRPC server sends.
type h2 struct {
	bytes.Buffer
	block   bytes.Buffer
	encoder *hpack.Encoder
}

func newH2() *h2 {
	h := new(h2)
	h.encoder = hpack.NewEncoder(&h.block)
	h.frame(http2.FrameSettings, 0, 0, "")
	return h
}

func (h *h2) frame(kind http2.FrameType, flags http2.Flags, stream uint32, payload string) *h2 {
	_ = http2.NewFramer(h, nil).WriteRawFrame(kind, flags, stream, []byte(payload)) // to a buffer
	return h
}

func (h *h2) fields(fields ...string) string {
	h.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = h.encoder.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return h.block.String()
}

func (h *h2) headers(flags http2.Flags, stream uint32, fields ...string) *h2 {
	return h.frame(http2.FrameHeaders, flags|http2.FlagHeadersEndHeaders, stream, h.fields(fields...))
}

// serving is a whole answer with that status.
func (h *h2) serving(stream uint32, status byte) *h2 {
	h.headers(0, stream, ":status", "200", "content-type", "application/grpc")
	h.frame(http2.FrameData, 0, stream, string([]byte{0, 0, 0, 0, 2, 8, status}))
	return h.headers(http2.FlagHeadersEndStream, stream, "grpc-status", "0", "grpc-message", "")
}

// held returns how many bytes of what the peer has sent are in memory. The framer's own buffer is
// as large as the frame that it reads.
func (x *grpcExchange) held() int {
	n := cap(x.block) + cap(x.payload) + len(x.httpStatus) + len(x.grpcStatus)
	if x.framing != nil {
		n += cap(x.framing.partial)
	}
	return n
}

func grpcFor(service string) *grpcExchange {
	x := newGRPCExchange(service, "db.example.com:9000", false)
	x.begin(nil)
	return x
}

// TestGRPCAnswersAreJudged feeds good, broken and hostile answers, in pieces of all sizes.
func TestGRPCAnswersAreJudged(t *testing.T) {
	ok := outcome{result: success}
	goAway := func(last byte) string { return string([]byte{0, 0, 0, last, 0, 0, 0, 0}) }
	for _, test := range []struct {
		name string
		in   *h2
		err  error
		want outcome
		keep bool
	}{
		{"serving", newH2().serving(1, 1), io.EOF, ok, true},
		{"not serving", newH2().serving(1, 2), io.EOF, failed(ReasonGRPCNotServing), true},
		{"unknown", newH2().serving(1, 0), io.EOF, failed(ReasonGRPCNotServing), true},
		{
			"service unknown", newH2().headers(http2.FlagHeadersEndStream, 1, ":status", "200", "grpc-status", "5"), io.EOF,
			failed(ReasonGRPCNotServing), true,
		},
		{
			"not implemented", newH2().headers(http2.FlagHeadersEndStream, 1, ":status", "200", "grpc-status", "12"), io.EOF,
			failed(ReasonUnexpectedStatus), true,
		},
		{
			"an HTTP error", newH2().headers(http2.FlagHeadersEndStream, 1, ":status", "502"), io.EOF,
			failed(ReasonUnexpectedStatus), true,
		},
		{
			"no gRPC status", newH2().headers(http2.FlagHeadersEndStream, 1, ":status", "200"), io.EOF,
			failed(ReasonUnexpectedResponse), true,
		},
		{
			"long headers",
			newH2().
				headers(http2.FlagHeadersEndStream, 1, ":status", "200", "grpc-status", "5",
					"grpc-message", strings.Repeat("\x00", 10000)),
			io.EOF, failed(ReasonGRPCNotServing), true,
		},
		{
			"no message", newH2().headers(0, 1, ":status", "200").headers(http2.FlagHeadersEndStream, 1, "grpc-status", "0"),
			io.EOF, failed(ReasonUnexpectedResponse), true,
		},
		{
			"a stream reset", newH2().frame(http2.FrameRSTStream, 0, 1, "\x00\x00\x00\x07"), io.EOF,
			failed(ReasonUnexpectedResponse), false,
		},
		{
			"settings, pings and windows before",
			newH2().frame(http2.FramePing, 0, 0, "12345678").frame(http2.FrameWindowUpdate, 0, 0, "\x00\x00\x00\x01").
				frame(http2.FramePriority, 0, 1, "12345").frame(0xbe, 0, 0, "new").serving(1, 1),
			io.EOF, ok, true,
		},
		{"going away after this one", newH2().frame(http2.FrameGoAway, 0, 0, goAway(1)).serving(1, 1), io.EOF, ok, false},
		{
			"going away before this one", newH2().frame(http2.FrameGoAway, 0, 0, goAway(0)), io.EOF,
			failed(ReasonUnexpectedResponse), false,
		},
		{
			"padding and priority",
			newH2().
				frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersEndStream|
					http2.FlagHeadersPadded|http2.FlagHeadersPriority, 1,
					"\x0312345"+newH2().fields(":status", "200", "grpc-status", "5")+"abc"),
			io.EOF, failed(ReasonGRPCNotServing), true,
		},
		{
			"more padding than frame",
			newH2().frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders|http2.FlagHeadersPadded, 1, "\x09123"), io.EOF,
			failed(ReasonUnexpectedResponse), false,
		},
		{
			"a push", newH2().frame(http2.FramePushPromise, http2.FlagHeadersEndHeaders, 1, "1234"), io.EOF,
			failed(ReasonUnexpectedResponse), false,
		},
		{
			"a block that is interrupted",
			newH2().frame(http2.FrameHeaders, 0, 1, "").frame(http2.FramePing, 0, 0, "12345678"), io.EOF,
			failed(ReasonUnexpectedResponse), false,
		},
		{
			"a continuation of nothing", newH2().frame(http2.FrameContinuation, http2.FlagHeadersEndHeaders, 1, ""), io.EOF,
			failed(ReasonUnexpectedResponse), false,
		},
		{
			"a block without end",
			newH2().frame(http2.FrameHeaders, 0, 1, strings.Repeat("x", 16000)).
				frame(http2.FrameContinuation, 0, 1, strings.Repeat("x", 16000)).
				frame(http2.FrameContinuation, 0, 1, strings.Repeat("x", 1000)),
			io.EOF, failed(ReasonUnexpectedResponse), false,
		},
		{
			"a block that is no HPACK",
			newH2().frame(http2.FrameHeaders, http2.FlagHeadersEndHeaders, 1, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"),
			io.EOF, failed(ReasonUnexpectedResponse), false,
		},
		{
			"a flood of pings",
			newH2().frame(http2.FramePing, http2.FlagPingAck, 0, strings.Repeat("x", 16000)).
				frame(http2.FramePing, http2.FlagPingAck, 0, strings.Repeat("x", 16000)).
				frame(http2.FramePing, http2.FlagPingAck, 0, strings.Repeat("x", 1000)),
			os.ErrDeadlineExceeded, failed(ReasonUnexpectedResponse), false,
		},
		{
			"an endless message",
			newH2().frame(http2.FrameData, 0, 1, strings.Repeat("x", 3000)).
				frame(http2.FrameData, 0, 1, strings.Repeat("x", 3000)),
			os.ErrDeadlineExceeded, failed(ReasonUnexpectedResponse), false,
		},
		{
			"a frame that is too long", newH2().frame(http2.FrameData, 0, 1, strings.Repeat("x", 20000)),
			os.ErrDeadlineExceeded, failed(ReasonUnexpectedResponse), false,
		},
		{"silence", newH2(), os.ErrDeadlineExceeded, failed(ReasonTimeout), false},
		{"a close", newH2(), io.EOF, failed(ReasonUnexpectedResponse), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, size := range []int{1, 11, 1 << 20} {
				a := hear(grpcFor("db"), test.in.Bytes(), size, test.err)
				if a.result != test.want.result || a.reason != test.want.reason || a.keep != test.keep {
					t.Errorf("in pieces of %d: %+v, want %+v, keep %v", size, a, test.want, test.keep)
				}
			}
		})
	}
}

// TestGRPCConnectionCarriesManyCalls runs three calls over one connection. The preface is sent
// once, a ping is answered between two calls, and a call that the peer did not take is ignored.
func TestGRPCConnectionCarriesManyCalls(t *testing.T) {
	x, server := newGRPCExchange("", "a:1", false), newH2()
	first, _ := x.begin(nil)
	server.serving(1, 1)
	if a := hear(x, server.Bytes(), 1<<20, io.EOF); a.outcome.result != success || !a.keep {
		t.Fatalf("%+v", a)
	}
	server.Reset()
	if a := x.feed(server.frame(http2.FramePing, 0, 0, "12345678").Bytes()); a.done ||
		!bytes.Equal(a.reply, new(h2).frame(http2.FramePing, http2.FlagPingAck, 0, "12345678").Bytes()) {
		t.Errorf("between probes: %+v", a)
	}
	second, _ := x.begin(nil)
	if bytes.HasPrefix(second, []byte(http2.ClientPreface)) || !bytes.HasPrefix(first, []byte(http2.ClientPreface)) {
		t.Error("the preface belongs to the first probe alone")
	}
	server.Reset()
	server.frame(http2.FrameData, 0, 1, "of a call that is over").serving(3, 2)
	if a := hear(x, server.Bytes(), 1<<20, io.EOF); a.reason != ReasonGRPCNotServing ||
		a.detail != "not serving, expected SERVING" {
		t.Errorf("%+v", a)
	}
	server.Reset()
	x.begin(nil)
	server.frame(http2.FrameGoAway, 0, 0, "\x00\x00\x00\x03\x00\x00\x00\x00")
	if a := hear(x, server.Bytes(), 1<<20, io.EOF); !a.ignored {
		t.Errorf("%+v: the peer has not taken this call", a)
	}
}

// TestIdleGRPCHoldsLittle has a peer send long frames between two calls. Only a few KiB of them
// stay in memory, and the connection ends.
func TestIdleGRPCHoldsLittle(t *testing.T) {
	for name, idle := range map[string]*h2{
		"a long frame": new(h2).frame(http2.FramePing, 0, 0, strings.Repeat("x", maxIdle+1)),
		"a long block": new(h2).frame(http2.FrameHeaders, 0, 3, strings.Repeat("x", 3000)).
			frame(http2.FrameContinuation, 0, 3, strings.Repeat("x", 3000)),
		"a long stream": new(h2).frame(http2.FrameData, 0, 3, strings.Repeat("x", maxIdle+1)),
	} {
		x := grpcFor("")
		hear(x, newH2().serving(1, 1).Bytes(), 1<<20, io.EOF)
		if a := hear(x, idle.Bytes(), 100, io.EOF); a.outcome != failed(ReasonUnexpectedResponse) ||
			x.held() > 2*maxIdle {
			t.Errorf("%s: %+v, and %d bytes are held", name, a, x.held())
		}
	}
}

// TestIdleGRPCHoldsNoAnswer has a server that writes a good status in many digits: none of them
// stays in memory after the call.
func TestIdleGRPCHoldsNoAnswer(t *testing.T) {
	x, server := grpcFor(""), newH2().headers(0, 1, ":status", "200")
	server.frame(http2.FrameData, 0, 1, "\x00\x00\x00\x00\x02\x08\x01")
	server.headers(http2.FlagHeadersEndStream, 1, "grpc-status", strings.Repeat("0", 16_000))
	if a := hear(x, server.Bytes(), 1<<20, io.EOF); !a.keep || a.result != success || x.held() > 0 {
		t.Errorf("%+v, and %d bytes are held", a, x.held())
	}
}

// TestParseHealthResponseRefusesBrokenMessages reads whole, empty and broken messages.
func TestParseHealthResponseRefusesBrokenMessages(t *testing.T) {
	for in, want := range map[string]grpc_health_v1.HealthCheckResponse_ServingStatus{
		"\x00\x00\x00\x00\x02\x08\x01":                                     1,
		"\x00\x00\x00\x00\x00":                                             0, // the default is left out
		"\x00\x00\x00\x00\x09\x12\x05hello\x08\x01":                        1,
		"\x00\x00\x00\x00\x10\x1112345678\x1d1234\x08\x02":                 2,
		"\x00\x00\x00\x00\x03\x08\x80\x01":                                 128,
		"\x01\x00\x00\x00\x02\x08\x01":                                     9999, // compressed
		"\x00\x00\x00\x00\x03\x08\x01":                                     9999, // cut off
		"\x00\x00\x00\x00\x01\x08":                                         9999,
		"\x00\x00\x00\x00\x02\x12\x05":                                     9999,
		"\x00\x00\x00\x00\x02\x0b\x01":                                     9999, // a group
		"\x00\x00\x00\x00\x0b\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01": 9999,
		"": 9999,
	} {
		status, ok := parseHealthResponse([]byte(in))
		if ok != (want != 9999) || ok && status != want {
			t.Errorf("%q: %d, %v", in, status, ok)
		}
	}
}

// TestSocketErrorsAreJudged maps each error of a socket to a reason, or to unknown where the
// error says nothing about the peer.
func TestSocketErrorsAreJudged(t *testing.T) {
	for err, want := range map[error]outcome{
		syscall.ECONNREFUSED: failed(ReasonConnectionRefused), syscall.ECONNRESET: failed(ReasonConnectionReset),
		syscall.EPIPE: failed(ReasonConnectionReset), syscall.ETIMEDOUT: failed(ReasonTimeout),
		syscall.EHOSTUNREACH:   failed(ReasonUnreachable), // of an ARP that is not answered, for one
		os.ErrDeadlineExceeded: failed(ReasonTimeout),
		// These say nothing about the peer.
		syscall.EMFILE: {}, syscall.ENFILE: {}, syscall.ENOBUFS: {}, syscall.ENOMEM: {}, syscall.EADDRNOTAVAIL: {},
		syscall.EAFNOSUPPORT: {}, syscall.EPERM: {}, syscall.EAGAIN: {},
	} {
		for name, outcomeOf := range map[string]func(error) outcome{"on the way": socketOutcome, "at once": dialOutcome} {
			if got := outcomeOf(fmt.Errorf("wrapped: %w", err)); got != want {
				t.Errorf("%v %s: %+v, want %+v", err, name, got, want)
			}
		}
	}
	// A router or firewall can say these of the endpoint, in ICMP. Before anything is sent it is this
	// host that says them: it has no route, or a prohibiting one.
	for _, err := range []error{syscall.ENETUNREACH, syscall.EACCES} {
		if got := socketOutcome(err); got != failed(ReasonUnreachable) {
			t.Errorf("%v on the way: %+v", err, got)
		}
		if got := dialOutcome(err); got != (outcome{}) {
			t.Errorf("%v at once: %+v", err, got)
		}
	}
}

// fuzz feeds what a peer sends, whole and in pieces. The outcome must be the same, and memory
// must stay bounded.
func fuzz(t *testing.T, fresh func() exchange, in []byte, held func(exchange) int) {
	t.Helper()
	in = in[:min(len(in), 64<<10)]
	whole, parts := fresh(), fresh()
	a, b := hear(whole, in, 1<<20, io.EOF), hear(parts, in, 13, io.EOF)
	if !a.done || !b.done {
		t.Fatal("an exchange that was cut has no end")
	}
	if a.outcome != b.outcome {
		t.Errorf("whole: %+v, in pieces: %+v", a, b)
	}
	if a.outcome.result == unknown || a.outcome.result == success && a.outcome.reason != "" ||
		a.outcome.result == failure && a.outcome.reason == "" {
		t.Errorf("%+v", a)
	}
	if n := held(parts); n > 2*h2MaxFrame+maxHead {
		t.Errorf("holds %d bytes", n)
	}
	if again := whole.cut(errors.New("x")); !again.done {
		t.Error("a second end")
	}
}

func FuzzHTTP(f *testing.F) {
	f.Add([]byte("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"))
	f.Add(
		[]byte(
			"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\nConnection: keep-alive\nTransfer-Encoding: chunked\n\n5;a\nhello\n0\n\n",
		),
	)
	f.Fuzz(func(t *testing.T, in []byte) {
		fuzz(
			t,
			func() exchange { return httpFor(HTTPGet{}) },
			in,
			func(x exchange) int { return len(x.(*httpExchange).head) },
		)
	})
}

func FuzzText(f *testing.F) {
	f.Add([]byte("+PONG\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		fuzz(t, func() exchange { return &textExchange{TCPSocket: &TCPSocket{Expect: "+PONG"}} }, in,
			func(x exchange) int { return len(x.(*textExchange).got) })
	})
}

func FuzzGRPC(f *testing.F) {
	f.Add(newH2().serving(1, 1).Bytes())
	f.Add(
		newH2().frame(http2.FrameHeaders, 0, 1, "").
			frame(http2.FrameContinuation, http2.FlagHeadersEndHeaders, 1, "\x88").
			frame(http2.FrameGoAway, 0, 0, "12345678").Bytes(),
	)
	f.Fuzz(func(t *testing.T, in []byte) {
		fuzz(t, func() exchange { return grpcFor("db") }, in, func(x exchange) int {
			return x.(*grpcExchange).held()
		})
	})
}

// TestDetailsQuoteNoPeer checks that the detail of a failure says what was seen and what was
// expected, without words of the peer.
func TestDetailsQuoteNoPeer(t *testing.T) {
	web := func(more ...StatusRange) exchange {
		return &httpExchange{request: newHTTPRequest(&HTTPGet{Expected: more}), host: "db.example.com"}
	}
	text := func() exchange { return &textExchange{TCPSocket: &TCPSocket{Expect: "+PONG"}} }
	for _, test := range []struct {
		x    exchange
		in   string
		err  error
		want string
	}{
		{web(), "HTTP/1.1 404 Gone <b>away</b>\r\nContent-Length: 0\r\n\r\n", nil, "404, expected 200-399"},
		{web(StatusRange{200, 200}, StatusRange{300, 302}), "HTTP/1.1 503 x\r\n\r\n", nil, "503, expected 200, 300-302"},
		{web(), "SSH-2.0-OpenSSH_9.2\r\n\r\n", nil, "the answer is not HTTP/1"},
		{web(), "HTTP/1.1 200 OK\r\nContent-", io.EOF, "connection closed before the answer"},
		{text(), "-ERR secret", os.ErrDeadlineExceeded, "the answer lacks the expected text"},
		{text(), strings.Repeat("x", maxBody), nil, "the answer lacks the expected text"},
	} {
		test.x.begin(nil)
		if a := hear(test.x, []byte(test.in), 1<<20, test.err); a.result != failure || a.detail != test.want {
			t.Errorf("%.20q: %+v, not %q", test.in, a.outcome, test.want)
		}
	}
}
