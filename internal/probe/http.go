package probe

import (
	"bytes"
	"cmp"
	"errors"
	"io"
	"net/netip"
	"strconv"
	"strings"
)

const userAgent = "external-backend-operator"

// httpRequest is a request that is ready but for its Host header.
type httpRequest struct {
	start, rest string
	host        string // the Host header as it was given; "": each endpoint's own
	expected    []StatusRange
	expectedAs  string // expected as its text
}

func newHTTPRequest(h *HTTPGet) *httpRequest {
	q := &httpRequest{expected: h.Expected}
	if len(q.expected) == 0 {
		q.expected = []StatusRange{{200, 399}}
	}
	var ranges []string
	for _, r := range q.expected {
		ranges = append(ranges, r.String())
	}
	q.expectedAs = strings.Join(ranges, ", ")
	var rest strings.Builder
	agent, accept := userAgent, "*/*"
	for _, header := range h.Headers {
		if !printable(header.Name, false) || !printable(header.Value, true) {
			continue // it would end the header early
		}
		switch strings.ToLower(header.Name) {
		case "host":
			q.host = header.Value
		case "content-length", "transfer-encoding", "trailer": // of a body that there is not
		case "user-agent":
			agent = header.Value
		case "accept":
			accept = header.Value
		default:
			rest.WriteString(header.Name + ": " + header.Value + "\r\n")
		}
	}
	q.start = "GET " + requestTarget(h.Path) + " HTTP/1.1\r\nHost: "
	q.rest = "\r\nUser-Agent: " + agent + "\r\nAccept: " + accept + "\r\n" + rest.String() + "\r\n"
	return q
}

// printable reports whether s has no character that ends a header line, and, unless spaces are
// allowed, none that ends its name.
func printable(s string, spaces bool) bool {
	for _, c := range []byte(s) {
		if c == 0x7f || c < ' ' && c != '\t' || !spaces && (c <= ' ' || c == ':') {
			return false
		}
	}
	return true
}

