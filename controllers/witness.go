package controllers

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
	"github.com/external-backend/operator/internal/plan"
	"github.com/external-backend/operator/internal/policy"
	"github.com/external-backend/operator/internal/probe"
	"github.com/external-backend/operator/internal/translate"
)

// subjectLifetime is how long a subject is remembered after the last question about it.
const subjectLifetime = 10 * time.Minute

// subjects finds out what to probe for other replicas. It goes by this replica's own caches,
// rights and policies, and takes from a question only which endpoint it is about.
type subjects struct {
	reconciler *Reconciler
	// mu guards known, not what is in it.
	mu    sync.Mutex
	known map[types.NamespacedName]*subject
}

// subject is an ExternalBackend that other replicas ask about.
type subject struct {
	used time.Time // guarded by subjects.mu

	mu         sync.Mutex // held while references are read
	uid        types.UID
	references references

	dial sync.Mutex // held for a moment only
	// names are the addresses that may be dialled, each with the name that led to it.
	names map[netip.AddrPort]string
}

// allow lets an address be dialled. name has led to it. At most that many addresses are
// remembered.
func (s *subject) allow(addr netip.AddrPort, name string, most int) {
	s.dial.Lock()
	defer s.dial.Unlock()
	if len(s.names) >= most {
		clear(s.names)
	}
	s.names[addr] = name
}

func newSubjects(r *Reconciler) *subjects {
	return &subjects{reconciler: r, known: map[types.NamespacedName]*subject{}}
}

// of returns the subject of key. It forgets those that nobody has asked about for long.
func (s *subjects) of(key types.NamespacedName) *subject {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.reconciler.now()
	found := s.known[key]
	if found == nil {
		for other, old := range s.known {
			if now.Sub(old.used) > subjectLifetime {
				delete(s.known, other)
			}
		}
		found = &subject{names: map[netip.AddrPort]string{}}
		s.known[key] = found
	}
	found.used = now
	return found
}

// find returns the check of an ExternalBackend, and those of its endpoints that may be probed. It
// returns an error if this replica knows another generation of it, or can't check it.
func (s *subjects) find(
	ctx context.Context, key types.NamespacedName, generation int64, ids []probe.ID,
) (*probe.Check, []probe.Endpoint, error) {
	r := s.reconciler
	var b v1alpha1.ExternalBackend
	if err := r.Get(ctx, key, &b); err != nil {
		return nil, nil, err
	}
	if b.Generation != generation {
		return nil, nil, fmt.Errorf("generation %d is known, and not %d", b.Generation, generation)
	}
	in, traits, err := s.input(ctx, &b, ids)
	if err != nil {
		return nil, nil, err
	}

	found := s.of(key)
	found.mu.Lock()
	defer found.mu.Unlock()
	if found.uid != b.UID {
		found.uid, found.references = b.UID, references{}
	}
	found.references = readReferences(ctx, r.Live, in.Backend, found.references, r.now())
	if found.references.checkMissing {
		return nil, nil, fmt.Errorf("what its check needs can't be read: %s", found.references.problem.Message)
	}

	in.Headless, in.ServesPort = traits.Headless, traits.ServesPort
	candidates := new(plan.Cache).Candidates(in, endpointslice.Template{})
	probes, _ := candidates.Probes(nil)
	endpoints, names := translate.ProbeEndpoints(probes)
	known := make(map[probe.ID]probe.Endpoint, len(endpoints))
	for _, e := range endpoints {
		e.Seed = probe.Unknown
		known[e.ID] = e
	}
	var asked []probe.Endpoint
	for _, id := range ids {
		if e, ok := known[id]; ok {
			asked = append(asked, e)
			found.allow(e.Dial, names[e.Dial], r.Options.MaxEndpointsPerBackend)
		}
	}
	return translate.HealthCheck(in.Backend.Spec.HealthCheck, found.references.credentials()), asked, nil
}

