package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/resolve"
)

// maxServiceWrites bounds the writes to a Service in one reconcile: two of a type change, each once
// more after a conflict.
const maxServiceWrites = 4

// applyService writes the Service until it is as planned, and leaves it in o. A stale cache shows
// as a conflict, after which the API server is asked. Where the Service can't be written, o says by
// which ports it lags behind. It returns unsettledService where a write shows a conflict that the
// cache does not show yet.
func (r *Reconciler) applyService(ctx context.Context, b *v1alpha1.ExternalBackend, o *observation, m *memory, out *outcome) conflict {
	if b.Spec.ServiceRef != nil {
		return noConflict
	}
	b = o.asPermitted(b)
	for writes := 0; ; writes++ {
		p := plan.Service(b, o.service, o.left)
		var err error
		switch {
		case o.service != nil && !o.service.DeletionTimestamp.IsZero():
			out.fail(v1alpha1.ReasonApplyFailed, fmt.Sprintf("Service %q is being deleted; it is made anew once it is gone.", o.service.Name), nil)
			o.lag(b)
			return noConflict
		case p.Conflict != "":
			out.fail(v1alpha1.ReasonServiceConflict, p.Conflict, nil)
			return unsettledService
		case p.Write == nil:
			return noConflict
		case p.HeadlessChanged && m.crossing.refused(b):
			out.fail(v1alpha1.ReasonApplyFailed, m.crossing.why, nil)
			o.lag(b)
			return noConflict
		case writes == maxServiceWrites:
			out.fail(v1alpha1.ReasonApplyFailed, fmt.Sprintf("Service %q can't be written: others change it all the time.", p.Write.Name), errContended)
			o.lag(b)
			return noConflict
		default:
			if p.HeadlessChanged {
				err = r.rehearse(ctx, b, p.Write, o.left)
			}
			if err == nil {
				err = r.writeService(ctx, p.Write, m)
			}
		}
		switch {
		case err == nil:
			out.events = append(out.events, serviceEvents(p)...)
			if p.HeadlessChanged {
				m.crossing = crossing{from: o.service}
			}
			o.service = p.Write
		case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err) && o.service == nil, apierrors.IsNotFound(err) && o.service != nil:
			if o.service, err = r.liveService(ctx, client.ObjectKeyFromObject(p.Write)); err != nil {
				out.fail(v1alpha1.ReasonApplyFailed, "The Service can't be read: "+refusal(err), err)
				return noConflict
			}
		default:
			message := fmt.Sprintf("Service %q can't be written: %s", p.Write.Name, refusal(err))
			switch {
			case refused(err) && r.goBack(ctx, o, m):
				message += "; it is as it was, and this change of type is not tried again before spec.service or spec.ports changes"
				m.crossing = crossing{service: b.Spec.Service, ports: b.Spec.Ports, why: message}
			case o.service != nil && o.service.Spec.ExternalName == plan.UnresolvableName && o.service.Spec.Type != p.Write.Spec.Type:
				message += "; until it can, it leads nowhere"
			}
			out.fail(v1alpha1.ReasonApplyFailed, message, err)
			o.lag(b)
			return noConflict
		}
	}
}

// ownService has the Service belong to whom deletionPolicy says, in a write of its own, so that
// this holds whatever becomes of the rest of the spec.
func (r *Reconciler) ownService(ctx context.Context, b *v1alpha1.ExternalBackend, o *observation, m *memory, out *outcome) {
	for range maxServiceWrites {
		if o.service == nil || !o.service.DeletionTimestamp.IsZero() || r.protected(b) {
			return
		}
		next := plan.CorrectOwner(b, o.service)
		if next == nil {
			return
		}
		err := r.writeService(ctx, next, m)
		switch {
		case err == nil:
			o.service = next
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			o.service, err = r.liveService(ctx, client.ObjectKeyFromObject(next))
		}
		if err != nil {
			out.fail(v1alpha1.ReasonApplyFailed, fmt.Sprintf("The owner of Service %q can't be written: %s", next.Name, refusal(err)), err)
			return
		}
	}
}

var errContended = errors.New("the Service was changed by others between each reading and writing")

// lag makes o go by the ports that the Service can't be given at present, and remember those that
// it has: endpoints are published behind both.
func (o *observation) lag(b *v1alpha1.ExternalBackend) {
	if o.service == nil || b.Spec.ServiceRef != nil {
		return
	}
	if next, lags := plan.WithPorts(b, o.service); lags {
		o.lagging, o.service = o.service, next
	}
}

