package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/external-backend/operator/api/v1alpha1"
)

// buildCandidates decides in four passes which endpoints may be published:
//
//  1. expandTargets adds an endpoint for each address of each target that is not Disabled, if
//     policy allows the address and the Service serves its IP family.
//  2. keepLeaving adds the published endpoints whose address has left spec or DNS. Each stays for
//     drainSeconds, unless policy denies it. After a restart, an Unread endpoint stays as it is
//     while a name that may have led to it has no answer.
//  3. resolveConflicts lets one endpoint publish each ip:port of a Service port. The order is: an
//     older sibling, the lower tier, Active before Draining, the name of the target. A leaving
//     address loses to all others, those of a younger sibling included. The loser loses all its
//     ports.
//  4. enforceLimit cuts the list at Max. Published endpoints come first, then new ones, then
//     leaving ones.
func buildCandidates(in Input) Candidates {
	b := newBuilder(in)
	b.expandTargets()
	b.keepLeaving()
	winners := b.resolveConflicts()
	b.enforceLimit(winners)
	b.removeRejected()
	return b.Candidates
}

// expandTargets is pass 1. It visits targets in the order of their names, because the order of
// spec.targets means nothing.
func (b *builder) expandTargets() {
	targets := b.Backend.Spec.Targets
	order := indexes(len(targets))
	slices.SortFunc(order, func(i, j int32) int { return strings.Compare(targets[i].Name, targets[j].Name) })
	for _, i := range order {
		b.expandTarget(int(i))
	}
}

func (b *builder) expandTarget(i int) {
	t := &b.Backend.Spec.Targets[i]
	notes := &b.Notes[i]
	var addrs []Addr
	var literal [1]Addr
	if name := targetName(t); name != "" {
		notes.Answer = b.Answers[t.Name]
		notes.Answer.Status = cmp.Or(notes.Answer.Status, AnswerPending)
		addrs = notes.Answer.Addrs
		notes.addRefusal(notes.Answer.Refusal)
	} else if ip, err := netip.ParseAddr(t.Address); err == nil {
		literal[0].IP = ip
		addrs = literal[:]
	}

	var ports []Port
	var srvPort uint16
	for _, a := range addrs {
		number := b.address(a.IP)
		b.addresses[number].wanted = true
		if t.AdminState == v1alpha1.AdminStateDisabled {
			continue
		}
		if ports == nil || srvPort != a.Port {
			ports, srvPort = b.portsOf(t, a.Port), a.Port
		}
		b.addAddress(i, a, number, ports)
	}
}

// addAddress adds one address of target i, if policy and IP family allow it.
func (b *builder) addAddress(i int, a Addr, number int32, ports []Port) {
	t := &b.Backend.Spec.Targets[i]
	notes := &b.Notes[i]
	o := origin{
		target: int32(i), address: number, name: targetName(t),
		terminating: t.AdminState == v1alpha1.AdminStateDraining,
	}
	tier := tierOf(t, a.Rank)

	var published *Endpoint
	at, exact := b.Published.At(number, ports)
	if at >= 0 {
		published = &b.Published.Endpoints()[at]
	}
	if exact && published.Unread {
		o.unread = true
		if b.attributed == nil {
			b.attributed = slices.Clone(b.Published.Endpoints())
		}
		b.attributed[at].Target, b.attributed[at].Tier = t.Name, tier
	}
	b.setProbe(&o, t, a.Port, ports, cmp.Or(published, b.siblings[a.IP]))

	refusal := b.permit(o.name, a.IP, ports, o.probePort)
	notes.addRefusal(refusal)
	if refusal.Denied && (!exact || !refusal.KeepPublished) {
		return
	}
	if !b.Families.serves(a.IP) {
		notes.OtherFamily++
		return
	}
	if len(ports) == 0 {
		return
	}

	e := Endpoint{
		Target: t.Name, Addr: a.IP, Ports: ports, Tier: tier, Rank: a.Rank, Zone: t.Zone, NodeName: t.NodeName,
	}
	if b.Headless {
		e.Hostname = t.Name
	}
	b.add(&e, &o)
}

