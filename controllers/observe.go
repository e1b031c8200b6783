package controllers

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/writecache"
)

// The fields by which the cache finds objects.
const (
	indexBackend = "backend" // EndpointSlices with our labels, by ExternalBackend
	indexOwner   = "owner"   // EndpointSlices that bear our annotation, or nobody's mark, by the UID of their controller
	indexService = "service" // EndpointSlices and ExternalBackends, by Service
)

// The managers of EndpointSlices in kube-controller-manager, and the label by which its endpoints
// controller marks Endpoints.
const (
	managedByCore       = "endpointslice-controller.k8s.io"
	managedByMirroring  = "endpointslicemirroring-controller.k8s.io"
	labelEndpointsOwner = "endpoints.kubernetes.io/managed-by"
)

// observation is what the cluster says about one ExternalBackend.
type observation struct {
	// inForce is the ExternalBackend as it is acted on: with the spec that was valid last, where
	// invalid says what is wrong with its own.
	inForce *v1alpha1.ExternalBackend
	invalid string
	// service is the Service of that name, whoever owns it; nil where there is none.
	service *corev1.Service
	// lagging is the Service as it is where it can't be given the ports of spec: service has them all
	// the same, so that slices are planned for both.
	lagging *corev1.Service
	// left: the ExternalBackend whose label the Service bears is gone, or has gone elsewhere.
	left bool
	// slices are ours.
	slices []*discoveryv1.EndpointSlice
	// foreign is what others publish behind the Service and we may not take away; yielding and
	// yieldingEndpoints are what we may, once ours stands.
	foreign           []string
	yielding          []*discoveryv1.EndpointSlice
	yieldingEndpoints *metav1.PartialObjectMetadata
	// mirrors are mirrored slices on their way out with their Endpoints.
	mirrors []*discoveryv1.EndpointSlice
	// kept are slices that were kept with the Service of an ExternalBackend that is gone; keptUntil is
	// when more of them yield.
	kept      []*discoveryv1.EndpointSlice
	keptUntil time.Time
	// handover is what all of these publish, where the Service is being taken over, and what is left
	// of an ExternalBackend that is gone.
	handover []endpointslice.Endpoint
	// beside is what other ExternalBackends on the same Service publish: what older ones do, and what
	// younger ones do.
	beside, older, younger []endpointslice.Endpoint
	// claimants name the ExternalBackend behind each of these addresses.
	claimants map[netip.Addr]string
	view      *policy.View
	// desired is what the slices have been planned to publish.
	desired []endpointslice.Endpoint
	// status is the one written last.
	status v1alpha1.ExternalBackendStatus
}

// observe reads all that a reconcile of b goes by, from the cache and what was written since.
func (r *Reconciler) observe(ctx context.Context, b *v1alpha1.ExternalBackend, m *memory) (*observation, error) {
	o := &observation{status: b.Status}
	if m.status != nil && writecache.Newer(m.writtenStatus(), b.ResourceVersion) { // the cache is behind
		o.status = *m.status
	}
	key := types.NamespacedName{Namespace: b.Namespace, Name: plan.ServiceName(b)}
	var service corev1.Service
	if err := r.Get(ctx, key, &service); err == nil {
		o.service = &service
	} else if !apierrors.IsNotFound(err) {
		return nil, err
	}
	o.service = m.writes.Service(o.service, r.now())
	o.invalid = plan.Validate(b, o.service)
	b = m.inForce(b, o.invalid == "")
	o.inForce = b
	if o.service != nil {
		m.notReadyToo = o.service.Spec.PublishNotReadyAddresses
	}
	var err error
	if o.left, err = r.left(ctx, b, o.service); err != nil {
		return nil, err
	}
	cached, err := r.ownSlices(ctx, b, o.service)
	if err != nil {
		return nil, err
	}
	o.slices = m.writes.Slices(cached, r.now())
	if err := r.observeOthers(ctx, b, key, o, m); err != nil {
		return nil, err
	}
	abandoned, keptUntil := m.abandoned(o.kept, r.now())
	o.yielding, o.keptUntil = append(o.yielding, abandoned...), keptUntil
	o.view, err = r.policies.view(ctx, b.Namespace)
	return o, err
}

