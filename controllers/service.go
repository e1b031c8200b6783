package controllers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
)

// maxServiceWrites bounds the writes of one loop: two for a change of type, each once more after a
// conflict.
const maxServiceWrites = 4

// serviceGrace is how long a new ExternalBackend waits for the Service of the slices that it finds,
// so that a restore can bring the Service back with its cluster IP.
const serviceGrace = 30 * time.Second

var errContended = errors.New("the Service was changed by others between each reading and writing")

// setServiceOwner sets the owner reference that deletionPolicy requires. It is a write of its own,
// so that the policy holds whatever happens to the rest of the spec.
func (r *reconciliation) setServiceOwner(ctx context.Context) {
	for range maxServiceWrites {
		if r.service == nil || !r.service.DeletionTimestamp.IsZero() || r.protected(r.backend) {
			return
		}
		next := plan.CorrectOwner(r.backend, r.service)
		if next == nil {
			return
		}

		err := r.writeService(ctx, next)
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			err = r.rereadService(ctx)
		}
		if err != nil {
			r.result.failWrite(fmt.Sprintf("The owner of Service %q can't be written", next.Name), err)
			return
		}
	}
}

// ensureService writes the Service, and before it the slices for ports that it gains. It returns
// unsettledService if the slices have to wait for the Service.
func (r *reconciliation) ensureService(ctx context.Context) serviceConflict {
	if until := r.restoredUntil(); !until.IsZero() {
		r.result.next = earlier(r.result.next, until)
		message := fmt.Sprintf("Service %q does not exist, and EndpointSlices of this ExternalBackend were there before "+
			"it: for half a minute it may still be restored, then it is made.", r.backend.EffectiveServiceName())
		r.result.fail(v1alpha1.ReasonServiceNotFound, message, nil)
		return unsettledService
	}

	found := noConflict
	if r.publishAhead(ctx) {
		found = r.applyService(ctx)
	}
	if s := r.service; s != nil && s.UID != "" && r.managesService() {
		seen := &r.state.reported.service
		r.result.events = append(r.result.events, recreatedEvents(*seen, s)...)
		*seen = seenService{uid: s.UID, clusterIP: s.Spec.ClusterIP}
	}
	return found
}

// restoredUntil returns until when the Service may still be restored; zero if nobody waits for
// that. Only an ExternalBackend waits that has just been created and whose slices exist without an
// owner.
func (r *reconciliation) restoredUntil() time.Time {
	until := r.sinceStart(r.backend.CreationTimestamp).Add(serviceGrace)
	wasProgrammed := meta.IsStatusConditionTrue(r.observed.status.Conditions, v1alpha1.ConditionProgrammed)
	missing := r.service == nil && r.managesService()
	if !wasProgrammed && missing && until.After(r.now()) && slices.ContainsFunc(r.slices, ownerless) {
		return until
	}
	return time.Time{}
}

// applyService writes the Service until it is as planned. A stale cache shows as a conflict, after
// which the API server is asked. If the Service can't be given its ports, endpoints are published
// for the ports that it has, too. applyService returns unsettledService if it finds a conflict that
// the cache does not show yet.
func (r *reconciliation) applyService(ctx context.Context) serviceConflict {
	if !r.managesService() {
		return noConflict
	}
	b := r.observed.withPublishableName(r.backend)
	for writes := 0; ; writes++ {
		p := plan.Service(b, r.service, r.observed.previousAdopterGone)
		if p.Conflict != "" && !r.beingDeleted() {
			r.result.fail(v1alpha1.ReasonServiceConflict, p.Conflict, nil)
			return unsettledService
		}
		if why, err := r.unwritable(&p, writes); why != "" {
			r.result.fail(v1alpha1.ReasonApplyFailed, why, err)
			r.assumePorts()
			return noConflict
		}
		if p.Write == nil || !r.writePlannedService(ctx, &p) {
			return noConflict
		}
	}
}

func (r *reconciliation) beingDeleted() bool {
	return r.service != nil && !r.service.DeletionTimestamp.IsZero()
}

// unwritable says why the planned write of the Service can't even be tried; "" where it can.
func (r *reconciliation) unwritable(p *plan.ServicePlan, writes int) (string, error) {
	transition := &r.state.planning.headless
	switch {
	case r.beingDeleted():
		return fmt.Sprintf("Service %q is being deleted; it is made anew once it is gone.", r.service.Name), nil
	case p.Write == nil:
		return "", nil
	case p.HeadlessChanged && transition.refused(r.backend):
		return transition.why, nil
	case writes == maxServiceWrites:
		return fmt.Sprintf("Service %q can't be written: others change it all the time.", p.Write.Name), errContended
	}
	return "", nil
}

