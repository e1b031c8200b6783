// Package controllers gives every ExternalBackend its Service and EndpointSlices, and keeps them
// current. A reconcile reads the cluster, hands names and endpoints to the engines (internal/resolve
// and internal/probe), plans with what they know, writes what the plan changes, and reports to
// users. This is the only package that talks to the API server.
package controllers

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/resolve"
	"github.com/external-backend/operator/internal/writecache"
)

// Options are the manager's flags that reconciling goes by.
type Options struct {
	MaxEndpointsPerSlice   int // 1 to 1000
	MaxEndpointsPerBackend int
	MaxConcurrentProbes    int
	BlindThreshold         int // percent; 0: the prober never takes itself for blind
	MaxAddressesPerName    int
	ResolvConf             string
	ClusterDomain          string
	ClusterCIDRs           []netip.Prefix
	DefaultDeny            bool
	// OrphanGrace is how long slices without owner, ExternalBackend and Service are kept.
	OrphanGrace time.Duration
	// Protected are the Services that nothing may stand behind; default/kubernetes always is one.
	Protected map[types.NamespacedName]bool
	// Lease is the manager's; without a name there is none, and its namespace is the manager's.
	Lease types.NamespacedName
}

// Resolver keeps names resolved; it is *resolve.Engine.
type Resolver interface {
	Sync(owner types.NamespacedName, config resolve.Config, names []resolve.Wanted)
	Snapshot(owner types.NamespacedName) map[resolve.Question]resolve.Answer
	Forget(owner types.NamespacedName)
}

// Prober keeps endpoints probed; it is *probe.Engine.
type Prober interface {
	Sync(owner types.NamespacedName, check *probe.Check, endpoints []probe.Endpoint)
	// States are parallel to the endpoints of the last Sync.
	States(owner types.NamespacedName) []probe.State
	Forget(owner types.NamespacedName)
}

// Reconciler brings Services and EndpointSlices to what ExternalBackends, names, probes and
// policies say.
type Reconciler struct {
	client.Client
	// Live reads from the API server itself: what is not cached, or what the cache may not have seen
	// yet.
	Live     client.Reader
	Recorder events.EventRecorder
	Resolver Resolver
	Prober   Prober
	Metrics  *Metrics
	Options  Options
	// Started is when the manager started.
	Started time.Time

	policies *policies
	memories memories
	flights  flights
}

// maxAttempts is how often a plan is made anew at once because a write showed that the cache was
// behind.
const maxAttempts = 3

func (r *Reconciler) now() time.Time { return time.Now() }

// Reconcile brings one ExternalBackend's objects to its spec. Where the API server is slow it
// returns before it is through, and takes its result when it is called again.
func (r *Reconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	return r.flights.run(ctx, req, r.reconcile)
}

// reconcile does it: get, deletion, observe, plan and apply, status.
func (r *Reconciler) reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var b v1alpha1.ExternalBackend
	if err := r.Get(ctx, req.NamespacedName, &b); err != nil {
		if !apierrors.IsNotFound(err) {
			return ctrl.Result{}, err
		}
		r.forget(req.NamespacedName)
		next, err := r.removeOrphans(ctx, req.NamespacedName)
		return ctrl.Result{RequeueAfter: r.after(next)}, err
	}
	deleted := !b.DeletionTimestamp.IsZero()
	if collected(&b) {
		r.forget(req.NamespacedName)
		return ctrl.Result{}, nil
	}
	m := r.memories.of(req.NamespacedName)
	if m.uid != b.UID { // another one of that name
		r.forget(req.NamespacedName)
		m = r.memories.of(req.NamespacedName)
		m.uid = b.UID
	}
	var outcome outcome
	for range maxAttempts {
		o, err := r.observe(ctx, &b, m)
		if err != nil {
			return ctrl.Result{}, err
		}
		// somebody's finalizer holds it: what still stands is kept true, and nothing made anew
		if deleted && len(o.slices) == 0 {
			r.forget(req.NamespacedName)
			return ctrl.Result{}, nil
		}
		if o.orphaned(&b) {
			if dying, err := r.dying(ctx, &b); dying || err != nil {
				r.forget(req.NamespacedName)
				return ctrl.Result{}, err
			}
		}
		events := outcome.events
		outcome = r.program(ctx, o.inForce, o, m)
		outcome.events = append(events, outcome.events...)
		if !outcome.stale {
			break
		}
	}
	wait, err := r.report(ctx, &b, &outcome, m)
	if outcome.err == nil {
		outcome.err = err
	}
	if outcome.err != nil {
		return ctrl.Result{}, outcome.err
	}
	return ctrl.Result{RequeueAfter: r.until(outcome.again(r.now(), m), wait, m)}, nil
}

