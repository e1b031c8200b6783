package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/external-backend/operator/api/v1alpha1"
	"github.com/external-backend/operator/internal/endpointslice"
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
	// Reason is the fixed word for status, Cause the fixed phrase for messages; both "" where the
	// answer is current.
	Reason, Cause string
	// Omitted is how many addresses the bound on a name's addresses has cut off.
	Omitted int
	// Refusal is what policy says of the name itself, whatever its addresses; a denied one is not
	// resolved.
	Refusal Refusal
}

// missing: nothing is known of the name, whether it exists included.
func (a *Answer) missing() bool {
	return a.Status == AnswerPending || a.Status == AnswerFailed && a.Reason == v1alpha1.ReasonResolutionFailed
}

// Addr is one address of an answer. Port and Rank are 0 but for SRV.
type Addr struct {
	IP   netip.Addr
	Port uint16
	Rank uint8
}

// Refusal is what policy says of one address.
type Refusal struct {
	// Denied: the address may be neither published nor probed. WouldDeny: it may, but a policy in mode
	// Audit would refuse it.
	Denied, WouldDeny bool
	// KeepPublished: the address is refused by discovery alone, so one that is published already stays
	// and is reported.
	KeepPublished bool
	// Kind is the fixed phrase that tells which rule it was.
	Kind string
	// Port is the port that no policy allows, where that is why.
	Port Port
	// OfCheck: Port is the one that is probed, and none that is published.
	OfCheck bool
}

// text says for people why it is refused.
func (r *Refusal) text() string {
	if r.Port.Port == 0 {
		return r.Kind
	}
	field := ""
	if r.OfCheck {
		field = " of spec.healthCheck"
	}
	return fmt.Sprintf("port %d/%s%s is not allowed by any policy", r.Port.Port, r.Port.Protocol, field)
}

// Permit is policy's decision on an address and the ports that are published and probed there, for
// a target that was given by name ("" for a literal address).
type Permit func(name string, addr netip.Addr, ports []Port) Refusal

// NamedAddr is an address that may be published, and the name that led to it.
type NamedAddr struct {
	Addr netip.Addr
	Name string
}

// ProbeID identifies what is probed: the endpoint, told apart by the target, the address, and the
// first of its ports (two SRV records may share a host).
type ProbeID struct {
	Target string
	Addr   netip.Addr
	Port   uint16
}

// Probe is one endpoint to be probed.
type Probe struct {
	ID   ProbeID
	Dial netip.AddrPort
	// Host is the target's hostname; "" for a literal address. Name is what policy knows it by: the
	// name that led to the address, an SRV record's too.
	Host, Name string
	// InitialVerdict is what its slice and status say of it, which is its verdict until a probe says otherwise.
	InitialVerdict Verdict
}

// origin is where an endpoint to be comes from.
type origin struct {
	// name is the one that led to its address; "" where none did. host is the one under which it is
	// probed, probePort where; 0 where it is not.
	name, host string
	probePort  uint16
	// draining: the target is Draining, or the address is leaving. lost: it is not published, because
	// of another claim or of Max.
	draining, lost bool
	// published: an endpoint of that address stands in a slice, and healthy is what that tells of its
	// health. unread: it is in a slice of ours whose annotation tells nothing of it.
	published, healthy, unread bool
	// kept: it stays just as it is published, because a name that may have led to it has no answer
	// yet.
	kept bool
	seed Verdict
	// target is the index in spec.targets; -1 where it has none there.
	target int32
	// place is the number of its address.
	place int32
}

func (o *origin) probed() bool { return o.probePort != 0 }

// TargetNotes are what has been decided of one target on the way to its endpoints.
type TargetNotes struct {
	Answer Answer
	// Denied is why policy refuses an address of it, Audited why it would; "" where it does not.
	Denied, Audited string
	// Duplicates, OtherFamily and Truncated count the addresses that are not published for these
	// reasons.
	Duplicates, OtherFamily, Truncated int
	// Winner is who publishes the first of the duplicates, for people.
	Winner string
}

func (n *TargetNotes) refuse(r Refusal) {
	if r.WouldDeny {
		n.Audited = r.text()
	}
	if r.Denied {
		n.Denied = r.text()
	}
}

