package controllers

import (
	"context"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// coalesceWindow is how long after a write of slices further changes of health of the same
// ExternalBackend are gathered. A burst of them costs one write, and a single one does not wait.
const coalesceWindow = 250 * time.Millisecond

// urgentPriority is the priority in the workqueue of changes of health, and of the siblings of a
// deleted ExternalBackend. Changes by users have 0, so that many new objects delay neither.
const urgentPriority = 10

// workQueue is the queue of a controller.
type workQueue = workqueue.TypedRateLimitingInterface[reconcile.Request]

// engineQueue enqueues the ExternalBackends for which an engine has news. It carries keys only: the
// reconcile reads the news itself.
type engineQueue struct {
	// lastWrite returns when slices of an ExternalBackend were last written.
	lastWrite func(types.NamespacedName) time.Time

	queue atomic.Pointer[workQueue] // nil until the controller starts
}

// start is called by the controller. Keys that were notified before that need not be enqueued,
// because the first reconciles see everything.
func (h *engineQueue) start(_ context.Context, queue workQueue) error {
	h.queue.Store(&queue)
	return nil
}

// notify enqueues an ExternalBackend before those that users have changed. It never blocks.
func (h *engineQueue) notify(key types.NamespacedName) {
	if queue := h.queue.Load(); queue != nil {
		wait := max(0, coalesceWindow-time.Since(h.lastWrite(key)))
		addUrgent(*queue, reconcile.Request{NamespacedName: key}, wait)
	}
}

// add enqueues requests with the ordinary priority.
func (h *engineQueue) add(requests []reconcile.Request) {
	queue := h.queue.Load()
	if queue == nil {
		return
	}
	for _, request := range requests {
		(*queue).Add(request)
	}
}

// addUrgent enqueues a request after a while, with urgentPriority.
func addUrgent(queue workQueue, request reconcile.Request, after time.Duration) {
	if q, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		q.AddWithOpts(priorityqueue.AddOpts{After: after, Priority: new(urgentPriority)}, request)
		return
	}
	queue.AddAfter(request, after)
}