// writePlannedService does one planned write, and reports whether another may follow.
func (r *reconciliation) writePlannedService(ctx context.Context, p *plan.ServicePlan) bool {
	before := r.service
	var err error
	if p.HeadlessChanged {
		err = r.dryRunCreate(ctx, p.Write)
	}
	if err == nil {
		err = r.writeService(ctx, p.Write)
	}

	switch {
	case err == nil:
		r.result.events = append(r.result.events, serviceEvents(*p)...)
		if p.HeadlessChanged {
			r.state.planning.headless = headlessTransition{from: before}
		}
		return true
	case apierrors.IsConflict(err),
		apierrors.IsAlreadyExists(err) && before == nil,
		apierrors.IsNotFound(err) && before != nil:
		if err := r.rereadService(ctx); err != nil {
			r.result.failWrite("The Service can't be read", err)
			return false
		}
		return true
	default:
		r.serviceRefused(ctx, p.Write, err)
		return false
	}
}

// serviceRefused reports a write that failed, and rolls a transition to or from headless back.
func (r *reconciliation) serviceRefused(ctx context.Context, planned *corev1.Service, err error) {
	message := fmt.Sprintf("Service %q can't be written: %s", planned.Name, refusal(err))
	switch {
	case refused(err) && r.rollBackService(ctx):
		message += "; it is as it was, and this change of type is not tried again before spec.service or spec.ports changes"
		spec := &r.backend.Spec
		r.state.planning.headless = headlessTransition{service: spec.Service, ports: spec.Ports, why: message}
	case r.leadsNowhere() && r.service.Spec.Type != planned.Spec.Type:
		message += "; until it can, it leads nowhere"
	}
	r.result.fail(v1alpha1.ReasonApplyFailed, message, err)
	r.assumePorts()
}

// refused reports whether the API server has refused the transition that the spec of b asks for.
func (t *headlessTransition) refused(b *v1alpha1.ExternalBackend) bool {
	return t.why != "" &&
		equality.Semantic.DeepEqual(t.service, b.Spec.Service) && equality.Semantic.DeepEqual(t.ports, b.Spec.Ports)
}

// leadsNowhere reports whether the Service is between two types, or policy refuses its name.
func (r *reconciliation) leadsNowhere() bool {
	return r.service != nil && r.service.Spec.ExternalName == plan.UnresolvableName
}

// rollBackService gives a Service in transition its former spec back, with its cluster IP and node
// ports, and reports whether it did.
func (r *reconciliation) rollBackService(ctx context.Context) bool {
	from := r.state.planning.headless.from
	if from == nil || !r.leadsNowhere() || r.service.UID != from.UID {
		return false
	}
	former := r.service.DeepCopy()
	former.Spec = from.Spec
	return r.writeService(ctx, former) == nil
}

// dryRunCreate asks the API server whether it would accept the Service that follows half, a Service
// of type ExternalName: from there is no way back to the cluster IP. It is asked to create a
// Service like it, in a dry run. If a quota or a webhook can't answer that, nothing speaks against
// the transition. A dry run does not find everything, for example not a node port out of range.
func (r *reconciliation) dryRunCreate(ctx context.Context, half *corev1.Service) error {
	p := plan.Service(r.backend, half, r.observed.previousAdopterGone)
	if p.Write == nil {
		return nil
	}
	trial := p.Write
	trial.ObjectMeta = metav1.ObjectMeta{
		GenerateName: "rehearsal-", Namespace: trial.Namespace,
		Labels: trial.Labels, Annotations: trial.Annotations, OwnerReferences: trial.OwnerReferences,
	}
	err := r.Create(ctx, trial, client.DryRunAll)
	if apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota") {
		return nil
	}
	return err
}

// writeService creates or updates the Service. If that fails, r.service stays as it was.
func (r *reconciliation) writeService(ctx context.Context, s *corev1.Service) error {
	if s.UID == "" {
		if err := r.Create(ctx, s); err != nil {
			return err
		}
		r.state.writes.ServiceCreated(s, r.now())
	} else {
		if err := r.Update(ctx, s); err != nil {
			return err
		}
		r.state.writes.ServiceUpdated(s)
	}
	r.service = s
	return nil
}

// rereadService reads the Service from the API server.
func (r *reconciliation) rereadService(ctx context.Context) error {
	key := r.key()
	key.Name = r.backend.EffectiveServiceName()
	var s corev1.Service
	err := r.Live.Get(ctx, key, &s)
	if r.service = nil; err == nil {
		r.service = &s
	}
	return client.IgnoreNotFound(err)
}
