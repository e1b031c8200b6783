package plan

import (
	"bytes"
	stdcmp "cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
)

// simulation plans one ExternalBackend as the controller does. It plays the API server, the
// engines, siblings and other publishers.
type simulation struct {
	backend *v1alpha1.ExternalBackend
	service *corev1.Service
	slices  map[string]*discoveryv1.EndpointSlice

	foreign, older, younger []Endpoint

	answers  map[string]Answer
	verdicts map[string]string
	denied   map[string]string
	rules    int // the generation of denied
	families []corev1.IPFamily
	max      int
	now      time.Time

	tier   *TierState
	cache  Cache
	probes []Probe
	named  []NamedAddr
	engine map[ProbeID]ProbeState
	status v1alpha1.ExternalBackendStatus
	memory TargetMemory

	out bytes.Buffer
}

func newSimulation() *simulation {
	return &simulation{
		backend: &v1alpha1.ExternalBackend{
			ObjectMeta: metav1.ObjectMeta{Name: "shop", Namespace: "default", UID: "uid-of-shop"},
		},
		slices: map[string]*discoveryv1.EndpointSlice{}, answers: map[string]Answer{},
		verdicts: map[string]string{}, denied: map[string]string{},
		families: []corev1.IPFamily{corev1.IPv4Protocol}, max: 10000, now: testNow,
	}
}

func (s *simulation) restart() {
	s.tier, s.cache, s.probes, s.named, s.engine = nil, Cache{}, nil, nil, nil
	s.verdicts, s.answers = map[string]string{}, map[string]Answer{}
}

// plan returns what had to be written.
func (s *simulation) plan(t *testing.T) (changes endpointslice.Changes) {
	if invalid := Validate(s.backend, s.service); invalid != "" {
		s.report(StatusInput{Invalid: invalid})
		return changes
	}
	if conflict := s.writeService(t); conflict != "" {
		s.report(StatusInput{
			References: &References{}, Programmed: v1alpha1.ReasonServiceConflict, ProgrammedMessage: conflict,
		})
		return changes
	}

	published := endpointslice.Published(slices.Collect(maps.Values(s.slices)), s.foreign...)
	before := s.backend.DeepCopy()
	out := s.cache.PlanEndpoints(s.input(published))
	c, p := out.Candidates, out.Publication
	s.named, s.tier = c.NamedAddrs(s.named), &p.TierState
	changes = s.cache.Slices(&c, out.Conditions)
	for _, slice := range slices.Concat(changes.Create, changes.Update) {
		s.slices[slice.Name] = slice
	}
	for _, slice := range changes.Delete {
		delete(s.slices, slice.Name)
	}
	if diff := cmp.Diff(before, s.backend); diff != "" {
		t.Errorf("planning changed its input:\n%s", diff)
	}

	s.report(StatusInput{
		References: &References{}, Programmed: v1alpha1.ReasonProgrammed, Candidates: &c, Publication: &p,
	})
	fmt.Fprintf(&s.out, "slices %s\n", verbs(changes))
	if !p.Next.IsZero() {
		fmt.Fprintf(&s.out, "next look in %s\n", p.Next.Sub(s.now))
	}
	if len(s.foreign) > 0 && out.HandedOver {
		s.out.WriteString("the foreign endpoints go\n")
		s.foreign = nil
	}
	return changes
}

func (s *simulation) input(published *endpointslice.PublishedEndpoints) EndpointsInput {
	traits := TraitsOf(s.service)
	return EndpointsInput{
		Input: Input{
			Backend: s.backend, Answers: maps.Clone(s.answers), Permit: s.permit, Rules: s.rules, Status: s.status,
			Siblings: []Sibling{
				{Name: "sibling", Older: true, Endpoints: s.older},
				{Name: "sibling", Endpoints: s.younger},
			},
			Probes: s.probes, NamedAddrs: s.named, Max: s.max, Now: s.now,
		},
		Traits: traits, Template: SliceTemplate(s.backend, s.service, &traits, nil, 100),
		Existing: published, Handover: s.foreign, Probe: s.probeStates, TierState: s.tier,
	}
}

// writeService writes the Service as often as its plan wants, and plays the API server. It returns
// why it may not.
func (s *simulation) writeService(t *testing.T) (conflict string) {
	if s.backend.Spec.ServiceRef != nil {
		return ""
	}
	for range 4 {
		p := Service(s.backend, s.service, false)
		if p.Write == nil {
			return p.Conflict
		}
		s.service = p.Write
		s.service.UID = stdcmp.Or(s.service.UID, "uid-of-service")
		if s.service.Spec.Type != corev1.ServiceTypeExternalName {
			s.service.Spec.IPFamilies = s.families
			s.service.Spec.ClusterIP = stdcmp.Or(s.service.Spec.ClusterIP, "10.96.0.10")
		}
	}
	if p := Service(s.backend, s.service, false); p.Write != nil {
		t.Errorf("the Service still changes after four writes:\n%s", cmp.Diff(s.service, p.Write))
	}
	return ""
}