// left tells whether service bears the label of another ExternalBackend than b that has nothing to
// do with it any more.
func (r *Reconciler) left(ctx context.Context, b *v1alpha1.ExternalBackend, service *corev1.Service) (bool, error) {
	if service == nil {
		return false, nil
	}
	name := service.Labels[v1alpha1.LabelName]
	if name == "" || name == b.Name {
		return false, nil
	}
	var other v1alpha1.ExternalBackend
	if err := r.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: name}, &other); err != nil {
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	}
	return collected(&other) || other.Spec.ServiceRef != nil || plan.ServiceName(&other) != service.Name, nil
}

// orphaned: something that we own has lost its owner. Someone may have taken it off, or the garbage
// collector, on behalf of who deletes b and wants to keep what it owns. The Service may have gone
// with b.
func (o *observation) orphaned(b *v1alpha1.ExternalBackend) bool {
	stood := meta.IsStatusConditionTrue(o.status.Conditions, v1alpha1.ConditionProgrammed)
	if stood && o.service == nil && b.Spec.ServiceRef == nil {
		return true
	}
	if plan.Retains(b) {
		return false // what is there already stays whatever b's end is
	}
	if s := o.service; s != nil && b.Spec.ServiceRef == nil && metav1.GetControllerOf(s) == nil && plan.Owns(b, s) && !plan.Adopted(b, s) {
		return true
	}
	return slices.ContainsFunc(o.slices, func(s *discoveryv1.EndpointSlice) bool { return metav1.GetControllerOf(s) == nil })
}

// dying asks the API server itself whether b is being deleted, or gone: the cache may not have seen
// it yet.
func (r *Reconciler) dying(ctx context.Context, b *v1alpha1.ExternalBackend) (bool, error) {
	live, err := r.liveBackend(ctx, client.ObjectKeyFromObject(b))
	return err == nil && (live == nil || live.UID != b.UID || !live.DeletionTimestamp.IsZero()), err
}

// ownSlices are b's slices as the cache shows them, not to be changed: those with its labels, and
// those that it controls, itself or by its Service, whatever has become of their labels. Other
// managers' slices, too, have the Service as their controller.
func (r *Reconciler) ownSlices(ctx context.Context, b *v1alpha1.ExternalBackend, service *corev1.Service) ([]*discoveryv1.EndpointSlice, error) {
	out, err := r.slicesOf(ctx, client.ObjectKeyFromObject(b))
	if err != nil {
		return nil, err
	}
	owners := []types.UID{b.UID}
	if service != nil && b.Spec.ServiceRef == nil && plan.Owns(b, service) {
		owners = append(owners, service.UID)
	}
	for _, uid := range owners {
		controlled, err := r.listSlices(ctx, b.Namespace, indexOwner, string(uid))
		if err != nil {
			return nil, err
		}
		known := sliceNames(out)
		for _, s := range controlled {
			if !known[s.Name] && (uid == b.UID || !plan.Adopted(b, service) || writtenFor(s, b.Name)) {
				out = append(out, s)
			}
		}
	}
	return out, nil
}

// sliceNames is a set of names: an ExternalBackend may have ten thousand slices.
func sliceNames(list []*discoveryv1.EndpointSlice) map[string]bool {
	names := make(map[string]bool, len(list))
	for _, s := range list {
		names[s.Name] = true
	}
	return names
}

// writtenFor reports whether s is a slice of ours that names no other ExternalBackend. Behind a
// Service that was adopted there may be slices of others, or of an ExternalBackend before it.
func writtenFor(s *discoveryv1.EndpointSlice, backend string) bool {
	name := s.Labels[v1alpha1.LabelName]
	return ours(s) && (name == "" || name == backend)
}

// slicesOf are the slices with the labels of an ExternalBackend as the cache shows them, not to be
// changed.
func (r *Reconciler) slicesOf(ctx context.Context, key types.NamespacedName) ([]*discoveryv1.EndpointSlice, error) {
	return r.listSlices(ctx, key.Namespace, indexBackend, key.Name)
}

