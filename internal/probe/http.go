package probe

import (
	"bytes"
	"errors"
	"io"
	"strconv"
	"strings"
)

// httpExchange sends a GET over HTTP/1.1 and judges the status (RFC 9112). A response ends with
// its body, or after maxBody bytes of it. For an unexpected status it does not wait for the body.
//
// It finds the end of a response by hand, because http.ReadResponse blocks until all of it has
// come: see docs/design/prober-on-epoll.md.
type httpExchange struct {
	request *httpRequest
	host    string

	part       httpPart
	head       []byte // an unfinished head
	headBudget int    // how many bytes of heads may still come
	bodyBudget int    // how many bytes of the body may still come
	remaining  int64  // how many bytes of the body are missing; -1: the peer's close ends it
	chunk      chunkReader
	close      bool // the connection carries no further request
	began      bool // something of this response has come
}

// httpPart is the part of a response that comes next.
type httpPart uint8

const (
	httpIdle httpPart = iota
	httpHead
	httpBody
	httpChunks
)

func (x *httpExchange) begin(dst []byte) (out []byte, enough bool) {
	*x = httpExchange{request: x.request, host: x.host, part: httpHead, headBudget: maxHead, bodyBudget: maxBody}
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
	default: // there is no request
		return malformed
	}
}

// takeHead splits in into a head and the rest. Where no whole head has come, head is nil and a is
// the answer.
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
	case n > x.headBudget, n < 0 && len(in) >= x.headBudget:
		return nil, nil, done(failedWith(ReasonUnexpectedResponse, "the response head is too long"))
	case n < 0:
		if seen == 0 {
			x.head = bytes.Clone(in)
		}
		return nil, nil, answer{}
	default:
		x.head = nil
		x.headBudget -= n
		return in[:n], in[n:], answer{}
	}
}

// headLength returns the length of the head at the start of b, with its empty line, or -1. The
// first seen bytes hold no whole head. So a head that comes in many small pieces is searched
// once.
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

// readHead judges a head and prepares for the body. After an interim response (1xx) another head
// follows.
func (x *httpExchange) readHead(head []byte) answer {
	line, fields, _ := bytes.Cut(head, []byte("\n"))
	status, minor, ok := parseStatusLine(line)
	if !ok {
		return malformed
	}
	f, ok := parseFields(fields)
	switch {
	case !ok:
		return malformed
	case status < 200 && status != 101:
		return answer{}
	case !x.request.expects(status):
		return done(failedWith(ReasonUnexpectedStatus, strconv.Itoa(status)+", expected "+x.request.expectedText))
	}
	x.close = f.close || status == 101 || minor == 0 && !f.keepAlive || f.chunked && f.length >= 0
	switch {
	case status < 200, status == 204, status == 304:
		x.part, x.remaining = httpBody, 0
	case f.chunked:
		x.part = httpChunks
	default:
		x.part, x.remaining = httpBody, f.length
	}
	return answer{}
}

func (x *httpExchange) feedBody(in []byte) answer {
	switch {
	case x.remaining >= 0 && int64(len(in)) >= x.remaining:
		return x.finish(int64(len(in)) == x.remaining)
	case len(in) >= x.bodyBudget:
		return x.finish(false)
	}
	x.bodyBudget -= len(in)
	if x.remaining >= 0 {
		x.remaining -= int64(len(in))
	}
	return answer{}
}

func (x *httpExchange) feedChunks(in []byte) answer {
	for i, c := range in {
		switch x.chunk.next(c) {
		case chunkData:
			if x.bodyBudget--; x.bodyBudget <= 0 {
				return x.finish(false)
			}
		case chunkFrame:
			if x.headBudget--; x.headBudget > 0 {
				continue
			}
			if x.bodyBudget < maxBody {
				return x.finish(false) // a body in small pieces is too long, too
			}
			return malformed
		case chunkBad:
			return malformed
		case chunkEnd:
			return x.finish(i == len(in)-1)
		}
	}
	return answer{}
}

// finish ends a probe whose response is as expected. clean reports whether the whole response has
// come, and nothing after it.
func (x *httpExchange) finish(clean bool) answer {
	x.part = httpIdle
	return answer{outcome: succeeded, done: true, keep: clean && !x.close}
}

func (x *httpExchange) cut(err error) answer {
	if errors.Is(err, io.EOF) && x.part == httpBody && x.remaining < 0 {
		return x.finish(false)
	}
	a := done(cutOutcome(err))
	a.ignored = !x.began
	return a
}

// parseStatusLine reads a line such as "HTTP/1.1 200 OK" (RFC 9112, section 4).
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

// httpFields are the header fields that say where a response ends.
type httpFields struct {
	length                    int64 // -1: there is none
	chunked, close, keepAlive bool
}

// parseFields reads the header fields that say where a response ends. It refuses a Content-Length
// that is not a number, two different ones, and every transfer coding except chunked (RFC 9112,
// section 6.3).
func parseFields(b []byte) (httpFields, bool) {
	f := httpFields{length: -1}
	for len(b) > 0 {
		var line []byte
		line, b, _ = bytes.Cut(b, []byte("\n"))
		name, value, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\r")), []byte(":"))
		if !ok {
			if len(name) > 0 && name[0] != ' ' && name[0] != '\t' { // neither the empty line nor a folded one
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
			f.addConnection(value)
		}
	}
	return f, true
}

// addConnection reads the options of a Connection field.
func (f *httpFields) addConnection(value []byte) {
	for option := range bytes.SplitSeq(value, []byte(",")) {
		option = bytes.TrimSpace(option)
		f.close = f.close || foldEqual(option, "close")
		f.keepAlive = f.keepAlive || foldEqual(option, "keep-alive")
	}
}

func foldEqual(b []byte, lower string) bool {
	return len(b) == len(lower) && strings.EqualFold(string(b), lower)
}
