package plan

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/external-backend/operator/api/v1alpha1"
)

// AnswerStatus says how good an answer is.
type AnswerStatus string

const (
	// AnswerPending: nothing is known of the name yet.
	AnswerPending AnswerStatus = "Pending"
	// AnswerCurrent: the answer is good and has not expired.
	AnswerCurrent AnswerStatus = "Current"
	// AnswerStale: resolution fails, the last good answer serves (RFC 8767).
	AnswerStale AnswerStatus = "Stale"
	// AnswerFailed: never resolved, stale no longer, or the name does not exist.
	AnswerFailed AnswerStatus = "Failed"
)

// Answer is what the name of a target resolves to at present.
type Answer struct {
	Status AnswerStatus
	Addrs  []Addr
	// Reason is the fixed word for status, Cause the fixed phrase for messages; both "" where the answer is current.
	Reason, Cause string
	// Omitted is how many addresses the bound on a name's addresses has cut off.
	Omitted int
}

// Addr is one address of an answer. Port and Rank are 0 but for SRV.
type Addr struct {
	IP   netip.Addr
	Port uint16
	Rank uint8
}

// Refusal is what policy says of one address.
type Refusal struct {
	// Denied: the address may be neither published nor probed. WouldDeny: it may, but a policy in mode Audit would refuse it.
	Denied, WouldDeny bool
	// KeepPublished: the address is refused by discovery alone, so one that is published already stays and is reported.
	KeepPublished bool
	// Kind is the fixed phrase that tells which rule it was.
	Kind string
}

// Permit is policy's decision on an address and the ports that are published and probed there, for a target that was given by name ("" for a literal address).
type Permit func(name string, addr netip.Addr, ports []Port) Refusal

// ProbeID identifies what is probed: the endpoint, told apart by the target, the address, and the first of its ports (two SRV records may share a host).
type ProbeID struct {
	Target string
	Addr   netip.Addr
	Port   uint16
}

// Probe is one endpoint to be probed.
type Probe struct {
	ID   ProbeID
	Dial netip.AddrPort
	// Host is the target's hostname; "" for a literal address.
	Host string
	// Seed is what its slice and status say of it, which is its verdict until a probe says otherwise.
	Seed Verdict
}

// Candidate is an endpoint that spec, answers and policy allow.
type Candidate struct {
	Endpoint
	// target is the index in spec.targets; -1 where the target has left the spec.
	target int
	tier   int32
	// draining: the target is Draining, or the address is leaving.
	draining bool
	// place is that of its address in finder.places.
	place int32
	// probePort is where it is probed, under the name host; 0 where it is not.
	probePort uint16
	host      string
	// published: an endpoint of that address stands in a slice, with serving as its condition.
	published, serving bool
	seed               Verdict
}

func (c *Candidate) probed() bool { return c.probePort != 0 }

// id identifies c among the probes.
func (c *Candidate) id() ProbeID {
	return ProbeID{Target: c.Target, Addr: c.Addr, Port: uint16(c.Ports[0].Port)}
}

func (c *Candidate) probe() Probe {
	return Probe{ID: c.id(), Dial: netip.AddrPortFrom(c.Addr, c.probePort), Host: c.host, Seed: c.seed}
}

// leaving: the address has left spec or DNS, and stays for drainSeconds.
func (c *Candidate) leaving() bool { return !c.DrainUntil.IsZero() }

// TargetNotes are what has been decided of one target on the way to its endpoints.
type TargetNotes struct {
	Answer Answer
	// Denied is why policy refuses an address of it, Audited why it would; "" where it does not.
	Denied, Audited string
	// Duplicates, OtherFamily and Truncated count the addresses that are not published for these reasons.
	Duplicates, OtherFamily, Truncated int
}

// Input is all that endpoints are planned from.
type Input struct {
	Backend  *v1alpha1.ExternalBackend
	Families Families
	// Headless: the endpoints carry their target's name as hostname.
	Headless bool
	// Serves tells whether the Service has the port, by name and protocol.
	Serves func(*v1alpha1.Port) bool
	// Answers are those of the targets that are given by name, by target name.
	Answers map[string]Answer
	Permit  Permit
	// Published is what stands in the slices, Status what was said of it.
	Published []Endpoint
	Status    v1alpha1.ExternalBackendStatus
	// Older is what older ExternalBackends on the same Service publish.
	Older []Endpoint
	// Probes are those of the plan before, by which the addresses that have left since go on being probed.
	Probes []Probe
	// Max is the most endpoints to publish.
	Max int
	Now time.Time
}