// crossing is a Service's way to headlessness, or back.
type crossing struct {
	// from is the Service before it set out; nil where it has not.
	from *corev1.Service
	// service and ports are what was asked for where the API server refused it, and why.
	service *v1alpha1.Service
	ports   []v1alpha1.Port
	why     string
}

// refused tells whether what b asks for has been refused.
func (c *crossing) refused(b *v1alpha1.ExternalBackend) bool {
	return c.why != "" && equality.Semantic.DeepEqual(c.service, b.Spec.Service) && equality.Semantic.DeepEqual(c.ports, b.Spec.Ports)
}

// goBack gives a Service that has set out its former spec back, ClusterIP and node ports included,
// and reports whether it did.
func (r *Reconciler) goBack(ctx context.Context, o *observation, m *memory) bool {
	from := m.crossing.from
	if from == nil || o.service == nil || o.service.UID != from.UID || o.service.Spec.ExternalName != plan.UnresolvableName {
		return false
	}
	back := o.service.DeepCopy()
	back.Spec = from.Spec
	if err := r.writeService(ctx, back, m); err != nil {
		return false
	}
	o.service = back
	return true
}

// rehearse asks the API server whether it would take the Service that a step through ExternalName
// is to lead to, since from there is no way back to the virtual IP. It is asked to create one like
// it, as if. A quota or a webhook that can't answer that says nothing against it. Not all that can
// be refused is, such as a node port out of range.
func (r *Reconciler) rehearse(ctx context.Context, b *v1alpha1.ExternalBackend, half *corev1.Service, left bool) error {
	p := plan.Service(b, half, left)
	if p.Write == nil {
		return nil
	}
	trial := p.Write
	trial.ObjectMeta = metav1.ObjectMeta{
		GenerateName: "rehearsal-", Namespace: trial.Namespace, Labels: trial.Labels, Annotations: trial.Annotations, OwnerReferences: trial.OwnerReferences,
	}
	err := r.Create(ctx, trial, client.DryRunAll)
	if apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) && strings.Contains(err.Error(), "exceeded quota") {
		return nil
	}
	return err
}

func (r *Reconciler) writeService(ctx context.Context, s *corev1.Service, m *memory) error {
	if s.UID == "" {
		if err := r.Create(ctx, s); err != nil {
			return err
		}
		m.writes.ServiceCreated(s, r.now())
		return nil
	}
	if err := r.Update(ctx, s); err != nil {
		return err
	}
	m.writes.ServiceUpdated(s)
	return nil
}

func (r *Reconciler) liveService(ctx context.Context, key types.NamespacedName) (*corev1.Service, error) {
	var s corev1.Service
	if err := r.Live.Get(ctx, key, &s); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return &s, nil
}

// refusal is what the API server said, without the object's own name before it.
func refusal(err error) string {
	if status, ok := err.(apierrors.APIStatus); ok && status.Status().Details != nil && len(status.Status().Details.Causes) > 0 {
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

// refusedRetry is the longest time between two tries of what was refused: a node port may have
// become free, a quota raised, a webhook corrected.
const refusedRetry = 30 * time.Second

// refused reports whether err is a refusal for what the write says, or by who may write what.
// Hardly anything but a change by somebody can mend it, so that it is not tried again at once.
func refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err)
}

// applySlices writes the planned changes in their order. A write that fails stops no other, but for
// those that would take away what the failed one was to publish, or to make ready, first. It
// reports whether all went well.
func (r *Reconciler) applySlices(ctx context.Context, b *v1alpha1.ExternalBackend, o *observation, m *memory, c endpointslice.Changes, out *outcome) bool {
	w := sliceWriter{Reconciler: r, observation: o, ctx: ctx, backend: b, memory: m, current: make(map[string]*discoveryv1.EndpointSlice, len(o.slices))}
	for _, s := range o.slices {
		w.current[s.Name] = s
	}
	w.each(m.inTurn(c.Create), w.create)
	w.each(c.Update, w.update)
	w.each(c.Delete, w.delete)
	if w.wrote {
		m.setLastWrite(r.now())
	}
	out.stale = out.stale || w.stale
	out.late = out.late || w.late
	if w.err != nil {
		out.fail(v1alpha1.ReasonApplyFailed, "EndpointSlices can't be written: "+refusal(w.err), w.err)
	}
	if w.late {
		out.fail(v1alpha1.ReasonApplyFailed, "EndpointSlices are still being written: the API server takes long to answer.", nil)
	}
	return w.err == nil && !w.late
}

// writesTimeout is for how long slices are created, updated or deleted by one plan. The next plan,
// by what has become known meanwhile, says what to do with those that are left.
const writesTimeout = 30 * time.Second

