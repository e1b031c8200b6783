package witness

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/probe"
)

// PanelOptions are what a Panel needs.
type PanelOptions struct {
	Count       int // how many peers are asked about an endpoint
	Certificate tls.Certificate
	Peers       func() []Peer // the other replicas that live
	// Generation returns that of an ExternalBackend as this replica knows it.
	Generation func(types.NamespacedName) (int64, bool)
	// Hear gets the opinions about an endpoint. It may call no method of the Panel.
	Hear       func(owner types.NamespacedName, id probe.ID, o probe.Opinions)
	Log        logr.Logger
	Registerer prometheus.Registerer // nil: no metrics
}

// Panel asks other replicas about endpoints. It implements probe.Witnesses.
type Panel struct {
	options PanelOptions
	wake    chan struct{}
	answers *prometheus.CounterVec

	mu      sync.Mutex
	ballots map[subject]*ballot
	lines   map[string]*line // by peer
	swept   time.Time
}

// line is what goes to one peer, one request at a time.
type line struct {
	peer    Peer
	client  *http.Client
	queued  map[subject]probe.Question
	busy    bool
	shunned time.Time // until when it is not asked
}

// NewPanel returns a Panel that asks once it is started.
func NewPanel(options PanelOptions) *Panel {
	p := &Panel{
		options: options, wake: make(chan struct{}, 1),
		ballots: map[subject]*ballot{}, lines: map[string]*line{},
		answers: promauto.With(options.Registerer).NewCounterVec(prometheus.CounterOpts{
			Name: "externalbackend_witness_answers_total",
			Help: "What other replicas said when they were asked about an endpoint: " +
				"healthy, unhealthy, pending, refused, or unanswered.",
		}, []string{"answer"}),
	}
	for _, o := range []opinion{healthy, unhealthy, pending, refused} {
		p.answers.WithLabelValues(o.label())
	}
	p.answers.WithLabelValues(unanswered)
	return p
}

// unanswered is the label of a question to a replica that does not answer.
const unanswered = "unanswered"

// Ask implements probe.Witnesses.
func (p *Panel) Ask(questions []probe.Question) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	peers := p.askableLocked(now)
	if len(peers) == 0 {
		return false
	}
	p.sweepLocked(now)
	for _, q := range questions {
		s := subject{q.Owner, q.ID}
		b := p.ballots[s]
		if b == nil {
			if len(p.ballots) >= maxSubjects {
				return false
			}
			b = &ballot{}
			p.ballots[s] = b
		}
		b.ask(q, now)
		b.elect(s, peers, p.options.Count)
		for _, v := range b.votes {
			l := p.lines[v.peer]
			next := q
			next.First = q.First || l.queued[s].First
			l.queued[s] = next
		}
	}
	p.notify()
	return true
}

// askableLocked returns the peers that are not shunned. Each has a line.
func (p *Panel) askableLocked(now time.Time) []Peer {
	peers := p.options.Peers()
	for _, peer := range peers {
		l := p.lines[peer.Name]
		if l == nil || l.peer.Fingerprint != peer.Fingerprint || l.peer.Address != peer.Address {
			p.lines[peer.Name] = p.newLine(peer)
		}
	}
	for name, l := range p.lines {
		if !l.busy && !slices.ContainsFunc(peers, func(peer Peer) bool { return peer.Name == name }) {
			l.client.CloseIdleConnections()
			delete(p.lines, name)
		}
	}
	return slices.DeleteFunc(peers, func(peer Peer) bool { return now.Before(p.lines[peer.Name].shunned) })
}

func (p *Panel) newLine(peer Peer) *line {
	config := tlsConfig(p.options.Certificate, func(fingerprint string) bool { return fingerprint == peer.Fingerprint })
	dialer := &net.Dialer{Timeout: requestTimeout}
	return &line{peer: peer, queued: map[subject]probe.Question{}, client: &http.Client{
		Timeout: requestTimeout,
		Transport: &http.Transport{ // it knows of no proxy
			DialContext: dialer.DialContext, TLSClientConfig: config, MaxConnsPerHost: 1, IdleConnTimeout: time.Minute,
		},
	}}
}

