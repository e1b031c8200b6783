package controllers

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
)

const (
	// countDelay is how long further changes are gathered before the policies are counted.
	countDelay = time.Second
	// maxUnjudged is how long a report waits for the first reconciles of ExternalBackends. After a
	// restart it would else say that less is refused than before.
	maxUnjudged = 30 * time.Second
	// maxWithdrawn is the number of ExternalBackends that one event names.
	maxWithdrawn = 3
)

// eventPublishedTargetsDenied is a Warning about an ExternalBackendPolicy: it begins to refuse
// targets that are published. The text names the first ExternalBackends. A policy has at most one
// such event in ten seconds.
const eventPublishedTargetsDenied = "PublishedTargetsDenied"

// policyReporter writes the status of the ExternalBackendPolicies, and their events. Only run calls
// its other methods.
type policyReporter struct {
	client   client.Client
	policies *policies
	refusals *refusalStore
	recorder events.EventRecorder
	// owns reports whether this replica writes the status of a policy, and ownsBackend whether it
	// reconciles an ExternalBackend.
	owns        func(types.NamespacedName) bool
	ownsBackend func(*v1alpha1.ExternalBackend) bool
	reported    map[types.UID]*policyReport
}

// policyReport is what users have been told about one policy.
type policyReport struct {
	// at is when its status or an event was written last.
	at time.Time
	// unjudgedSince is since when a report has been waiting for the first reconciles of
	// ExternalBackends; zero if none is waiting.
	unjudgedSince time.Time
	// withdrawn are the ExternalBackends that the next event is about.
	withdrawn map[string]bool
}

func newPolicyReporter(r *Reconciler) *policyReporter {
	return &policyReporter{
		client: r.Client, policies: r.policies, refusals: r.refusals, recorder: r.Recorder,
		owns: r.owns, ownsBackend: r.ownsBackend,
		reported: map[types.UID]*policyReport{},
	}
}

// run reports at the start, soon after changes, and when a report that was held back is due, until
// ctx ends.
func (p *policyReporter) run(ctx context.Context) error {
	due, changed := time.After(countDelay), (<-chan struct{})(nil)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
			due, changed = time.After(countDelay), nil
			continue
		case <-due:
		}

		select {
		case <-p.refusals.changed: // the report that follows covers it
		default:
		}
		due, changed = nil, p.refusals.changed
		if next := p.report(ctx); !next.IsZero() {
			due = time.After(time.Until(next))
		}
	}
}

// report writes each status that has changed. It returns when a report that was held back is due;
// zero if there is none.
func (p *policyReporter) report(ctx context.Context) time.Time {
	set, sources, err := p.policies.compilation(ctx)
	if err != nil {
		return p.retry(ctx, err)
	}
	namespaces, err := p.namespaces(ctx)
	if err != nil {
		return p.retry(ctx, err)
	}
	var list v1alpha1.ExternalBackendPolicyList
	if err := p.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return p.retry(ctx, err)
	}
	current := make(map[types.UID]*v1alpha1.ExternalBackendPolicy, len(list.Items))
	for i := range list.Items {
		current[list.Items[i].UID] = &list.Items[i]
	}
	maps.DeleteFunc(p.reported, func(uid types.UID, _ *policyReport) bool { return current[uid] == nil })

	var next time.Time
	counts := set.Count(namespaces)
	for i := range sources {
		if o := current[sources[i].uid]; o != nil {
			next = earlier(next, p.reportPolicy(ctx, o, &sources[i], &counts[i]))
		}
	}
	return next
}

// retry logs an error and returns when to try again.
func (p *policyReporter) retry(ctx context.Context, err error) time.Time {
	ctrl.LoggerFrom(ctx).Error(err, "Can't report the status of ExternalBackendPolicies")
	return time.Now().Add(statusPeriod)
}

