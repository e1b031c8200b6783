package main

import (
	"errors"
	"net"
	"net/http"
	"time"
)

const (
	// dialAgain is how long to wait before an API server that could not be reached is dialled again.
	dialAgain = 500 * time.Millisecond
	// patienceLimit is when the failure is handed on, so that it is counted and logged.
	patienceLimit = time.Minute
)

// patient dials again, for lists and watches, where the API server can't be reached. client-go
// counts each such failure and waits up to 30 s after a few of them, so that after a short outage
// everything that comes by watch would come half a minute late. All other requests fail at once:
// whoever made them knows what to do.
type patient struct{ http.RoundTripper }

func (p patient) RoundTrip(r *http.Request) (*http.Response, error) {
	start := time.Now()
	for {
		response, err := p.RoundTripper.RoundTrip(r)
		var op *net.OpError
		if err == nil || r.Method != http.MethodGet || !r.URL.Query().Has("resourceVersion") ||
			!errors.As(err, &op) || op.Op != "dial" || time.Since(start) > patienceLimit {
			return response, err
		}
		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-time.After(dialAgain):
		}
	}
}
