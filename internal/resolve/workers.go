package resolve

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

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

// slowLookup is how long a lookup takes to count as a slow one.
const slowLookup = time.Second

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
