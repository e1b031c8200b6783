package controllers

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
)

// reconciliation is one attempt to bring the objects of one ExternalBackend to its spec.
type reconciliation struct {
	*Reconciler
	// backend is the ExternalBackend with the spec that is in force.
	backend *v1alpha1.ExternalBackend
	// observed is what the cluster said. Nothing changes it.
	observed *observation
	state    *backendState

	// service is the Service as read or written last. If it can't get the ports of the spec, service
	// is a copy with those ports, and oldService is the real one. Endpoints are published for the
	// ports of both.
	service, oldService *corev1.Service
	// slices are ours, as they were read or created.
	slices []*discoveryv1.EndpointSlice
	// planned returns what the slices are planned to publish. It is nil if they publish nothing.
	planned func() []endpointslice.Endpoint
	result  result
}

// desired returns what the slices are planned to publish. Only failed writes and old ports need it.
func (r *reconciliation) desired() []endpointslice.Endpoint {
	if r.planned == nil {
		return nil
	}
	return r.planned()
}

// newReconciliation begins an attempt. events are those of the attempts before it.
func newReconciliation(
	r *Reconciler, observed *observation, state *backendState, events []pendingEvent,
) *reconciliation {
	return &reconciliation{
		Reconciler: r, backend: observed.backend, observed: observed, state: state,
		service: observed.service, slices: observed.slices,
		result: result{events: events, statusInput: plan.StatusInput{
			Backend: observed.backend, Service: observed.service, Previous: observed.status,
			Override: observed.overridden.Applied, TargetMemory: state.reported.targets, Refusals: state.reported.refusals,
			Invalid: observed.invalid, Now: r.now(),
		}},
	}
}

func (r *reconciliation) key() types.NamespacedName { return client.ObjectKeyFromObject(r.backend) }

// managesService reports whether the Service is ours to create and write.
func (r *reconciliation) managesService() bool { return r.backend.Spec.ServiceRef == nil }

// result is what one attempt did, for status and events.
type result struct {
	statusInput plan.StatusInput
	// next is when time alone changes something; zero for never.
	next time.Time
	err  error
	// stale is set when a write showed that the plan was based on the past. The state knows better
	// now.
	stale bool
	// refused is set when the API server refused a write for a reason that hardly goes away soon.
	refused bool
	// outOfTime is set when there was no time for all writes.
	outOfTime bool
	// events are those that do not follow from status.
	events []pendingEvent
}

// fail reports in status why something is not programmed, and has the reconcile repeated if an
// error is the reason. The first reason counts.
func (r *result) fail(reason, message string, err error) {
	if r.ok() {
		r.statusInput.Programmed, r.statusInput.ProgrammedMessage = reason, message
	}
	switch {
	case err == nil, apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause): // all is deleted with its namespace
	case refused(err):
		r.refused = true
	case r.err == nil:
		r.err = err
	}
}

// failWrite reports what can't be done, and what the API server said.
func (r *result) failWrite(problem string, err error) {
	r.fail(v1alpha1.ReasonApplyFailed, problem+": "+refusal(err), err)
}

// ok reports whether nothing has failed so far.
func (r *result) ok() bool { return r.statusInput.Programmed == "" }

// assumePorts goes on as if the Service had the ports of the spec, which it can't be given at
// present. Endpoints are published for these ports and for those that the Service has.
func (r *reconciliation) assumePorts() {
	if r.service == nil || !r.managesService() {
		return
	}
	if next, lags := plan.WithPorts(r.backend, r.service); lags {
		r.oldService, r.service = r.service, next
	}
}

// refusedRetry is the longest pause between two attempts of a write that was refused. A node port
// may have become free, a quota may have been raised, a webhook corrected.
const refusedRetry = 30 * time.Second

// refused reports whether the API server refuses a write because of its content or its author. Only
// a change by somebody can help, so the write is not repeated at once.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err)
}

// refusal is what the API server said, without the name of the object in front.
func refusal(err error) string {
	status, ok := err.(apierrors.APIStatus)
	if ok && status.Status().Details != nil && len(status.Status().Details.Causes) > 0 {
		var texts []string
		for _, c := range status.Status().Details.Causes {
			texts = append(texts, strings.TrimPrefix(c.Field+": "+c.Message, ": "))
		}
		return strings.Join(texts[:min(len(texts), 3)], "; ")
	}
	if apierrors.ReasonForError(err) == metav1.StatusReasonUnknown {
		return "the API server can't be reached"
	}
	return err.Error()
}
