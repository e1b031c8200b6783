package probe

import (
	"math"
	"time"
)

// instant is a point in time: what has passed since an hour before the engine was made. The zero
// instant is therefore long ago, for every delay that the engine knows but a period.
type instant = time.Duration

const (
	epochOffset = time.Hour

	// never is later than every instant.
	never instant = math.MaxInt64

	// dampWindow is the time within which the third recovery is held back, and for which a return
	// holds it back.
	dampWindow = time.Minute
)

// rules are the numbers of a check.
type rules struct {
	period, confirm, timeout time.Duration
	rise, fall               int // consecutive successes and failures that make a verdict
}

// result says how a probe ended.
type result uint8

const (
	unknown result = iota // it could not be run, or not to its end
	success
	failure
)

// cause is why a probe failed: one of the Reason constants, and what was seen and what was
// expected, in a phrase for people; "" where the reason says it all. It holds no byte that the peer
// chose, but for numbers.
type cause struct{ reason, detail string }

// outcome is a result with, for a failure, its cause.
type outcome struct {
	result result
	cause
}

// silent reports whether the peer has not answered at all.
func (o outcome) silent() bool { return o.reason == ReasonTimeout || o.reason == ReasonUnreachable }

func failed(reason string) outcome { return outcome{result: failure, cause: cause{reason: reason}} }

func failedWith(reason, detail string) outcome {
	return outcome{result: failure, cause: cause{reason: reason, detail: detail}}
}

// machine is the threshold machine of one endpoint. Its methods are pure: they take the rules and
// the time, and the next machine is what they return. The zero machine has no verdict.
//
// Counts make the bare verdict. The verdict that is told follows it at once but in one case: of an
// endpoint that keeps recovering the return is held back.
type machine struct {
	verdict Verdict // what is told
	bare    Verdict // what the counts alone say
	cause   cause   // of an Unhealthy verdict

	failures, successes int32   // consecutive ones against the bare verdict
	last                instant // start of the newest probe
	inFlight            int32
	fresh               int32  // of those, how many began since the last success
	serial              uint32 // number of the newest probe
	cleared             uint32 // number of the newest probe at the last success

	other  cause // of the newest failures, where its reason is not the one that is told
	others int32 // how many consecutive failures agree on the reason of other

	recoveries [2]instant // the last two bare ones, the older first
	returned   instant    // when a recovery was last told
	doubtful   bool       // a silence that would have made it Unhealthy was not believed
	flapping   bool       // a return was held back, and the last recovery is less than dampWindow ago
	probed     bool
}

// newMachine returns the machine of an endpoint that comes new at now.
func newMachine(seed Verdict, r rules, phase uint64, now instant) machine {
	return machine{verdict: seed, bare: seed}.spread(r, phase, now)
}

// spread postpones a probe that would begin at once by a part of the confirm interval, or of the
// period where that is shorter, so that endpoints which come or change together don't begin
// together.
func (m machine) spread(r rules, phase uint64, now instant) machine {
	if m.next(r, phase, now) <= now {
		m.last = now + fraction(min(r.confirm, r.period), phase) - r.confirm
	}
	return m
}

// state is what is told.
func (m machine) state() State {
	return State{Verdict: m.verdict, Reason: m.cause.reason, Detail: m.cause.detail, Flapping: m.flapping && m.verdict == Unhealthy, Probed: m.probed}
}

// start counts a probe that begins. Its number is the next machine's serial.
func (m machine) start(now instant) machine {
	m.last = now
	m.inFlight++
	m.fresh++
	m.serial++
	return m
}

// end counts the probe of that number, which has ended.
func (m machine) end(r rules, serial uint32, o outcome, now instant) machine {
	m.inFlight--
	if serial > m.cleared {
		m.fresh--
	}
	switch o.result {
	case success:
		m.probed = true
		m.failures, m.others, m.doubtful = 0, 0, false
		m.fresh, m.cleared = 0, m.serial
		if m.bare != Healthy {
			if m.successes++; int(m.successes) >= r.rise {
				m = m.recover(now)
			}
		}
	case failure:
		m.probed = true
		m.successes = 0
		m = m.blame(r, o.cause)
		if m.bare != Unhealthy {
			if m.failures++; int(m.failures) >= r.fall {
				m.bare, m.verdict, m.cause = Unhealthy, Unhealthy, o.cause
				m.failures, m.others, m.doubtful = 0, 0, false
			}
		}
	}
	return m.settle(now)
}

