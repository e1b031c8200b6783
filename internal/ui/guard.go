package ui

import (
	"crypto/subtle"
	"net/http"
	"strings"
)

// contentPolicy lets the page load its own files and nothing else. It forbids scripts and styles
// inside of the document, and making HTML from strings.
const contentPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// guard lets only requests of the page itself pass, and removes the token from their paths.
//   - Host must be the server's own address. A foreign name that resolves to the loopback interface
//     (DNS rebinding) is refused.
//   - Origin must be the server's own, if the browser sends one. Other sites are refused.
//   - The first segment of the path must be the token, which only the terminal shows.
func (s *Server) guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header := w.Header()
		header.Set("Content-Security-Policy", contentPolicy)
		header.Set("X-Content-Type-Options", "nosniff")
		header.Set("Referrer-Policy", "no-referrer")
		header.Set("Cross-Origin-Opener-Policy", "same-origin")
		header.Set("Cross-Origin-Resource-Policy", "same-origin")
		header.Set("Cache-Control", "no-store")

		token, path, slash := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		switch {
		case r.Host != s.host:
			http.Error(w, "Host must be "+s.host, http.StatusMisdirectedRequest)
		case !s.sameOrigin(r):
			http.Error(w, "requests of other origins are refused", http.StatusForbidden)
		case !slash || subtle.ConstantTimeCompare([]byte(token), []byte(s.token)) != 1:
			http.Error(w, "the token is missing: open the URL that kubectl external-backend ui prints", http.StatusForbidden)
		default:
			inner := r.Clone(r.Context())
			inner.URL.Path, inner.URL.RawPath = "/"+path, ""
			next.ServeHTTP(w, inner)
		}
	})
}

// sameOrigin reports whether a request comes from the page, or from the user who opens it.
func (s *Server) sameOrigin(r *http.Request) bool {
	if origin, sent := r.Header["Origin"]; sent && (len(origin) != 1 || origin[0] != "http://"+s.host) {
		return false
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return true
	}
	// A link elsewhere may lead to the page, if it has the token.
	return r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Dest") == "document"
}
