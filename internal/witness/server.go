package witness

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log" //nolint:depguard // net/http wants such a logger
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"golang.org/x/net/netutil"
	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/probe"
)

const (
	// maxConnections bounds the connections, strangers' included.
	maxConnections = 128
	// maxRate and maxBurst bound the requests of one peer, per second and at once.
	maxRate, maxBurst = 100, 20
	// maxInFlight bounds the requests of one peer that are being answered.
	maxInFlight = 2
	// maxConcurrentProbes bounds the probes in flight for others.
	maxConcurrentProbes = 1024
	// defaultMaxEndpoints bounds the endpoints that are probed for others.
	defaultMaxEndpoints = 10_000
	// subjectTimeout bounds what it takes to find out what to probe.
	subjectTimeout = 500 * time.Millisecond
	// gatherTime is for how long an answer waits for further opinions once there is one.
	gatherTime = 10 * time.Millisecond
)

// ServerOptions are what a Server needs.
type ServerOptions struct {
	Address     string // where it listens, as host:port
	Certificate tls.Certificate
	Peers       func() []Peer // the other replicas that live
	// Subject returns the check of an ExternalBackend of that generation, and those of its
	// endpoints that may be probed. An error refuses all of them.
	Subject func(ctx context.Context, key types.NamespacedName, generation int64, ids []probe.ID) (
		*probe.Check, []probe.Endpoint, error)
	// Permit is asked right before each dial. It must not block.
	Permit       func(owner types.NamespacedName, addr netip.AddrPort) error
	MaxEndpoints int // that are probed for others; 0: 10,000
	Log          logr.Logger
	Registerer   prometheus.Registerer // nil: no metrics
}

// Server answers other replicas. It probes what they ask about, and nothing else.
type Server struct {
	options ServerOptions
	engine  *probe.Engine
	wake    chan struct{}

	mu        sync.Mutex
	interests *interests
	peers     map[string]*caller // by fingerprint
	news      chan struct{}      // closed when a verdict has changed
}

// caller is a peer that asks.
type caller struct {
	limiter  *rate.Limiter
	inFlight int
}

// NewServer returns a Server that answers once it is started.
func NewServer(options ServerOptions) *Server {
	if options.MaxEndpoints <= 0 {
		options.MaxEndpoints = defaultMaxEndpoints
	}
	s := &Server{
		options: options, wake: make(chan struct{}, 1), news: make(chan struct{}),
		interests: newInterests(options.MaxEndpoints), peers: map[string]*caller{},
	}
	s.engine = probe.New(probe.Options{
		Notify: func(types.NamespacedName) { s.announce() }, Permit: options.Permit,
		MaxConcurrent: maxConcurrentProbes, AtOnce: true, Log: options.Log,
	})
	promauto.With(options.Registerer).NewGaugeFunc(prometheus.GaugeOpts{
		Name: "externalbackend_witness_endpoints",
		Help: "Endpoints that this replica probes because another replica has asked about them.",
	}, func() float64 {
		s.mu.Lock()
		defer s.mu.Unlock()
		return float64(s.interests.total)
	})
	return s
}

// Changed makes the Server look whether there are other replicas.
func (s *Server) Changed() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// announce wakes the requests that wait for opinions.
func (s *Server) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.news)
	s.news = make(chan struct{})
}

// Start answers until ctx ends. It listens while there are other replicas only.
func (s *Server) Start(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() {
		if err := s.engine.Start(ctx); err != nil {
			s.options.Log.Error(err, "Can't probe for other replicas")
		}
	})
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	var stop func()
	failed := false // to listen, the last time
	defer func() {
		if stop != nil {
			stop()
		}
	}()
	for {
		peers := s.options.Peers()
		switch {
		case len(peers) > 0 && stop == nil:
			var err error
			if stop, err = s.listen(ctx, &group); err != nil && !failed {
				s.options.Log.Error(err, "Can't listen for other replicas, so nobody can ask this one")
			}
			failed = err != nil
		case len(peers) == 0 && stop != nil:
			stop()
			stop = nil
		}
		s.sweep(peers)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-s.wake:
		}
	}
}

