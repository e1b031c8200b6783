package probe

import "time"

// dampWindow is the time within which a third recovery is held back. A recovery is shown no sooner
// than dampWindow after the one that was shown before it.
const dampWindow = time.Minute

// result says how a probe ended.
type result uint8

const (
	unknown result = iota // the probe could not be run, or not to its end
	success
	failure
)

// cause is why a probe failed. It holds no byte that the peer chose, except numbers.
type cause struct {
	reason string // one of the Reason constants
	detail string // what was seen and what was expected, for people; "" where reason says it all
}

// outcome is a result. For a failure it has the cause.
type outcome struct {
	result result
	cause
}

// silent reports whether the peer has not answered at all.
func (o outcome) silent() bool { return o.reason == ReasonTimeout || o.reason == ReasonUnreachable }

// succeeded is the outcome of every probe that is a success.
var succeeded = outcome{result: success}

func failed(reason string) outcome { return failedWith(reason, "") }

func failedWith(reason, detail string) outcome {
	return outcome{result: failure, cause: cause{reason, detail}}
}

// machine is the threshold machine of one endpoint. Its methods are pure: each takes the rules
// and the time, and returns the next machine. The zero machine has no verdict.
//
// Consecutive results make the raw verdict. The shown verdict follows it at once, with one
// exception: the recovery of an endpoint that keeps recovering is held back.
type machine struct {
	rawVerdict Verdict
	held       bool  // rawVerdict is Healthy, and the shown verdict is still Unhealthy
	cause      cause // of a shown verdict that is Unhealthy

	streakResult result // the newest result that is not unknown
	streakReason string // the reason of the newest failure
	streak       int32  // consecutive results that are streakResult
	sameReason   int32  // consecutive failures for streakReason

	last       instant // the start of the newest probe
	inFlight   int32
	fresh      int32  // of those in flight, how many began after the last success
	generation uint32 // how many successes there have been

	recoveries [2]instant // the last two recoveries of the raw verdict, the older first
	shown      instant    // when a recovery was shown last
	doubtful   bool       // a silence that would have made the endpoint Unhealthy was not believed
	flapping   bool       // a recovery was held back, and the last one is less than dampWindow ago
}

// spread delays a probe that would begin at once, by a part of the confirm period or of the regular
// one, the shorter of them. So endpoints that are added or changed together do not begin together.
func (m machine) spread(r rules, offset uint64, now instant) machine {
	if m.next(r, offset, now) <= now {
		m.last = now + fraction(min(r.confirm, r.period), offset) - r.confirm
	}
	return m
}

// verdict returns the shown verdict.
func (m machine) verdict() Verdict {
	if m.held {
		return Unhealthy
	}
	return m.rawVerdict
}

// state returns what is shown.
func (m machine) state() State {
	verdict := m.verdict()
	return State{
		Verdict: verdict, Reason: m.cause.reason, Detail: m.cause.detail,
		Flapping: m.flapping && verdict == Unhealthy, Probed: m.streakResult != unknown,
	}
}

// consecutive returns how many of the newest results in a row are r.
func (m machine) consecutive(r result) int {
	if m.streakResult != r {
		return 0
	}
	return int(m.streak)
}

// start counts a probe that begins. The probe belongs to the machine's generation.
func (m machine) start(now instant) machine {
	m.last = now
	m.inFlight++
	m.fresh++
	return m
}

// end counts a probe of that generation, which has ended.
func (m machine) end(r rules, generation uint32, o outcome, now instant) machine {
	m.inFlight--
	if generation == m.generation {
		m.fresh--
	}

	switch o.result {
	case success:
		m = m.count(o)
		m.fresh, m.doubtful = 0, false
		m.generation++
		if m.rawVerdict != Healthy && m.consecutive(success) >= r.rise {
			m = m.recover(now)
		}
	case failure:
		m = m.count(o)
		switch {
		case m.rawVerdict == Unhealthy:
			m = m.updateReason(r, o.cause)
		case m.consecutive(failure) >= r.fall:
			m = m.condemn(o.cause)
		}
	}
	return m.release(now)
}

