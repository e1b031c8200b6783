package resolve

import (
	"maps"
	"sync"
	"time"
)

// maxOutage bounds an outage. After it, every name tries the server in its place again, and the
// outage's names are forgotten.
const maxOutage = time.Hour

// outages remembers servers that have answered no query for the lookup timeout. Names pass such a
// server by, so that a dead server does not delay each lookup.
//
// One name that a server leaves unanswered, on purpose or not, says nothing about other names. So a
// name passes a server by only where its own query got no answer. Any answer to any query ends the
// outage for all names.
type outages struct {
	mu      sync.Mutex
	servers map[connKey]*outage
}

// outage is a time without an answer from a server.
type outage struct {
	since   time.Time
	queries map[query]struct{} // unanswered for the lookup timeout
}

// begin returns the server's present outage, or begins one.
func (o *outages) begin(server connKey) *outage {
	o.mu.Lock()
	defer o.mu.Unlock()
	if out := o.servers[server]; out != nil && time.Since(out.since) < maxOutage {
		return out
	}
	maps.DeleteFunc(o.servers, func(_ connKey, out *outage) bool { return time.Since(out.since) >= maxOutage })
	out := &outage{since: time.Now(), queries: map[query]struct{}{}}
	o.servers[server] = out
	return out
}

// confirm notes that the server left the query unanswered for the lookup timeout, unless the outage
// has ended.
func (o *outages) confirm(server connKey, out *outage, q query) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.servers[server] == out {
		out.queries[q] = struct{}{}
	}
}

// end notes that the server has answered.
func (o *outages) end(server connKey) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.servers, server)
}

// passedBy reports whether the query passes the server by.
func (o *outages) passedBy(server connKey, q query) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := o.servers[server]
	if out == nil || time.Since(out.since) >= maxOutage {
		return false
	}
	_, unanswered := out.queries[q]
	return unanswered
}
