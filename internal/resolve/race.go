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
// and whose answer counts; run asks.
//
//  1. The next server is asked when one fails, or has been silent for the hedge delay.
//  2. After the last server comes the first again, unless it has replied.
//  3. Records win at once.
//  4. Any other answer, such as a denial, wins as soon as each earlier server has failed or has been
//     silent for the listen time. Later servers no longer count from then on.
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
func (p outcome) failure() (cause string, failed bool) {
	switch {
	case p.err == nil && decisive(p.answer.rcode):
		return "", false
	case p.err == nil:
		return rcodeName(p.answer.rcode), true
	}
	if cause = phrase(p.err); cause == causeTimeout {
		cause = ""
	}
	return cause, true
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
func (r *race) take(p outcome, now time.Time) (won bool) {
	r.inFlight--
	cause, failed := p.failure()
	switch {
	case p.server >= r.end:
	case failed:
		if cause != "" {
			r.servers[p.server].cause = cause
		}
		r.due = now
	case len(p.answer.data) > 0:
		return true
	default:
		r.end, r.denial = p.server, p.answer
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

// silent reports whether the server, which has not won, has not replied.
func (r *race) silent(server netip.AddrPort) bool {
	return slices.ContainsFunc(r.servers, func(c contender) bool { return c.AddrPort == server && c.cause == "" })
}

// run asks the servers until the race is decided or the context ends. The answer is the winner's;
// where nobody wins, cause tells why.
func (l *lookuper) run(ctx context.Context, up *upstream, r *race, q query) (a answer, winner int, cause string) {
	ctx, cancel := context.WithCancel(ctx)
	var asks sync.WaitGroup
	defer asks.Wait()
	defer cancel()
	replies := make(chan outcome, askRounds*len(r.servers))
	timer := time.NewTimer(hedgeDelay)
	defer timer.Stop()

	for {
		now := time.Now()
		if won, _ := r.denied(now); won {
			return r.denial, r.end, ""
		}
		if ctx.Err() == nil {
			if server, ok := r.next(now); ok {
				addr := r.servers[server].AddrPort
				asks.Go(func() {
					a, err := l.ask(ctx, up, addr, q.name, q.t)
					replies <- outcome{server: server, answer: a, err: err}
				})
			}
		}
		if r.inFlight == 0 {
			return answer{}, 0, r.cause()
		}

		timer.Reset(r.wait(now))
		select {
		case <-timer.C:
		case p := <-replies:
			if cause, failed := p.failure(); ctx.Err() == nil && (!failed || cause != "") {
				l.outages.end(up.connKey(r.servers[p.server].AddrPort))
			}
			if r.take(p, time.Now()) {
				return p.answer, p.server, ""
			}
		}
	}
}
