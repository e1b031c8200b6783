package resolve

import (
	"context"
	"crypto/tls"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"
)

// lookupTimeout bounds the lookup of a name and type, all servers and aliases together.
const lookupTimeout = 5 * time.Second

// Causes that are neither response codes nor errors of this package.
const (
	causeTimeout   = "timeout"
	causeEmpty     = "empty answer"
	causeNXDOMAIN  = "NXDOMAIN"
	causeForbidden = "no nameserver may be asked"
)

// errInvalidName means that a name does not fit into a query.
var errInvalidName = errors.New("name cannot be asked for")

// kind is how a lookup ended.
type kind uint8

const (
	kindNone     kind = iota // no lookup has ended yet
	kindGood                 // records
	kindNoData               // the name exists, the type doesn't (RFC 2308)
	kindNXDomain             // the name does not exist
	kindFailed               // no usable answer
)

// result is the outcome of one lookup.
type result struct {
	kind  kind
	data  []datum       // kindGood: sorted, each once, at least one
	ttl   time.Duration // of all but kindFailed: the smallest of the alias chain
	cause string        // of all but kindGood: a fixed phrase
}

// query is what a server is asked for.
type query struct {
	name string
	t    qtype
}

// maxChecks bounds the checks of unanswering servers at one time. Each check has a socket.
const maxChecks = 256

// lookuper asks upstreams for names.
type lookuper struct {
	asker
	conf    *resolvConf
	outages *outages

	checks  sync.WaitGroup
	running chan struct{} // holds one item for each check under way
}

func newLookuper(a asker, resolvConf string) *lookuper {
	return &lookuper{
		asker:   a,
		conf:    newResolvConf(resolvConf),
		outages: &outages{servers: map[connKey]*outage{}},
		running: make(chan struct{}, maxChecks),
	}
}

// lookup asks for the name, and follows aliases that the servers do not follow themselves.
func (l *lookuper) lookup(ctx context.Context, up *upstream, name string, t qtype) result {
	deadline := time.Now().Add(lookupTimeout)
	ttl := ttlOf(1<<31 - 1)
	for range maxAliases + 1 {
		a, cause := l.askServers(ctx, deadline, up, query{name, t})
		ttl = min(ttl, a.ttl)
		switch {
		case cause != "":
			return result{kind: kindFailed, cause: cause}
		case len(a.data) > 0:
			return result{kind: kindGood, data: a.data, ttl: ttl}
		case a.alias != "":
			name = a.alias
		case exists(a.rcode):
			return result{kind: kindNoData, ttl: ttl, cause: causeEmpty}
		default:
			return result{kind: kindNXDomain, ttl: ttl, cause: causeNXDOMAIN}
		}
	}
	return result{kind: kindFailed, cause: errAliasLoop.Error()}
}

// servers returns the nameservers in the given order.
func (l *lookuper) servers(up *upstream) []netip.AddrPort {
	if len(up.servers) > 0 {
		return up.servers
	}
	servers := slices.Clone(l.conf.nameservers())
	for i, s := range servers {
		servers[i] = withPort(s, up.transport)
	}
	return servers
}

// askServers asks the servers in the given order, but last those that the query passes by because
// of an outage. It checks the unanswering servers that the given order has before the winner.
func (l *lookuper) askServers(
	ctx context.Context, deadline time.Time, up *upstream, q query,
) (a answer, cause string) {
	given := l.servers(up)
	var first, last []netip.AddrPort
	for _, s := range given {
		if l.outages.passedBy(up.connKey(s), q) {
			last = append(last, s)
		} else {
			first = append(first, s)
		}
	}

	r := newRace(append(first, last...))
	a, winner, cause := l.run(ctx, deadline, up, r, q)
	if cause != "" {
		return answer{}, cause
	}
	for _, s := range given[:slices.Index(given, r.servers[winner].AddrPort)] {
		// Checks for the end of an outage start only while half of all checks are free, for the sake of
		// new outages.
		if r.unanswered(s) && !(slices.Contains(last, s) && len(l.running) > maxChecks/2) {
			l.check(ctx, up, s, q)
		}
	}
	return a, ""
}

// check asks a server that did not answer the query in time once more, while nobody waits for it.
// An answer ends the server's outage. Without one, the query passes the server by from now on.
func (l *lookuper) check(ctx context.Context, up *upstream, server netip.AddrPort, q query) {
	select {
	case l.running <- struct{}{}:
	default:
		return
	}
	key := up.connKey(server)
	out := l.outages.begin(key)
	l.checks.Go(func() {
		defer func() { <-l.running }()
		_, _, cause := l.run(ctx, time.Now().Add(lookupTimeout), up, newRace([]netip.AddrPort{server}), q)
		if cause == causeTimeout && ctx.Err() == nil {
			l.outages.confirm(key, out, q)
		}
	})
}

// close waits for the checks, whose context has ended, and closes all connections.
func (l *lookuper) close() {
	l.checks.Wait()
	l.asker.close()
}

// causeOf returns a fixed phrase for an error. It contains no address, and nothing that differs
// from time to time.
func causeOf(err error) string {
	for _, own := range []error{errMalformed, errAliasLoop, errTruncated, errInvalidName} {
		if errors.Is(err, own) {
			return own.Error()
		}
	}
	var timeout interface{ Timeout() bool }
	var unverified *tls.CertificateVerificationError
	var handshake handshakeError
	switch {
	case errors.As(err, &timeout) && timeout.Timeout():
		return causeTimeout
	case errors.As(err, &unverified):
		return "TLS verification failed"
	case errors.As(err, &handshake):
		return "TLS handshake failed"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "connection refused"
	}
	return "network error"
}