// Input is all that endpoints are planned from.
type Input struct {
	Backend  *v1alpha1.ExternalBackend
	Families Families
	// Headless: the endpoints carry their target's name as hostname.
	Headless bool
	// ServesPort tells whether the Service has the port, by name and protocol.
	ServesPort func(*v1alpha1.Port) bool
	// Answers are those of the targets that are given by name, by target name. The map is the
	// planner's to keep.
	Answers map[string]Answer
	Permit  Permit
	// Rules is what Permit goes by, of a comparable type, such as a pointer to compiled policies: as
	// long as it is the same, Permit decides the same.
	Rules any
	// Published is what stands in the slices, or others are about to leave to them; Status what was
	// said of it.
	Published *endpointslice.PublishedEndpoints
	Status    v1alpha1.ExternalBackendStatus
	// SiblingEndpoints is what other ExternalBackends on the same Service publish, or did a moment ago: an
	// address that passes from one to another is known to be well or not.
	SiblingEndpoints []Endpoint
	// OlderSiblings and YoungerSiblings are what older and younger ExternalBackends on the same Service publish.
	OlderSiblings, YoungerSiblings []Endpoint
	// SiblingNames name the ExternalBackend behind each address of OlderSiblings and YoungerSiblings, for people.
	SiblingNames map[netip.Addr]string
	// Probes are those of the plan before, by which the addresses that have left since go on being
	// probed, and NamedAddrs its addresses, by which policy goes on judging them; nil after a restart.
	Probes     []Probe
	NamedAddrs []NamedAddr
	// Max is the most endpoints to publish.
	Max int
	Now time.Time
}

// Candidates are the endpoints that may be published, each with its probe, and why others may not.
type Candidates struct {
	// Endpoints are in the order of their targets' names, those that are leaving last. Their
	// conditions are for Publish to set.
	Endpoints []Endpoint
	origins   []origin // parallel to Endpoints
	// Notes are parallel to spec.targets.
	Notes []TargetNotes
	// next is when the first leaving address is to be gone.
	next time.Time
	// layout is that of the slices that hold them, where they are those of the plan before; else nil.
	layout *endpointslice.Layout
	// keeps: some stay as they are published, whatever that is.
	keeps bool
}

// published tells of endpoint i what [origin] does, by what is published now.
func (c *Candidates) published(i int) (published, healthy, unread bool) {
	o := &c.origins[i]
	if c.layout != nil {
		return o.probed(), c.layout.Healthy(i), false
	}
	return o.published, o.healthy, o.unread
}

// id identifies endpoint i among the probes.
func (c *Candidates) id(i int) ProbeID {
	e := &c.Endpoints[i]
	return ProbeID{Target: e.Target, Addr: e.Addr, Port: uint16(e.Ports[0].Port)}
}

func (c *Candidates) probe(i int) Probe {
	o := &c.origins[i]
	return Probe{ID: c.id(i), Dial: netip.AddrPortFrom(c.Endpoints[i].Addr, o.probePort), Host: o.host, Name: o.name, InitialVerdict: o.seed}
}

// NamedAddrs are the addresses of the endpoints that a name led to, for the next plan; never nil. Where
// they are those of the plan before, they are before itself.
func (c *Candidates) NamedAddrs(before []NamedAddr) []NamedAddr {
	if c.layout != nil {
		return before
	}
	n, same := 0, before != nil
	for i := range c.origins {
		if name := c.origins[i].name; name != "" {
			same = same && n < len(before) && before[n] == NamedAddr{c.Endpoints[i].Addr, name}
			n++
		}
	}
	if same && n == len(before) {
		return before
	}
	named := make([]NamedAddr, 0, n)
	for i := range c.origins {
		if name := c.origins[i].name; name != "" {
			named = append(named, NamedAddr{c.Endpoints[i].Addr, name})
		}
	}
	return named
}

// Probes are the endpoints to probe, in their order; none without healthCheck. Where they are those
// of the plan before, but for seeds, which only count the first time, they are before itself, to
// which changed is false.
func (c *Candidates) Probes(before []Probe) (probes []Probe, changed bool) {
	if c.layout != nil {
		return before, false
	}
	n := 0
	for i := range c.origins {
		if !c.origins[i].probed() {
			continue
		}
		if n >= len(before) || !before[n].same(c, i) {
			return c.allProbes(), true
		}
		n++
	}
	if n < len(before) {
		return c.allProbes(), true
	}
	return before, false
}