// keepLeaving is pass 2.
func (b *builder) keepLeaving() {
	drainTime, unanswered := b.Backend.Spec.EffectiveDrain(), b.unansweredNames()
	if drainTime == 0 && len(unanswered) == 0 {
		return
	}

	drainEnd := b.Now.Add(drainTime + time.Second - 1).Truncate(time.Second)
	var lookup leavingLookup // made on first use: mostly nothing leaves
	published := b.Published.Endpoints()
	for i := range published {
		p := &published[i]
		number := b.address(p.Addr)
		if b.addresses[number].wanted || p.FromHandover() || !b.Families.serves(p.Addr) {
			continue
		}
		if lookup.targets == nil {
			lookup = newLeavingLookup(b.Backend, b.Input.Probes, b.Input.NamedAddrs)
		}
		unattributed := p.Unread && p.DrainUntil.IsZero()
		if unattributed && (!lookup.mayBeOurs(p.Addr) || b.keepAsPublished(p, number, unanswered)) {
			continue
		}
		if drainTime > 0 {
			b.keepUntil(drainEnd, p, number, &lookup)
		}
	}
}

// unansweredNames returns the names without an answer that shows which addresses they lead to.
func (b *builder) unansweredNames() []string {
	var names []string
	for i := range b.Backend.Spec.Targets {
		t := &b.Backend.Spec.Targets[i]
		if t.AdminState != v1alpha1.AdminStateDisabled && b.Notes[i].Answer.unknown() {
			names = append(names, targetName(t))
		}
	}
	return names
}

// keepAsPublished keeps an endpoint exactly as it is published, if policy allows it under one of
// names. It reports whether it did.
func (b *builder) keepAsPublished(p *Endpoint, number int32, names []string) bool {
	e := *p
	if e.Ports = b.servedPorts(p.Ports); len(e.Ports) == 0 {
		return false
	}
	for _, name := range names {
		if r := b.permit(name, e.Addr, e.Ports, 0); !r.Denied || r.KeepPublished {
			b.add(&e, &origin{target: -1, address: number, name: name, asPublished: true})
			b.keepsPublished = true
			return true
		}
	}
	return false
}

// keepUntil keeps a published endpoint until it has drained, at drainEnd at the latest, if policy
// allows it.
func (b *builder) keepUntil(drainEnd time.Time, p *Endpoint, number int32, lookup *leavingLookup) {
	e, o := *p, origin{target: -1, address: number, terminating: true, keepsHealth: true, healthy: p.Healthy}
	if i, ok := lookup.targets[p.Target]; ok {
		t := &b.Backend.Spec.Targets[i]
		if t.AdminState == v1alpha1.AdminStateDisabled {
			return
		}
		o.target, e.Tier = int32(i), tierOf(t, p.Rank)
	}

	e.DrainUntil = earlier(e.DrainUntil, drainEnd)
	if !e.DrainUntil.After(b.Now) {
		return
	}
	if e.Ports = b.servedPorts(p.Ports); len(e.Ports) == 0 {
		return
	}

	id := ProbeID{Target: e.Target, Addr: e.Addr, Port: uint16(e.Ports[0].Port)}
	if probe, ok := lookup.probes[id]; ok && b.Backend.Spec.HealthCheck != nil {
		o.probePort, o.host, o.seed = probe.Dial.Port(), probe.Host, probe.SeedVerdict
	}
	o.name, _ = lookup.nameOf(p)
	if r := b.permit(o.name, e.Addr, e.Ports, o.probePort); r.Denied && !r.KeepPublished {
		return
	}
	b.add(&e, &o)
	b.nextDrainEnd = earlier(b.nextDrainEnd, e.DrainUntil)
}

// resolveConflicts is pass 3. It marks the losers as rejected and returns the others, in the order
// in which they win.
func (b *builder) resolveConflicts() []int32 {
	claims := b.siblingClaims()
	b.nextWinner = make([]int32, len(b.Endpoints))
	order := b.winningOrder()
	winners := order[:0]
	for _, i := range order {
		e, o := &b.Endpoints[i], &b.origins[i]
		if winner := b.winnerOver(e, o, claims[e.Addr]); winner != "" {
			o.rejected = true
			if o.target >= 0 && !e.Leaving() {
				notes := &b.Notes[o.target]
				notes.Duplicates++
				notes.Winner = cmp.Or(notes.Winner, winner)
			}
			continue
		}
		address := &b.addresses[o.address]
		b.nextWinner[i], address.winner = address.winner, i
		winners = append(winners, i)
	}
	return winners
}