func (r *Reconciler) listSlices(ctx context.Context, namespace, index, value string) ([]*discoveryv1.EndpointSlice, error) {
	var list discoveryv1.EndpointSliceList
	if err := r.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{index: value}, client.UnsafeDisableDeepCopy); err != nil {
		return nil, err
	}
	out := make([]*discoveryv1.EndpointSlice, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out, nil
}

// observeOthers finds what others publish behind the Service.
func (r *Reconciler) observeOthers(ctx context.Context, b *v1alpha1.ExternalBackend, service types.NamespacedName, o *observation, m *memory) error {
	behind, err := r.listSlices(ctx, service.Namespace, indexService, service.Name)
	if err != nil {
		return err
	}
	var foreign []*discoveryv1.EndpointSlice
	siblings := map[string][]*discoveryv1.EndpointSlice{}
	own := sliceNames(o.slices)
	for _, s := range behind {
		if own[s.Name] {
			continue
		}
		if s.Labels[discoveryv1.LabelManagedBy] != v1alpha1.ManagedBy {
			foreign = append(foreign, s)
		} else {
			name := s.Labels[v1alpha1.LabelName]
			siblings[name] = append(siblings[name], s)
		}
	}
	var left []*discoveryv1.EndpointSlice
	for name, theirs := range siblings {
		var sibling v1alpha1.ExternalBackend
		err := r.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: name}, &sibling)
		switch {
		case apierrors.IsNotFound(err), err == nil && collected(&sibling):
			left = append(left, theirs...)
		case err != nil:
			return err
		default:
			published := endpointslice.Published(theirs).Endpoints()
			o.beside = append(o.beside, published...)
			o.claim(name, published)
			if olderThan(&sibling, b) {
				o.older = append(o.older, published...)
			} else {
				o.younger = append(o.younger, published...)
			}
		}
	}
	var endpoints metav1.PartialObjectMetadata
	endpoints.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Endpoints"))
	if err := r.Get(ctx, service, &endpoints); client.IgnoreNotFound(err) != nil {
		return err
	}
	if writecache.Newer(m.markedEndpoints, endpoints.ResourceVersion) { // the cache has yet to show it
		metav1.SetMetaDataLabel(&endpoints.ObjectMeta, discoveryv1.LabelSkipMirror, "true")
	}
	o.judge(b, foreign, &endpoints)
	o.judgeLeft(left)
	if adopts(b) && (len(o.yielding)+len(o.mirrors) > 0 || o.yieldingEndpoints != nil) {
		return r.readHandover(ctx, service, o)
	}
	return nil
}

// claim notes that the ExternalBackend of that name publishes these endpoints.
func (o *observation) claim(name string, published []endpointslice.Endpoint) {
	if o.claimants == nil {
		o.claimants = make(map[netip.Addr]string, len(published))
	}
	for i := range published {
		if a := published[i].Addr; o.claimants[a] == "" {
			o.claimants[a] = name
		}
	}
}

// judge tells what others publish behind the Service and may not be taken away from what may: what
// kube-controller-manager left of a selector that has gone, where the Service is ours, and what
// nobody controls, where it is being taken over. Mirrored slices go with their Endpoints.
func (o *observation) judge(b *v1alpha1.ExternalBackend, foreign []*discoveryv1.EndpointSlice, endpoints *metav1.PartialObjectMetadata) {
	ours := b.Spec.ServiceRef == nil && o.service != nil && plan.Owns(b, o.service)
	mirrors := endpoints.Name != "" && endpoints.Labels[discoveryv1.LabelSkipMirror] != "true"
	yields := mirrors && (adopts(b) || ours && endpoints.Labels[labelEndpointsOwner] != "")
	switch {
	case yields:
		o.yieldingEndpoints = endpoints
	case mirrors:
		o.foreign = append(o.foreign, fmt.Sprintf("Endpoints %q", endpoints.Name))
	}
	for _, s := range foreign {
		stale := s.Labels[discoveryv1.LabelManagedBy] == managedByCore
		switch {
		case s.Labels[discoveryv1.LabelManagedBy] == managedByMirroring && (yields || !mirrors):
			o.mirrors = append(o.mirrors, s)
		case stale && (ours || adopts(b)), adopts(b) && metav1.GetControllerOf(s) == nil:
			o.yielding = append(o.yielding, s)
		default:
			o.foreign = append(o.foreign, fmt.Sprintf("EndpointSlice %q", s.Name))
		}
	}
}

