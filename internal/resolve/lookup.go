package resolve

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"
)

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

// run runs the race. It returns the winner and its answer, or why no server won in time.
func (l *lookuper) run(
	ctx context.Context, deadline time.Time, up *upstream, r *race, q query,
) (a answer, winner int, cause string) {
	u := &runner{race: r}
	u.ctx, u.cancel = context.WithDeadline(ctx, deadline)
	u.ask = func(ctx context.Context, server netip.AddrPort) (answer, error) {
		a, err := l.ask(ctx, up, server, q)
		if ctx.Err() == nil && !(outcome{answer: a, err: err}).unanswered() {
			l.outages.end(up.connKey(server))
		}
		return a, err
	}

	u.open.Add(1)
	u.mu.Lock()
	u.timer = time.AfterFunc(hedgeDelay, u.proceed)
	u.mu.Unlock()
	u.proceed()
	u.open.Wait()
	return u.answer, u.winner, u.cause
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
