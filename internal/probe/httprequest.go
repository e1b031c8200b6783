package probe

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

const userAgent = "external-backend-operator"

// httpRequest is a request without the value of its Host header.
type httpRequest struct {
	start, rest  string // the text before and after that value
	host         string // the Host header of the check; "": each endpoint's own
	expected     []StatusRange
	expectedText string // expected, as text
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
	q.expectedText = strings.Join(ranges, ", ")
	var rest strings.Builder
	agent, accept := userAgent, "*/*"
	for _, header := range h.Headers {
		if !printable(header.Name, false) || !printable(header.Value, true) {
			continue // it would end the header line early
		}
		switch strings.ToLower(header.Name) {
		case "host":
			q.host = header.Value
		case "content-length", "transfer-encoding", "trailer": // a GET has no body
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

// printable reports whether s has no character that ends a header line. Unless spaces are
// allowed, it must not have one that ends a header name, either.
func printable(s string, spaces bool) bool {
	for _, c := range []byte(s) {
		if c == 0x7f || c < ' ' && c != '\t' || !spaces && (c <= ' ' || c == ':') {
			return false
		}
	}
	return true
}

// requestTarget returns path for a request line. It escapes what a request line must not contain
// (RFC 3986, section 2).
func requestTarget(path string) string {
	var b strings.Builder
	if !strings.HasPrefix(path, "/") {
		b.WriteByte('/')
	}
	for _, c := range []byte(path) {
		if c <= ' ' || c >= 0x7f {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// hostHeader returns the Host header for e (RFC 9110, section 7.2). An IPv6 address is in
// brackets. The Host header of the check is sent as it is. Any other has the port, unless it is
// the scheme's default.
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

// expects reports whether status is one of the expected ones.
func (q *httpRequest) expects(status int) bool {
	return slices.ContainsFunc(q.expected, func(r StatusRange) bool { return r.From <= status && status <= r.To })
}
