package controllers

import (
	"cmp"
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/writecache"
)

// maxAttempts bounds how often a reconcile plans again at once because a write showed that the
// cache was behind.
const maxAttempts = 3

// Reconcile brings the objects of one ExternalBackend to its spec. If the API server is slow, it
// returns early, and returns the result when it is called again.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return r.flights.run(ctx, req, r.reconcile)
}

func (r *Reconciler) reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var b v1alpha1.ExternalBackend
	err := r.Get(ctx, req.NamespacedName, &b)
	switch {
	case apierrors.IsNotFound(err):
		r.forget(req.NamespacedName)
		if !r.owns(req.NamespacedName) {
			return ctrl.Result{}, nil
		}
		orphansDue, err := r.removeOrphans(ctx, req.NamespacedName)
		overridesDue, overrideErr := r.reportAbsence(ctx, req.NamespacedName)
		return ctrl.Result{RequeueAfter: r.after(earlier(orphansDue, overridesDue))}, cmp.Or(err, overrideErr)
	case err != nil:
		return ctrl.Result{}, err
	case !r.ownsBackend(&b), isBeingCollected(&b):
		r.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	return r.reconcileBackend(ctx, &b)
}

// reconcileBackend observes the cluster, acts, and reports.
func (r *Reconciler) reconcileBackend(ctx context.Context, b *v1alpha1.ExternalBackend) (ctrl.Result, error) {
	key := client.ObjectKeyFromObject(b)
	state, term := r.states.of(key), r.term()
	if state.uid != b.UID || state.term != term { // a new object of that name, or an old memory
		r.forget(key)
		state = r.states.of(key)
		state.uid, state.term = b.UID, term
	}

	var events []pendingEvent
	for attempt := 1; ; attempt++ {
		observed, err := r.observe(ctx, b, state)
		if err != nil {
			return ctrl.Result{}, err
		}
		if deleted, err := r.isDeleted(ctx, b, observed); deleted || err != nil {
			r.forget(key)
			return ctrl.Result{}, err
		}

		rec := newReconciliation(r, observed, state, events)
		rec.act(ctx)
		rec.noteWithdrawal()
		if rec.result.stale && attempt < maxAttempts {
			events = rec.result.events
			continue
		}
		return rec.finish(ctx)
	}
}

// act writes the Service, decides about the slices, and does what was decided. It only collects
// what to report.
func (r *reconciliation) act(ctx context.Context) {
	r.setServiceOwner(ctx)

	conflict, why := r.findServiceConflict()
	if r.observed.specKnown {
		r.updateReferences(ctx)
		if conflict == noConflict && r.backend.DeletionTimestamp.IsZero() {
			conflict = r.ensureService(ctx)
		}
	}
	d := decide(situation{
		backend: r.backend, specKnown: r.observed.specKnown, conflict: conflict,
		service: r.service, hasSlices: len(r.slices) > 0,
	})

	if d.programmed != "" && d.programmed != v1alpha1.ReasonProgrammed {
		r.result.fail(d.programmed, cmp.Or(why, serviceNotFound(r.backend)), nil)
	}
	if conflict == otherConflict {
		r.assumePorts()
	}
	switch d.action {
	case keep:
	case keepPermitted:
		r.keepPermitted(ctx)
	case withdrawAll:
		r.withdrawAll(ctx)
	case reportEmpty:
		r.reportEmpty()
	case publishName:
		r.publishName(ctx)
	case publish:
		r.publish(ctx)
	}
	r.result.statusInput.Programmed = cmp.Or(r.result.statusInput.Programmed, d.programmed)
}

// updateReferences reads the Secrets and ConfigMaps of the spec, if that is due.
func (r *reconciliation) updateReferences(ctx context.Context) {
	refs := readReferences(ctx, r.Live, r.backend, r.state.planning.refs, r.now())
	r.state.planning.refs = refs
	r.result.next = earlier(refs.next(r.backend), r.observed.retainedUntil)
	r.result.statusInput.References = &refs.problem
}

// finish reports what was done, and returns when to reconcile again.
func (r *reconciliation) finish(ctx context.Context) (ctrl.Result, error) {
	statusDue, err := r.report(ctx)
	overridesDue, overrideErr := r.reportOverrides(ctx, r.observed.overrides, r.observed.overridden)
	if err := cmp.Or(r.result.err, err, overrideErr); err != nil {
		return ctrl.Result{}, err
	}
	return ctrl.Result{RequeueAfter: r.requeueAfter(earlier(statusDue, overridesDue))}, nil
}

// requeueAfter returns how long to wait for the first moment at which something changes by time
// alone; 0 for never. What is to be reported is due at reportDue.
func (r *reconciliation) requeueAfter(reportDue time.Time) time.Duration {
	next := r.retryAt()
	if r.state.writes.AwaitingCache() {
		next = earlier(next, r.now().Add(writecache.CreationTimeout))
	}
	reported := &r.state.reported
	summaryDue := earlier(reported.events.summaryDue(), reported.logged.summaryDue())
	return r.after(earlier(next, earlier(reportDue, summaryDue)))
}

// retryAt returns when to reconcile again without an event; zero for never. A refusal is no error:
// users find it in status, and the pause before the next attempt doubles each time.
func (r *reconciliation) retryAt() time.Time {
	refusals := &r.state.planning.refusals
	switch {
	case r.result.outOfTime:
		return r.now()
	case !r.result.refused:
		*refusals = 0
		return r.result.next
	}
	pause := min(time.Second<<min(*refusals, 10), refusedRetry)
	*refusals++
	return earlier(r.result.next, r.now().Add(pause))
}