// requestTarget escapes what may not stand in a request line (RFC 3986, section 2).
func requestTarget(path string) string {
	var b strings.Builder
	if !strings.HasPrefix(path, "/") {
		b.WriteByte('/')
	}
	for _, c := range []byte(path) {
		if c <= ' ' || c >= 0x7f {
			b.WriteByte('%')
			b.WriteByte("0123456789ABCDEF"[c>>4])
			b.WriteByte("0123456789ABCDEF"[c&15])
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// hostHeader returns the Host header for e (RFC 9110, section 7.2). IPv6 addresses are in brackets.
// One that was given is sent as it is. Else the port follows where it is not the scheme's own.
func (q *httpRequest) hostHeader(e Endpoint, secure bool) string {
	host := cmp.Or(q.host, e.Host, e.Dial.Addr().WithZone("").String())
	if ip, err := netip.ParseAddr(host); err == nil && ip.Is6() {
		host = "[" + host + "]"
	}
	port := e.Dial.Port()
	if q.host != "" || port == 80 && !secure || port == 443 && secure {
		return host
	}
	return host + ":" + strconv.Itoa(int(port))
}

// httpExchange asks by GET over HTTP/1.1 and judges the status. A response is over when its body
// is, or when maxBody bytes of it have come; a status that is not expected needs no body (RFC
// 9112).
type httpExchange struct {
	request *httpRequest
	host    string

	part  httpPart
	head  []byte // the part of a head that has come, where it didn't come whole
	room  int    // bytes of heads that may still come
	body  int    // bytes of the body that may still come
	left  int64  // bytes of the body or of the chunk that are to come; -1: until the peer closes
	chunk chunkReader
	close bool // the connection serves no further request
	began bool // something of this response has come
}

type httpPart uint8

const (
	httpIdle httpPart = iota
	httpHead
	httpBody
	httpChunks
)

func (x *httpExchange) begin(dst []byte) (out []byte, enough bool) {
	*x = httpExchange{request: x.request, host: x.host, part: httpHead, room: maxHead, body: maxBody}
	dst = append(dst, x.request.start...)
	dst = append(dst, x.host...)
	return append(dst, x.request.rest...), false
}

func (x *httpExchange) feed(in []byte) answer {
	x.began = true
	for x.part == httpHead {
		head, rest, a := x.takeHead(in)
		if head == nil {
			return a
		}
		if a := x.readHead(head); a.done {
			return a
		}
		in = rest
	}
	switch x.part {
	case httpBody:
		return x.feedBody(in)
	case httpChunks:
		return x.feedChunks(in)
	default: // nothing was asked for
		return done(failed(ReasonUnexpectedResponse))
	}
}

// takeHead splits a head off from what has come. Without a whole head it returns nil and what to
// answer.
func (x *httpExchange) takeHead(in []byte) (head, rest []byte, a answer) {
	seen := len(x.head)
	if seen > 0 {
		x.head = append(x.head, in...)
		in = x.head
	}
	n := headLength(in, seen)
	switch {
	case !bytes.HasPrefix(in, []byte("HTTP/1.")[:min(len(in), len("HTTP/1."))]):
		return nil, nil, done(failedWith(ReasonUnexpectedResponse, "the answer is not HTTP/1"))
	case n > x.room, n < 0 && len(in) >= x.room:
		return nil, nil, done(failedWith(ReasonUnexpectedResponse, "the response head is too long"))
	case n < 0:
		if seen == 0 {
			x.head = bytes.Clone(in)
		}
		return nil, nil, answer{}
	default:
		x.head = nil
		x.room -= n
		return in[:n], in[n:], answer{}
	}
}

// headLength returns the length of the head that b begins with, its empty line included, or -1.
// The first seen bytes are known to hold no whole head, so that a head which comes in many small
// pieces is not searched anew for each of them.
func headLength(b []byte, seen int) int {
	for i := max(0, seen-len("\n\r")); ; {
		n := bytes.IndexByte(b[i:], '\n')
		if n < 0 {
			return -1
		}
		i += n + 1
		if bytes.HasPrefix(b[i:], []byte("\n")) {
			return i + 1
		}
		if bytes.HasPrefix(b[i:], []byte("\r\n")) {
			return i + 2
		}
	}
}

// readHead judges a whole head and prepares for the body. After an interim response (1xx) another
// head follows.
func (x *httpExchange) readHead(head []byte) answer {
	line, fields, _ := bytes.Cut(head, []byte("\n"))
	status, minor, ok := parseStatusLine(line)
	if !ok {
		return done(failed(ReasonUnexpectedResponse))
	}
	f, ok := parseFields(fields)
	switch {
	case !ok:
		return done(failed(ReasonUnexpectedResponse))
	case status < 200 && status != 101:
		return answer{}
	case !x.request.expects(status):
		return done(failedWith(ReasonUnexpectedStatus, strconv.Itoa(status)+", expected "+x.request.expectedAs))
	}
	x.close = f.close || status == 101 || minor == 0 && !f.keepAlive || f.chunked && f.length >= 0
	switch {
	case status < 200, status == 204, status == 304:
		x.part, x.left = httpBody, 0
	case f.chunked:
		x.part = httpChunks
	default:
		x.part, x.left = httpBody, f.length
	}
	return answer{}
}

func (q *httpRequest) expects(status int) bool {
	for _, r := range q.expected {
		if r.From <= status && status <= r.To {
			return true
		}
	}
	return false
}

func (x *httpExchange) feedBody(in []byte) answer {
	switch {
	case x.left >= 0 && int64(len(in)) >= x.left:
		return x.finish(int64(len(in)) == x.left)
	case len(in) >= x.body:
		return x.finish(false)
	}
	x.body -= len(in)
	if x.left >= 0 {
		x.left -= int64(len(in))
	}
	return answer{}
}

func (x *httpExchange) feedChunks(in []byte) answer {
	for i, c := range in {
		switch x.chunk.next(c) {
		case chunkData:
			if x.body--; x.body <= 0 {
				return x.finish(false)
			}
		case chunkFrame:
			if x.room--; x.room > 0 {
				continue
			}
			if x.body < maxBody {
				return x.finish(false) // a body in small pieces, as good as any other that is too long
			}
			return done(failed(ReasonUnexpectedResponse))
		case chunkBad:
			return done(failed(ReasonUnexpectedResponse))
		case chunkEnd:
			return x.finish(i == len(in)-1)
		}
	}
	return answer{}
}

// finish ends a probe whose response is as expected. clean: it has come whole, and nothing after
// it.
func (x *httpExchange) finish(clean bool) answer {
	x.part = httpIdle
	return answer{outcome: outcome{result: success}, done: true, keep: clean && !x.close}
}

func (x *httpExchange) cut(err error) answer {
	if errors.Is(err, io.EOF) && x.part == httpBody && x.left < 0 {
		return x.finish(false)
	}
	a := done(cutOutcome(err))
	a.ignored = !x.began
	return a
}

// parseStatusLine reads "HTTP/1.1 200 OK" (RFC 9112, section 4).
func parseStatusLine(line []byte) (status, minor int, ok bool) {
	const version = len("HTTP/1.x ")
	if len(line) < version+3 || line[version-2] < '0' || line[version-2] > '9' || line[version-1] != ' ' {
		return 0, 0, false
	}
	if rest := line[version+3:]; len(rest) > 0 && rest[0] != ' ' && rest[0] != '\r' {
		return 0, 0, false
	}
	status, err := strconv.Atoi(string(line[version : version+3]))
	return status, int(line[version-2] - '0'), err == nil && status >= 100
}

// httpFields is what a head says of its message's end.
type httpFields struct {
	length                    int64 // -1: not said
	chunked, close, keepAlive bool
}

// parseFields reads the header fields that matter. It refuses a Content-Length that is no number or
// says two things, and transfer codings but chunked (RFC 9112, section 6.3).
func parseFields(b []byte) (httpFields, bool) {
	f := httpFields{length: -1}
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		name, value, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\r")), []byte(":"))
		if !ok {
			if len(name) > 0 && name[0] != ' ' && name[0] != '\t' { // else the empty line, or a folded one
				return f, false
			}
			continue
		}
		value = bytes.TrimSpace(value)
		switch {
		case foldEqual(name, "content-length"):
			n, err := strconv.ParseUint(string(value), 10, 62)
			if err != nil || f.length >= 0 && f.length != int64(n) {
				return f, false
			}
			f.length = int64(n)
		case foldEqual(name, "transfer-encoding"):
			if !foldEqual(value, "chunked") {
				return f, false
			}
			f.chunked = true
		case foldEqual(name, "connection"):
			for option := range bytes.SplitSeq(value, []byte(",")) {
				option = bytes.TrimSpace(option)
				f.close = f.close || foldEqual(option, "close")
				f.keepAlive = f.keepAlive || foldEqual(option, "keep-alive")
			}
		}
	}
	return f, true
}

func foldEqual(b []byte, lower string) bool {
	return len(b) == len(lower) && strings.EqualFold(string(b), lower)
}

// chunkReader walks through a chunked body, byte by byte (RFC 9112, section 7.1).
type chunkReader struct {
	part  chunkPart
	size  int64
	digit bool // the size has a digit
	blank bool // the trailer's line is empty so far
}

type chunkPart uint8

const (
	chunkSize chunkPart = iota
	chunkExtension
	chunkBytes
	chunkGap // the line's end after a chunk's bytes
	chunkTrailer
)

// chunkByte says what a byte of a chunked body is.
type chunkByte uint8

const (
	chunkFrame chunkByte = iota
	chunkData
	chunkBad
	chunkEnd // the last one
)

func (r *chunkReader) next(c byte) chunkByte {
	switch r.part {
	case chunkSize:
		return r.nextOfSize(c)
	case chunkExtension:
		if c == '\n' {
			r.endOfSize()
		}
	case chunkBytes:
		if r.size--; r.size == 0 {
			r.part = chunkGap
		}
		return chunkData
	case chunkGap:
		switch c {
		case '\n':
			r.part, r.digit = chunkSize, false
		case '\r':
		default:
			return chunkBad
		}
	case chunkTrailer:
		switch {
		case c == '\n' && r.blank:
			return chunkEnd
		case c == '\n':
			r.blank = true
		case c != '\r':
			r.blank = false
		}
	}
	return chunkFrame
}

func (r *chunkReader) nextOfSize(c byte) chunkByte {
	n := strings.IndexByte("0123456789abcdef", c|0x20)
	switch {
	case n >= 0 && (c >= '0') && r.size < 1<<56:
		r.size, r.digit = r.size<<4|int64(n), true
	case !r.digit:
		return chunkBad
	case c == '\n':
		r.endOfSize()
	case c == '\r', c == ';', c == ' ', c == '\t':
		r.part = chunkExtension
	default:
		return chunkBad
	}
	return chunkFrame
}

func (r *chunkReader) endOfSize() {
	if r.part = chunkBytes; r.size == 0 {
		r.part, r.blank = chunkTrailer, true
	}
}
