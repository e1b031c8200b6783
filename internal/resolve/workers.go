package resolve

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/external-backend/operator/internal/fairqueue"
)

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

// slowLookup is how long a lookup takes to count as a slow one.
const slowLookup = time.Second

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

// work does lookups until none is due.
func (e *Engine) work(ctx context.Context) {
	for job, ok := e.next(ctx); ok; job, ok = e.next(ctx) {
		begin := time.Now()
		found := e.lookuper.lookup(job.ctx, job.up, job.name, job.t)
		e.notify(e.finish(job, found, time.Since(begin)))
	}
}

// job is a record that a worker is to look up.
type job struct {
	*record
	class class
	ctx   context.Context
}

// next gives a worker its next job. Where there is none, the worker ends.
func (e *Engine) next(ctx context.Context) (_ job, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range classes {
		for e.queues[c].Len() > 0 && ctx.Err() == nil && e.active[c] < c.maxWorkers(e.options.MaxConcurrent) {
			r := e.queues[c].Pop()
			if len(r.users) > 0 {
				e.active[c]++
				return job{record: r, class: c, ctx: r.lookupContext(ctx)}, true
			}
			r.busy = false
			e.retireLocked(r, time.Now())
		}
	}
	e.workers--
	return job{}, false
}

// finish ends a lookup, takes over its result, and returns the owners whose answers it changes. A
// lookup that was cut off has no result. A question that came to want its record meanwhile makes
// the record due again.
func (e *Engine) finish(j job, found result, took time.Duration) map[types.NamespacedName]struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	now, r := time.Now(), j.record
	r.busy = false
	e.active[j.class]--
	if j.ctx.Err() != nil {
		e.rescheduleLocked(r, now)
		return nil
	}

	e.metrics.lookups.WithLabelValues(found.label()).Inc()
	e.metrics.duration.Observe(took.Seconds())
	r.slow = took >= slowLookup
	before := r.kind
	changed := e.applyLocked(r, found, now)
	if before != r.kind {
		e.options.Log.V(1).Info("DNS answers differ in kind", "name", r.name, "result", found.label())
	}

	owners := map[types.NamespacedName]struct{}{}
	if changed {
		for q := range r.users {
			if e.updateLocked(q, now) {
				owners[q.owner.key] = struct{}{}
			}
			if other := q.otherFamilyOf(r); other != nil { // it depends on the state of this one
				e.rescheduleLocked(other, now)
			}
		}
	}
	e.rescheduleLocked(r, now)
	return owners
}