// sliceWriter applies one plan.
type sliceWriter struct {
	*Reconciler
	*observation
	ctx     context.Context
	backend *v1alpha1.ExternalBackend
	memory  *memory
	current map[string]*discoveryv1.EndpointSlice
	failed  []*discoveryv1.EndpointSlice
	unready bool // a write failed that was to make an endpoint ready
	wrote   bool
	stale   bool
	late    bool  // there was no time for all
	err     error // the first
	// refusal is why no more slices are created: the API server would refuse them as well, and there
	// may be very many.
	refusal error
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
		w.leave(s)
	}
}

func (w *sliceWriter) create(s *discoveryv1.EndpointSlice) {
	if w.refusal != nil {
		w.fail(s, w.refusal)
		return
	}
	err := w.Create(w.ctx, s)
	if err == nil {
		w.wrote = true
		w.current[s.Name] = s
		delete(w.memory.refusedSlices, s.Name)
		w.memory.writes.SliceCreated(s, w.now())
		return
	}
	switch {
	case apierrors.IsAlreadyExists(err): // an earlier create that the cache has not seen
		w.refresh(s)
	case refused(err), apierrors.ReasonForError(err) == metav1.StatusReasonUnknown: // or nobody answers
		w.refusal = err
		w.memory.refusedSlice(s)
	}
	w.fail(s, err)
}

func (w *sliceWriter) update(s *discoveryv1.EndpointSlice) {
	if w.strands(s.Name, s) {
		w.follow(s.Name)
	} else {
		w.write(s)
	}
}

// write updates a slice. Where an endpoint could not be made ready it leaves readiness with those
// that were to hand it on.
func (w *sliceWriter) write(s *discoveryv1.EndpointSlice) {
	if current := w.current[s.Name]; w.unready && current != nil && !endpointslice.MakesReady(current, s) && !w.handedOn(s.AddressType) {
		endpointslice.KeepReady(current, s)
		if equality.Semantic.DeepEqual(current, s) {
			return
		}
	}
	err := w.Update(w.ctx, s)
	if err == nil {
		w.wrote = true
		w.current[s.Name] = s
		w.memory.writes.SliceUpdated(s)
		return
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		w.refresh(s)
	}
	w.fail(s, err)
}

func (w *sliceWriter) delete(s *discoveryv1.EndpointSlice) {
	if w.strands(s.Name, nil) {
		w.follow(s.Name)
	} else {
		w.remove(s)
	}
}

// handedOn reports whether an endpoint of that family stands ready that is to be.
func (w *sliceWriter) handedOn(family discoveryv1.AddressType) bool {
	var standing []*discoveryv1.EndpointSlice
	for _, s := range w.current {
		if s.AddressType == family {
			standing = append(standing, s)
		}
	}
	return endpointslice.HasReadyReplacement(endpointslice.Published(standing).Endpoints(), w.desired)
}

// follow keeps a slice true that can't be given up yet: of its endpoints those stay that are still
// wanted and permitted there, and say what is wanted of them.
func (w *sliceWriter) follow(name string) {
	s := w.current[name]
	if s.DeletionTimestamp != nil {
		return
	}
	held := plan.FilterPublished(plan.FilterInput{
		Backend: w.backend, Published: endpointslice.Published([]*discoveryv1.EndpointSlice{s}).Endpoints(),
		NamedAddrs: w.memory.named, Permit: permit(w.view), PermitUnnamed: permitUnnamed(w.view),
	})
	front := w.front(w.backend, w.memory)
	template := w.template(w.backend, w.observation, w.memory, &front)
	template.Max, template.Labels = max(template.Max, len(s.Endpoints)), endpointslice.OwnLabels(s)
	_, c := endpointslice.Plan(template, endpointslice.ForRetained(held.Kept, w.desired), []*discoveryv1.EndpointSlice{s})
	for _, s := range c.Update {
		w.write(s)
	}
	for _, s := range c.Delete {
		w.remove(s)
	}
}

func (w *sliceWriter) remove(s *discoveryv1.EndpointSlice) {
	err := w.Delete(w.ctx, s, client.Preconditions{UID: &s.UID})
	if err == nil || apierrors.IsNotFound(err) {
		w.wrote = true
		delete(w.current, s.Name)
		w.memory.writes.SliceDeleted(s)
		return
	}
	if apierrors.IsConflict(err) {
		w.refresh(s)
	}
	w.fail(s, err)
}