// Candidates are the endpoints that may be published, each with its probe, and why others may not.
type Candidates struct {
	Endpoints []Candidate
	// Notes are parallel to spec.targets.
	Notes []TargetNotes
	// next is when the first leaving address is to be gone.
	next time.Time
}

// Probes are the endpoints to probe; none without healthCheck.
func (c *Candidates) Probes() []Probe {
	probes := make([]Probe, 0, len(c.Endpoints))
	for i := range c.Endpoints {
		if e := &c.Endpoints[i]; e.probed() {
			probes = append(probes, e.probe())
		}
	}
	return probes
}

// FindCandidates decides which endpoints may be published.
//
//  1. Every target that is not Disabled yields an endpoint for each of its addresses that policy allows and whose family the Service serves.
//  2. A published endpoint whose address has left spec or DNS stays for drainSeconds, unless policy refuses it.
//  3. Of two claimants of one ip:port for one Service port one wins whole: an older ExternalBackend's, then the lower tier, then Active before Draining, then the
//     order in spec; a leaving address loses to all.
//  4. At most Max endpoints are published; what is published already stays first.
func FindCandidates(in Input) Candidates {
	f := newFinder(in)
	for i := range in.Backend.Spec.Targets {
		f.expand(i)
	}
	f.leave()
	f.settleClaims()
	f.truncate()
	return f.out
}

// finder carries the state of one FindCandidates.
type finder struct {
	Input
	places map[addrKey]int32
	// at tells of each place what is published there, and who claims it.
	at []place
	// common are the ports of targets without overrides.
	common []Port
	// states are those of the targets in Status.
	states map[string]v1alpha1.ObservedState
	// nextPublished chains the published endpoints of one place, nextClaim its candidates; -1 ends a chain.
	nextPublished, nextClaim []int32
	out                      Candidates
}

// place is one address.
type place struct {
	published, claim int32
	// named: spec and answers name the address, be it allowed or not, so that it has not left.
	named bool
}

func newFinder(in Input) *finder {
	n := len(in.Backend.Spec.Targets)
	for _, a := range in.Answers {
		n += len(a.Addrs)
	}
	n = max(n, len(in.Published))
	f := &finder{Input: in, places: make(map[addrKey]int32, n), at: make([]place, 0, n), nextPublished: make([]int32, len(in.Published))}
	f.out.Notes = make([]TargetNotes, len(in.Backend.Spec.Targets))
	f.out.Endpoints = make([]Candidate, 0, n)
	f.states = make(map[string]v1alpha1.ObservedState, len(in.Status.Targets))
	for _, t := range in.Status.Targets {
		f.states[t.Name] = t.State
	}
	for i := range in.Published {
		p := f.place(in.Published[i].Addr)
		f.nextPublished[i], f.at[p].published = f.at[p].published, int32(i)
	}
	return f
}

// place finds or makes the place of an address.
func (f *finder) place(a netip.Addr) int32 {
	key := a.As16()
	p, ok := f.places[key]
	if !ok {
		p = int32(len(f.at))
		f.places[key] = p
		f.at = append(f.at, place{published: -1, claim: -1})
	}
	return p
}

// standing is the published endpoint that c goes on with: no two at one address have the same first port, because they would claim one ip:port for one Service port.
// exact is false where there is only one with other ports.
func (f *finder) standing(c *Candidate) (e *Endpoint, exact bool) {
	for i := f.at[c.place].published; i >= 0; i = f.nextPublished[i] {
		e = &f.Published[i]
		if len(e.Ports) > 0 && len(c.Ports) > 0 && e.Ports[0].Port == c.Ports[0].Port {
			return e, true
		}
	}
	return e, false
}

// expand is step 1 for one target.
func (f *finder) expand(i int) {
	t := &f.Backend.Spec.Targets[i]
	notes := &f.out.Notes[i]
	var addrs []Addr
	var literal [1]Addr
	if name := targetName(t); name != "" {
		notes.Answer = f.Answers[t.Name]
		notes.Answer.Status = cmp.Or(notes.Answer.Status, AnswerPending)
		addrs = notes.Answer.Addrs
	} else if ip, err := netip.ParseAddr(t.Address); err == nil {
		literal[0].IP = ip
		addrs = literal[:]
	}
	var ports []Port
	var srv uint16
	for _, a := range addrs {
		place := f.place(a.IP)
		f.at[place].named = true
		if t.State == v1alpha1.TargetStateDisabled {
			continue
		}
		if ports == nil || srv != a.Port {
			ports, srv = f.portsOf(t, a.Port), a.Port
		}
		f.admit(i, a, place, ports)
	}
}

