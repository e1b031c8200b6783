package resolve

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	hedgeDelay = 500 * time.Millisecond // unanswered for this long, the next server is asked too; doubled each round
	listenTime = 2 * time.Second        // for so long a later server's denial waits for an earlier server
	askRounds  = 3                      // how often a silent server is asked, against loss
)

// race is one question to several servers in their order of preference. It decides whom to ask when
// and whose answer counts; a contest asks.
//
//  1. The next server is asked when one fails, or has been silent for the hedge delay.
//  2. After the last server comes the first again, unless it has replied.
//  3. Records win at once.
//  4. Any other answer, such as a denial, wins as soon as each earlier server has failed or has
//     been silent for the listen time. Later servers no longer count from then on.
type race struct {
	servers  []contender
	sent     int       // questions, round after round
	inFlight int       // questions without a reply
	due      time.Time // when the next question is to be sent
	end      int       // the servers before this one count
	denial   answer    // of the server at end, if any
}

// contender is a server in a race.
type contender struct {
	netip.AddrPort
	asked time.Time // first; zero = not yet
	cause string    // why its reply is of no use; "" = there is none
}

// outcome is what a question to a server ended in.
type outcome struct {
	server int
	answer answer
	err    error
}

// failure tells why the reply is of no use. The cause is empty where the server was silent.
func (o outcome) failure() (cause string, failed bool) {
	switch {
	case o.err == nil && decisive(o.answer.rcode):
		return "", false
	case o.err == nil:
		return rcodeName(o.answer.rcode), true
	}
	if cause = phrase(o.err); cause == causeTimeout {
		cause = ""
	}
	return cause, true
}

// silent reports whether the server has not replied.
func (o outcome) silent() bool {
	cause, failed := o.failure()
	return failed && cause == ""
}

func newRace(servers []netip.AddrPort) *race {
	r := &race{servers: make([]contender, len(servers)), end: len(servers)}
	for i, s := range servers {
		r.servers[i].AddrPort = s
	}
	return r
}

// next returns the server to ask now.
func (r *race) next(now time.Time) (server int, ok bool) {
	n := len(r.servers)
	for r.sent < askRounds*n && (r.sent%n >= r.end || r.servers[r.sent%n].cause != "") {
		r.sent++
	}
	if r.sent == askRounds*n || now.Before(r.due) {
		return 0, false
	}

	server = r.sent % n
	if s := &r.servers[server]; s.asked.IsZero() {
		s.asked = now
	}
	r.due = now.Add(hedgeDelay << (r.sent / n))
	r.sent++
	r.inFlight++
	return server, true
}

// take notes a reply and reports whether it wins at once.
func (r *race) take(o outcome, now time.Time) (won bool) {
	r.inFlight--
	cause, failed := o.failure()
	switch {
	case o.server >= r.end:
	case failed:
		if cause != "" {
			r.servers[o.server].cause = cause
		}
		r.due = now
	case len(o.answer.data) > 0:
		return true
	default:
		r.end, r.denial = o.server, o.answer
	}
	return false
}

// denied reports whether the denial has won, or else when it will unless a reply comes. The time is
// zero where there is no denial.
func (r *race) denied(now time.Time) (won bool, at time.Time) {
	if r.end == len(r.servers) {
		return false, time.Time{}
	}
	at = now
	for _, s := range r.servers[:r.end] {
		if listened := s.asked.Add(listenTime); s.cause == "" && listened.After(at) {
			at = listened
		}
	}
	return !at.After(now), at
}

// wait is how long there is nothing to do unless a reply comes.
func (r *race) wait(now time.Time) time.Duration {
	_, at := r.denied(now)
	if r.sent < askRounds*len(r.servers) {
		at = soonest(now, at, r.due)
	}
	if at.IsZero() {
		return lookupTimeout
	}
	return at.Sub(now)
}

// cause is that of the first server that gave one.
func (r *race) cause() string {
	for _, s := range r.servers {
		if s.cause != "" {
			return s.cause
		}
	}
	return causeTimeout
}

// silent reports whether a server other than the winner has not replied.
func (r *race) silent(server netip.AddrPort) bool {
	return slices.ContainsFunc(r.servers, func(c contender) bool { return c.AddrPort == server && c.cause == "" })
}

// contest asks the servers of a race. The goroutine that begins it asks; others are needed only
// where a server is slow.
type contest struct {
	ctx    context.Context
	cancel context.CancelFunc
	ask    func(ctx context.Context, server netip.AddrPort) (answer, error)

	mu     sync.Mutex
	race   *race
	timer  *time.Timer    // calls proceed
	open   sync.WaitGroup // until the contest is over and nobody asks any more
	over   bool
	answer answer // the winner's
	winner int
	cause  string // why nobody won
}

// run returns the winner and its answer, or why nobody won in time.
func (l *lookuper) run(
	ctx context.Context, deadline time.Time, up *upstream, r *race, q query,
) (a answer, winner int, cause string) {
	c := &contest{race: r}
	c.ctx, c.cancel = context.WithDeadline(ctx, deadline)
	c.ask = func(ctx context.Context, server netip.AddrPort) (answer, error) {
		a, err := l.ask(ctx, up, server, q.name, q.t)
		if ctx.Err() == nil && !(outcome{answer: a, err: err}).silent() {
			l.outages.end(up.connKey(server))
		}
		return a, err
	}

	c.open.Add(1)
	c.mu.Lock()
	c.timer = time.AfterFunc(hedgeDelay, c.proceed)
	c.mu.Unlock()
	c.proceed()
	c.open.Wait()
	return c.answer, c.winner, c.cause
}

// proceed asks what is due, one server after another, until nothing is.
func (c *contest) proceed() {
	if !c.enter() {
		return
	}
	defer c.open.Done()
	for server, ok := c.next(); ok; server, ok = c.next() {
		a, err := c.ask(c.ctx, c.race.servers[server].AddrPort)
		c.take(outcome{server: server, answer: a, err: err})
	}
}

func (c *contest) enter() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.open.Add(1)
	}
	return !c.over
}

// next returns the server to ask now. It ends the contest where that is decided, and otherwise sets
// the time at which to go on.
func (c *contest) next() (server int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over {
		return 0, false
	}
	now := time.Now()
	if won, _ := c.race.denied(now); won {
		c.endLocked(c.race.denial, c.race.end, "")
		return 0, false
	}
	if c.ctx.Err() == nil {
		server, ok = c.race.next(now)
	}
	if c.race.inFlight == 0 {
		c.endLocked(answer{}, 0, c.race.cause())
		return 0, false
	}
	c.timer.Reset(c.race.wait(now))
	return server, ok
}

func (c *contest) take(o outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over && c.race.take(o, time.Now()) {
		c.endLocked(o.answer, o.server, "")
	}
}

// endLocked ends all questions under way.
func (c *contest) endLocked(a answer, winner int, cause string) {
	c.over, c.answer, c.winner, c.cause = true, a, winner, cause
	c.timer.Stop()
	c.cancel()
	c.open.Done()
}
