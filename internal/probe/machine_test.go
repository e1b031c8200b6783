package probe

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const (
	ms  = time.Millisecond
	sec = time.Second
)

// probe runs one probe that takes no time.
func (m machine) probe(r rules, o outcome, now instant) machine {
	m = m.start(now)
	return m.end(r, m.generation, o, now)
}

// TestThresholdsMakeVerdicts ends one probe a second and compares the state that comes of it.
func TestThresholdsMakeVerdicts(t *testing.T) {
	r := rules{period: 10 * sec, confirm: sec, timeout: 3 * sec, rise: 2, fall: 3}
	refused, timeout := failed(ReasonConnectionRefused), failed(ReasonTimeout)
	good, lost := outcome{result: success}, outcome{}
	status := func(code string) outcome { return failedWith(ReasonUnexpectedStatus, code) }

	for _, test := range []struct {
		name string
		seed Verdict
		ends []outcome // one per second
		want State
	}{
		{"nothing yet", Unknown, nil, State{}},
		{"seeded and never probed", Healthy, nil, State{Verdict: Healthy}},
		{"one success of two", Unknown, []outcome{good}, State{Probed: true}},
		{"two successes", Unknown, []outcome{good, good}, State{Verdict: Healthy, Probed: true}},
		{"two failures of three", Unknown, []outcome{refused, refused}, State{Probed: true}},
		{
			"three failures", Unknown, []outcome{timeout, timeout, refused},
			State{Verdict: Unhealthy, Reason: ReasonConnectionRefused, Probed: true},
		},
		{
			"a streak starts anew after a success", Healthy, []outcome{refused, refused, good, refused, refused},
			State{Verdict: Healthy, Probed: true},
		},
		{
			"what could not run counts for nothing", Healthy, []outcome{refused, lost, refused, lost, lost},
			State{Verdict: Healthy, Probed: true},
		},
		{
			"and interrupts nothing", Healthy, []outcome{refused, lost, refused, lost, refused},
			State{Verdict: Unhealthy, Reason: ReasonConnectionRefused, Probed: true},
		},
		{"only lost ones are no probe", Unknown, []outcome{lost, lost, lost, lost}, State{}},
		{"a return", Unhealthy, []outcome{good, good}, State{Verdict: Healthy, Probed: true}},
		{
			"a return needs its successes in a row", Unhealthy, []outcome{good, refused, good},
			State{Verdict: Unhealthy, Reason: ReasonConnectionRefused, Probed: true},
		},
		{
			"a seeded verdict takes the first reason", Unhealthy, []outcome{timeout},
			State{Verdict: Unhealthy, Reason: ReasonTimeout, Probed: true},
		},
		{
			"another reason needs the threshold", Unhealthy, []outcome{timeout, refused, refused},
			State{Verdict: Unhealthy, Reason: ReasonTimeout, Probed: true},
		},
		{
			"and has it", Unhealthy, []outcome{timeout, refused, refused, refused},
			State{Verdict: Unhealthy, Reason: ReasonConnectionRefused, Probed: true},
		},
		{
			"details stay as they were found with their reason", Unhealthy,
			[]outcome{status("404"), status("503")},
			State{Verdict: Unhealthy, Reason: ReasonUnexpectedStatus, Detail: "404", Probed: true},
		},
		{
			"another reason brings its details", Unhealthy,
			[]outcome{timeout, status("404"), status("503"), status("503")},
			State{Verdict: Unhealthy, Reason: ReasonUnexpectedStatus, Detail: "503", Probed: true},
		},
		{
			"a return forgets them", Unhealthy, []outcome{status("404"), good, good},
			State{Verdict: Healthy, Probed: true},
		},
		{
			"reasons that change by turns are not shown", Unhealthy,
			[]outcome{timeout, refused, refused, timeout, refused, refused},
			State{Verdict: Unhealthy, Reason: ReasonTimeout, Probed: true},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := machine{rawVerdict: test.seed}.spread(r, 0, epochOffset)
			for i, o := range test.ends {
				at := epochOffset + time.Duration(i)*sec
				m = m.probe(r, o, at)
			}
			if diff := cmp.Diff(test.want, m.state()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestThirdRecoveryInAMinuteIsHeldBack has an endpoint die and recover for minutes, with
// thresholds of one.
func TestThirdRecoveryInAMinuteIsHeldBack(t *testing.T) {
	r := rules{period: sec, confirm: sec, timeout: sec, rise: 1, fall: 1}
	m := machine{rawVerdict: Healthy}.spread(r, 0, epochOffset)
	for _, step := range []struct {
		at       time.Duration
		result   result
		verdict  Verdict
		flapping bool
	}{
		{1 * sec, failure, Unhealthy, false},
		{2 * sec, success, Healthy, false}, // the first recovery
		{3 * sec, failure, Unhealthy, false},
		{4 * sec, success, Healthy, false}, // the second
		{5 * sec, failure, Unhealthy, false},
		{6 * sec, success, Unhealthy, true}, // the third waits for a minute since 4 s
		{7 * sec, failure, Unhealthy, true},
		{30 * sec, success, Unhealthy, true},
		{63 * sec, success, Unhealthy, true},
		{64 * sec, success, Healthy, false},
		{65 * sec, failure, Unhealthy, true}, // dying is never delayed
		{67 * sec, success, Healthy, false},  // the recovery before the previous one was at 6 s
		{68 * sec, failure, Unhealthy, false},
		{69 * sec, success, Unhealthy, true}, // 30 s, 67 s and now
		{127 * sec, success, Healthy, false},
		{300 * sec, failure, Unhealthy, false}, // forgotten
		{301 * sec, success, Healthy, false},
	} {
		m = m.probe(r, outcome{result: step.result}, epochOffset+step.at)
		if got := m.state(); got.Verdict != step.verdict || got.Flapping != step.flapping {
			t.Fatalf("at %v: %+v, want %v, flapping %v", step.at, got, step.verdict, step.flapping)
		}
	}
}

// TestHeldRecoveryIsShownWithoutAProbe waits until the delay of a recovery is over.
func TestHeldRecoveryIsShownWithoutAProbe(t *testing.T) {
	r := rules{period: time.Hour, confirm: sec, timeout: sec, rise: 1, fall: 1}
	m := machine{rawVerdict: Healthy}.spread(r, 0, epochOffset)
	for i := range 6 {
		at := epochOffset + time.Duration(i)*sec
		m = m.probe(r, outcome{result: []result{failure, success}[i%2]}, at)
	}
	wake := epochOffset + 3*sec + dampWindow // the second recovery was shown after 3 s
	if m.releasesAt() != wake {
		t.Fatalf("wakes at %v, want %v", m.releasesAt(), wake)
	}
	before, after := m.release(wake-1), m.release(wake)
	if before.verdict() != Unhealthy || after.verdict() != Healthy || after.releasesAt() != never {
		t.Error("the recovery is not shown exactly then")
	}
}

// TestFlappingChangesTwoVerdictsAMinute has an endpoint flap once a second for ten minutes. Dying
// is never delayed and two recoveries are shown at once, which makes five changes. After that at
// most two verdicts change in any minute.
func TestFlappingChangesTwoVerdictsAMinute(t *testing.T) {
	r := rules{period: sec, confirm: 100 * ms, timeout: sec, rise: 1, fall: 1}
	m := machine{rawVerdict: Healthy}.spread(r, 0, epochOffset)
	var changes []instant
	for i := range 6000 {
		at := epochOffset + time.Duration(i)*100*ms
		before := m.verdict()
		m = m.release(at).probe(r, outcome{result: []result{success, failure}[i/5%2]}, at)
		if m.verdict() != before {
			changes = append(changes, at)
		}
	}
	for i, at := range changes {
		n := 0
		for _, other := range changes[i:] {
			if other < at+dampWindow {
				n++
			}
		}
		if limit := max(5-i, 2); n > limit {
			t.Errorf("%d changes in the minute after %v, want at most %d", n, at-epochOffset, limit)
		}
	}
	if len(changes) < 15 {
		t.Errorf("only %d changes in ten minutes: an endpoint that flaps must still come back", len(changes))
	}
}

// model computes the verdicts from the whole history, in the simplest way.
type model struct {
	history []result // what counts, since the question last changed
	raw     Verdict
	shown   Verdict

	recoveries []instant
	returns    []instant
}

func (o *model) run(n int, kind result) bool {
	if len(o.history) < n {
		return false
	}
	for _, r := range o.history[len(o.history)-n:] {
		if r != kind {
			return false
		}
	}
	return true
}

func (o *model) end(r rules, kind result, now instant) {
	if kind == unknown {
		return
	}
	o.history = append(o.history, kind)
	switch {
	case kind == failure && o.run(r.fall, failure):
		o.raw, o.shown = Unhealthy, Unhealthy
	case kind == success && o.run(r.rise, success) && o.raw == Unknown:
		o.raw, o.shown = Healthy, Healthy
	case kind == success && o.run(r.rise, success) && o.raw == Unhealthy:
		o.raw = Healthy
		o.recoveries = append(o.recoveries, now)
	}
}

func (o *model) release(now instant) {
	if o.raw != Healthy || o.shown != Unhealthy {
		return
	}
	last := o.recoveries[len(o.recoveries)-1]
	lately := slices.DeleteFunc(slices.Clone(o.recoveries), func(at instant) bool { return last-at > time.Minute })
	if len(lately) >= 3 && len(o.returns) > 0 && now-o.returns[len(o.returns)-1] < time.Minute {
		return
	}
	o.shown = Healthy
	o.returns = append(o.returns, now)
}

func FuzzMachineAgainstModel(f *testing.F) {
	f.Add(uint8(0), uint8(1), uint8(1), []byte("fsfsfsfsfsfsfsfsfsfs"))
	f.Add(uint8(1), uint8(2), uint8(3), []byte("fffss0fffss1fffss2ffqff"))
	f.Add(uint8(2), uint8(1), uint8(2), []byte("sffsffsff9s9f9s9f9s9"))
	f.Fuzz(func(t *testing.T, seed, rise, fall uint8, steps []byte) {
		r := rules{period: 10 * sec, confirm: sec, timeout: sec, rise: 1 + int(rise%5), fall: 1 + int(fall%5)}
		steps = steps[:min(len(steps), 500)]
		now := epochOffset
		m := machine{rawVerdict: Verdict(seed % 3)}.spread(r, 1<<60, now)
		o := &model{raw: Verdict(seed % 3), shown: Verdict(seed % 3)}
		for i, step := range steps {
			now += 100 * ms
			switch {
			case step == 'q':
				m = m.forgetCounts()
				o.history = nil
			case step >= '0' && step <= '9':
				now += time.Duration(step-'0') * 3 * sec
				m = m.release(now)
			default:
				kind := map[byte]result{'f': failure, 's': success}[step]
				m = m.probe(r, outcome{kind, cause{reason: "x"}}, now)
				o.end(r, kind, now)
			}
			o.release(now)
			if m.verdict() != o.shown || m.rawVerdict != o.raw || m.inFlight != 0 || m.fresh != 0 {
				t.Fatalf("step %d: verdict %v, raw verdict %v; the model says %v, %v", i, m.verdict(), m.rawVerdict, o.shown, o.raw)
			}
			if m.releasesAt() != never && m.releasesAt() <= now {
				t.Fatalf("step %d: a recovery that is due at %v is not shown at %v", i, m.releasesAt(), now)
			}
			if next := m.next(r, 1<<60, now); next <= m.last || next > max(now, m.last)+r.period {
				t.Fatalf("step %d: the next probe at %v after one at %v", i, next, m.last)
			}
		}
	})
}

// TestDetectionTimeIsBounded has a peer die at a random moment, and compares the time until the
// verdict with the documented bounds.
func TestDetectionTimeIsBounded(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	between := func(low, high time.Duration) time.Duration {
		return low + time.Duration(random.Int64N(int64(high-low+1)))
	}
	for range 5000 {
		r := rules{
			period: between(sec, 10*sec), confirm: between(100*ms, 3*sec), timeout: between(200*ms, 5*sec),
			rise: 1 + random.IntN(3), fall: 1 + random.IntN(5),
		}
		rtt := between(1, min(r.timeout-1, 2*r.confirm)) // may be longer than a confirm period
		death := epochOffset + 30*sec + between(0, r.period)
		confirming := time.Duration(r.fall-1) * r.confirm

		refused := simulate(t, r, random.Uint64(), death, func(start instant) (outcome, time.Duration) {
			if start >= death {
				return failed(ReasonConnectionRefused), 0
			}
			return outcome{result: success}, min(rtt, death-start)
		})
		if bound := r.period + confirming; refused-death > bound {
			t.Fatalf("%+v, round trip %v: refused is known after %v, bound %v", r, rtt, refused-death, bound)
		}
		silent := simulate(t, r, random.Uint64(), death, func(start instant) (outcome, time.Duration) {
			if start+rtt > death {
				return failed(ReasonTimeout), r.timeout
			}
			return outcome{result: success}, rtt
		})
		if bound := r.period + r.timeout + confirming; silent-death > bound {
			t.Fatalf("%+v, round trip %v: a black hole is known after %v, bound %v", r, rtt, silent-death, bound)
		}
	}
}

// simulate runs one machine against a peer until it is Unhealthy, and returns when that is.
func simulate(
	t *testing.T, r rules, offset uint64, death instant, peer func(instant) (outcome, time.Duration),
) instant {
	t.Helper()
	type end struct {
		at         instant
		generation uint32
		outcome
	}
	now := epochOffset
	m := machine{rawVerdict: Healthy}.spread(r, offset, now)
	var flying []end
	for m.verdict() == Healthy {
		next := m.next(r, offset, now)
		slices.SortStableFunc(flying, func(a, b end) int { return int(a.at - b.at) })
		if len(flying) > r.fall {
			t.Fatalf("%d in flight, want at most %d", len(flying), r.fall)
		}
		if len(flying) > 0 && flying[0].at <= next {
			now = max(now, flying[0].at)
			m = m.end(r, flying[0].generation, flying[0].outcome, now)
			flying = flying[1:]
			continue
		}
		if next == never {
			t.Fatalf("at %v the next probe is at %v with %d in flight", now, next, m.inFlight)
		}
		now = max(now, next)
		m = m.start(now)
		o, took := peer(now)
		flying = append(flying, end{now + took, m.generation, o})
		if now > death+time.Hour {
			t.Fatal("the death is never known")
		}
	}
	return now
}

// TestSlotsAreOnePeriodApart follows the regular starts of endpoints with extreme offsets.
func TestSlotsAreOnePeriodApart(t *testing.T) {
	for _, offset := range []uint64{0, 1, 1 << 63, 1<<64 - 1} {
		for _, period := range []time.Duration{100 * ms, sec, time.Hour} {
			at := epochOffset
			first := slot(at, period, offset)
			if first <= at || first > at+period {
				t.Fatalf("offset %d, period %v: first slot %v after %v", offset, period, first, at)
			}
			if again := slot(first, period, offset); again != first+period {
				t.Errorf("offset %d, period %v: %v follows %v", offset, period, again, first)
			}
			if before := slot(first-1, period, offset); before != first {
				t.Errorf("offset %d, period %v: slot after %v is %v, want %v", offset, period, first-1, before, first)
			}
		}
	}
}