// collected reports whether b is being deleted by the garbage collector, which takes what b owns,
// or lets it go, and removes its finalizer when it has.
func collected(b *v1alpha1.ExternalBackend) bool {
	return !b.DeletionTimestamp.IsZero() && slices.ContainsFunc(b.Finalizers, func(f string) bool {
		return f == metav1.FinalizerDeleteDependents || f == metav1.FinalizerOrphanDependents
	})
}

// until is how long to wait for the first of the times at which something changes by time alone; 0
// where nothing does.
func (r *Reconciler) until(planned, status time.Time, m *memory) time.Duration {
	if m.writes.AwaitingCache() {
		planned = earlier(planned, r.now().Add(writecache.CreationTimeout))
	}
	return r.after(earlier(planned, earlier(status, earlier(m.events.summaryDue(), m.logged.summaryDue()))))
}

// after is how long to wait until at; 0 for never.
func (r *Reconciler) after(at time.Time) time.Duration {
	if at.IsZero() {
		return 0
	}
	return max(at.Sub(r.now()), time.Millisecond)
}

// earlier is the earlier of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// forget drops all that is held for an ExternalBackend that is gone.
func (r *Reconciler) forget(key types.NamespacedName) {
	r.Prober.Forget(key)
	r.Resolver.Forget(key)
	r.Metrics.forget(key)
	r.memories.forget(key)
}

// outcome is what came of one reconcile, for status and events.
type outcome struct {
	status plan.StatusInput
	next   time.Time
	err    error
	// stale: a write showed that the plan was made on what is past; the memory knows better now.
	stale bool
	// refused: the API server refused a write for a reason that hardly goes away soon. late: there was
	// no time for all writes.
	refused, late bool
	// events are those that do not follow from status.
	events []pendingEvent
}

// fail tells users that a write was refused, and makes the reconcile be repeated.
func (o *outcome) fail(reason, message string, err error) {
	if o.status.Programmed == "" || o.status.Programmed == v1alpha1.ReasonProgrammed {
		o.status.Programmed, o.status.ProgrammedMessage = reason, message
	}
	switch {
	case err == nil, apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause): // all of it goes with its namespace
	case refused(err):
		o.refused = true
	case o.err == nil:
		o.err = err
	}
}

// again is when to reconcile again without an event; zero: never. A refusal is no error: users find
// it in status, and the same is tried again less and less often.
func (o *outcome) again(now time.Time, m *memory) time.Time {
	if o.late {
		return now
	}
	if !o.refused {
		m.refusals = 0
		return o.next
	}
	pause := min(time.Second<<min(m.refusals, 10), refusedRetry)
	m.refusals++
	return earlier(o.next, now.Add(pause))
}

// program writes the Service, decides what becomes of the slices, and does that. Status is not its
// business.
func (r *Reconciler) program(ctx context.Context, b *v1alpha1.ExternalBackend, o *observation, m *memory) outcome {
	out := outcome{status: plan.StatusInput{Backend: b, Service: o.service, Previous: o.status, TargetMemory: m.targets, Invalid: o.invalid, Now: r.now()}}
	r.ownService(ctx, b, o, m, &out)

	s := situation{backend: b, specKnown: o.invalid == "" || m.valid != nil}
	var why string
	if s.conflict, why = r.conflict(b, o); s.specKnown {
		m.refs = r.readReferences(ctx, b, m.refs)
		out.next = earlier(m.refs.next(b), o.keptUntil)
		out.status.References = &m.refs.problem
		if s.conflict == noConflict && b.DeletionTimestamp.IsZero() {
			s.conflict = r.bringService(ctx, b, o, m, &out)
		}
	}
	if !s.specKnown && !o.publishesBehind(plan.ServiceName(b)) { // the spec names another Service
		s.conflict = noConflict
	}
	s.service, s.hasSlices = o.service, len(o.slices) > 0

	d := decide(s)
	if d.programmed != "" && d.programmed != v1alpha1.ReasonProgrammed {
		out.fail(d.programmed, cmp.Or(why, serviceNotFound(b)), nil)
	}
	if s.conflict == otherConflict {
		o.lag(b)
	}

	switch d.action {
	case keep:
	case withdrawDenied:
		r.keepPermitted(ctx, b, o, m, &out)
	case withdraw:
		r.withdraw(ctx, b, o, m, &out)
	case reportEmpty:
		r.lost(b, o, m, &out)
	case publishName:
		r.publishPassthrough(ctx, b, o, m, &out)
	case publish:
		r.publish(ctx, b, o, m, &out)
	}
	out.status.Programmed = cmp.Or(out.status.Programmed, d.programmed)
	return out
}

