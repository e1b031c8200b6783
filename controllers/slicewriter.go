package controllers

import (
	"cmp"
	"context"
	"slices"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// writesTimeout bounds each of the three steps: create, update, delete. The next plan decides about
// the slices that are left, from what is known by then.
const writesTimeout = 30 * time.Second

// maxTakenNames bounds how many names of slices are remembered because objects of others have them.
const maxTakenNames = 100

// applySlices writes the planned changes in their order. A write that fails stops no other, except
// those that would first remove what the failed one was to publish or to make ready. It reports
// whether all writes succeeded.
func (r *reconciliation) applySlices(ctx context.Context, changes endpointslice.Changes) bool {
	w := sliceWriter{reconciliation: r, ctx: ctx, current: make(map[string]*discoveryv1.EndpointSlice, len(r.slices))}
	for _, s := range r.slices {
		w.current[s.Name] = s
	}

	w.each(r.state.planning.creation.sort(changes.Create), w.create)
	w.each(changes.Update, w.update)
	w.each(changes.Delete, w.delete)

	if w.wrote {
		r.state.lastWrite.Store(new(r.now()))
	}
	r.result.outOfTime = r.result.outOfTime || w.late
	if w.err != nil {
		r.result.failWrite("EndpointSlices can't be written", w.err)
	}
	if w.late {
		const message = "EndpointSlices are still being written: the API server takes long to answer."
		r.result.fail(v1alpha1.ReasonApplyFailed, message, nil)
	}
	return w.err == nil && !w.late
}

// sliceWriter applies one plan.
type sliceWriter struct {
	*reconciliation
	ctx context.Context
	// current holds the slices as they are now, by name; failed are those that were not written.
	current map[string]*discoveryv1.EndpointSlice
	failed  []*discoveryv1.EndpointSlice
	unready bool // a write failed that was to make an endpoint ready
	wrote   bool
	late    bool // there was no time for all
	// err is the first that is no conflict, else the latest conflict.
	err error
	// stopCreating is the error after which no more slices are created: the API server refuses, or
	// nobody answers, and there may be very many.
	stopCreating error
}

// each writes the slices as long as there is time.
func (w *sliceWriter) each(list []*discoveryv1.EndpointSlice, write func(*discoveryv1.EndpointSlice)) {
	end := w.now().Add(writesTimeout)
	for _, s := range list {
		if w.now().Before(end) {
			write(s)
			continue
		}
		w.late = true
		w.skip(s)
	}
}

func (w *sliceWriter) create(s *discoveryv1.EndpointSlice) {
	if w.stopCreating != nil {
		w.fail(s, w.stopCreating)
		return
	}

	err := w.Create(w.ctx, s)
	if err == nil {
		w.wrote = true
		w.current[s.Name] = s
		delete(w.state.planning.creation.refused, s.Name)
		w.state.writes.SliceCreated(s, w.now())
		return
	}
	switch {
	case apierrors.IsAlreadyExists(err): // the cache does not show an earlier write yet
		w.reread(s)
	case refused(err), apierrors.ReasonForError(err) == metav1.StatusReasonUnknown: // or nobody answers
		w.stopCreating = err
		w.state.planning.creation.refuse(s)
	}
	w.fail(s, err)
}

func (w *sliceWriter) update(s *discoveryv1.EndpointSlice) {
	if w.wouldUnpublish(s.Name, s) {
		w.updatePostponedSlice(s.Name)
	} else {
		w.write(s)
	}
}

// write updates a slice. If an endpoint could not be made ready, the endpoints that it was to
// replace stay ready.
func (w *sliceWriter) write(s *discoveryv1.EndpointSlice) {
	current := w.current[s.Name]
	if w.unready && current != nil && !endpointslice.MakesReady(current, s) && !w.hasReadyReplacement(s.AddressType) {
		endpointslice.KeepReady(current, s)
		if equality.Semantic.DeepEqual(current, s) {
			return
		}
	}

	err := w.Update(w.ctx, s)
	if err == nil {
		w.wrote = true
		w.current[s.Name] = s
		w.state.writes.SliceUpdated(s)
		return
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		w.reread(s)
	}
	w.fail(s, err)
}

// hasReadyReplacement reports whether an endpoint of that family is ready that is planned to be.
func (w *sliceWriter) hasReadyReplacement(family discoveryv1.AddressType) bool {
	var ofFamily []*discoveryv1.EndpointSlice
	for _, s := range w.current {
		if s.AddressType == family {
			ofFamily = append(ofFamily, s)
		}
	}
	return endpointslice.HasReadyReplacement(endpointslice.Published(ofFamily).Endpoints(), w.desired())
}

func (w *sliceWriter) delete(s *discoveryv1.EndpointSlice) {
	if w.wouldUnpublish(s.Name, nil) {
		w.updatePostponedSlice(s.Name)
	} else {
		w.remove(s)
	}
}

// wouldUnpublish reports whether replacing the slice of that name by next, nil to delete it, would
// remove an endpoint that a failed write was to publish.
func (w *sliceWriter) wouldUnpublish(name string, next *discoveryv1.EndpointSlice) bool {
	current := w.current[name]
	return current != nil && endpointslice.WouldUnpublish(current, next, w.failed)
}

// updatePostponedSlice updates a slice that can't be given up yet. It keeps those of its endpoints
// that are still wanted and that policy allows there, with the conditions that are wanted now.
func (w *sliceWriter) updatePostponedSlice(name string) {
	s := w.current[name]
	if s.DeletionTimestamp != nil {
		return
	}
	alone := []*discoveryv1.EndpointSlice{s}
	permitted := w.filterPublished(alone, nil)
	template := w.template(w.serviceTraits())
	template.Max, template.Labels = max(template.Max, len(s.Endpoints)), endpointslice.OwnLabels(s)

	_, changes := endpointslice.Plan(template, endpointslice.ForPostponed(permitted.Kept, w.desired()), nil, alone)
	for _, s := range changes.Update {
		w.write(s)
	}
	for _, s := range changes.Delete {
		w.remove(s)
	}
}

func (w *sliceWriter) remove(s *discoveryv1.EndpointSlice) {
	err := w.Delete(w.ctx, s, client.Preconditions{UID: &s.UID})
	if err == nil || apierrors.IsNotFound(err) {
		w.wrote = true
		delete(w.current, s.Name)
		w.state.writes.SliceDeleted(s)
		return
	}
	if apierrors.IsConflict(err) {
		w.reread(s)
	}
	w.fail(s, err)
}

// reread asks the API server for the slice, for the next plan.
func (w *sliceWriter) reread(s *discoveryv1.EndpointSlice) {
	var live discoveryv1.EndpointSlice
	switch err := w.Live.Get(w.ctx, client.ObjectKeyFromObject(s), &live); {
	case err == nil && !ours(&live) && len(w.state.planning.takenNames) < maxTakenNames:
		w.state.planning.takeName(live.Name)
		w.result.stale = true
	case err == nil && ours(&live) && cmp.Or(live.Labels[v1alpha1.LabelName], w.backend.Name) == w.backend.Name:
		w.state.writes.SliceCreated(&live, w.now())
		w.result.stale = true
	case apierrors.IsNotFound(err):
		w.state.writes.SliceDeleted(s)
		w.result.stale = true
	}
}

func (w *sliceWriter) fail(s *discoveryv1.EndpointSlice, err error) {
	w.skip(s)
	if w.err == nil || apierrors.IsConflict(w.err) || apierrors.IsAlreadyExists(w.err) {
		w.err = err
	}
}

// skip records that s was not written. What depends on it is not written either.
func (w *sliceWriter) skip(s *discoveryv1.EndpointSlice) {
	w.failed = append(w.failed, s)
	w.unready = w.unready || endpointslice.MakesReady(w.current[s.Name], s)
}

// creationOrder puts the slices that the API server refused to create behind all others, the last
// refused last. If it refuses only some, all others are created nevertheless.
type creationOrder struct {
	// refused holds the number of the last attempt of each refused slice, by name.
	refused  map[string]int
	attempts int
}

// refuse records that the API server refused to create s.
func (o *creationOrder) refuse(s *discoveryv1.EndpointSlice) {
	o.attempts++
	o.refused[s.Name] = o.attempts
}

// sort returns the slices in the order in which to create them, and forgets all that are no longer
// planned.
func (o *creationOrder) sort(create []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	before := o.refused
	o.refused = map[string]int{}
	if len(before) == 0 {
		return create
	}

	for _, s := range create {
		if n, ok := before[s.Name]; ok {
			o.refused[s.Name] = n
		}
	}
	return slices.SortedStableFunc(slices.Values(create), func(a, b *discoveryv1.EndpointSlice) int {
		return cmp.Compare(o.refused[a.Name], o.refused[b.Name])
	})
}