// input is what the endpoints of b are planned from. The addresses of names are those that are
// asked about.
func (s *subjects) input(
	ctx context.Context, b *v1alpha1.ExternalBackend, ids []probe.ID,
) (plan.Input, plan.ServiceTraits, error) {
	r := s.reconciler
	traits := plan.ServiceTraits{Families: plan.Families{IPv4: true, IPv6: true}}
	traits.ServesPort = func(*v1alpha1.Port) bool { return true }
	var service *corev1.Service
	found := &corev1.Service{}
	err := r.Get(ctx, types.NamespacedName{Namespace: b.Namespace, Name: b.EffectiveServiceName()}, found)
	if client.IgnoreNotFound(err) != nil {
		return plan.Input{}, traits, err
	}
	if err == nil {
		service, traits = found, plan.TraitsOf(found)
	}
	if problem := plan.Validate(b, service); problem != "" {
		return plan.Input{}, traits, fmt.Errorf("its spec is not valid: %s", problem)
	}
	overrides, err := r.readOverrides(ctx, types.NamespacedName{Namespace: b.Namespace, Name: b.Name})
	if err != nil {
		return plan.Input{}, traits, err
	}
	overridden := plan.Override(b, true, overrides, r.now())
	if overridden.Backend.Spec.HealthCheck == nil || !plan.Resolves(overridden.Backend) {
		return plan.Input{}, traits, fmt.Errorf("it has no endpoints to check")
	}
	view, err := r.policies.view(ctx, b.Namespace)
	if err != nil {
		return plan.Input{}, traits, err
	}
	return plan.Input{
		Backend: overridden.Backend, Override: overridden.Applied, Families: traits.Families,
		Answers: answersFor(overridden.Backend, ids), Permit: translate.Permit(view), Rules: view,
		Published: endpointslice.Published(nil), Max: r.Options.MaxEndpointsPerBackend, Now: r.now(),
	}, traits, nil
}

// answersFor returns answers for the names of b that lead to the addresses of ids. Policy judges
// these addresses as it judges those that DNS returns.
func answersFor(b *v1alpha1.ExternalBackend, ids []probe.ID) map[string]plan.Answer {
	answers := map[string]plan.Answer{}
	bySRV := map[string]bool{}
	for i := range b.Spec.Targets {
		if t := &b.Spec.Targets[i]; t.Hostname != "" || t.SRVName != "" {
			answers[t.Name], bySRV[t.Name] = plan.Answer{Status: plan.AnswerCurrent}, t.SRVName != ""
		}
	}
	for _, id := range ids {
		answer, named := answers[id.Target]
		if !named {
			continue
		}
		addr := plan.Addr{IP: id.Addr}
		if bySRV[id.Target] {
			addr.Port = id.Port
		}
		answer.Addrs = append(answer.Addrs, addr)
		answers[id.Target] = answer
	}
	return answers
}

// permit asks policy once more, right before an endpoint is dialled for another replica.
func (s *subjects) permit(owner types.NamespacedName, addr netip.AddrPort) error {
	s.mu.Lock()
	found := s.known[owner]
	s.mu.Unlock()
	if found == nil {
		return fmt.Errorf("nobody has asked about %s", owner)
	}
	found.dial.Lock()
	name, ok := found.names[addr]
	found.dial.Unlock()
	if !ok {
		return fmt.Errorf("nobody has asked about %s of %s", addr, owner)
	}
	return s.reconciler.permitAddress(owner.Namespace, name, addr)
}

// permitAddress asks the policy that is compiled already about an address that a name led to.
func (r *Reconciler) permitAddress(namespace, name string, addr netip.AddrPort) error {
	view := r.policies.compiled(namespace)
	if view == nil {
		return fmt.Errorf("nobody knows yet what namespace %s may use", namespace)
	}
	if d := view.Target(name, addr.Addr(), policy.Port{Protocol: corev1.ProtocolTCP, Port: addr.Port()}); !d.Keep(true) {
		return fmt.Errorf("policy refuses it: %s", d.Kind)
	}
	return nil
}