func (c *Candidates) allProbes() []Probe {
	probes := make([]Probe, 0, len(c.Endpoints))
	for i := range c.origins {
		if c.origins[i].probed() {
			probes = append(probes, c.probe(i))
		}
	}
	return probes
}

// same: p is the probe of endpoint i, whatever its seed.
func (p *Probe) same(c *Candidates, i int) bool {
	e, o := &c.Endpoints[i], &c.origins[i]
	return p.ID.Addr == e.Addr && p.Dial.Port() == o.probePort && p.ID.Port == uint16(e.Ports[0].Port) && p.ID.Target == e.Target && p.Host == o.host && p.Name == o.name
}

// findCandidates is [Cache.Candidates] from the beginning.
func findCandidates(in Input) Candidates {
	f := newFinder(in)
	for _, i := range byName(in.Backend.Spec.Targets) {
		f.expand(i)
	}
	f.leave()
	f.settleClaims()
	return f.out
}

// byName returns the indexes of targets in the order of their names: the order of spec.targets
// belongs to nobody.
func byName(targets []v1alpha1.Target) []int {
	order := make([]int, len(targets))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return strings.Compare(targets[a].Name, targets[b].Name) })
	return order
}

// finder carries the state of one findCandidates.
type finder struct {
	Input
	// at tells of each place who claims it.
	at []place
	// common are the ports of targets without overrides.
	common []Port
	// beside is Input.SiblingEndpoints by address.
	beside map[netip.Addr]*Endpoint
	// states are those of the targets in Status.
	states map[string]v1alpha1.TargetState
	// nextClaim chains the candidates of one place; -1 ends a chain.
	nextClaim []int32
	out       Candidates
}

// place is one address.
type place struct {
	claim int32
	// named: spec and answers name the address, be it allowed or not, so that it has not left.
	named bool
}

func newFinder(in Input) *finder {
	in.Published.Endpoints() // from here on places are asked for
	n := len(in.Backend.Spec.Targets)
	for _, a := range in.Answers {
		n += len(a.Addrs)
	}
	f := &finder{Input: in, at: make([]place, 0, max(n, in.Published.Addresses()))}
	f.out.Notes = make([]TargetNotes, len(in.Backend.Spec.Targets))
	f.out.Endpoints = make([]Endpoint, 0, n)
	f.out.origins = make([]origin, 0, n)
	f.beside = make(map[netip.Addr]*Endpoint, len(in.SiblingEndpoints))
	for i := range in.SiblingEndpoints {
		if e := &in.SiblingEndpoints[i]; f.beside[e.Addr] == nil {
			f.beside[e.Addr] = e
		}
	}
	f.states = make(map[string]v1alpha1.TargetState, len(in.Status.Targets))
	for _, t := range in.Status.Targets {
		f.states[t.Name] = t.State
	}
	return f
}

// place finds or makes the place of an address.
func (f *finder) place(a netip.Addr) int32 {
	n := f.Published.Number(a)
	for int(n) >= len(f.at) {
		f.at = append(f.at, place{claim: -1})
	}
	return n
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
		notes.refuse(notes.Answer.Refusal)
	} else if ip, err := netip.ParseAddr(t.Address); err == nil {
		literal[0].IP = ip
		addrs = literal[:]
	}
	var ports []Port
	var srv uint16
	for _, a := range addrs {
		place := f.place(a.IP)
		f.at[place].named = true
		if t.AdminState == v1alpha1.AdminStateDisabled {
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
		return slicePorts(f.Backend, t, f.ServesPort, srv)
	}
	if f.common == nil {
		f.common = slicePorts(f.Backend, t, f.ServesPort, 0)
	}
	return f.common
}

// admit adds one address of target i, where policy and family allow it.
func (f *finder) admit(i int, a Addr, place int32, ports []Port) {
	t := &f.Backend.Spec.Targets[i]
	notes := &f.out.Notes[i]
	o := origin{target: int32(i), place: place, name: targetName(t), draining: t.AdminState == v1alpha1.AdminStateDraining}
	tier := tierOf(t, a.Rank)
	published, exact := f.Published.At(place, ports)
	if exact && published.Unread {
		published.Target, published.Tier = t.Name, tier
		o.unread = true
	}
	f.addProbe(&o, t, a.Port, ports, cmp.Or(published, f.beside[a.IP]))
	refusal := f.permit(o.name, a.IP, ports, o.probePort)
	notes.refuse(refusal)
	if refusal.Denied && (!exact || !refusal.KeepPublished) {
		return
	}
	if !f.Families.serves(a.IP) {
		notes.OtherFamily++
		return
	}
	if len(ports) == 0 {
		return
	}
	e := Endpoint{Target: t.Name, Addr: a.IP, Ports: ports, Tier: tier, Rank: a.Rank, Zone: t.Zone, NodeName: t.NodeName}
	if f.Headless {
		e.Hostname = t.Name
	}
	f.add(&e, &o)
}

