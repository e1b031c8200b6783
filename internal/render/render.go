// Package render says which Service and EndpointSlices the manager would write for an
// ExternalBackend, and writes nothing. It plans as the manager does right after a start: what is
// known is what the cluster says. The package is pure.
package render

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
)

// Defaults of the manager's flags.
const (
	DefaultMaxPerSlice   = 100
	DefaultMaxPerBackend = 10000
)

// Input is what a rendering is planned from.
type Input struct {
	Backend *v1alpha1.ExternalBackend
	// Overrides are those of the ExternalBackend.
	Overrides []v1alpha1.ExternalBackendOverride
	// Service is the Service in the cluster, or nil. Slices are those that are written for the
	// ExternalBackend, and Siblings what others publish behind the Service.
	Service  *corev1.Service
	Slices   []*discoveryv1.EndpointSlice
	Siblings []plan.Sibling
	// Handover is what others publish that ours shall take over from.
	Handover []plan.Endpoint
	// Families are what the API server gives to a Service whose spec does not name families, the first
	// first.
	Families []corev1.IPFamily
	// Answers are what names of targets resolve to, by target. A name without one has the addresses
	// that are published for it.
	Answers map[string]plan.Answer
	// Permit asks policy. Without it, policy refuses what status says that it refuses.
	Permit plan.Permit
	// State returns what is known about an endpoint. Without it, that is what slices and status say.
	State func(*plan.Probe) plan.ProbeState
	// MaxPerSlice and MaxPerBackend are flags of the manager.
	MaxPerSlice, MaxPerBackend int
	Now                        time.Time
}

// Result is what the manager would write.
type Result struct {
	// Service is nil if somebody else owns it.
	Service *corev1.Service
	// Slices are all slices of the ExternalBackend afterwards, by name.
	Slices []*discoveryv1.EndpointSlice
	// Remarks say in sentences what was assumed.
	Remarks []string
}

// Render plans Service and slices. The error says why the manager would write neither.
func Render(in Input) (*Result, error) {
	if invalid := plan.Validate(in.Backend, in.Service); invalid != "" {
		return nil, fmt.Errorf("the spec is invalid, and the manager leaves what it has published as it is: %s", invalid)
	}
	r := renderer{Input: in}
	overridden := plan.Override(in.Backend, true, in.Overrides, in.Now)
	r.Backend, r.override = overridden.Backend, overridden.Applied
	if r.override.Name != "" {
		r.remark("ExternalBackendOverride %q is applied: %s.", r.override.Name, r.override.Effect)
	}
	if err := r.planService(); err != nil {
		return nil, err
	}
	r.planSlices()
	return &r.result, nil
}

// renderer holds the state of one Render.
type renderer struct {
	Input
	override plan.AppliedOverride
	// service is the Service that slices are planned for, with what the API server would add.
	service *corev1.Service
	result  Result
}

func (r *renderer) remark(format string, args ...any) {
	r.result.Remarks = append(r.result.Remarks, fmt.Sprintf(format, args...))
}

// maxServiceWrites bounds the writes that a change of type takes.
const maxServiceWrites = 4

// planService writes the Service as often as its plan wants.
func (r *renderer) planService() error {
	r.service = r.Service
	if r.Backend.Spec.ServiceRef != nil {
		return r.attach()
	}
	b := r.Backend
	if plan.ServiceType(b) == v1alpha1.ServiceTypeExternalName && r.withholdsName() {
		b = plan.WithoutName(b)
		r.remark("The target is Disabled, or policy refuses it: the Service leads nowhere.")
	}
	for range maxServiceWrites {
		p := plan.Service(b, r.service, false)
		if p.Conflict != "" {
			return fmt.Errorf("the manager writes neither Service nor slices: %s", p.Conflict)
		}
		if p.Write == nil {
			break
		}
		r.service, r.result.Service = p.Write, p.Write
	}
	if r.result.Service == nil {
		r.result.Service = r.service
	}
	if r.service.Spec.Type != corev1.ServiceTypeExternalName && len(r.service.Spec.IPFamilies) == 0 ||
		r.Service == nil {
		r.service = r.service.DeepCopy()
		r.assumeFamilies(r.service)
	}
	return nil
}

// attach uses the Service that spec.serviceRef names.
func (r *renderer) attach() error {
	name := r.Backend.EffectiveServiceName()
	switch {
	case r.service == nil && len(r.Slices) > 0:
		r.remark("Service %q does not exist: the slices stay, for the ports and families that they have.", name)
	case r.service == nil:
		assumed := &corev1.Service{}
		assumed.Name, assumed.Namespace = name, r.Backend.Namespace
		r.remark("Service %q is assumed to have all ports of spec.ports. Nothing is written until it exists.", name)
		r.service, _ = plan.WithPorts(r.Backend, assumed)
		r.assumeFamilies(r.service)
	case len(r.service.Spec.Selector) > 0:
		return fmt.Errorf("the manager writes no slices: Service %q has a selector, so Kubernetes chooses its endpoints", name)
	case r.service.Spec.Type == corev1.ServiceTypeExternalName:
		return fmt.Errorf("the manager writes no slices: Service %q is of type ExternalName, which has no endpoints", name)
	}
	return nil
}