// portsOf is what an endpoint of t says of ports; those without a say of their own share one list.
func (f *finder) portsOf(t *v1alpha1.Target, srv uint16) []Port {
	if len(t.Ports) > 0 || srv != 0 {
		return slicePorts(f.Backend, t, f.Serves, srv)
	}
	if f.common == nil {
		f.common = slicePorts(f.Backend, t, f.Serves, 0)
	}
	return f.common
}

// admit adds one address of target i, where policy and family allow it.
func (f *finder) admit(i int, a Addr, place int32, ports []Port) {
	t := &f.Backend.Spec.Targets[i]
	notes := &f.out.Notes[i]
	c := Candidate{
		Endpoint: Endpoint{
			Target: t.Name, Addr: a.IP, Ports: ports, Rank: a.Rank,
			Zone: t.Zone, NodeName: t.NodeName,
		},
		target:   i,
		place:    place,
		tier:     tierOf(t, a.Rank),
		draining: t.State == v1alpha1.TargetStateDraining,
	}
	if f.Headless {
		c.Hostname = t.Name
	}
	published, exact := f.standing(&c)
	f.addProbe(&c, t, a.Port, published)
	refusal := f.permit(targetName(t), &c)
	if refusal.WouldDeny {
		notes.Audited = refusal.Kind
	}
	if refusal.Denied {
		notes.Denied = refusal.Kind
		if !exact || !refusal.KeepPublished {
			return
		}
	}
	if !f.Families.serves(a.IP) {
		notes.OtherFamily++
		return
	}
	if len(ports) > 0 {
		f.out.Endpoints = append(f.out.Endpoints, c)
	}
}

// addProbe gives c its probe. An endpoint new to its slice takes the serving condition of another one published at that address over: it is the same server.
func (f *finder) addProbe(c *Candidate, t *v1alpha1.Target, srv uint16, published *Endpoint) {
	if f.Backend.Spec.HealthCheck == nil || len(c.Ports) == 0 {
		return
	}
	port, ok := probePort(f.Backend, t, srv)
	if !ok {
		return
	}
	c.probePort, c.host = port, t.Hostname
	if published != nil {
		c.published, c.serving = true, published.Serving
		c.seed = f.seed(t.Name, published.Serving)
	}
}

// seed is the last verdict on an endpoint that stands in a slice. Where the slice can't tell, because the check only observes, or because there was no verdict yet, the
// status of its target does.
func (f *finder) seed(target string, serving bool) Verdict {
	state := f.states[target]
	switch {
	case !serving && state == v1alpha1.ObservedStateUnknown:
		return Unknown
	case !serving, observes(f.Backend) && state == v1alpha1.ObservedStateUnhealthy:
		return Unhealthy
	}
	return Healthy
}

func (f *finder) permit(name string, c *Candidate) Refusal {
	ports := c.Ports
	asked := func(p Port) bool { return p.Port == int32(c.probePort) && p.Protocol == corev1.ProtocolTCP }
	if c.probed() && !slices.ContainsFunc(ports, asked) {
		ports = append(slices.Clip(ports), Port{Port: int32(c.probePort), Protocol: corev1.ProtocolTCP})
	}
	return f.Permit(name, c.Addr, ports)
}

// leave is step 2.
func (f *finder) leave() {
	drain := drainTime(f.Backend)
	if drain == 0 {
		return
	}
	deadline := f.Now.Add(drain + time.Second - 1).Truncate(time.Second)
	targets := make(map[string]int, len(f.Backend.Spec.Targets))
	for i := range f.Backend.Spec.Targets {
		targets[f.Backend.Spec.Targets[i].Name] = i
	}
	probes := make(map[ProbeID]Probe, len(f.Probes))
	for _, p := range f.Probes {
		probes[p.ID] = p
	}
	for i := range f.Published {
		p := &f.Published[i]
		place := f.places[p.Addr.As16()]
		if f.at[place].named || p.Target == "" || !f.Families.serves(p.Addr) {
			continue
		}
		c := Candidate{Endpoint: *p, target: -1, place: place, tier: 127, draining: true}
		name := ""
		if t, ok := targets[p.Target]; ok {
			target := &f.Backend.Spec.Targets[t]
			if target.State == v1alpha1.TargetStateDisabled {
				continue
			}
			c.target, name = t, targetName(target)
		}
		if c.DrainUntil.IsZero() || c.DrainUntil.After(deadline) {
			c.DrainUntil = deadline
		}
		if !c.DrainUntil.After(f.Now) {
			continue
		}
		c.Ports = f.stillServed(p.Ports)
		if len(c.Ports) == 0 {
			continue
		}
		if probe, ok := probes[c.id()]; ok && f.Backend.Spec.HealthCheck != nil {
			c.probePort, c.host, c.published, c.serving, c.seed = probe.Dial.Port(), probe.Host, true, p.Serving, probe.Seed
			name = cmp.Or(name, probe.Host)
		}
		if r := f.permit(name, &c); r.Denied && !r.KeepPublished {
			continue
		}
		if f.out.next.IsZero() || c.DrainUntil.Before(f.out.next) {
			f.out.next = c.DrainUntil
		}
		f.out.Endpoints = append(f.out.Endpoints, c)
	}
}