// bringService writes the Service, and before it the slices for ports that it gains. It returns
// unsettledService where the slices have to wait for it.
func (r *Reconciler) bringService(ctx context.Context, b *v1alpha1.ExternalBackend, o *observation, m *memory, out *outcome) conflict {
	if until := r.awaitsService(b, o); !until.IsZero() {
		out.next = earlier(out.next, until)
		out.fail(v1alpha1.ReasonServiceNotFound, fmt.Sprintf("Service %q does not exist, and EndpointSlices of this ExternalBackend were there before it: for half a minute it may still be restored, then it is made.", plan.ServiceName(b)), nil)
		return unsettledService
	}
	found := noConflict
	if r.publishAhead(ctx, b, o, m, out) {
		found = r.applyService(ctx, b, o, m, out)
	}
	if s := o.service; s != nil && s.UID != "" && b.Spec.ServiceRef == nil {
		out.events = append(out.events, recreatedEvents(m.seen, s)...)
		m.seen = seenService{uid: s.UID, clusterIP: s.Spec.ClusterIP}
	}
	return found
}

// stop ends all asking and probing for b.
func (r *Reconciler) stop(b *v1alpha1.ExternalBackend, m *memory) {
	key := client.ObjectKeyFromObject(b)
	r.Prober.Forget(key)
	r.Resolver.Forget(key)
	m.tier, m.plan, m.verdicts, m.endpoints, m.started = nil, plan.Cache{}, verdicts{}, nil, false
	m.withdrawn = nil
	m.setDial(nil)
}

// withdraw takes all slices back: the Service has no endpoints of ours, or is an alias.
func (r *Reconciler) withdraw(ctx context.Context, b *v1alpha1.ExternalBackend, o *observation, m *memory, out *outcome) {
	r.stop(b, m)
	r.applySlices(ctx, b, o, m, endpointslice.Changes{Delete: o.slices}, out)
	if o.invalid != "" && m.valid == nil {
		out.status.Filtered = &plan.Filtered{}
		return
	}
	r.nothing(b, o, out)
}

// lost ends what was done for endpoints that have gone with their Service, and tells that they
// have.
func (r *Reconciler) lost(b *v1alpha1.ExternalBackend, o *observation, m *memory, out *outcome) {
	if len(o.slices) > 0 {
		return
	}
	if out.err == nil { // what is tried again soon may well succeed, and wants what is known
		r.stop(b, m)
	}
	if e := o.status.Endpoints; e != nil && e.Total > 0 {
		r.nothing(b, o, out)
	}
}

// nothing tells that no endpoint of b's is published.
func (r *Reconciler) nothing(b *v1alpha1.ExternalBackend, o *observation, out *outcome) {
	candidates := plan.NoEndpoints(b, o.nameNotes(b))
	out.status.Candidates, out.status.Publication = &candidates, &plan.Publication{}
}