// probeStates plays the prober. An endpoint that it has not seen before has its seed.
func (s *simulation) probeStates(c *Candidates) func(int) ProbeState {
	s.probes, _ = c.Probes(s.probes)
	out := map[ProbeID]ProbeState{}
	for _, p := range s.probes {
		state, known := s.engine[p.ID]
		if !known {
			state.Verdict = p.SeedVerdict
		}
		out[p.ID] = s.judge(&p, state)
	}
	s.engine = out
	return func(i int) ProbeState { return out[s.probes[i].ID] }
}

// judge returns the state of an endpoint: what the scenario says, else the one it has.
func (s *simulation) judge(p *Probe, state ProbeState) ProbeState {
	switch v := s.verdicts[fmt.Sprintf("%s@%s", p.ID.Target, p.ID.Addr)]; v {
	case "":
		return state
	case "Healthy":
		return ProbeState{Verdict: Healthy}
	default:
		return ProbeState{Verdict: Unhealthy, Reason: v}
	}
}

// report updates the status, and prints what is published and what users read.
func (s *simulation) report(in StatusInput) {
	in.Backend, in.Service, in.Previous, in.TargetMemory, in.Now = s.backend, s.service, s.status, s.memory, s.now
	report := Status(in)
	s.status, s.memory = report.Status, report.TargetMemory

	fmt.Fprintf(&s.out, "Service %s %s %v\n", s.status.ServiceType, s.service.Spec.ClusterIP, s.service.Spec.IPFamilies)
	published := endpointslice.Published(slices.Collect(maps.Values(s.slices))).Endpoints()
	s.printEndpoints("", published)
	s.printEndpoints("foreign", s.foreign)
	s.printEndpoints("older sibling", s.older)
	s.printEndpoints("younger sibling", s.younger)
	if e := s.status.Endpoints; e != nil {
		fmt.Fprintf(&s.out, "ready %s, healthy %d, unhealthy %d", e.ReadyOfTotal, e.Healthy, e.Unhealthy)
		if s.status.ActiveTier != nil {
			fmt.Fprintf(&s.out, ", tier %d", *s.status.ActiveTier)
		}
		s.out.WriteByte('\n')
	}
	for _, t := range s.status.Targets {
		fmt.Fprintf(&s.out, "  %s: %s, health %s, tier %d, %d of %d ready, since %s %v\n",
			t.Name, t.State, stdcmp.Or(t.Health, "-"), t.Tier, t.Endpoints.Ready, t.Endpoints.Total,
			t.LastTransitionTime.UTC().Format("15:04:05"), t.Addresses)
		if t.Reason != "" {
			fmt.Fprintf(&s.out, "    %s: %s\n", t.Reason, t.Message)
		}
	}
	for _, c := range s.status.Conditions {
		if c.Status != metav1.ConditionTrue || c.Type == v1alpha1.ConditionReady || c.Reason != c.Type {
			fmt.Fprintf(&s.out, "%s=%s %s: %s\n", c.Type, c.Status, c.Reason, c.Message)
		}
	}
}

// printEndpoints prints endpoints, those of others under the name of their publisher.
func (s *simulation) printEndpoints(publisher string, endpoints []Endpoint) {
	slices.SortFunc(endpoints, func(a, b Endpoint) int {
		return strings.Compare(a.Addr.String()+portText(a.Ports), b.Addr.String()+portText(b.Ports))
	})
	for _, e := range endpoints {
		fmt.Fprintf(&s.out, "  %s %s %s:", stdcmp.Or(publisher, e.Target), e.Addr, portText(e.Ports))
		for _, flag := range []struct {
			set  bool
			text string
		}{{e.Ready, " ready"}, {e.Serving, " serving"}, {e.Terminating, " terminating"}} {
			if flag.set {
				s.out.WriteString(flag.text)
			}
		}
		if !e.DrainUntil.IsZero() {
			fmt.Fprintf(&s.out, " (leaves in %s)", e.DrainUntil.Sub(s.now))
		}
		if e.Hostname != "" {
			fmt.Fprintf(&s.out, " hostname=%s", e.Hostname)
		}
		s.out.WriteByte('\n')
	}
}

func portText(ports []Port) string {
	var out []string
	for _, p := range ports {
		out = append(out, fmt.Sprintf("%s=%d/%s", p.Name, p.Port, p.Protocol))
	}
	return strings.Join(out, ",")
}