func (w *sliceWriter) strands(name string, next *discoveryv1.EndpointSlice) bool {
	current := w.current[name]
	return current != nil && endpointslice.WouldUnpublish(current, next, w.failed)
}

// maxTaken bounds how many names of slices are remembered because someone else has them.
const maxTaken = 100

// refresh asks the API server how the slice is, for the next plan.
func (w *sliceWriter) refresh(s *discoveryv1.EndpointSlice) {
	var live discoveryv1.EndpointSlice
	switch err := w.Live.Get(w.ctx, client.ObjectKeyFromObject(s), &live); {
	case err == nil && !ours(&live) && len(w.memory.taken) < maxTaken:
		w.memory.take(live.Name)
		w.stale = true
	case err == nil && ours(&live) && cmp.Or(live.Labels[v1alpha1.LabelName], w.backend.Name) == w.backend.Name:
		w.memory.writes.SliceCreated(&live, w.now())
		w.stale = true
	case apierrors.IsNotFound(err):
		w.memory.writes.SliceDeleted(s)
		w.stale = true
	}
}

// ours: the slice bears a mark of ours, so that it is not just someone's who took its name.
func ours(s *discoveryv1.EndpointSlice) bool {
	return endpointslice.Annotated(s) || s.Labels[discoveryv1.LabelManagedBy] == v1alpha1.ManagedBy
}

func (w *sliceWriter) fail(s *discoveryv1.EndpointSlice, err error) {
	w.leave(s)
	if w.err == nil || apierrors.IsConflict(w.err) || apierrors.IsAlreadyExists(w.err) {
		w.err = err
	}
}

// leave keeps what depends on the write of s, which has not taken place, from being written.
func (w *sliceWriter) leave(s *discoveryv1.EndpointSlice) {
	w.failed = append(w.failed, s)
	w.unready = w.unready || endpointslice.MakesReady(w.current[s.Name], s)
}

// stopForeign ends what others publish behind the Service and may be taken away, now that ours
// stands.
func (r *Reconciler) stopForeign(ctx context.Context, o *observation, m *memory, out *outcome) {
	for _, s := range o.yielding {
		err := r.Delete(ctx, s, client.Preconditions{UID: &s.UID})
		if err == nil {
			out.events = append(out.events, foreignRemovedEvent("EndpointSlice", s.Name))
		} else if !apierrors.IsNotFound(err) {
			out.fail(v1alpha1.ReasonApplyFailed, fmt.Sprintf("EndpointSlice %q can't be deleted: %s", s.Name, refusal(err)), err)
		}
	}
	if o.yieldingEndpoints == nil {
		return
	}
	marked := o.yieldingEndpoints.DeepCopy()
	metav1.SetMetaDataLabel(&marked.ObjectMeta, discoveryv1.LabelSkipMirror, "true")
	switch err := r.Patch(ctx, marked, client.MergeFrom(o.yieldingEndpoints)); {
	case err == nil:
		m.markedEndpoints = marked.ResourceVersion
		out.events = append(out.events, foreignRemovedEvent("Endpoints", marked.Name))
	case !apierrors.IsNotFound(err):
		out.fail(v1alpha1.ReasonApplyFailed, fmt.Sprintf("Endpoints %q can't be marked: %s", marked.Name, refusal(err)), err)
	}
}

// dns is how b's names are to be asked, less the nameservers that policy refuses.
func (r *Reconciler) dns(b *v1alpha1.ExternalBackend, o *observation, m *memory, out *outcome) resolve.Config {
	if b.Spec.DNS == nil || len(b.Spec.DNS.Nameservers) == 0 {
		return dnsConfig(b.Spec.DNS, nil, m.refs.dnsMissing, m.refs)
	}
	var allowed []netip.AddrPort
	for i, text := range b.Spec.DNS.Nameservers {
		ns, err := parseNameserver(text, b.Spec.DNS.Transport)
		d := o.view.Nameserver(ns)
		d.Allowed = d.Allowed && err == nil
		if d.Allowed {
			allowed = append(allowed, ns)
		}
		place := fmt.Sprintf("spec.dns.nameservers[%d] (%s)", i, d.Kind)
		if !d.Allowed && out.status.Nameserver == "" {
			out.status.Nameserver = place
		}
		if d.WouldDeny && out.status.NameserverAudited == "" {
			out.status.NameserverAudited = place
		}
	}
	return dnsConfig(b.Spec.DNS, allowed, m.refs.dnsMissing || len(allowed) == 0, m.refs)
}

func tcp(port uint16) policy.Port { return policy.Port{Protocol: corev1.ProtocolTCP, Port: port} }
