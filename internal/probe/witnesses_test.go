package probe

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// fakePanel answers for the witnesses, each of which says what a test lets it say.
type fakePanel struct {
	engine *Engine
	delay  time.Duration // from a question to its answer
	mu     sync.Mutex
	says   []Verdict // by witness: Unknown for one that does not answer
	asked  []Question
}

func (p *fakePanel) Ask(questions []Question) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.asked = append(p.asked, slices.Clone(questions)...)
	if len(p.says) == 0 {
		return false
	}
	var o Opinions
	for _, v := range p.says {
		switch v {
		case Healthy:
			o.Healthy++
		case Unhealthy:
			o.Unhealthy++
		}
	}
	for _, q := range questions {
		now := o
		if q.Wait == 0 && p.count(q.ID) == 1 { // the witnesses only begin to probe
			now = Opinions{Pending: len(p.says)}
		}
		time.AfterFunc(p.delay, func() { p.engine.Hear(q.Owner, q.ID, now) })
	}
	return true
}

func (p *fakePanel) count(id ID) (n int) {
	for _, q := range p.asked {
		if q.ID == id {
			n++
		}
	}
	return n
}

func (p *fakePanel) become(says ...Verdict) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.says = says
}

// questions returns how many questions have come since it was called last.
func (p *fakePanel) questions() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() { p.asked = nil }()
	return len(p.asked)
}

// consulted runs play with one endpoint, which answers, and an engine that asks panel.
func consulted(t *testing.T, says []Verdict, play func(e *Engine, n *fakeNetwork, p *fakePanel)) {
	t.Helper()
	p := &fakePanel{delay: 5 * time.Millisecond, says: says}
	bubble(t, Options{Witnesses: p, BlindThreshold: 90}, answers, func(_ *testing.T, e *Engine, n *fakeNetwork) {
		p.engine = e
		e.Sync(owner1, tcpCheck(), endpoints(1, Unknown))
		settled(30 * time.Second)
		play(e, n, p)
	})
}

// Silence makes an endpoint Unhealthy only where most of those that answer find it, this replica
// included. A tie keeps the verdict. Where nobody answers, this replica decides alone.
func TestSilenceNeedsAMajority(t *testing.T) {
	for _, test := range []struct {
		says   []Verdict
		want   Verdict
		detail string
	}{
		{says: nil, want: Unhealthy},
		{says: []Verdict{Unknown}, want: Unhealthy},
		{says: []Verdict{Unknown, Unknown}, want: Unhealthy},
		{says: []Verdict{Unhealthy}, want: Unhealthy},
		{says: []Verdict{Healthy}, want: Healthy},
		{says: []Verdict{Unhealthy, Unhealthy}, want: Unhealthy},
		{says: []Verdict{Unhealthy, Healthy}, want: Unhealthy, detail: "silent for 2 of 3 replicas"},
		{says: []Verdict{Unknown, Healthy}, want: Healthy},
		{says: []Verdict{Unknown, Unhealthy}, want: Unhealthy},
		{says: []Verdict{Healthy, Healthy}, want: Healthy},
		{says: []Verdict{Unhealthy, Healthy, Healthy}, want: Healthy},
		{says: []Verdict{Unhealthy, Unhealthy, Healthy, Healthy}, want: Unhealthy, detail: "silent for 3 of 5 replicas"},
	} {
		t.Run(fmt.Sprint(test.says), func(t *testing.T) {
			consulted(t, test.says, func(e *Engine, n *fakeNetwork, _ *fakePanel) {
				n.become(vanishes)
				settled(time.Minute)
				got := e.States(owner1)[0]
				if got.Verdict != test.want || got.Detail != test.detail {
					t.Errorf("the endpoint is %v (%q), want %v (%q)", got.Verdict, got.Detail, test.want, test.detail)
				}
			})
		})
	}
}

// What the endpoint itself says counts at once, whatever witnesses say.
func TestRefusalNeedsNobody(t *testing.T) {
	consulted(t, []Verdict{Healthy, Healthy}, func(e *Engine, n *fakeNetwork, p *fakePanel) {
		n.become(refuses)
		settled(time.Minute)
		if got := e.States(owner1)[0]; got.Verdict != Unhealthy || p.questions() > 0 {
			t.Errorf("the endpoint is %v, and witnesses were asked", got.Verdict)
		}
	})
}

