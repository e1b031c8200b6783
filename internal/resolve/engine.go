package resolve

import (
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

func (e *Engine) notify(owners map[types.NamespacedName]struct{}) {
	for o := range owners {
		e.options.Notify(o)
	}
}

// scheduleLocked sets a timer, and wakes Start where the time comes before Start would look.
func (e *Engine) scheduleLocked(t *timer, at time.Time) {
	e.schedule.set(t, at)
	if !at.IsZero() && at.Before(e.wakeAt) {
		e.wakeAt = at
		select {
		case e.wake <- struct{}{}:
		default:
		}
	}
}

// class is the kind of queue in which a record waits for a worker. A name that fails or takes long
// can hold a worker for the whole lookup timeout. Such names must not delay those that answer, and
// both together must not delay new ones.
type class int

const (
	classKnown class = iota // its latest lookup had an answer
	classNew                // no lookup has ended yet
	classSlow               // its latest lookup failed or took long
	classes
)

// maxWorkers returns how many of n workers may do lookups of the class at a time.
func (c class) maxWorkers(n int) int {
	return max(1, [classes]int{classKnown: n - n/4, classNew: n / 2, classSlow: n / 8}[c])
}

// class returns the class of the record's next lookup.
func (r *record) class() class {
	switch {
	case r.kind == kindNone:
		return classNew
	case r.kind == kindFailed, r.slow:
		return classSlow
	default:
		return classKnown
	}
}

// namespace returns the namespace under which the record waits in the queue: of its users'
// namespaces, the one with the fewest records there.
func (r *record) namespace(queue *fairqueue.Queue[*record]) string {
	namespace, ahead := "", -1
	for q := range r.users {
		if n := queue.LenOf(q.owner.key.Namespace); ahead < 0 || n < ahead {
			namespace, ahead = q.owner.key.Namespace, n
		}
	}
	return namespace
}
