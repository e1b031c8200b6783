package resolve

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/fairqueue"
)

const (
	defaultMaxAddresses  = 1024
	defaultMaxConcurrent = 256
)

// Engine resolves what its owners want, each record once for all of them. One schedule holds all
// times, so that a name costs no goroutine; a bounded number of workers do the lookups.
type Engine struct {
	options  Options
	lookuper *lookuper
	metrics  *metrics
	wake     chan struct{} // the schedule's first time may have come nearer

	mu       sync.Mutex
	owners   map[types.NamespacedName]*owner
	records  map[recordKey]*record
	schedule schedule
	sleeps   time.Time                         // until when Start waits; zero = it looks at the schedule before it does
	ready    [classes]fairqueue.Queue[*record] // due; by namespace, so that nobody waits for all the names of somebody else
	asking   [classes]int                      // with a worker
	workers  int
	stale    map[string]int // names and how many questions serve them stale
	started  bool
}

// New returns an engine that records what it is asked for and does nothing before Start.
func New(o Options) *Engine {
	return newEngine(o, newExchanger())
}

func newEngine(o Options, a asker) *Engine {
	if o.MaxAddresses <= 0 {
		o.MaxAddresses = defaultMaxAddresses
	}
	if o.MaxConcurrent <= 0 {
		o.MaxConcurrent = defaultMaxConcurrent
	}
	if o.Notify == nil {
		o.Notify = func(types.NamespacedName) {}
	}
	return &Engine{
		options:  o,
		lookuper: newLookuper(a, o.ResolvConf),
		metrics:  newMetrics(o.Registerer),
		wake:     make(chan struct{}, 1),
		owners:   map[types.NamespacedName]*owner{},
		records:  map[recordKey]*record{},
		stale:    map[string]int{},
	}
}

// Sync makes wanted all that the owner wants, under cfg. It never waits; changed settings show in
// the next Snapshot.
func (e *Engine) Sync(key types.NamespacedName, cfg Config, wanted []Wanted) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	o, known := e.owners[key]
	if !known {
		o = &owner{key: key, questions: map[Question]*question{}}
		e.owners[key] = o
	}
	before, up := *o, upstreamOf(cfg)
	moved := known && up.key != before.upstream.key
	if !known || moved {
		o.upstream = up
	}
	o.settings = settings{minTTL: cfg.MinTTL, maxTTL: cfg.MaxTTL, stale: cfg.Stale, removalDelay: cfg.RemovalDelay}

	added := e.syncQuestionsLocked(o, wanted, now)
	for _, q := range o.questions {
		_, isNew := added[q.Question]
		if !isNew && !moved && o.settings == before.settings {
			continue
		}
		if moved && !isNew {
			e.moveLocked(q, now)
		}
		e.updateLocked(q, now)
		e.rescheduleAllLocked(q, now)
	}
}

// syncQuestionsLocked makes the owner's questions the wanted ones and returns the new ones.
func (e *Engine) syncQuestionsLocked(o *owner, wanted []Wanted, now time.Time) map[Question]struct{} {
	keep, added := map[Question]struct{}{}, map[Question]struct{}{}
	for _, w := range wanted {
		keep[w.Question] = struct{}{}
		q, ok := o.questions[w.Question]
		if !ok {
			added[w.Question] = struct{}{}
			q = &question{Question: w.Question, owner: o, seedFrom: now}
			q.timer.question = q
			o.questions[w.Question] = q
			e.acquireAllLocked(q, now)
		}
		if _, isNew := added[w.Question]; isNew {
			q.addSeeds(w.Seed)
		}
	}
	for _, q := range o.questions {
		if _, ok := keep[q.Question]; !ok {
			e.dropLocked(q, now)
		}
	}
	return added
}

// Forget ends all that the owner wants.
func (e *Engine) Forget(key types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	o := e.owners[key]
	if o == nil {
		return
	}
	now := time.Now()
	for _, q := range o.questions {
		e.dropLocked(q, now)
	}
	delete(e.owners, key)
}

// Snapshot returns the owner's answers, one for each of its questions.
func (e *Engine) Snapshot(key types.NamespacedName) map[Question]Answer {
	e.mu.Lock()
	defer e.mu.Unlock()
	o := e.owners[key]
	if o == nil {
		return nil
	}
	answers := make(map[Question]Answer, len(o.questions))
	for k, q := range o.questions {
		answers[k] = q.answer
	}
	return answers
}

// Start resolves until the context ends, and returns when all work has stopped. It can be called
// once.
func (e *Engine) Start(ctx context.Context) error {
	if err := e.begin(); err != nil {
		return err
	}
	var workers sync.WaitGroup
	defer e.lookuper.close()
	defer workers.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case <-e.wake:
		}
		wait, spawn, changed := e.advance()
		for range spawn {
			workers.Go(func() { e.work(ctx) })
		}
		e.notify(changed)
		timer.Reset(wait)
	}
}