// listen opens the port. stop closes it with all connections.
func (s *Server) listen(ctx context.Context, group *sync.WaitGroup) (stop func(), err error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", s.options.Address)
	if err != nil {
		return nil, err
	}
	server := &http.Server{
		Handler:           http.HandlerFunc(s.answer),
		TLSConfig:         tlsConfig(s.options.Certificate, s.isPeer),
		ReadTimeout:       requestTimeout,
		ReadHeaderTimeout: requestTimeout,
		WriteTimeout:      2 * requestTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    4 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // strangers could fill a log
		TLSNextProto:      map[string]func(*http.Server, *tls.Conn, http.Handler){},
	}
	group.Go(func() {
		err := server.ServeTLS(netutil.LimitListener(listener, maxConnections), "", "")
		if !errors.Is(err, http.ErrServerClosed) {
			s.options.Log.Error(err, "Can't answer other replicas")
		}
	})
	return func() { _ = server.Close() }, nil
}

func (s *Server) isPeer(fingerprint string) bool {
	return slices.ContainsFunc(s.options.Peers(), func(p Peer) bool { return p.Fingerprint == fingerprint })
}

// sweep forgets what nobody asks about any more, and who no longer lives.
func (s *Server) sweep(peers []Peer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for owner, i := range s.interests.expire(time.Now()) {
		if i == nil {
			s.engine.Forget(owner)
		} else {
			s.engine.Sync(owner, i.check, i.endpoints)
		}
	}
	for fingerprint, c := range s.peers {
		if c.inFlight == 0 && !slices.ContainsFunc(peers, func(p Peer) bool { return p.Fingerprint == fingerprint }) {
			delete(s.peers, fingerprint)
		}
	}
}

// answer answers one request.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	fingerprint := fingerprintOf(r.TLS.PeerCertificates[0].Raw)
	switch {
	case !s.isPeer(fingerprint): // its Lease has ended since the handshake
		http.Error(w, errStranger.Error(), http.StatusForbidden)
		return
	case r.Method != http.MethodPost || r.URL.Path != path:
		http.NotFound(w, r)
		return
	case !s.enter(fingerprint):
		http.Error(w, "too many requests", http.StatusTooManyRequests)
		return
	}
	defer s.leave(fingerprint)
	message, err := readRequest(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	out := response{Opinions: s.opinions(r.Context(), message)}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(out); err != nil {
		s.options.Log.V(1).Info("Can't answer another replica", "error", err.Error())
	}
}

// enter admits a request of a peer.
func (s *Server) enter(fingerprint string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.peers[fingerprint]
	if c == nil {
		c = &caller{limiter: rate.NewLimiter(maxRate, maxBurst)}
		s.peers[fingerprint] = c
	}
	if c.inFlight >= maxInFlight || !c.limiter.Allow() {
		return false
	}
	c.inFlight++
	return true
}

func (s *Server) leave(fingerprint string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers[fingerprint].inFlight--
}

// opinions probes what a request asks about, and returns what is known. If the request waits for
// opinions, it waits for the first that comes, and those that come with it.
func (s *Server) opinions(ctx context.Context, message *request) []opinion {
	probed := s.probe(ctx, message)
	news, out := s.look(message, probed)
	if !message.Hold || !slices.Contains(out, pending) {
		return out
	}
	over := time.NewTimer(maxHold)
	defer over.Stop()
	waiting := count(out, pending)
	for count(out, pending) == waiting {
		select {
		case <-ctx.Done():
			return out
		case <-over.C:
			return out
		case <-news:
			news, out = s.look(message, probed)
		}
	}
	gathered := time.NewTimer(gatherTime)
	defer gathered.Stop()
	select {
	case <-ctx.Done():
	case <-gathered.C:
	}
	_, out = s.look(message, probed)
	return out
}