// count adds o to the consecutive results.
func (m machine) count(o outcome) machine {
	if o.result != m.streakResult {
		m.streakResult, m.streak, m.sameReason = o.result, 0, 0
	}
	if o.reason != m.streakReason {
		m.streakReason, m.sameReason = o.reason, 0
	}
	m.streak++
	m.sameReason++
	return m
}

// condemn turns the raw verdict to Unhealthy.
func (m machine) condemn(c cause) machine {
	m.rawVerdict, m.held, m.cause, m.doubtful = Unhealthy, false, c, false
	return m
}

// recover turns the raw verdict to Healthy. From the third recovery within dampWindow on, release
// shows it later.
func (m machine) recover(now instant) machine {
	if m.rawVerdict == Unhealthy {
		m.held = true
		m.flapping = now-m.recoveries[0] <= dampWindow
		m.recoveries = [2]instant{m.recoveries[1], now}
	}
	m.rawVerdict = Healthy
	return m
}

// release shows a held recovery that may be shown by now, and ends the flapping of an endpoint that
// has not recovered for dampWindow.
func (m machine) release(now instant) machine {
	if m.held && (!m.flapping || now >= m.shown+dampWindow) {
		m.held, m.cause, m.shown = false, cause{}, now
	}
	if !m.held && now-m.recoveries[1] >= dampWindow {
		m.flapping = false
	}
	return m
}

// updateReason replaces the cause of an Unhealthy verdict by c, the cause of the newest failure.
// It waits until as many failures in a row as make a verdict agree on another reason. So an
// endpoint that fails for changing reasons does not change its state with every probe.
func (m machine) updateReason(r rules, c cause) machine {
	if c.reason != m.cause.reason && (m.cause.reason == "" || int(m.sameReason) >= r.fall) {
		m.cause = c
	}
	return m
}

// forgetCounts prepares the machine for a check that asks something else. Earlier results say
// nothing about it. The verdict stays.
func (m machine) forgetCounts() machine {
	m.streak, m.sameReason, m.doubtful = 0, 0, false
	return m
}

// turnsUnhealthy reports whether the raw verdict is Unhealthy in after, and is not in m.
func (m machine) turnsUnhealthy(after machine) bool {
	return m.rawVerdict != Unhealthy && after.rawVerdict == Unhealthy
}

// next returns when the next probe begins. It returns never where a probe in flight has to end
// first. offset is that of the endpoint.
//
// While the verdict is in doubt one probe begins in each confirm period, whether or not the one
// before has ended. No more are in flight than the verdict may still need. Without doubt one probe
// begins in each period. A Healthy endpoint is in doubt while a probe is unanswered, too, unless a
// probe that began earlier has succeeded since.
func (m machine) next(r rules, offset uint64, now instant) instant {
	var doubt, needed bool
	inFlight := int(m.inFlight)
	switch m.rawVerdict {
	case Healthy:
		doubt = m.consecutive(failure) > 0 || m.fresh > 0 || m.doubtful
		needed = m.consecutive(failure)+inFlight < r.fall
	case Unhealthy:
		doubt = m.consecutive(success) > 0
		needed = doubt && m.consecutive(success)+inFlight < r.rise
	default:
		doubt = true
		needed = int(m.streak)+inFlight < max(r.rise, r.fall)
	}

	switch {
	case !needed && inFlight > 0: // with none in flight one is needed even past a threshold that was lowered
		return never
	case doubt:
		return m.last + r.confirm
	default:
		return slot(max(m.last, now), r.period, offset)
	}
}

// regular returns when the next probe begins where there is no doubt: one in each period.
func (m machine) regular(r rules, offset uint64, now instant) instant {
	if m.inFlight > 0 {
		return never
	}
	return slot(max(m.last, now), r.period, offset)
}

// releasesAt returns when release has a recovery to show, or never.
func (m machine) releasesAt() instant {
	if m.held {
		return m.shown + dampWindow
	}
	return never
}