// assumeFamilies does what the API server does with a new Service.
func (r *renderer) assumeFamilies(s *corev1.Service) {
	if s.Spec.Type == corev1.ServiceTypeExternalName {
		return
	}
	policy := s.Spec.IPFamilyPolicy
	dualStack := policy != nil && *policy != corev1.IPFamilyPolicySingleStack
	families := slices.Clone(s.Spec.IPFamilies)
	named := len(families) > 0
	if !named {
		families = slices.Clone(r.Families[:1])
	}
	if dualStack && len(families) == 1 {
		other := corev1.IPv6Protocol
		if families[0] == other {
			other = corev1.IPv4Protocol
		}
		families = append(families, other)
	}
	s.Spec.IPFamilies = families
	if !named || dualStack {
		texts := make([]string, len(families))
		for i := range texts {
			texts[i] = string(families[i])
		}
		r.remark("The Service is assumed to get the IP families %s from the API server.", strings.Join(texts, ", "))
	}
}

// planSlices plans the slices.
func (r *renderer) planSlices() {
	traits := plan.TraitsOfSlices(r.Slices, false)
	if r.service != nil {
		traits = plan.TraitsOf(r.service)
	}
	template := plan.SliceTemplate(r.Backend, r.service, &traits, nil, r.MaxPerSlice)
	var changes endpointslice.Changes
	switch {
	case plan.ServiceType(r.Backend) == v1alpha1.ServiceTypeExternalName:
		changes.Delete = r.Slices
	case plan.Passthrough(r.Backend):
		changes, _ = plan.PassthroughSlices(template, r.Backend, traits.ServesPort, !r.withholdsName(), r.Slices)
	default:
		changes = r.planEndpoints(traits, template)
	}
	r.result.Slices = Apply(changes, r.Slices)
}

// planEndpoints plans slices of addresses, as the manager does.
func (r *renderer) planEndpoints(traits plan.ServiceTraits, template endpointslice.Template) endpointslice.Changes {
	published := endpointslice.Published(r.Slices, r.Handover...)
	var cache plan.Cache
	planned := cache.PlanEndpoints(plan.EndpointsInput{
		Input: plan.Input{
			Backend: r.Backend, Answers: r.answers(published), Permit: r.permit(), Status: r.Backend.Status,
			Siblings: r.Siblings, Override: r.override, Max: r.MaxPerBackend, Now: r.Now,
		},
		Traits: traits, Template: template, Existing: published, Handover: r.Handover, Probe: r.states,
	})
	return cache.Slices(&planned.Candidates, planned.Conditions)
}

// states returns what is known about the endpoints.
func (r *renderer) states(c *plan.Candidates) func(int) plan.ProbeState {
	probes, _ := c.Probes(nil)
	return func(i int) plan.ProbeState {
		if r.State != nil {
			return r.State(&probes[i])
		}
		return plan.ProbeState{Verdict: probes[i].SeedVerdict}
	}
}

// answers returns an answer for each target with a name.
func (r *renderer) answers(published *endpointslice.PublishedEndpoints) map[string]plan.Answer {
	out, seeds := map[string]plan.Answer{}, plan.PublishedAddrs(r.Backend, published)
	var unresolved []string
	for i := range r.Backend.Spec.Targets {
		t := &r.Backend.Spec.Targets[i]
		name := t.Hostname + t.SRVName
		if name == "" || t.AdminState == v1alpha1.AdminStateDisabled {
			continue
		}
		a, known := r.Answers[t.Name]
		switch {
		case known:
		case r.Permit == nil && r.denied()[name]:
			a = plan.Answer{Status: plan.AnswerCurrent, Refusal: plan.Refusal{Denied: true}}
		default:
			a = plan.Answer{Status: plan.AnswerPending, Addrs: seeds[t.Name]}
			if len(a.Addrs) == 0 {
				unresolved = append(unresolved, t.Name)
			}
		}
		out[t.Name] = a
	}
	if len(unresolved) > 0 {
		r.remark("Names are not resolved, and have no endpoints: those of %s.", plan.FirstFew(unresolved, 8))
	}
	return out
}

// denied returns the names and literal addresses that policy refuses, as status says.
func (r *renderer) denied() map[string]bool {
	out := map[string]bool{}
	for i := range r.Backend.Status.Targets {
		if status := &r.Backend.Status.Targets[i]; status.State == v1alpha1.TargetStateDenied {
			for j := range r.Backend.Spec.Targets {
				if t := &r.Backend.Spec.Targets[j]; t.Name == status.Name {
					out[t.Address+t.Hostname+t.SRVName] = true
				}
			}
		}
	}
	return out
}

// permit asks policy, or status.
func (r *renderer) permit() plan.Permit {
	if r.Permit != nil {
		return r.Permit
	}
	denied := r.denied()
	return func(name string, addr netip.Addr, _ []plan.Port) plan.Refusal {
		if name == "" {
			name = addr.String()
		}
		return plan.Refusal{Denied: denied[name]}
	}
}

// withholdsName reports whether the name of the only target is not published itself.
func (r *renderer) withholdsName() bool {
	t := &r.Backend.Spec.Targets[0]
	return t.AdminState == v1alpha1.AdminStateDisabled || r.denied()[t.Hostname]
}

// Apply returns the slices that are there after changes, by name.
func Apply(changes endpointslice.Changes, existing []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	after := map[string]*discoveryv1.EndpointSlice{}
	for _, s := range slices.Concat(existing, changes.Create, changes.Update) {
		after[s.Name] = s
	}
	for _, s := range changes.Delete {
		delete(after, s.Name)
	}
	out := make([]*discoveryv1.EndpointSlice, 0, len(after))
	for _, s := range after {
		out = append(out, s)
	}
	slices.SortFunc(out, func(a, b *discoveryv1.EndpointSlice) int { return strings.Compare(a.Name, b.Name) })
	return out
}