// namespaces returns what the cache and the reconciles know about each namespace.
func (p *policyReporter) namespaces(ctx context.Context) ([]policy.Namespace, error) {
	var namespaces corev1.NamespaceList
	var backends v1alpha1.ExternalBackendList
	for _, l := range []client.ObjectList{&namespaces, &backends} {
		if err := p.client.List(ctx, l, client.UnsafeDisableDeepCopy); err != nil {
			return nil, err
		}
	}

	out := make([]policy.Namespace, len(namespaces.Items))
	byName := make(map[string]*policy.Namespace, len(out))
	for i := range out {
		out[i].Labels = namespaces.Items[i].Labels
		byName[namespaces.Items[i].Name] = &out[i]
	}
	for i := range backends.Items {
		if n := byName[backends.Items[i].Namespace]; n != nil {
			p.addBackend(n, &backends.Items[i])
		}
	}
	for _, key := range p.refusals.takeWithdrawn() {
		if n := byName[key.Namespace]; n != nil {
			n.Withdrawn = append(n.Withdrawn, key.String())
		}
	}
	return out, nil
}

// addBackend counts an ExternalBackend. Its status stands in until this process has judged it.
func (p *policyReporter) addBackend(n *policy.Namespace, b *v1alpha1.ExternalBackend) {
	d, judged := p.refusals.of(client.ObjectKeyFromObject(b))
	if !judged {
		d = plan.RefusalsOf(&b.Status)
	}
	n.ExternalBackends++
	if d.Refused {
		n.Refused++
	}
	if d.WouldRefuse {
		n.WouldRefuse++
	}
	// Reconciles forget what is being collected.
	if !judged && b.DeletionTimestamp.IsZero() && p.ownsBackend(b) {
		n.Unjudged++
	}
}

// reportPolicy writes the status of a policy if it has changed, and its event. It returns when a
// report that was held back is due; zero if there is none.
func (p *policyReporter) reportPolicy(
	ctx context.Context, o *v1alpha1.ExternalBackendPolicy, source *policySource, counts *policy.Counts,
) time.Time {
	report := p.reported[o.UID]
	if report == nil {
		report = &policyReport{withdrawn: map[string]bool{}}
		p.reported[o.UID] = report
	}
	for _, name := range counts.Withdrawn {
		report.withdrawn[name] = true
	}
	if o.Generation != source.generation { // it has just changed, and is compiled and counted again soon
		return time.Time{}
	}

	now := time.Now()
	status := plan.PolicyStatus(plan.PolicyStatusInput{
		Policy: o, Problems: source.problems, Namespaces: counts.Namespaces,
		ExternalBackends: counts.ExternalBackends, Refused: counts.Refused, Now: now,
	})
	changed := p.owns(client.ObjectKeyFromObject(o)) && !equality.Semantic.DeepEqual(o.Status, status)
	if !changed && len(report.withdrawn) == 0 {
		report.unjudgedSince = time.Time{}
		return time.Time{}
	}
	if due := report.due(counts.Unjudged > 0, now); due.After(now) {
		return due
	}

	report.at = now
	if changed {
		next := o.DeepCopy()
		next.Status = status
		if err := p.client.Status().Patch(ctx, next, client.MergeFrom(o)); client.IgnoreNotFound(err) != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Can't write the status of an ExternalBackendPolicy", "policy", o.Name)
			return now.Add(statusPeriod)
		}
	}
	p.recordWithdrawn(o, report)
	return time.Time{}
}

// due returns when a report may be written. unjudged reports whether it would be preliminary.
func (r *policyReport) due(unjudged bool, now time.Time) time.Time {
	due := r.at.Add(statusPeriod)
	if !unjudged {
		r.unjudgedSince = time.Time{}
		return due
	}
	if r.unjudgedSince.IsZero() {
		r.unjudgedSince = now
	}
	if wait := r.unjudgedSince.Add(maxUnjudged); wait.After(due) {
		return wait
	}
	return due
}

// recordWithdrawn records an event about the endpoints that the policy has taken away, if any.
func (p *policyReporter) recordWithdrawn(o *v1alpha1.ExternalBackendPolicy, report *policyReport) {
	names := slices.Sorted(maps.Keys(report.withdrawn))
	if len(names) == 0 {
		return
	}
	clear(report.withdrawn)

	// The recorder merges events that differ only in their text.
	namespace, name, _ := strings.Cut(names[0], "/")
	related := &corev1.ObjectReference{
		Kind: "ExternalBackend", APIVersion: v1alpha1.GroupVersion.String(), Namespace: namespace, Name: name,
	}
	p.recorder.Eventf(o, related, corev1.EventTypeWarning, eventPublishedTargetsDenied, "Enforce",
		"Refuses targets that were published, of ExternalBackends: %s.", plan.FirstFew(names, maxWithdrawn))
}