func count(opinions []opinion, which opinion) (n int) {
	for _, o := range opinions {
		if o == which {
			n++
		}
	}
	return n
}

// probe makes the engine probe what a request asks about, and returns what it probes of that.
func (s *Server) probe(ctx context.Context, message *request) map[subject]bool {
	type revision struct {
		owner      types.NamespacedName
		generation int64
	}
	ids := map[revision][]probe.ID{}
	s.restart(message)
	for i := range message.Questions {
		q := &message.Questions[i]
		about := q.subject()
		key := revision{about.owner, q.Generation}
		ids[key] = append(ids[key], about.id)
	}

	probed := map[subject]bool{}
	ctx, cancel := context.WithTimeout(ctx, subjectTimeout)
	defer cancel()
	for key, asked := range ids {
		s.mu.Lock()
		renewed := s.interests.renew(key.owner, key.generation, asked, time.Now())
		s.mu.Unlock()
		if renewed {
			for _, id := range asked {
				probed[subject{key.owner, id}] = true
			}
			continue
		}
		check, endpoints, err := s.options.Subject(ctx, key.owner, key.generation, asked)
		if err != nil || len(endpoints) == 0 {
			s.options.Log.V(1).Info("Another replica asks about what this one does not probe",
				"namespace", key.owner.Namespace, "name", key.owner.Name, "reason", err)
			continue
		}
		silent := time.Duration(message.SilentMilliseconds) * time.Millisecond
		s.mu.Lock()
		i, busy := s.interests.add(key.owner, key.generation, check, endpoints, silent, time.Now())
		s.engine.Sync(key.owner, i.check, i.endpoints)
		s.mu.Unlock()
		for _, e := range endpoints {
			probed[subject{key.owner, e.ID}] = !busy[e.ID]
		}
	}
	return probed
}

// restart forgets what was known about the endpoints for which a request asks for a new opinion.
func (s *Server) restart(message *request) {
	anew := map[types.NamespacedName]map[probe.ID]bool{}
	for i := range message.Questions {
		if q := &message.Questions[i]; q.Begin {
			about := q.subject()
			if anew[about.owner] == nil {
				anew[about.owner] = map[probe.ID]bool{}
			}
			anew[about.owner][about.id] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for owner, ids := range anew {
		if i := s.interests.restart(owner, ids); i != nil {
			s.engine.Sync(owner, i.check, i.endpoints)
		}
	}
}

// look returns what is known now, and a channel that is closed when a verdict changes.
func (s *Server) look(message *request, probed map[subject]bool) (news chan struct{}, out []opinion) {
	s.mu.Lock()
	defer s.mu.Unlock()
	states := map[types.NamespacedName]map[probe.ID]probe.Verdict{}
	out = make([]opinion, len(message.Questions))
	for i := range message.Questions {
		about := message.Questions[i].subject()
		out[i] = refused
		if !probed[about] {
			continue
		}
		known, looked := states[about.owner]
		if !looked {
			known = s.verdictsLocked(about.owner)
			states[about.owner] = known
		}
		switch known[about.id] {
		case probe.Healthy:
			out[i] = healthy
		case probe.Unhealthy:
			out[i] = unhealthy
		default:
			out[i] = pending
		}
	}
	return s.news, out
}

// verdictsLocked returns what the engine knows of an ExternalBackend.
func (s *Server) verdictsLocked(owner types.NamespacedName) map[probe.ID]probe.Verdict {
	out := map[probe.ID]probe.Verdict{}
	i := s.interests.byOwner[owner]
	if i == nil {
		return out
	}
	states := s.engine.States(owner)
	for n := range min(len(states), len(i.endpoints)) {
		out[i.endpoints[n].ID] = states[n].Verdict
	}
	return out
}
