package main

import (
	"errors"
	"net"
	"net/http"
	"time"
)

const (
	// retryPause is how long to wait before an API server that could not be reached is dialled again.
	retryPause = 500 * time.Millisecond
	// retryLimit is how long to retry. After that the error is returned, so that it is counted and
	// logged.
	retryLimit = time.Minute
)

// retryingTransport retries lists and watches if the API server can't be dialled. client-go counts
// each such failure and after a few of them waits up to 30 s. After a short outage that would delay
// everything that a watch reports by half a minute. All other requests fail at once, because their
// callers handle the error.
type retryingTransport struct{ http.RoundTripper }

// RoundTrip sends the request, again if it has to.
func (t retryingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	listOrWatch := r.Method == http.MethodGet && r.URL.Query().Has("resourceVersion")
	start := time.Now()
	for {
		response, err := t.RoundTripper.RoundTrip(r)
		var op *net.OpError
		notDialled := errors.As(err, &op) && op.Op == "dial"
		if !listOrWatch || !notDialled || time.Since(start) > retryLimit {
			return response, err
		}

		select {
		case <-r.Context().Done():
			return nil, r.Context().Err()
		case <-time.After(retryPause):
		}
	}
}