// recover turns the bare verdict to Healthy. From the third recovery within dampWindow on, the
// verdict that is told does not follow before dampWindow has passed since it last did; settle sees
// to that.
func (m machine) recover(now instant) machine {
	m.successes = 0
	if m.bare == Unknown {
		m.bare, m.verdict = Healthy, Healthy
		return m
	}
	m.bare = Healthy
	m.flapping = now-m.recoveries[0] <= dampWindow
	m.recoveries = [2]instant{m.recoveries[1], now}
	return m
}

// held reports whether a return has not been told yet.
func (m machine) held() bool { return m.bare == Healthy && m.verdict == Unhealthy }

// settle tells a return that nothing holds back or whose delay is over, and ends the flapping of an
// endpoint that has not recovered for dampWindow.
func (m machine) settle(now instant) machine {
	if m.held() && (!m.flapping || now >= m.returned+dampWindow) {
		m.verdict, m.cause, m.returned = Healthy, cause{}, now
	}
	if !m.held() && now-m.recoveries[1] >= dampWindow {
		m.flapping = false
	}
	return m
}

// blame replaces the cause of an Unhealthy verdict once as many consecutive failures as make a
// verdict agree on another reason, so that a peer which fails now this way and now that doesn't
// change what is told with every probe.
func (m machine) blame(r rules, c cause) machine {
	if m.bare != Unhealthy || c.reason == m.cause.reason {
		m.others = 0
		return m
	}
	if c.reason != m.other.reason {
		m.other, m.others = c, 0
	}
	if m.others++; m.cause.reason == "" || int(m.others) >= r.fall {
		m.cause, m.others = c, 0
	}
	return m
}

// forgetCounts makes the machine ready for a check that asks something else: what was counted says
// nothing about it, the verdict stays.
func (m machine) forgetCounts() machine {
	m.failures, m.successes, m.others, m.doubtful = 0, 0, 0, false
	return m
}

// condemned reports whether after, which comes of m, makes the endpoint Unhealthy.
func (m machine) condemned(after machine) bool { return m.bare != Unhealthy && after.bare == Unhealthy }

// next says when the next probe begins, never where first one in flight has to end. phase is the
// endpoint's.
//
// While the verdict is in doubt probes follow one another at the confirm interval and don't wait
// for one another, but no more are in flight than could still be needed. Else one probe begins in
// each period. A probe of a healthy endpoint that stays unanswered is a doubt too, unless one that
// began earlier has succeeded since.
func (m machine) next(r rules, phase uint64, now instant) instant {
	var doubt, room bool
	switch m.bare {
	case Healthy:
		doubt = m.failures > 0 || m.fresh > 0 || m.doubtful
		room = int(m.failures+m.inFlight) < r.fall
	case Unhealthy:
		doubt = m.successes > 0
		room = doubt && int(m.successes+m.inFlight) < r.rise
	default:
		doubt = true
		room = int(max(m.failures, m.successes)+m.inFlight) < max(r.rise, r.fall)
	}
	switch {
	case !room && m.inFlight > 0: // with none in flight there is room, though a threshold that was lowered may be passed
		return never
	case doubt:
		return m.last + r.confirm
	default:
		return slot(max(m.last, now), r.period, phase)
	}
}

// steady is next without any doubt: one probe begins in each period.
func (m machine) steady(r rules, phase uint64, now instant) instant {
	if m.inFlight > 0 {
		return never
	}
	return slot(max(m.last, now), r.period, phase)
}

// wake says when settle has something to do, never where it has nothing.
func (m machine) wake() instant {
	if m.held() {
		return m.returned + dampWindow
	}
	return never
}
