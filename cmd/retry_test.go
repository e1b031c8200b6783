package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// outage is an API server that can't be reached until end.
type outage struct {
	end   time.Time
	err   error
	tries int
}

func (o *outage) RoundTrip(*http.Request) (*http.Response, error) {
	o.tries++
	if time.Now().Before(o.end) {
		return nil, o.err
	}
	return &http.Response{StatusCode: http.StatusOK}, nil
}

// TestOnlyListsAndWatchesAreRetriedWhileTheServerCannotBeDialled sends one request during an outage
// and checks how long it takes and whether it fails.
func TestOnlyListsAndWatchesAreRetriedWhileTheServerCannotBeDialled(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
	tests := []struct {
		name, method, query string
		err                 error
		lasts, cancelled    time.Duration
		fails               bool
		after               time.Duration
	}{
		{
			name:   "a watch survives an outage",
			method: http.MethodGet,
			query:  "?watch=true&resourceVersion=7",
			err:    refused,
			lasts:  30 * time.Second,
			after:  30 * time.Second,
		},
		{
			name:   "a list fails after a long time",
			method: http.MethodGet,
			query:  "?resourceVersion=0",
			err:    refused,
			lasts:  time.Hour,
			fails:  true,
			after:  retryLimit + retryPause,
		},
		{
			name:      "a list ends with its context",
			method:    http.MethodGet,
			query:     "?resourceVersion=0",
			err:       refused,
			lasts:     time.Hour,
			cancelled: 10 * time.Second,
			fails:     true,
			after:     10 * time.Second,
		},
		{name: "a read fails at once", method: http.MethodGet, err: refused, lasts: time.Second, fails: true},
		{
			name:   "a write fails at once",
			method: http.MethodPut,
			query:  "?resourceVersion=0",
			err:    refused,
			lasts:  time.Second,
			fails:  true,
		},
		{
			name:   "a request that was sent is not sent again",
			method: http.MethodGet,
			query:  "?resourceVersion=0",
			err:    &net.OpError{Op: "read", Err: syscall.ECONNRESET},
			lasts:  time.Second,
			fails:  true,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.cancelled > 0 {
					defer time.AfterFunc(tt.cancelled, cancel).Stop()
				}
				r, err := http.NewRequestWithContext(ctx, tt.method, "https://192.0.2.1/api"+tt.query, nil)
				if err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				o := &outage{end: start.Add(tt.lasts), err: tt.err}
				response, err := retryingTransport{o}.RoundTrip(r)
				if response != nil && response.Body != nil {
					_ = response.Body.Close()
				}
				if (err != nil) != tt.fails || tt.fails && !errors.Is(err, tt.err) && !errors.Is(err, context.Canceled) {
					t.Errorf("error %v after %d tries", err, o.tries)
				}
				if took := time.Since(start); took != tt.after {
					t.Errorf("took %s, want %s", took, tt.after)
				}
			})
		})
	}
}