func (f *finder) add(e *Endpoint, o *origin) {
	f.out.Endpoints = append(f.out.Endpoints, *e)
	f.out.origins = append(f.out.origins, *o)
}

// addProbe gives o its probe. An endpoint new to its slice takes the health of another one
// published at that address over: it is the same server.
func (f *finder) addProbe(o *origin, t *v1alpha1.Target, srv uint16, ports []Port, published *Endpoint) {
	if f.Backend.Spec.HealthCheck == nil || len(ports) == 0 {
		return
	}
	port, ok := probePort(f.Backend, t, srv)
	if !ok {
		return
	}
	o.probePort, o.host = port, t.Hostname
	if published != nil {
		o.published, o.healthy = true, published.Healthy
		o.seed = f.seed(t.Name, published)
	}
}

// seed is the last verdict on an endpoint that stands in a slice. Where the slice can't tell,
// because the check only observes, or because there was no verdict yet, the status of its target
// does.
func (f *finder) seed(target string, published *Endpoint) Verdict {
	state := f.states[target]
	switch {
	case published.Unread, !published.Healthy && state == v1alpha1.TargetStateUnknown:
		return Unknown
	case !published.Healthy, observes(f.Backend) && state == v1alpha1.TargetStateUnhealthy:
		return Unhealthy
	}
	return Healthy
}

// permit asks policy about an address, the ports published there, and the one that is probed.
func (f *finder) permit(name string, addr netip.Addr, ports []Port, probed uint16) Refusal {
	asked := func(p Port) bool { return p.Port == int32(probed) && p.Protocol == corev1.ProtocolTCP }
	if probed == 0 || slices.ContainsFunc(ports, asked) {
		return f.Permit(name, addr, ports)
	}
	r := f.Permit(name, addr, append(slices.Clip(ports), Port{Port: int32(probed), Protocol: corev1.ProtocolTCP}))
	r.OfCheck = asked(r.Port)
	return r
}

// leave is step 2.
func (f *finder) leave() {
	drain, unanswered := drainTime(f.Backend), f.unanswered()
	if drain == 0 && len(unanswered) == 0 {
		return
	}
	deadline := f.Now.Add(drain + time.Second - 1).Truncate(time.Second)
	var known leavers // most of the time nothing leaves
	published := f.Published.Endpoints()
	for i := range published {
		p := &published[i]
		place := f.place(p.Addr)
		if f.at[place].named || p.Target == "" && !p.Unread || !f.Families.serves(p.Addr) {
			continue
		}
		if known.targets == nil {
			known = newLeavers(f.Backend, f.Probes, f.NamedAddrs)
		}
		switch ours := !p.Unread || !p.DrainUntil.IsZero() || known.remembers(p.Addr); {
		case !ours:
		case p.Unread && p.DrainUntil.IsZero() && f.keep(p, place, unanswered):
		case drain > 0:
			f.drain(p, place, deadline, &known)
		}
	}
}

// unanswered are the names of which nothing is known that could tell whether an address is theirs.
func (f *finder) unanswered() []string {
	var names []string
	for i := range f.Backend.Spec.Targets {
		t := &f.Backend.Spec.Targets[i]
		if t.AdminState != v1alpha1.AdminStateDisabled && f.out.Notes[i].Answer.missing() {
			names = append(names, targetName(t))
		}
	}
	return names
}

// keep leaves an endpoint as it is published, where one of names may have led to it and policy
// permits that.
func (f *finder) keep(p *Endpoint, place int32, names []string) bool {
	e := *p
	if e.Ports = f.stillServed(p.Ports); len(e.Ports) == 0 {
		return false
	}
	for _, name := range names {
		if r := f.permit(name, e.Addr, e.Ports, 0); !r.Denied || r.KeepPublished {
			f.add(&e, &origin{target: -1, place: place, name: name, kept: true})
			f.out.keeps = true
			return true
		}
	}
	return false
}