// judgeLeft tells what becomes of slices whose ExternalBackend is gone. Those without an owner
// wait for it to come back, as in a restore: nobody touches them, and their claims hold. All
// others are taken over: those that the garbage collector is about to delete with the
// ExternalBackend, and, in time, those that were kept with the Service and that nobody maintains.
func (o *observation) judgeLeft(left []*discoveryv1.EndpointSlice) {
	for _, s := range left {
		published := endpointslice.Published([]*discoveryv1.EndpointSlice{s}).Endpoints()
		if ownerless(s) {
			o.claim(s.Labels[v1alpha1.LabelName], published)
			o.beside = append(o.beside, published...)
			o.older = append(o.older, published...)
			continue
		}
		o.handover = append(o.handover, published...)
		if owner := metav1.GetControllerOf(s); owner == nil || owner.Kind != "ExternalBackend" {
			o.kept = append(o.kept, s)
		}
	}
}

// readHandover reads the endpoints of what yields, which the cache does not keep.
func (r *Reconciler) readHandover(ctx context.Context, service types.NamespacedName, o *observation) error {
	var full []*discoveryv1.EndpointSlice
	for _, s := range slices.Concat(o.yielding, o.mirrors) {
		var live discoveryv1.EndpointSlice
		if err := r.Live.Get(ctx, client.ObjectKeyFromObject(s), &live); err == nil {
			full = append(full, &live)
		} else if !apierrors.IsNotFound(err) {
			return err
		}
	}
	o.handover = append(o.handover, endpointslice.Published(full).Endpoints()...)
	if o.yieldingEndpoints == nil {
		return nil
	}
	var endpoints corev1.Endpoints //nolint:staticcheck // those that are there have to be taken over
	if err := r.Live.Get(ctx, service, &endpoints); err != nil {
		return client.IgnoreNotFound(err)
	}
	o.handover = append(o.handover, plan.ReadEndpoints(&endpoints)...)
	return nil
}

func olderThan(a, b *v1alpha1.ExternalBackend) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.CreationTimestamp.Before(&b.CreationTimestamp)
	}
	return a.Name < b.Name
}

// hasSelector: the Service that serviceRef names chooses its endpoints itself.
func (o *observation) hasSelector(b *v1alpha1.ExternalBackend) bool {
	return b.Spec.ServiceRef != nil && o.service != nil && len(o.service.Spec.Selector) > 0
}

// ofOthers: the Service has become someone else's, whose endpoints ours must not mix with. One that
// has merely lost our marks is not.
func (o *observation) ofOthers(b *v1alpha1.ExternalBackend) bool {
	if o.service == nil || b.Spec.ServiceRef != nil || plan.Owns(b, o.service) {
		return false
	}
	return len(o.service.Spec.Selector) > 0 || metav1.GetControllerOf(o.service) != nil || slices.ContainsFunc(o.slices, func(s *discoveryv1.EndpointSlice) bool {
		owner := metav1.GetControllerOf(s)
		return owner != nil && owner.Kind == "Service" && owner.UID != o.service.UID
	})
}

// conflict returns what keeps b from its Service, and why.
func (r *Reconciler) conflict(b *v1alpha1.ExternalBackend, o *observation) (conflict, string) {
	why := r.whyConflict(b, o)
	switch {
	case why == "":
		return noConflict, ""
	case o.service != nil && plan.BelongsToPredecessor(b, o.service):
		return predecessorsService, fmt.Sprintf("Service %q belongs to an earlier ExternalBackend of this name and goes with it; then it is made anew.", o.service.Name)
	case r.protected(b), o.hasSelector(b), o.ofOthers(b):
		return foreignService, why
	default:
		return otherConflict, why
	}
}

// publishesBehind reports whether a slice of ours stands behind the Service of that name.
func (o *observation) publishesBehind(service string) bool {
	return slices.ContainsFunc(o.slices, func(s *discoveryv1.EndpointSlice) bool {
		return s.Labels[discoveryv1.LabelServiceName] == service
	})
}