// keepPermitted keeps what stands where there is no spec to act on, as far as policy permits it:
// what policy comes to refuse goes, and comes back when policy permits it again.
func (r *Reconciler) keepPermitted(ctx context.Context, b *v1alpha1.ExternalBackend, o *observation, m *memory, out *outcome) {
	if o.service == nil || len(o.slices)+len(m.withdrawn) == 0 {
		return
	}
	if len(o.slices) > 0 {
		m.withdrawnLabels = endpointslice.OwnLabels(o.slices[0]) // the spec's may be what is wrong with it
	}
	held := plan.FilterPublished(plan.FilterInput{
		Backend: b, Published: endpointslice.Published(o.slices).Endpoints(), Withdrawn: m.withdrawn,
		NamedAddrs: m.named, Permit: permit(o.view), PermitUnnamed: permitUnnamed(o.view),
	})
	former := m.withdrawn
	m.withdrawn, o.desired = held.Refused, held.Kept
	if held.Changed || !endpointslice.OwnedBy(o.slices, plan.SliceOwner(b, o.service)) {
		front := o.front(b, m)
		template := r.template(b, o, m, &front)
		template.Labels = m.withdrawnLabels
		_, changes := endpointslice.Plan(template, held.Kept, o.slices)
		if !r.applySlices(ctx, b, o, m, changes, out) {
			m.withdrawn = slices.Concat(former, held.Refused) // what was to come back may not have
		}
	}
	out.status.Filtered = &held
}

// publishPassthrough programs the slice that holds the target's name itself.
func (r *Reconciler) publishPassthrough(ctx context.Context, b *v1alpha1.ExternalBackend, o *observation, m *memory, out *outcome) {
	r.stop(b, m)
	front := o.front(b, m)
	notes := o.nameNotes(b)
	changes, publication := plan.PassthroughSlices(r.template(b, o, m, &front), b, front.Serves, notes.Denied == "", o.slices)
	if r.applySlices(ctx, b, o, m, changes, out) && len(publication.Endpoints) > 0 && out.status.Programmed == "" {
		r.stopForeign(ctx, o, m, out)
	}
	candidates := plan.NoEndpoints(b, notes)
	front.mismatch(b, &candidates, out)
	out.status.Candidates, out.status.Publication = &candidates, &publication
}

// template is what all of b's slices share.
func (r *Reconciler) template(b *v1alpha1.ExternalBackend, o *observation, m *memory, front *front) endpointslice.Template {
	return endpointslice.Template{
		Namespace: b.Namespace, Service: plan.ServiceName(b), Backend: b.Name, Labels: plan.ServiceLabels(b), Owner: plan.SliceOwner(b, o.service),
		Headless: front.Headless, ZoneHints: front.ZoneHints, NodeHints: front.NodeHints, Taken: m.taken, Max: r.Options.MaxEndpointsPerSlice,
	}
}

// publishAhead creates the slices for ports that the Service is about to get. kube-proxy passes
// them over as long as the Service lacks these, and finds them when it has them: a port that is
// renamed is served all the time. It reports whether the Service may be written now.
func (r *Reconciler) publishAhead(ctx context.Context, b *v1alpha1.ExternalBackend, o *observation, m *memory, out *outcome) bool {
	if b.Spec.ServiceRef != nil || o.service == nil || len(o.slices) == 0 || !plan.Resolves(b) {
		return true
	}
	p := plan.Service(b, o.service, o.left)
	if p.Write == nil || !plan.GainsPorts(o.service, p.Write) {
		return true
	}
	ahead := *o
	ahead.service = p.Write
	creations := r.planSlices(b, &ahead, m, &outcome{}).changes.Create
	created := r.applySlices(ctx, b, o, m, endpointslice.Changes{Create: creations}, out)
	for _, s := range creations {
		if s.UID != "" {
			o.slices = append(o.slices, s)
		}
	}
	if !created {
		o.lag(b)
	}
	return created
}

// publish programs the EndpointSlices.
func (r *Reconciler) publish(ctx context.Context, b *v1alpha1.ExternalBackend, o *observation, m *memory, out *outcome) {
	p := r.planSlices(b, o, m, out)
	written := r.applySlices(ctx, b, o, m, p.changes, out)
	// what others publish behind a Service that we could not take over is theirs
	if p.settled && written && out.status.Programmed == "" {
		r.stopForeign(ctx, o, m, out)
	}
	p.front.mismatch(b, &p.candidates, out)
	out.next = earlier(out.next, p.publication.Next)
	out.status.Candidates, out.status.Publication = &p.candidates, &p.publication
	out.status.Blind = m.verdicts.blind()
}

