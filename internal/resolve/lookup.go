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

const (
	lookupTimeout = 5 * time.Second        // for a name and type, all servers and aliases together
	hedgeDelay    = 500 * time.Millisecond // unanswered for this long, the next server is asked too; doubled each round
	askRounds     = 3                      // how often a silent server is asked, against loss

	// avoidTime is for how long a server that was silent while another one answered comes last: no longer than half of the time after which a denial is believed, so that
	// a denial by the other one is put to the first server, too, before it takes anything away.
	avoidTime = beliefDelay / 2
)

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

// lookuper asks upstreams for names.
type lookuper struct {
	asker
	conf *resolvConf

	mu    sync.Mutex
	avoid map[netip.AddrPort]time.Time // until when
}

func newLookuper(a asker, resolvConf string) *lookuper {
	return &lookuper{asker: a, conf: newResolvConf(resolvConf), avoid: map[netip.AddrPort]time.Time{}}
}

// lookup asks for the name and follows it where it is an alias that a server doesn't follow itself.
func (l *lookuper) lookup(ctx context.Context, up *upstream, name string, t qtype) result {
	deadline := time.Now().Add(lookupTimeout)
	ttl := ttlOf(1<<31 - 1)
	for range maxAliases + 1 {
		a, cause := l.askServers(ctx, deadline, up, name, t)
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

func (l *lookuper) servers(up *upstream) []netip.AddrPort {
	servers := up.servers
	if len(servers) == 0 {
		servers = slices.Clone(l.conf.nameservers())
		for i, s := range servers {
			servers[i] = withPort(s, up.transport)
		}
	}
	return l.silentLast(servers)
}

// silentLast keeps the order but for servers that were silent lately: waiting for a dead first
// server would delay every lookup.
func (l *lookuper) silentLast(servers []netip.AddrPort) []netip.AddrPort {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.avoid) == 0 {
		return servers
	}
	now := time.Now()
	var first, last []netip.AddrPort
	for _, s := range servers {
		if now.Before(l.avoid[s]) {
			last = append(last, s)
		} else {
			first = append(first, s)
		}
	}
	return append(first, last...)
}

// note remembers which servers were silent while one answered.
func (l *lookuper) note(answered netip.AddrPort, silent []netip.AddrPort) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.avoid) == 0 && len(silent) == 0 {
		return
	}
	now := time.Now()
	for s, until := range l.avoid {
		if s == answered || now.After(until) {
			delete(l.avoid, s)
		}
	}
	for _, s := range silent {
		l.avoid[s] = now.Add(avoidTime)
	}
}

// race is one question to the servers of an upstream, of which the first decisive answer wins.
type race struct {
	servers []netip.AddrPort
	hedge   *time.Timer // starts a further runner
	cancel  context.CancelFunc

	mu     sync.Mutex
	causes []string // of the servers that answered, but not decisively
	asked  int      // questions sent, round after round
	over   bool     // nothing more is to be sent
	won    bool
	answer answer
	winner int
}

// askServers asks the servers in their order until one answers decisively:
//  1. the next is asked when one fails, or stays silent for the hedge delay; silent ones go on being
//     listened to;
//  2. after the last the first is asked again, unless it has answered;
//  3. where none is decisive, the cause is that of the first that answered at all.
//
// The caller's goroutine asks; others are needed only where a server is slow.
func (l *lookuper) askServers(ctx context.Context, deadline time.Time, up *upstream, name string, t qtype) (answer, string) {
	ctx, cancel := context.WithDeadline(ctx, deadline)
	defer cancel()
	servers := l.servers(up)
	r := &race{servers: servers, cancel: cancel, causes: make([]string, len(servers))}
	run := func() {
		for i, ok := r.next(ctx); ok; i, ok = r.next(ctx) {
			a, err := l.ask(ctx, up, servers[i], name, t)
			r.finish(i, a, err)
		}
	}
	var others sync.WaitGroup
	r.start(func() { others.Go(run) })
	run()
	r.end()
	others.Wait()
	if !r.won {
		return answer{}, r.firstCause()
	}
	l.note(servers[r.winner], r.silent())
	return r.answer, ""
}

// start arms the hedge, which starts further runners.
func (r *race) start(further func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hedge = time.AfterFunc(hedgeDelay, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		if !r.over {
			further()
		}
	})
}

// next says which server to ask now.
func (r *race) next(ctx context.Context) (server int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.asked < askRounds*len(r.servers) && r.causes[r.asked%len(r.servers)] != "" {
		r.asked++
	}
	if r.over || ctx.Err() != nil || r.asked == askRounds*len(r.servers) {
		return 0, false
	}
	server = r.asked % len(r.servers)
	if r.asked > 0 {
		r.hedge.Reset(hedgeDelay << (r.asked / len(r.servers)))
	}
	r.asked++
	return server, true
}

// finish takes over what asking a server ended in.
func (r *race) finish(server int, a answer, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.won:
	case err == nil && decisive(a.rcode):
		r.won, r.over, r.answer, r.winner = true, true, a, server
		r.cancel()
	case err == nil:
		r.causes[server] = rcodeName(a.rcode)
	default:
		if cause := phrase(err); cause != causeTimeout {
			r.causes[server] = cause
		}
	}
}

// end lets no further question be sent.
func (r *race) end() {
	r.hedge.Stop()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
}

// silent returns the servers that were asked and gave no sign, while the winner did.
func (r *race) silent() []netip.AddrPort {
	var silent []netip.AddrPort
	for i, s := range r.servers[:min(r.asked, len(r.servers))] {
		if i != r.winner && r.causes[i] == "" {
			silent = append(silent, s)
		}
	}
	return silent
}

func (r *race) firstCause() string {
	for _, c := range r.causes {
		if c != "" {
			return c
		}
	}
	return causeTimeout
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