// sweepLocked forgets endpoints that have not been asked about for long.
func (p *Panel) sweepLocked(now time.Time) {
	if now.Sub(p.swept) < keepTime/10 && len(p.ballots) < maxSubjects {
		return
	}
	p.swept = now
	for s, b := range p.ballots {
		if now.Sub(b.asked) > keepTime {
			delete(p.ballots, s)
		}
	}
}

func (p *Panel) notify() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Start sends questions until ctx ends, and returns once all requests have ended.
func (p *Panel) Start(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.wake:
		}
		p.mu.Lock()
		for _, l := range p.lines {
			if l.busy || len(l.queued) == 0 {
				continue
			}
			batch := l.next()
			l.busy = true
			group.Go(func() { p.send(ctx, l, batch) })
		}
		p.mu.Unlock()
	}
}

// next takes the questions of one request: those whose opinions are needed now, or else the
// others, which do not wait.
func (l *line) next() []probe.Question {
	hold := false
	for _, q := range l.queued {
		hold = hold || q.Wait > 0
	}
	var batch []probe.Question
	for s, q := range l.queued {
		if len(batch) == maxQuestions {
			break
		}
		if q.Wait > 0 == hold {
			batch = append(batch, q)
			delete(l.queued, s)
		}
	}
	return batch
}

// send asks one peer, and hands on what it says.
func (p *Panel) send(ctx context.Context, l *line, batch []probe.Question) {
	began := time.Now()
	message, asked := p.message(batch)
	opinions, err := l.ask(ctx, message)
	if err != nil && ctx.Err() == nil {
		p.options.Log.V(1).Info("Another replica does not answer", "replica", l.peer.Name, "error", err.Error())
	}

	p.mu.Lock()
	now := time.Now()
	if err != nil {
		l.shunned = now.Add(shunTime)
		for s, q := range l.queued { // it would not answer these either
			asked = append(asked, q)
			delete(l.queued, s)
		}
	}
	for i, q := range asked {
		said, label := refused, unanswered
		if err == nil {
			said, label = opinions[i], opinions[i].label()
		}
		p.answers.WithLabelValues(label).Inc()
		p.noteLocked(l, q, said, now)
	}
	p.mu.Unlock()

	select { // others may gather meanwhile
	case <-ctx.Done():
	case <-time.After(requestPeriod - time.Since(began)):
	}
	p.mu.Lock()
	l.busy = false
	p.mu.Unlock()
	p.notify()
}

// noteLocked notes what a peer says about an endpoint, and asks again if that is still waited
// for.
func (p *Panel) noteLocked(l *line, q probe.Question, said opinion, now time.Time) {
	s := subject{q.Owner, q.ID}
	b := p.ballots[s]
	if b == nil {
		return
	}
	b.set(l.peer.Name, said)
	if _, again := l.queued[s]; !again && b.waits(l.peer.Name, now) {
		q.First = false
		l.queued[s] = q
	}
	p.options.Hear(s.owner, s.id, b.count(now))
}

// label returns the opinion as a label of a metric. What is not known counts as refused.
func (o opinion) label() string {
	switch o {
	case healthy:
		return "healthy"
	case unhealthy:
		return "unhealthy"
	case pending:
		return "pending"
	default:
		return "refused"
	}
}

// message returns the request for a batch, and the questions in their order. ExternalBackends
// that are gone are left out.
func (p *Panel) message(batch []probe.Question) (request, []probe.Question) {
	message := request{Version: version}
	var asked []probe.Question
	generations := map[types.NamespacedName]int64{}
	for _, q := range batch {
		generation, known := generations[q.Owner]
		if !known {
			if generation, known = p.options.Generation(q.Owner); !known {
				continue
			}
			generations[q.Owner] = generation
		}
		asked = append(asked, q)
		message.Questions = append(message.Questions, newQuestion(q, generation))
		message.SilentMilliseconds = max(message.SilentMilliseconds, q.Silent.Milliseconds())
		message.Hold = message.Hold || q.Wait > 0
	}
	return message, asked
}

// ask sends a request to the peer.
func (l *line) ask(ctx context.Context, message request) ([]opinion, error) {
	if len(message.Questions) == 0 {
		return nil, nil
	}
	body, err := json.Marshal(message)
	if err != nil {
		return nil, err
	}
	url := "https://" + l.peer.Address.String() + path
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	answer, err := l.client.Do(r)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("it answers with status %d", answer.StatusCode)
	}
	return readResponse(answer.Body, len(message.Questions))
}