// whyConflict says why nothing may be published behind the Service; "" where it may.
func (r *Reconciler) whyConflict(b *v1alpha1.ExternalBackend, o *observation) string {
	name := plan.ServiceName(b)
	if r.protected(b) {
		return fmt.Sprintf("Service %q is protected.", name)
	}
	if b.Spec.ServiceRef != nil {
		if o.service == nil {
			return ""
		}
		if len(o.service.Spec.Selector) > 0 {
			return fmt.Sprintf("Service %q in namespace %q has a selector: Kubernetes chooses its endpoints. "+
				"Remove the selector, or name another Service in spec.serviceRef.", name, b.Namespace)
		}
		if o.service.Spec.Type == corev1.ServiceTypeExternalName {
			return fmt.Sprintf("Service %q in namespace %q is of type ExternalName, which has no endpoints.", name, b.Namespace)
		}
		return o.blocked(b)
	}
	if o.service != nil {
		if why := plan.ServiceConflict(b, o.service, o.left); why != "" {
			return why
		}
	}
	return o.blocked(b)
}

// protected: nothing may stand behind b's Service.
func (r *Reconciler) protected(b *v1alpha1.ExternalBackend) bool {
	key := types.NamespacedName{Namespace: b.Namespace, Name: plan.ServiceName(b)}
	return r.Options.Protected[key] || key == kubernetesService
}

var kubernetesService = types.NamespacedName{Namespace: metav1.NamespaceDefault, Name: "kubernetes"}

// adopts: b may take over what is behind its Service, too.
func adopts(b *v1alpha1.ExternalBackend) bool {
	return b.Spec.Service != nil && b.Spec.Service.AdoptionPolicy == v1alpha1.AdoptionPolicyIfSelectorless
}

// blocked names what others publish behind the Service and may not be taken away; "" where nothing
// is.
func (o *observation) blocked(b *v1alpha1.ExternalBackend) string {
	if len(o.foreign) == 0 {
		return ""
	}
	text := fmt.Sprintf("Behind Service %q there are endpoints of others: %s", plan.ServiceName(b), strings.Join(o.foreign[:min(len(o.foreign), 3)], ", "))
	if more := len(o.foreign) - 3; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text + "."
}

// nameNotes is what policy says of a name that is published as such, whose addresses nobody checks;
// nothing for all other backends.
func (o *observation) nameNotes(b *v1alpha1.ExternalBackend) plan.TargetNotes {
	notes := plan.TargetNotes{Answer: plan.Answer{Status: plan.AnswerCurrent}}
	if plan.Resolves(b) {
		return notes
	}
	switch d := o.view.Name(b.Spec.Targets[0].Hostname, targetPorts(b, &b.Spec.Targets[0])...); {
	case !d.Allowed:
		notes.Denied = d.Kind.String()
	case d.WouldDeny:
		notes.Audited = d.Kind.String()
	}
	return notes
}

// asPermitted is b, and where policy refuses the name of a Service of type ExternalName, b with a
// name that leads nowhere: an alias can't have none.
func (o *observation) asPermitted(b *v1alpha1.ExternalBackend) *v1alpha1.ExternalBackend {
	if plan.ServiceType(b) != v1alpha1.ServiceTypeExternalName {
		return b
	}
	t := &b.Spec.Targets[0]
	if o.nameNotes(b).Denied == "" && t.AdminState != v1alpha1.AdminStateDisabled {
		return b
	}
	b = b.DeepCopy()
	b.Spec.Targets[0].Hostname = plan.UnresolvableName
	return b
}

// front is what stands in front of the endpoints: all of the Service that they depend on.
type front struct {
	plan.Families
	Headless, NotReadyToo, ZoneHints, NodeHints bool
	Serves                                      func(*v1alpha1.Port) bool
	// ports are those of the Service, for people.
	ports   []string
	missing bool
}