// While all agree nobody is asked. In a disagreement the verdict follows the majority, both ways.
func TestVerdictFollowsTheMajority(t *testing.T) {
	consulted(t, []Verdict{Healthy, Healthy}, func(e *Engine, n *fakeNetwork, p *fakePanel) {
		want := func(what string, v Verdict) {
			t.Helper()
			if got := e.States(owner1)[0].Verdict; got != v {
				t.Errorf("%s: the endpoint is %v, want %v", what, got, v)
			}
		}
		quiet := func(what string, want bool) {
			t.Helper()
			p.questions()
			settled(time.Minute)
			if asked := p.questions(); (asked == 0) != want {
				t.Errorf("%s: witnesses were asked %d times in a minute", what, asked)
			}
		}
		quiet("at rest", true)

		n.become(vanishes)
		quiet("silent for this replica alone", false)
		want("silent for this replica alone", Healthy)
		if overruled, all := e.Overruled(); overruled != 1 || all != 1 {
			t.Errorf("this replica is overruled about %d of %d endpoints", overruled, all)
		}
		p.become(Unhealthy, Healthy)
		settled(30 * time.Second)
		want("silent for two of three", Unhealthy)
		p.become(Healthy, Healthy)
		settled(30 * time.Second)
		want("silent for this replica alone again", Healthy)
		p.become(Unhealthy, Unhealthy)
		settled(30 * time.Second)
		want("silent for all", Unhealthy)
		quiet("dead", true)

		n.become(answers)
		settled(2 * time.Minute)
		want("answers again", Healthy)
		quiet("answers again", true)
		if overruled, _ := e.Overruled(); overruled != 0 {
			t.Errorf("this replica is still overruled")
		}
	})
}

// Where most find an endpoint dead, and this replica did not agree with all of them before, its
// own success does not bring it back. That needs most of them, too.
func TestReturnNeedsAMajorityInADisagreement(t *testing.T) {
	consulted(t, []Verdict{Unhealthy, Unhealthy, Healthy}, func(e *Engine, n *fakeNetwork, p *fakePanel) {
		n.become(vanishes)
		settled(30 * time.Second)
		n.become(answers)
		p.become(Unhealthy, Unhealthy, Unhealthy)
		settled(30 * time.Second)
		if got := e.States(owner1)[0].Verdict; got != Unhealthy {
			t.Errorf("the endpoint is %v, and three of four find it dead", got)
		}
		p.become(Unhealthy, Healthy, Healthy)
		settled(time.Minute)
		if got := e.States(owner1)[0].Verdict; got != Healthy {
			t.Errorf("the endpoint is %v, and three of four reach it", got)
		}
	})
}

// With witnesses that answer within 5 ms, a death is found no later than that after it would be
// without them.
func TestWitnessesCostOneRoundTrip(t *testing.T) {
	found := func(says []Verdict) (took time.Duration) {
		consulted(t, says, func(e *Engine, n *fakeNetwork, _ *fakePanel) {
			n.become(vanishes)
			died := time.Now()
			for e.States(owner1)[0].Verdict == Healthy {
				time.Sleep(time.Millisecond)
				synctest.Wait()
			}
			took = time.Since(died)
		})
		return took
	}
	alone, asking := found(nil), found([]Verdict{Unhealthy, Unhealthy})
	if asking > alone+2*tick {
		t.Errorf("a death is found after %v, and after %v without witnesses", asking, alone)
	}
}

// A majority has more votes than all who say otherwise or can still say so.
func TestMajorityIsFinal(t *testing.T) {
	for range 10_000 {
		o := Opinions{Healthy: rand.IntN(4), Unhealthy: rand.IntN(4), Pending: rand.IntN(4)}
		own := Verdict(rand.IntN(3))
		first := o.majority(own)
		for healthy := range o.Pending + 1 {
			last := Opinions{Healthy: o.Healthy + healthy, Unhealthy: o.Unhealthy + o.Pending - healthy}
			if first != Unknown && last.majority(own) != first {
				t.Fatalf("%+v with %v is %v, and becomes %v with %+v", o, own, first, last.majority(own), last)
			}
		}
	}
}