// begin lets the seeds' time start: a manager may have waited for its leadership before.
func (e *Engine) begin() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.started {
		return errors.New("the DNS engine was started before")
	}
	e.started = true
	now := time.Now()
	for _, o := range e.owners {
		for _, q := range o.questions {
			q.seedFrom = now
			e.updateLocked(q, now)
		}
	}
	return nil
}

const idleWait = time.Hour // when nothing is scheduled

// advance does what is due: it hands records to workers, of whom spawn must be started, and brings
// answers to now.
func (e *Engine) advance() (wait time.Duration, spawn int, changed []types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	notify := map[types.NamespacedName]struct{}{}
	for t := e.schedule.due(now); t != nil; t = e.schedule.due(now) {
		switch {
		case t.question != nil:
			if e.updateLocked(t.question, now) {
				notify[t.question.owner.key] = struct{}{}
			}
		case len(t.record.users) == 0:
			delete(e.records, t.record.recordKey)
		default:
			t.record.busy = true
			line := &e.ready[t.record.class()]
			line.Push(t.record.namespace(line), t.record)
		}
	}
	for c := range classes {
		spawn += min(e.ready[c].Len(), c.share(e.options.MaxConcurrent)-e.asking[c])
	}
	spawn = min(spawn, e.options.MaxConcurrent-e.workers)
	e.workers += spawn
	wait = idleWait
	if len(e.schedule) > 0 {
		wait = e.schedule[0].at.Sub(now)
	}
	e.sleeps = now.Add(wait)
	return wait, spawn, keys(notify)
}

// class is how a record stands in line for a worker. Names that fail or take long, each of which
// can hold a worker for the whole lookup timeout, must not make those wait that answer, and all of
// these together not those that are new.
type class int

const (
	classKnown class = iota // its latest lookup had an answer
	classNew
	classSlow // its latest lookup failed or took long
	classes
)

// slowLookup is how long a lookup takes to count as a slow one.
const slowLookup = time.Second

// share is how many of n workers may be with one class at a time.
func (c class) share(n int) int {
	return max(1, [classes]int{classKnown: n - n/4, classNew: n / 2, classSlow: n / 8}[c])
}

// namespace is under which one a record stands in line: that of its users' whose others are the
// fewest there.
func (r *record) namespace(line *fairqueue.Queue[*record]) string {
	namespace, ahead := "", -1
	for q := range r.users {
		if n := line.LenOf(q.owner.key.Namespace); ahead < 0 || n < ahead {
			namespace, ahead = q.owner.key.Namespace, n
		}
	}
	return namespace
}

// work does lookups until none is due.
func (e *Engine) work(ctx context.Context) {
	for job, ok := e.next(ctx); ok; job, ok = e.next(ctx) {
		begin := time.Now()
		found := e.lookuper.lookup(job.ctx, job.up, job.name, job.t)
		var changed []types.NamespacedName
		if took := time.Since(begin); job.ctx.Err() == nil {
			e.metrics.observe(found, took)
			changed = e.learn(job.record, found, took >= slowLookup)
		} else { // what was cut off says nothing
			e.abandon(job.record)
		}
		e.done(job.class)
		e.notify(changed)
	}
}

// job is a record that a worker is to look up.
type job struct {
	*record
	class class
	ctx   context.Context
}

// next gives a worker its next job; where there is none, the worker ends.
func (e *Engine) next(ctx context.Context) (_ job, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range classes {
		for e.ready[c].Len() > 0 && ctx.Err() == nil && e.asking[c] < c.share(e.options.MaxConcurrent) {
			r := e.ready[c].Pop()
			if len(r.users) > 0 {
				e.asking[c]++
				return job{record: r, class: c, ctx: r.lookupContext(ctx)}, true
			}
			r.busy = false
			e.retireLocked(r, time.Now())
		}
	}
	e.workers--
	return job{}, false
}

func (e *Engine) done(c class) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asking[c]--
}

// abandon ends a lookup without a result. Who has come to want the record since has it asked for
// anew.
func (e *Engine) abandon(r *record) {
	e.mu.Lock()
	defer e.mu.Unlock()
	r.busy = false
	e.rescheduleLocked(r, time.Now())
}

// learn takes over a lookup's result and returns the owners whose answers it changes.
func (e *Engine) learn(r *record, found result, slow bool) []types.NamespacedName {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	r.busy, r.slow = false, slow
	before := r.kind
	changed := e.applyLocked(r, found, now)
	if before != r.kind {
		e.options.Log.V(1).Info("DNS answers differ in kind", "name", r.name, "result", found.label())
	}
	notify := map[types.NamespacedName]struct{}{}
	if changed {
		for q := range r.users {
			if e.updateLocked(q, now) {
				notify[q.owner.key] = struct{}{}
			}
			e.rescheduleSiblingLocked(q, r, now)
		}
	}
	e.rescheduleLocked(r, now)
	return keys(notify)
}

func (e *Engine) notify(owners []types.NamespacedName) {
	for _, o := range owners {
		e.options.Notify(o)
	}
}

func keys(m map[types.NamespacedName]struct{}) []types.NamespacedName {
	return slices.Collect(maps.Keys(m))
}
