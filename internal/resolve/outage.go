package resolve

import (
	"maps"
	"sync"
	"time"
)

// maxOutage bounds an outage: after it every name tries the server anew, and what is remembered of
// names that nobody wants any more goes.
const maxOutage = time.Hour

// outages remembers which servers have answered nobody for the lookup timeout. Such a server is
// passed by, so that a dead server does not delay each lookup.
//
// One name that a server leaves unanswered, on purpose or not, says nothing about other names. So a
// server is passed by only for those names that it left unanswered themselves, and any answer to
// anybody ends the outage for all.
type outages struct {
	mu      sync.Mutex
	servers map[connKey]*outage
}

// outage is the time since a server's latest answer.
type outage struct {
	since time.Time
	names map[query]struct{} // left unanswered for the lookup timeout
}

func newOutages() *outages {
	return &outages{servers: map[connKey]*outage{}}
}

// begin returns the server's present outage.
func (o *outages) begin(server connKey) *outage {
	o.mu.Lock()
	defer o.mu.Unlock()
	if out := o.servers[server]; out != nil && time.Since(out.since) < maxOutage {
		return out
	}
	maps.DeleteFunc(o.servers, func(_ connKey, out *outage) bool { return time.Since(out.since) >= maxOutage })
	out := &outage{since: time.Now(), names: map[query]struct{}{}}
	o.servers[server] = out
	return out
}

// confirm notes that the server left the query unanswered for the lookup timeout, unless it has
// answered somebody since the outage began.
func (o *outages) confirm(server connKey, out *outage, q query) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.servers[server] == out {
		out.names[q] = struct{}{}
	}
}

// end notes an answer.
func (o *outages) end(server connKey) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.servers, server)
}

// concerns reports whether the query is to pass the server by.
func (o *outages) concerns(server connKey, q query) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	out := o.servers[server]
	if out == nil || time.Since(out.since) >= maxOutage {
		return false
	}
	_, concerned := out.names[q]
	return concerned
}