// A consultation ends with its endpoint, and when the check asks something else.
func TestConsultationEndsWithItsEndpoint(t *testing.T) {
	for name, change := range map[string]func(e *Engine){
		"gone":     func(e *Engine) { e.Forget(owner1) },
		"removed":  func(e *Engine) { e.Sync(owner1, tcpCheck(), nil) },
		"question": func(e *Engine) { e.Sync(owner1, &Check{HTTP: &HTTPGet{}, Period: time.Hour}, endpoints(1, Unknown)) },
	} {
		consulted(t, []Verdict{Healthy}, func(e *Engine, n *fakeNetwork, _ *fakePanel) {
			n.become(vanishes)
			settled(20 * time.Second)
			e.mu.Lock()
			before := len(e.consulted)
			e.mu.Unlock()
			change(e)
			e.mu.Lock()
			defer e.mu.Unlock()
			if before != 1 || len(e.consulted) != 0 {
				t.Errorf("%s: of %d consultations, %v are left", name, before, slices.Collect(maps.Keys(e.consulted)))
			}
		})
	}
}

// lossyPanel answers for witnesses that see what a history lets them see, late or never.
type lossyPanel struct {
	engine *Engine
	rand   *rand.Rand
	mu     sync.Mutex
	sees   []Verdict // by witness: Healthy, Unhealthy, or Unknown for one that is gone
	last   Opinions  // that the engine got last
}

func (p *lossyPanel) Ask(questions []Question) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	var o Opinions
	for _, v := range p.sees {
		switch {
		case v == Unknown:
		case p.rand.IntN(4) == 0 && questions[0].Wait == 0:
			o.Pending++
		case v == Healthy:
			o.Healthy++
		default:
			o.Unhealthy++
		}
	}
	if len(p.sees) == 0 {
		p.last = Opinions{}
		return false
	}
	if p.rand.IntN(5) == 0 { // the answer is lost
		return true
	}
	for _, q := range questions {
		time.AfterFunc(time.Duration(p.rand.IntN(600))*time.Millisecond, func() {
			p.mu.Lock()
			p.last = o
			p.mu.Unlock()
			p.engine.Hear(q.Owner, q.ID, o)
		})
	}
	return true
}

// Networks break and heal at random, for this replica and for its witnesses, and answers are late
// or lost. An endpoint never becomes Unhealthy by silence while most of those that have answered
// reach it. Once all has settled, the verdict is what most find, or stays in a tie, or all agreed
// on it.
func TestVerdictFollowsTheMajorityInRandomHistories(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		p := &lossyPanel{rand: rand.New(rand.NewPCG(seed, 8))}
		bubble(t, Options{Witnesses: p}, answers, func(t *testing.T, e *Engine, n *fakeNetwork) {
			p.engine = e
			e.Sync(owner1, tcpCheck(), endpoints(1, Unknown))
			settled(30 * time.Second)
			own := Healthy
			for range 12 {
				if own = Verdict(1 + r.IntN(2)); own == Healthy {
					n.become(answers)
				} else {
					n.become(vanishes)
				}
				sees := make([]Verdict, r.IntN(5))
				for i := range sees {
					sees[i] = Verdict(r.IntN(3))
				}
				p.mu.Lock()
				p.sees = sees
				p.mu.Unlock()
				for range r.IntN(60) * 10 {
					before := e.States(owner1)[0].Verdict
					settled(100 * time.Millisecond)
					p.mu.Lock()
					last := p.last
					p.mu.Unlock()
					if now := e.States(owner1)[0]; before == Healthy && now.Verdict == Unhealthy &&
						last.Healthy > last.Unhealthy+1 {
						t.Fatalf("seed %d: the endpoint is Unhealthy, and the opinions are %+v", seed, last)
					}
				}
			}

			settled(3 * time.Minute)
			p.mu.Lock()
			var o Opinions
			for _, v := range p.sees {
				switch v {
				case Healthy:
					o.Healthy++
				case Unhealthy:
					o.Unhealthy++
				}
			}
			p.mu.Unlock()
			got, want := e.States(owner1)[0].Verdict, o.majority(own)
			e.mu.Lock()
			asked := len(e.consulted) > 0
			e.mu.Unlock()
			if got == own && !asked { // all agreed when they were asked last, or it has answered this replica
				return
			}
			if want != Unknown && got != want {
				t.Fatalf("seed %d: the endpoint is %v, and most say %v (%+v, and this replica %v)", seed, got, want, o, own)
			}
		})
	}
}