// front reads it from the Service, and where that is missing from the slices that are there, which
// stay as they are.
func (o *observation) front(b *v1alpha1.ExternalBackend, m *memory) front {
	if s := o.service; s != nil {
		f := front{
			Families: plan.FamiliesOf(s), Headless: plan.Headless(s), NotReadyToo: s.Spec.PublishNotReadyAddresses,
			Serves: func(p *v1alpha1.Port) bool { return plan.ServesPort(s, p) },
		}
		f.ZoneHints, f.NodeHints = hints(s.Spec.TrafficDistribution)
		for i := range s.Spec.Ports {
			f.ports = append(f.ports, fmt.Sprintf("%q (%s)", s.Spec.Ports[i].Name, cmp.Or(s.Spec.Ports[i].Protocol, corev1.ProtocolTCP)))
		}
		return f
	}
	f := front{NotReadyToo: m.notReadyToo, Serves: func(*v1alpha1.Port) bool { return true }, missing: true}
	for _, s := range o.slices {
		f.IPv4 = f.IPv4 || s.AddressType == discoveryv1.AddressTypeIPv4
		f.IPv6 = f.IPv6 || s.AddressType == discoveryv1.AddressTypeIPv6
		_, headless := s.Labels[corev1.IsHeadlessService]
		f.Headless = f.Headless || headless
		for i := range s.Endpoints {
			if h := s.Endpoints[i].Hints; h != nil {
				f.ZoneHints, f.NodeHints = f.ZoneHints || len(h.ForZones) > 0, f.NodeHints || len(h.ForNodes) > 0
			}
		}
	}
	return f
}

// hints tells which hints endpoints get for a trafficDistribution: those of the values that we
// know.
func hints(distribution *string) (zones, nodes bool) {
	if distribution == nil {
		return false, false
	}
	switch *distribution {
	case corev1.ServiceTrafficDistributionPreferSameNode:
		return true, true
	case corev1.ServiceTrafficDistributionPreferSameZone, corev1.ServiceTrafficDistributionPreferClose:
		return true, false
	}
	return false, false
}

// serviceNotFound says where a Service was looked for.
func serviceNotFound(b *v1alpha1.ExternalBackend) string {
	return fmt.Sprintf("Service %q does not exist in namespace %q.", plan.ServiceName(b), b.Namespace)
}

// firstFew lists the first of many.
func firstFew(all []string) string {
	const few = 5
	text := strings.Join(all[:min(len(all), few)], ", ")
	if more := len(all) - few; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return cmp.Or(text, "none")
}

// otherTargetPort names the first port whose target port differs from it; "" where none does.
func otherTargetPort(b *v1alpha1.ExternalBackend) string {
	for i := range b.Spec.Ports {
		if p := &b.Spec.Ports[i]; p.EffectiveTargetPort() != p.Port {
			return cmp.Or(p.Name, strconv.Itoa(int(p.Port)))
		}
	}
	return ""
}

// mismatch reports what keeps the slices from doing their work although they are as planned.
func (f *front) mismatch(b *v1alpha1.ExternalBackend, c *plan.Candidates, out *outcome) {
	var lacking []string
	for i := range b.Spec.Ports {
		if p := &b.Spec.Ports[i]; !f.Serves(p) {
			lacking = append(lacking, fmt.Sprintf("%q (%s)", p.Name, p.EffectiveProtocol()))
		}
	}
	switch {
	case f.missing:
		out.fail(v1alpha1.ReasonServiceNotFound, serviceNotFound(b), nil)
	case len(lacking) > 0:
		out.fail(v1alpha1.ReasonPortMismatch, fmt.Sprintf("Service %q in namespace %q lacks ports of spec.ports, by name and protocol: %s. It has %s.",
			plan.ServiceName(b), b.Namespace, firstFew(lacking), firstFew(f.ports)), nil)
	case out.status.Programmed == "" && f.Headless && otherTargetPort(b) != "":
		out.status.ProgrammedMessage = fmt.Sprintf("The Service is headless: its clients connect to the targets' own ports, "+
			"and learn that of port %q from DNS SRV records alone.", otherTargetPort(b))
	case out.status.Programmed == "" && f.ZoneHints:
		out.status.ProgrammedMessage = plan.ExplainIgnoredHints(c, f.NodeHints)
	}
}