// siblingClaim is what a sibling publishes at an address, and wins over us. overLeaving reports
// whether it wins only over leaving endpoints.
type siblingClaim struct {
	sibling     string
	ports       []Port
	overLeaving bool
}

// siblingClaims returns the claims of siblings by address. Those of older siblings win over all our
// endpoints, or over leaving ones if they are leaving themselves. Those of younger siblings win
// over leaving endpoints, unless they are leaving themselves.
func (b *builder) siblingClaims() map[netip.Addr][]siblingClaim {
	claims := map[netip.Addr][]siblingClaim{}
	for _, s := range b.Siblings {
		for i := range s.Endpoints {
			if e := &s.Endpoints[i]; s.Older || !e.Leaving() {
				claim := siblingClaim{sibling: s.Name, ports: e.Ports, overLeaving: !s.Older || e.Leaving()}
				claims[e.Addr] = append(claims[e.Addr], claim)
			}
		}
	}
	return claims
}

// winningOrder returns the candidates in the order in which they win over each other.
func (b *builder) winningOrder() []int32 {
	order := indexes(len(b.Endpoints))
	compare := func(i, j int32) int {
		x, y := &b.Endpoints[i], &b.Endpoints[j]
		return cmp.Or(
			compareBool(x.Leaving(), y.Leaving()),
			cmp.Compare(x.Tier, y.Tier),
			compareBool(b.origins[i].terminating, b.origins[j].terminating),
		)
	}
	if !slices.IsSortedFunc(order, compare) {
		slices.SortStableFunc(order, compare)
	}
	return order
}

// winnerOver names the target or sibling that publishes the same ip:port for the same Service port
// and wins over e; "" if there is none.
func (b *builder) winnerOver(e *Endpoint, o *origin, claims []siblingClaim) string {
	for i := b.addresses[o.address].winner; i >= 0; i = b.nextWinner[i] {
		if portsConflict(b.Endpoints[i].Ports, e.Ports) {
			return fmt.Sprintf("target %q", b.Endpoints[i].Target)
		}
	}
	for _, c := range claims {
		if (!c.overLeaving || e.Leaving()) && portsConflict(c.ports, e.Ports) {
			return fmt.Sprintf("ExternalBackend %q", c.sibling)
		}
	}
	return ""
}

// portsConflict reports whether a and b, at one address, send the traffic of one Service port to
// one port number. Both are sorted by name.
func portsConflict(a, b []Port) bool {
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

// enforceLimit is pass 4. It marks the winners above Max as rejected.
func (b *builder) enforceLimit(winners []int32) {
	if len(winners) <= b.Max {
		return
	}

	isNew := func(i int32) bool {
		_, published := b.Published.At(b.origins[i].address, b.Endpoints[i].Ports)
		return !published
	}
	slices.SortStableFunc(winners, func(i, j int32) int {
		leaving := compareBool(b.Endpoints[i].Leaving(), b.Endpoints[j].Leaving())
		return cmp.Or(leaving, compareBool(isNew(i), isNew(j)))
	})
	for _, i := range winners[b.Max:] {
		e, o := &b.Endpoints[i], &b.origins[i]
		o.rejected = true
		if o.target >= 0 && !e.Leaving() {
			b.Notes[o.target].Truncated++
		}
	}
}

// removeRejected removes the rejected candidates. It frees their memory if they were the majority.
func (c *Candidates) removeRejected() {
	n := 0
	for i := range c.origins {
		if c.origins[i].rejected {
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

// indexes returns 0 to n-1.
func indexes(n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(i)
	}
	return out
}

// compareBool orders false before true.
func compareBool(a, b bool) int { return int(boolToInt(a) - boolToInt(b)) }

func boolToInt(b bool) int32 {
	if b {
		return 1
	}
	return 0
}
