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

// lookupTimeout is for a name and type, all servers and aliases together.
const lookupTimeout = 5 * time.Second

// Causes that are neither response codes nor errors of this package.
const (
	causeTimeout  = "timeout"
	causeEmpty    = "empty answer"
	causeNXDOMAIN = "NXDOMAIN"
	causeSilent   = "no nameserver may be asked"
)

var errUnaskable = errors.New("name cannot be asked for")

// kind is what a lookup ended in.
type kind uint8

const (
	kindNone     kind = iota // not asked yet
	kindGood                 // records
	kindNoData               // the name exists, the type doesn't (RFC 2308)
	kindNXDomain             // the name does not exist
	kindFailed               // no answer of use
)

// result is the outcome of one lookup.
type result struct {
	kind  kind
	data  []datum       // kindGood: sorted, each once, at least one
	ttl   time.Duration // of all but kindFailed; smallest of the chain
	cause string        // of all but kindGood: fixed phrase
}

// query is what a server is asked for.
type query struct {
	name string
	t    qtype
}

// maxChecks bounds the checks of silent servers at one time; each has a socket.
const maxChecks = 256

// lookuper asks upstreams for names.
type lookuper struct {
	asker
	conf    *resolvConf
	outages *outages

	checks sync.WaitGroup
	slots  chan struct{} // one for each check under way
}

func newLookuper(a asker, resolvConf string) *lookuper {
	return &lookuper{
		asker:   a,
		conf:    newResolvConf(resolvConf),
		outages: newOutages(),
		slots:   make(chan struct{}, maxChecks),
	}
}

// lookup asks for the name and follows it where it is an alias that a server doesn't follow itself.
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

// servers lists the nameservers in the order given.
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

// askServers puts the query to the servers in the order given, but for those whose outage concerns
// it, which come last. Silent servers that the list has before the winner are checked.
func (l *lookuper) askServers(ctx context.Context, deadline time.Time, up *upstream, q query) (answer, string) {
	given := l.servers(up)
	var first, last []netip.AddrPort
	for _, s := range given {
		if l.outages.concerns(up.connKey(s), q) {
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
		// Checks that look for the end of an outage leave room for those that find one.
		if r.silent(s) && !(slices.Contains(last, s) && len(l.slots) > maxChecks/2) {
			l.check(ctx, up, s, q)
		}
	}
	return a, ""
}

// check asks a server that did not answer the query in time once more, with nobody waiting for it:
// an answer ends the server's outage, and silence makes the query pass the server by.
func (l *lookuper) check(ctx context.Context, up *upstream, server netip.AddrPort, q query) {
	select {
	case l.slots <- struct{}{}:
	default:
		return
	}
	key := up.connKey(server)
	out := l.outages.begin(key)
	l.checks.Go(func() {
		defer func() { <-l.slots }()
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

// phrase is the fixed phrase for an error: no addresses, nothing that differs from time to time.
func phrase(err error) string {
	for _, own := range []error{errMalformed, errAliasLoop, errTruncated, errUnaskable} {
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