// drain leaves an endpoint until it has drained, at deadline at the latest, where policy permits
// that.
func (f *finder) drain(p *Endpoint, place int32, deadline time.Time, known *leavers) {
	e, o := *p, origin{target: -1, place: place, draining: true, published: true, healthy: p.Healthy}
	if t, ok := known.targets[p.Target]; ok {
		target := &f.Backend.Spec.Targets[t]
		if target.AdminState == v1alpha1.AdminStateDisabled {
			return
		}
		o.target, e.Tier = int32(t), tierOf(target, p.Rank)
	}
	if e.DrainUntil.IsZero() || e.DrainUntil.After(deadline) {
		e.DrainUntil = deadline
	}
	if !e.DrainUntil.After(f.Now) {
		return
	}
	if e.Ports = f.stillServed(p.Ports); len(e.Ports) == 0 {
		return
	}
	if probe, ok := known.probes[ProbeID{Target: e.Target, Addr: e.Addr, Port: uint16(e.Ports[0].Port)}]; ok && f.Backend.Spec.HealthCheck != nil {
		o.probePort, o.host, o.seed = probe.Dial.Port(), probe.Host, probe.InitialVerdict
	}
	o.name, _ = known.name(f.Backend, p)
	if r := f.permit(o.name, e.Addr, e.Ports, o.probePort); r.Denied && !r.KeepPublished {
		return
	}
	f.add(&e, &o)
	if f.out.next.IsZero() || e.DrainUntil.Before(f.out.next) {
		f.out.next = e.DrainUntil
	}
}

// leavers is by what endpoints that are leaving are known: targets, as indexes in spec.targets, by
// their names, probes, and the names that led to addresses; nil where nothing is remembered.
type leavers struct {
	targets map[string]int
	probes  map[ProbeID]Probe
	names   map[netip.Addr]string
}

func newLeavers(b *v1alpha1.ExternalBackend, probes []Probe, named []NamedAddr) leavers {
	l := leavers{targets: make(map[string]int, len(b.Spec.Targets)), probes: make(map[ProbeID]Probe, len(probes))}
	for i := range b.Spec.Targets {
		l.targets[b.Spec.Targets[i].Name] = i
	}
	for _, p := range probes {
		l.probes[p.ID] = p
	}
	if named == nil {
		return l
	}
	l.names = make(map[netip.Addr]string, len(named))
	for _, n := range named {
		l.names[n.Addr] = n.Name
	}
	return l
}

// name is the one under which policy judges an endpoint that stands: that of the plan before. What
// slices say of targets is anybody's who may write slices, and is only relied on after a restart,
// for targets that the spec names; known is false for others.
func (l *leavers) name(b *v1alpha1.ExternalBackend, e *Endpoint) (name string, known bool) {
	if l.names != nil {
		return l.names[e.Addr], true
	}
	t, known := l.targets[e.Target]
	if known {
		name = targetName(&b.Spec.Targets[t])
	}
	return name, known
}

// remembers reports whether the plan before had the address by a name; true where there was none,
// after a restart.
func (l *leavers) remembers(addr netip.Addr) bool {
	_, ok := l.names[addr]
	return ok || l.names == nil
}

// stillServed are those of an endpoint's ports that the Service still has.
func (f *finder) stillServed(ports []Port) []Port {
	return slices.DeleteFunc(slices.Clone(ports), func(p Port) bool {
		return !slices.ContainsFunc(f.Backend.Spec.Ports, func(s v1alpha1.Port) bool {
			return s.Name == p.Name && cmp.Or(s.Protocol, corev1.ProtocolTCP) == p.Protocol && f.ServesPort(&s)
		})
	})
}

// clash: a and b, at one address, lead one Service port to one port number. Both are sorted by
// name.
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

// settleClaims is steps 3 and 4.
func (f *finder) settleClaims() {
	siblings := f.siblingClaims()
	f.nextClaim = make([]int32, len(f.out.Endpoints))
	order := f.claimOrder()
	kept := order[:0]
	for _, i := range order {
		e, o := &f.out.Endpoints[i], &f.out.origins[i]
		if winner := f.winner(e, o, siblings[e.Addr]); winner != "" {
			o.lost = true
			if o.target >= 0 && !e.Leaving() {
				notes := &f.out.Notes[o.target]
				notes.Duplicates++
				notes.Winner = cmp.Or(notes.Winner, winner)
			}
			continue
		}
		place := &f.at[o.place]
		f.nextClaim[i], place.claim = place.claim, i
		kept = append(kept, i)
	}
	f.truncate(kept)
	f.out.drop()
}

