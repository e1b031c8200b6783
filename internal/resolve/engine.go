package resolve

import (
	"context"
	"errors"
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
// times, so that a name costs no goroutine. A bounded number of workers do the lookups.
type Engine struct {
	options  Options
	lookuper *lookuper
	metrics  *metrics
	wake     chan struct{} // the schedule's first time may be earlier now

	mu       sync.Mutex
	owners   map[types.NamespacedName]*owner
	records  map[recordKey]*record
	schedule schedule
	wakeAt   time.Time                         // when Start looks at the schedule next; zero = before its first look
	queues   [classes]fairqueue.Queue[*record] // due records, by namespace
	active   [classes]int                      // records with a worker
	workers  int
	stale    map[string]int // names that serve stale, with the number of their questions
	started  bool
}

// New returns an engine. Before Start, it notes what Sync asks for and sends no query.
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

// Sync replaces what the owner wants, and its settings. It never waits for DNS. Changed settings
// show in the next Snapshot.
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
	o.settings = settings{
		minTTL: cfg.MinTTL, maxTTL: cfg.MaxTTL, stale: cfg.Stale, removalDelay: cfg.RemovalDelay,
	}

	for q, isNew := range e.syncQuestionsLocked(o, wanted, now) {
		if !isNew && !moved && o.settings == before.settings {
			continue
		}
		if moved && !isNew {
			e.moveLocked(q, now)
		}
		e.updateLocked(q, now)
		for _, r := range q.records() {
			e.rescheduleLocked(r, now)
		}
	}
}

// syncQuestionsLocked makes the owner's questions the wanted ones. For each it returns whether it
// is new.
func (e *Engine) syncQuestionsLocked(o *owner, wanted []Wanted, now time.Time) map[*question]bool {
	isNew := make(map[*question]bool, len(wanted))
	for _, w := range wanted {
		q, ok := o.questions[w.Question]
		if !ok {
			q = &question{Question: w.Question, owner: o, seedExpiry: now}
			q.timer.question = q
			o.questions[w.Question] = q
			e.acquireAllLocked(q, now)
		}
		isNew[q] = isNew[q] || !ok
		if isNew[q] {
			q.addSeeds(w.Seed)
		}
	}
	for _, q := range o.questions {
		if _, ok := isNew[q]; !ok {
			e.dropLocked(q, now)
		}
	}
	return isNew
}

// Forget removes the owner and all that it wants.
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

// begin notes that the engine has started. The seeds expire now and not at their Sync, because the
// manager may have waited for leadership since.
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
			q.seedExpiry = now
			e.updateLocked(q, now)
		}
	}
	return nil
}

// idleWait is how long Start waits while nothing is scheduled.
const idleWait = time.Hour

// advance does what is due: it queues records for the workers, of whom spawn must be started, and
// brings answers to now. It returns how long there is nothing to do, and the owners whose answers
// changed.
func (e *Engine) advance() (wait time.Duration, spawn int, changed map[types.NamespacedName]struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()

	changed = map[types.NamespacedName]struct{}{}
	for t, _, ok := e.schedule.PopUntil(now); ok; t, _, ok = e.schedule.PopUntil(now) {
		switch {
		case t.question != nil:
			if e.updateLocked(t.question, now) {
				changed[t.question.owner.key] = struct{}{}
			}
		case len(t.record.users) == 0:
			delete(e.records, t.record.recordKey)
		default:
			t.record.busy = true
			queue := &e.queues[t.record.class()]
			queue.Push(t.record.namespace(queue), t.record)
		}
	}

	for c := range classes {
		spawn += min(e.queues[c].Len(), c.maxWorkers(e.options.MaxConcurrent)-e.active[c])
	}
	spawn = min(spawn, e.options.MaxConcurrent-e.workers)
	e.workers += spawn

	wait = idleWait
	if _, at, ok := e.schedule.First(); ok {
		wait = at.Sub(now)
	}
	e.wakeAt = now.Add(wait)
	return wait, spawn, changed
}

func (e *Engine) notify(owners map[types.NamespacedName]struct{}) {
	for o := range owners {
		e.options.Notify(o)
	}
}