// stillServed are those of an endpoint's ports that the Service still has.
func (f *finder) stillServed(ports []Port) []Port {
	return slices.DeleteFunc(slices.Clone(ports), func(p Port) bool {
		return !slices.ContainsFunc(f.Backend.Spec.Ports, func(s v1alpha1.Port) bool {
			return s.Name == p.Name && cmp.Or(s.Protocol, corev1.ProtocolTCP) == p.Protocol && f.Serves(&s)
		})
	})
}

// settleClaims is step 3. It leaves the candidates in the order of their claims.
func (f *finder) settleClaims() {
	if !slices.IsSortedFunc(f.out.Endpoints, compareClaims) {
		slices.SortStableFunc(f.out.Endpoints, compareClaims)
	}
	older := make(map[netip.Addr][][]Port, len(f.Older))
	for i := range f.Older {
		older[f.Older[i].Addr] = append(older[f.Older[i].Addr], f.Older[i].Ports)
	}
	f.nextClaim = make([]int32, len(f.out.Endpoints))
	kept := f.out.Endpoints[:0]
	for i := range f.out.Endpoints {
		c := &f.out.Endpoints[i]
		if f.claimed(c, kept, older[c.Addr]) {
			if c.target >= 0 && !c.leaving() {
				f.out.Notes[c.target].Duplicates++
			}
			continue
		}
		place := &f.at[c.place]
		f.nextClaim[len(kept)], place.claim = place.claim, int32(len(kept))
		if len(kept) == i {
			kept = f.out.Endpoints[:i+1]
		} else {
			kept = append(kept, *c)
		}
	}
	f.out.Endpoints = kept
}

// compareClaims orders claimants: the winner first.
func compareClaims(a, b Candidate) int {
	return cmp.Or(
		compareBool(a.leaving(), b.leaving()),
		cmp.Compare(a.tier, b.tier),
		compareBool(a.draining, b.draining),
	)
}

// claimed: an older ExternalBackend, or one of those kept, leads the same Service port to the same ip:port.
func (f *finder) claimed(c *Candidate, kept []Candidate, older [][]Port) bool {
	for i := f.at[c.place].claim; i >= 0; i = f.nextClaim[i] {
		if clash(kept[i].Ports, c.Ports) {
			return true
		}
	}
	return slices.ContainsFunc(older, func(p []Port) bool { return clash(p, c.Ports) })
}

// clash: a and b, at one address, lead one Service port to one port number. Both are sorted by name.
func clash(a, b []Port) bool {
	for len(a) > 0 && len(b) > 0 {
		switch order := cmp.Compare(a[0].Name, b[0].Name); {
		case order < 0:
			a = a[1:]
		case order > 0:
			b = b[1:]
		default:
			if a[0].Port == b[0].Port && a[0].Protocol == b[0].Protocol {
				return true
			}
			a, b = a[1:], b[1:]
		}
	}
	return false
}

// truncate is step 4.
func (f *finder) truncate() {
	if len(f.out.Endpoints) <= f.Max {
		return
	}
	slices.SortStableFunc(f.out.Endpoints, func(a, b Candidate) int {
		_, isA := f.standing(&a)
		_, isB := f.standing(&b)
		return compareBool(!isA, !isB)
	})
	for _, c := range f.out.Endpoints[f.Max:] {
		if c.target >= 0 {
			f.out.Notes[c.target].Truncated++
		}
	}
	f.out.Endpoints = f.out.Endpoints[:f.Max]
}

// compareBool orders false before true.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}
