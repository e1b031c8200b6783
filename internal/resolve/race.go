package resolve

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	hedgeDelay = 500 * time.Millisecond // after which the next server is asked too; doubled each round
	listenTime = 2 * time.Second        // how long the denial of a later server waits for an earlier one
	askRounds  = 3                      // how often an unanswering server is asked, in case packets are lost
)

// lookupTimeout bounds the lookup of a name and type, all servers and aliases together.
const lookupTimeout = 5 * time.Second

// race is one query to several servers in their order of preference. It decides which server to ask
// when, and which answer wins; a runner sends the queries.
//
//  1. The next server is asked when one fails, or has not replied for the hedge delay.
//  2. After the last server comes the first again, unless it has replied.
//  3. Records win at once.
//  4. Any other answer, such as a denial, wins as soon as each earlier server has failed or has
//     not replied for the listen time. Later servers no longer count from then on.
type race struct {
	servers  []contender
	sent     int       // queries, round after round
	inFlight int       // queries without a reply
	due      time.Time // when the next query is to be sent
	end      int       // the servers before this one count
	denial   answer    // of the server at end, if any
}

// contender is a server in a race.
type contender struct {
	netip.AddrPort
	asked time.Time // for the first time; zero = not yet
	cause string    // why its reply is not usable; "" = there is no reply
}

// outcome is how a query to a server ended.
type outcome struct {
	server int
	answer answer
	err    error
}

// failure reports whether there is no usable reply, and why. The cause is empty where the server
// did not reply.
func (o outcome) failure() (cause string, failed bool) {
	switch {
	case o.err == nil && decisive(o.answer.rcode):
		return "", false
	case o.err == nil:
		return rcodeName(o.answer.rcode), true
	}
	if cause = causeOf(o.err); cause == causeTimeout {
		cause = ""
	}
	return cause, true
}

// unanswered reports whether the server did not reply.
func (o outcome) unanswered() bool {
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

// take notes an outcome and reports whether it wins at once.
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

// denialWins reports whether the denial has won, or else when it will unless a reply comes. The
// time is zero where there is no denial.
func (r *race) denialWins(now time.Time) (won bool, at time.Time) {
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

// wait returns how long there is nothing to do unless a reply comes.
func (r *race) wait(now time.Time) time.Duration {
	_, at := r.denialWins(now)
	if r.sent < askRounds*len(r.servers) {
		at = soonest(now, at, r.due)
	}
	if at.IsZero() {
		return lookupTimeout
	}
	return at.Sub(now)
}

// cause returns the cause of the first server that has one, else that of a timeout.
func (r *race) cause() string {
	for _, s := range r.servers {
		if s.cause != "" {
			return s.cause
		}
	}
	return causeTimeout
}

// unanswered reports whether a server other than the winner has not replied.
func (r *race) unanswered(server netip.AddrPort) bool {
	return slices.ContainsFunc(r.servers, func(c contender) bool { return c.AddrPort == server && c.cause == "" })
}

// runner sends the queries of a race. The goroutine that begins the race sends them; more
// goroutines run only where a server is slow.
type runner struct {
	ctx    context.Context
	cancel context.CancelFunc
	ask    func(ctx context.Context, server netip.AddrPort) (answer, error)

	mu     sync.Mutex
	race   *race
	timer  *time.Timer    // calls proceed
	open   sync.WaitGroup // until the race is over and no query is under way
	over   bool
	answer answer // of the winner
	winner int
	cause  string // why no server won
}

// proceed asks the servers that are due, one after another, until none is.
func (u *runner) proceed() {
	if !u.enter() {
		return
	}
	defer u.open.Done()
	for server, ok := u.next(); ok; server, ok = u.next() {
		a, err := u.ask(u.ctx, u.race.servers[server].AddrPort)
		u.take(outcome{server: server, answer: a, err: err})
	}
}

// enter keeps the race open for one more goroutine, and reports whether it is not over yet.
func (u *runner) enter() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.over {
		u.open.Add(1)
	}
	return !u.over
}

// next returns the server to ask now. It ends the race where that is decided, and otherwise sets
// the time at which to go on.
func (u *runner) next() (server int, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return 0, false
	}
	now := time.Now()
	if won, _ := u.race.denialWins(now); won {
		u.endLocked(u.race.denial, u.race.end, "")
		return 0, false
	}
	if u.ctx.Err() == nil {
		server, ok = u.race.next(now)
	}
	if u.race.inFlight == 0 {
		u.endLocked(answer{}, 0, u.race.cause())
		return 0, false
	}
	u.timer.Reset(u.race.wait(now))
	return server, ok
}

func (u *runner) take(o outcome) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.over && u.race.take(o, time.Now()) {
		u.endLocked(o.answer, o.server, "")
	}
}

// endLocked ends the race and all queries under way.
func (u *runner) endLocked(a answer, winner int, cause string) {
	u.over, u.answer, u.winner, u.cause = true, a, winner, cause
	u.timer.Stop()
	u.cancel()
	u.open.Done()
}