// slicePlan is what publish goes by.
type slicePlan struct {
	front       front
	candidates  plan.Candidates
	publication plan.Publication
	changes     endpointslice.Changes
	// settled: what others publish behind the Service may stop once the changes are written.
	settled bool
}

// planSlices goes from names to addresses, from addresses to endpoints, from endpoints to slices.
func (r *Reconciler) planSlices(b *v1alpha1.ExternalBackend, o *observation, m *memory, out *outcome) slicePlan {
	key := client.ObjectKeyFromObject(b)
	front := o.front(b, m)
	published := endpointslice.Published(o.slices, o.handover...)
	names := wanted(b, front.Families, o.view)
	r.Resolver.Sync(key, r.dns(b, o, m, out), names.wanted(b, published, !m.started))

	candidates := m.plan.Candidates(plan.Input{
		Backend: b, Families: front.Families, Headless: front.Headless, ServesPort: front.Serves,
		Answers: names.answers(b, published, r.Resolver.Snapshot(key)), Permit: permit(o.view), Rules: o.view,
		Published: published, SiblingEndpoints: slices.Concat(o.beside, m.beside), Status: o.status, OlderSiblings: o.older, YoungerSiblings: o.younger, SiblingNames: o.claimants, Probes: m.probes, NamedAddrs: m.named, Max: r.Options.MaxEndpointsPerBackend, Now: r.now(),
	}, r.template(b, o, m, &front))
	r.probe(b, &candidates, m)
	m.started, m.beside, m.named, m.withdrawn = true, o.beside, candidates.NamedAddrs(m.named), nil

	publication := plan.Publish(plan.PublishInput{
		Backend: b, Published: published, State: m.verdicts.state, Tier: m.tier, PublishNotReady: front.NotReadyToo, Now: r.now(),
	}, &candidates)
	m.tier = new(publication.Tier) // not a part of what is much larger
	p := slicePlan{front: front, candidates: candidates, publication: publication}
	o.desired, p.settled = plan.HandOver(publication.Endpoints, o.handover, publication.HasAllVerdicts(&candidates))
	if o.lagging == nil {
		p.changes = m.plan.Slices(o.desired)
		return p
	}
	o.desired = candidates.WithOldPorts(plan.OldPortsInput{Backend: b, Live: o.lagging, Published: published, Permit: permit(o.view)}, o.desired)
	_, p.changes = endpointslice.Plan(r.template(b, o, m, &front), o.desired, o.slices)
	m.plan = plan.Cache{} // the slices hold more than the candidates
	return p
}

// probe hands the planned probes to the engine and takes its verdicts.
func (r *Reconciler) probe(b *v1alpha1.ExternalBackend, c *plan.Candidates, m *memory) {
	key := client.ObjectKeyFromObject(b)
	if b.Spec.HealthCheck == nil {
		r.Prober.Forget(key)
		m.setDial(nil)
		m.verdicts, m.endpoints = verdicts{}, nil
		return
	}
	probes, changed := c.Probes(m.probes)
	if changed || m.endpoints == nil || m.generation != b.Generation {
		m.endpoints, m.generation = probeEndpoints(probes), b.Generation
		m.setDial(dialled(probes))
	}
	r.Prober.Sync(key, healthCheck(b.Spec.HealthCheck, m.refs), m.endpoints)
	m.verdicts = verdicts{probes: probes, states: r.Prober.States(key)}
}

// PermitDial asks policy once more, at the moment at which the probing engine dials. It never
// blocks: it goes by what is compiled.
func (r *Reconciler) PermitDial(owner types.NamespacedName, addr netip.AddrPort) error {
	m := r.memories.peek(owner)
	if m == nil {
		return fmt.Errorf("%s is not known", owner)
	}
	name, ok := m.mayDial(addr)
	if !ok {
		return fmt.Errorf("an address that %s does not name", owner)
	}
	view := r.policies.compiled(owner.Namespace)
	if view == nil {
		return fmt.Errorf("nobody knows yet what namespace %s may use", owner.Namespace)
	}
	if d := view.Target(name, addr.Addr(), tcp(addr.Port())); !d.Keep(true) {
		return fmt.Errorf("policy refuses it: %s", d.Kind)
	}
	return nil
}