// siblingClaim is what another ExternalBackend publishes at an address. overLeaving: it wins only
// over what is leaving.
type siblingClaim struct {
	ports       []Port
	overLeaving bool
}

// siblingClaims are the claims that win over ours, by address: an older one over all, but only over
// what is leaving where it is leaving itself; a younger one that stays only over what is leaving.
func (f *finder) siblingClaims() map[netip.Addr][]siblingClaim {
	claims := make(map[netip.Addr][]siblingClaim, len(f.OlderSiblings)+len(f.YoungerSiblings))
	for i := range f.OlderSiblings {
		e := &f.OlderSiblings[i]
		claims[e.Addr] = append(claims[e.Addr], siblingClaim{ports: e.Ports, overLeaving: e.Leaving()})
	}
	for i := range f.YoungerSiblings {
		if e := &f.YoungerSiblings[i]; !e.Leaving() {
			claims[e.Addr] = append(claims[e.Addr], siblingClaim{ports: e.Ports, overLeaving: true})
		}
	}
	return claims
}

// claimOrder is the order in which candidates claim their places: the winner first.
func (f *finder) claimOrder() []int32 {
	order := make([]int32, len(f.out.Endpoints))
	for i := range order {
		order[i] = int32(i)
	}
	compare := func(a, b int32) int {
		x, y := &f.out.origins[a], &f.out.origins[b]
		return cmp.Or(
			compareBool(f.out.Endpoints[a].Leaving(), f.out.Endpoints[b].Leaving()),
			cmp.Compare(f.out.Endpoints[a].Tier, f.out.Endpoints[b].Tier),
			compareBool(x.draining, y.draining),
		)
	}
	if !slices.IsSortedFunc(order, compare) {
		slices.SortStableFunc(order, compare)
	}
	return order
}

// winner names the sibling that wins, or the target among those kept, that leads the same Service
// port to the same ip:port; "" where there is none.
func (f *finder) winner(e *Endpoint, o *origin, siblings []siblingClaim) string {
	for i := f.at[o.place].claim; i >= 0; i = f.nextClaim[i] {
		if clash(f.out.Endpoints[i].Ports, e.Ports) {
			return fmt.Sprintf("target %q", f.out.Endpoints[i].Target)
		}
	}
	for _, c := range siblings {
		if (!c.overLeaving || e.Leaving()) && clash(c.ports, e.Ports) {
			return fmt.Sprintf("ExternalBackend %q", f.SiblingNames[e.Addr])
		}
	}
	return ""
}

// truncate is step 4; kept are in the order of their claims.
func (f *finder) truncate(kept []int32) {
	if len(kept) <= f.Max {
		return
	}
	fresh := func(i int32) bool {
		_, stands := f.Published.At(f.out.origins[i].place, f.out.Endpoints[i].Ports)
		return !stands
	}
	slices.SortStableFunc(kept, func(a, b int32) int {
		leaving := compareBool(f.out.Endpoints[a].Leaving(), f.out.Endpoints[b].Leaving())
		return cmp.Or(leaving, compareBool(fresh(a), fresh(b)))
	})
	for _, i := range kept[f.Max:] {
		e, o := &f.out.Endpoints[i], &f.out.origins[i]
		o.lost = true
		if o.target >= 0 && !e.Leaving() {
			f.out.Notes[o.target].Truncated++
		}
	}
}

// drop removes what is lost, and lets go of its memory where that was most.
func (c *Candidates) drop() {
	n := 0
	for i := range c.origins {
		if c.origins[i].lost {
			continue
		}
		if n < i {
			c.Endpoints[n], c.origins[n] = c.Endpoints[i], c.origins[i]
		}
		n++
	}
	c.Endpoints, c.origins = c.Endpoints[:n], c.origins[:n]
	if n < cap(c.Endpoints)/2 {
		c.Endpoints, c.origins = slices.Clone(c.Endpoints), slices.Clone(c.origins)
	}
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
